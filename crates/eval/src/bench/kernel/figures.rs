//! Rows of the bench: rates, and the ratio of each turn to Linux and to the floor in the same round.
//!
//! The ratios are those of the CPU time of the router's core. For a router that is never idle the rates have the same
//! ratios; for one that waits for the generator, on a busy machine, they have not.

use super::SUBJECTS;
use super::bed::{Bed, KernelResult, Turn};
use crate::alternate::{Series as Rates, spread};
use crate::bench::rounded;
use crate::report::Row;

const LINUX: usize = 0;
const BRICKMOON: usize = 2;
const FLOOR: usize = 3;

/// One row per subject.
pub fn rows(case: &str, measured: &KernelResult, bed: &Bed) -> Vec<Row> {
    (0..SUBJECTS.len()).map(|subject| row(case, subject, measured, bed)).collect()
}

fn row(case: &str, subject: usize, measured: &KernelResult, bed: &Bed) -> Row {
    let turns = &measured.turns[subject];
    let samples = turns.iter().flat_map(|turn| turn.flow.samples.clone()).collect();
    let rates = Rates { subject: SUBJECTS[subject].into(), samples };
    let sum = |of: fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
    let mut row = Row::mpps("kernel", case, &rates)
        .with("routes", measured.routes)
        .with("destinations", measured.destinations)
        .with("frame_bytes", rounded(measured.frame_bytes));
    row = with_spread(
        row,
        "linux_ratio",
        pairs(turns, &measured.turns[LINUX]).map(|(ours, linux)| linux.ns / ours.ns.max(1e-9)),
    );
    let over = pairs(turns, &measured.turns[FLOOR]).map(|(ours, floor)| ours.ns - floor.ns);
    row = with_spread(row, "over_floor_ns", over)
        .with("sent", sum(|turn| turn.flow.sent))
        .with("lost", sum(|turn| turn.flow.lost()))
        .with("bad", sum(|turn| turn.flow.arrived.bad()))
        .with("by_linux", sum(|turn| turn.by_linux));
    if subject != BRICKMOON {
        return row;
    }
    let loaded = spread(turns.iter().map(|turn| turn.daemon)).median;
    row.with("tables_bytes", bed.holds.tables_bytes)
        .with("daemon_bytes", bed.holds.resident_bytes)
        .with("ready_s", rounded(bed.holds.ready.as_secs_f64()))
        .with("daemon_idle_percent", rounded(bed.holds.idle * 100.0))
        .with("daemon_loaded_percent", rounded(loaded * 100.0))
}

/// Turns of the same round.
pub fn pairs<'a>(
    ours: &'a [Turn],
    theirs: &'a [Turn],
) -> impl Iterator<Item = (crate::alternate::Sample, crate::alternate::Sample)> + 'a {
    ours.iter()
        .zip(theirs)
        .filter_map(|(ours, theirs)| Some((*ours.flow.samples.first()?, *theirs.flow.samples.first()?)))
}

/// Minimum, quartiles and maximum, under names with the same prefix.
pub fn with_spread(row: Row, name: &str, values: impl Iterator<Item = f64>) -> Row {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [("min", 0.0), ("q1", 0.25), ("median", 0.5), ("q3", 0.75), ("max", 1.0)].into_iter().fold(
        row,
        |row, (end, share)| {
            row.with(&format!("{name}_{end}"), rounded(quantile(&values, share).unwrap_or_default()))
        },
    )
}

/// Interpolates between the two nearest values, so that the median of an even number is their mean.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let (low, high) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(low + (high - low) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean() {
        let row = Row::mpps("kernel", "case", &Rates { subject: "linux".into(), samples: Vec::new() });
        let row = with_spread(row, "x", [4.0, 1.0, 2.0, 3.0].into_iter());
        let of = |end: &str| row.detail[&format!("x_{end}")].as_f64();
        assert_eq!(
            (of("min"), of("q1"), of("median"), of("max")),
            (Some(1.0), Some(1.75), Some(2.5), Some(4.0))
        );
        assert_eq!(with_spread(row, "none", std::iter::empty()).detail["none_median"], 0.0);
    }
}
