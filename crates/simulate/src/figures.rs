//! Figures of a simulated cluster, compared with those of RouteBricks (SOSP 2009) and our goals: what
//! `brickmoon bench cluster` shows.
//!
//! ```text
//! four nodes, as RB4 had: order and delays        meshes of other sizes: loads, service, fairness
//!        └──────────────► simulate ◄────────────────────┘
//! ```
//!
//! A seed gives the same figures on any machine; how fast the simulator is, is not among them.

use bm_vlb::{Mode, Rule};
use serde::Serialize;

use crate::options::{Matrix, Options, Shape};
use crate::report::{Delay, Report};
use crate::simulate::{SimulationError, simulate};

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Meshes: number of nodes, and simulated time in ms for each matrix.
    pub meshes: Vec<(u16, u64)>,
    /// Simulated time of four nodes in ms.
    pub four_ms: u64,
    pub seed: u64,
}

/// Fairness is not simulated for more nodes than this: it would take too long.
const HOT_MAX: u16 = 256;

impl Default for Sizes {
    fn default() -> Self {
        Self { meshes: vec![(64, 200), (1024, 20)], four_ms: 500, seed: 1 }
    }
}

/// A row of the table, with what clusters of each size have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub name: &'static str,
    /// What RouteBricks has; empty: nothing is published.
    pub routebricks: &'static str,
    pub goal: &'static str,
    /// By the column, such as "64 nodes".
    pub values: Vec<Value>,
}

/// A figure of one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    pub column: String,
    pub value: f64,
    /// Whether it is as good as the goal; `None`: the goal is about something else.
    pub met: Option<bool>,
}

/// What the bench shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub figures: Vec<Figure>,
    /// Delays between ports of four nodes, by the number of links; RouteBricks: 47.6 to 66.4 us.
    pub delays: Vec<Delay>,
}

/// A limit: at most, or at least.
#[derive(Clone, Copy)]
enum Goal {
    Most(f64),
    Least(f64),
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::Most(most) => Some(value <= most),
            Self::Least(least) => Some(value >= least),
            Self::None => None,
        }
    }
}

/// What is measured of a mesh: name, RouteBricks, goal, the matrix, and the figure.
type Row = (&'static str, &'static str, &'static str, Goal, Matrix, fn(&Report) -> f64);

const ROWS: [Row; 9] = [
    ("load per node c, uniform, mean", "2", "2.05", Goal::Most(2.05), Matrix::Uniform, |report| {
        report.c_mean
    }),
    ("load per node c, uniform, busiest", "2", "2.05", Goal::Most(2.05), Matrix::Uniform, |report| report.c),
    ("load per node c, permutation, busiest", "3", "3.0", Goal::Most(3.0), Matrix::Permutation, |report| {
        report.c
    }),
    ("busiest link in R/N, uniform", "2", "2.05", Goal::Most(2.05), Matrix::Uniform, |report| {
        report.busiest_link
    }),
    ("busiest link in R/N, permutation", "2", "2.05", Goal::Most(2.05), Matrix::Permutation, |report| {
        report.busiest_link
    }),
    ("busiest link in R/N, adversarial", "", "3.0", Goal::Most(3.0), Matrix::Adversarial, |report| {
        report.busiest_link
    }),
    ("admissible traffic served %, uniform", "100", "99.9", Goal::Least(99.9), Matrix::Uniform, |report| {
        report.served_percent
    }),
    (
        "admissible traffic served %, permutation",
        "100",
        "99.9",
        Goal::Least(99.9),
        Matrix::Permutation,
        |report| report.served_percent,
    ),
    ("fairness of inputs at a hot output (Jain)", "", "0.99", Goal::Least(0.99), Matrix::Hot, |report| {
        report.fairness
    }),
];

/// Simulates everything. `progress` is called with a description of each step before it begins.
///
/// # Errors
/// A check of the simulator failed.
pub fn figures(sizes: &Sizes, mut progress: impl FnMut(&str)) -> Result<Figures, SimulationError> {
    let mut figures: Vec<_> =
        ROWS.iter().map(|(name, routebricks, goal, ..)| Figure::new(name, routebricks, goal)).collect();
    for (nodes, ms) in &sizes.meshes {
        for matrix in Matrix::ALL {
            if matrix == Matrix::Hot && *nodes > HOT_MAX {
                continue;
            }
            progress(&format!("{nodes} nodes, {matrix}"));
            let report = simulate(&mesh(*nodes, *ms, matrix, sizes.seed))?;
            for (figure, (.., goal, of, value)) in figures.iter_mut().zip(&ROWS) {
                if *of == matrix {
                    figure.add(&format!("{nodes} nodes"), value(&report), *goal);
                }
            }
        }
    }
    progress("4 nodes, with and without flowlets");
    let with = Options { load_percent: 90, ..mesh(4, sizes.four_ms, Matrix::Permutation, sizes.seed) };
    let (flowlets, packets) = (simulate(&with)?, simulate(&Options { delta_ns: Some(0), ..with })?);
    let mut order = Figure::new("reordered %, all traffic of an input to one output", "0.15", "0.05");
    order.add("4 nodes", flowlets.reordered_percent, Goal::Most(0.05));
    let mut without = Figure::new("the same without flowlets", "5.5", "");
    without.add("4 nodes", packets.reordered_percent, Goal::None);
    let mut link = Figure::new("busiest link in R/N, the same without flowlets", "", "");
    link.add("4 nodes", packets.busiest_link, Goal::None);
    let mut both = Figure::new("busiest link in R/N, with flowlets", "", "as without");
    both.add("4 nodes", flowlets.busiest_link, Goal::Most(packets.busiest_link * 1.05));
    figures.extend([order, without, both, link]);
    Ok(Figures { figures, delays: flowlets.delays })
}

fn mesh(nodes: u16, ms: u64, matrix: Matrix, seed: u64) -> Options {
    let mode = Mode::DirectVlb(Rule::TwoShares);
    Options { shape: Shape::Mesh(nodes), matrix, mode, time_ns: ms * 1_000_000, seed, ..Options::default() }
}

impl Figure {
    /// Without a value.
    pub fn new(name: &'static str, routebricks: &'static str, goal: &'static str) -> Self {
        Self { name, routebricks, goal, values: Vec::new() }
    }

    fn add(&mut self, column: &str, value: f64, goal: Goal) {
        self.values.push(Value { column: column.into(), value, met: goal.is_met(value) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_repeated_by_their_seed() {
        let sizes = Sizes { meshes: vec![(8, 40)], four_ms: 40, seed: 7 };
        let mut steps = Vec::new();
        let one = figures(&sizes, |step| steps.push(step.to_string())).expect("all checks pass");
        assert_eq!(figures(&sizes, |_| ()), Ok(one.clone()));
        assert_eq!((steps.len(), steps[0].as_str()), (5, "8 nodes, uniform"));
        let value = |name: &str| {
            let figure = one.figures.iter().find(|figure| figure.name.starts_with(name)).expect(name);
            let [value] = &figure.values[..] else { panic!("{figure:?}") };
            value.value
        };
        assert!((1.0..3.2).contains(&value("load per node c, permutation")), "{one:?}");
        assert!(value("admissible traffic served %, uniform") > 99.9, "{one:?}");
        assert!(value("reordered %") < value("the same without flowlets"), "{one:?}");
        let links: Vec<_> = one.delays.iter().map(|delay| delay.links).collect();
        assert_eq!(links, [1, 2]);
    }

    #[test]
    fn goals_are_limits() {
        assert_eq!((Goal::Most(2.0).is_met(2.0), Goal::Most(2.0).is_met(2.1)), (Some(true), Some(false)));
        assert_eq!((Goal::Least(0.9).is_met(0.8), Goal::None.is_met(1.0)), (Some(false), None));
    }
}
