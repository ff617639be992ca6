//! Options of a simulation.

use std::fmt;
use std::str::FromStr;

use bm_vlb::topology::Impossible;
use bm_vlb::{Mode, Topology};

use crate::random::Random;

/// How much each input sends to each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Every input sends the same to every other output.
    Uniform,
    /// Like `Uniform`, and as much again to node 0, which is offered twice what its ports can send.
    Hot,
    /// Every input sends everything to one output, a different one for each.
    Permutation,
    /// The one with the highest load on one link: 0 sends R/N to 1 and the rest to 2, 3 sends the rest to 1.
    Adversarial,
}

impl Matrix {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Hot, Self::Permutation, Self::Adversarial];
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uniform => "uniform",
            Self::Hot => "hot",
            Self::Permutation => "permutation",
            Self::Adversarial => "adversarial",
        })
    }
}

impl FromStr for Matrix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|matrix| matrix.to_string() == text);
        found.ok_or_else(|| format!("unknown matrix {text:?}: use uniform, hot, permutation or adversarial"))
    }
}

/// How the nodes are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A link between every two nodes.
    Mesh(u16),
    /// A k-ary n-fly.
    Fly {
        /// Links in, and links out, of a relay.
        k: u32,
        /// Number of stages of relays.
        n: u32,
    },
}

/// All options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Topology and number of nodes.
    pub shape: Shape,
    /// R: rate of the external ports of a node, together.
    pub input_bps: u64,
    /// Rate of a link in percent of R/N (mesh) or of R (n-fly).
    pub link_percent: u64,
    /// Offered load in percent of R.
    pub load_percent: u64,
    /// Traffic matrix.
    pub matrix: Matrix,
    /// How inputs distribute their packets.
    pub mode: Mode,
    /// The gap between flowlets in ns; `None` derives it from measured delays, 0 decides for each packet.
    pub delta_ns: Option<u64>,
    /// Depth of the token buckets of paths, in bytes: more keeps flows together, less keeps loads even.
    pub burst_bytes: u64,
    /// Simulated time during which packets are received.
    pub time_ns: u64,
    /// Whether nodes and links fail and messages are lost.
    pub faults: bool,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shape: Shape::Mesh(16),
            input_bps: 1_000_000_000,
            link_percent: 400,
            load_percent: 95,
            matrix: Matrix::Uniform,
            mode: Mode::default(),
            delta_ns: None,
            burst_bytes: 6_000,
            time_ns: 100_000_000,
            faults: false,
            seed: 1,
        }
    }
}

impl Options {
    /// A small cluster with faults, for short runs with many seeds.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed, 99);
        let shape = match random.below(6) {
            0 => Shape::Fly { k: 2, n: 3 },
            1 => Shape::Fly { k: 3, n: 2 },
            _ => Shape::Mesh(4 + random.below(29) as u16),
        };
        let mode = Mode::ALL[random.below(3) as usize];
        let matrix = Matrix::ALL[random.below(4) as usize];
        let load_percent = 50 + random.below(46);
        let time_ns = 20_000_000 + random.below(40_000_000);
        let faults = !random.one_in(4);
        Self { shape, mode, matrix, load_percent, time_ns, faults, seed, ..Self::default() }
    }

    /// Number of nodes with external ports.
    pub fn terminals(&self) -> u64 {
        match self.shape {
            Shape::Mesh(nodes) => nodes.into(),
            Shape::Fly { k, n } => u64::from(k).saturating_pow(n),
        }
    }

    /// Rate of a link.
    pub fn link_bps(&self) -> u64 {
        let all = self.input_bps / 100 * self.link_percent;
        match self.shape {
            Shape::Mesh(nodes) => all / u64::from(nodes.max(1)),
            Shape::Fly { .. } => all,
        }
    }

    pub fn topology(&self) -> Result<Topology, Impossible> {
        match self.shape {
            Shape::Mesh(nodes) => Topology::mesh(nodes, self.link_bps()),
            Shape::Fly { k, n } => Topology::fly(k, n, self.link_bps()),
        }
    }

    /// Why these options cannot be simulated.
    pub fn check(&self) -> Result<(), String> {
        let least = if self.matrix == Matrix::Adversarial { 4 } else { 2 };
        if self.terminals() < least {
            return Err(format!("the {} matrix needs at least {least} nodes with ports", self.matrix));
        }
        if !(10_000_000..=400_000_000_000).contains(&self.input_bps) {
            return Err("the rate must be from 10 Mbit/s to 400 Gbit/s".into());
        }
        if !(1..=100).contains(&self.load_percent) {
            return Err("the load must be from 1 to 100 percent: more is not admissible".into());
        }
        if self.link_bps() < 100_000 {
            return Err(format!(
                "links of {} bit/s are too slow: raise the rate, or the speed of links in percent of R/N",
                self.link_bps()
            ));
        }
        self.topology().map(|_| ()).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_impossible_options() {
        let wrong = [
            (
                Options { shape: Shape::Mesh(3), matrix: Matrix::Adversarial, ..Options::default() },
                "at least 4",
            ),
            (Options { input_bps: 1, ..Options::default() }, "10 Mbit/s"),
            (Options { load_percent: 101, ..Options::default() }, "not admissible"),
            (Options { link_percent: 0, ..Options::default() }, "too slow"),
            (Options { shape: Shape::Mesh(3000), ..Options::default() }, "3000 nodes are more than"),
            (Options { shape: Shape::Fly { k: 1, n: 2 }, ..Options::default() }, "at least 2 nodes"),
        ];
        for (options, why) in wrong {
            let output = options.check().expect_err(why);
            assert!(output.contains(why), "{output}");
        }
        assert_eq!(Options::default().check(), Ok(()));
        assert_eq!(Options::default().link_bps(), 250_000_000);
        assert!(Matrix::ALL.iter().all(|matrix| matrix.to_string().parse() == Ok(*matrix)));
    }
}
