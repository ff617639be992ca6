//! `bench batch`: how does the time per packet depend on batch sizes for receiving and sending?
//!
//! ```text
//! receive up to R a breath -> the router's stages -> send up to S at a time
//! ```
//!
//! A matrix with R from 1 to 1024 and S from 1 to 128, with the router of `bench forward` and the full table. A burst
//! holds 256 frames, so more than that are received in several bursts. `random` has destinations all over the table,
//! `one-flow` has a single one: the difference is the cost of random destinations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_testbed::addresses::Pattern;

use super::bed::{Batching, Bed, NEXT_HOPS};
use super::{BenchError, Options, breathe, check_all, pin, routable};
use crate::alternate::{Sample, Series, alternate_samples, repeat};
use crate::report::Row;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 60;
/// Number of turns for each cell of the matrix.
const RUNS: u32 = 3;
/// Shortest turn.
const LEAST: Duration = Duration::from_millis(4);
/// Largest number of frames received in a breath, and sent at a time.
const RECEIVE: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const SEND: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// A turn's warm-up takes this fraction of it.
const WARM_UP: u32 = 4;

/// The destinations.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Traffic {
    subject: &'static str,
    pattern: Pattern,
}

const TRAFFIC: [Traffic; 2] = [
    Traffic { subject: "random", pattern: Pattern::Prefix },
    Traffic { subject: "one-flow", pattern: Pattern::Flow },
];

/// One cell of the matrix.
#[derive(Clone, Copy)]
struct Cell {
    receive: usize,
    send: usize,
    traffic: Traffic,
}

impl Cell {
    fn case(&self) -> String {
        format!("ipv4-full-send-{}-batch-{}", self.send, self.receive)
    }
}

/// Measures the matrix, or the cases whose name contains the given text.
///
/// # Errors
/// See [`BenchError`].
pub fn batch(options: &Options) -> Result<Vec<Row>, BenchError> {
    let begin = Instant::now();
    let cells = SEND.iter().flat_map(|&send| RECEIVE.iter().map(move |&receive| (receive, send)));
    let cells =
        cells.flat_map(|(receive, send)| TRAFFIC.iter().map(move |&traffic| Cell { receive, send, traffic }));
    let cells: Vec<Cell> = cells.filter(|cell| options.wants(&cell.case())).collect();
    if cells.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    pin();
    let bed = Bed::new(options.table(NEXT_HOPS)?, Bed::frame_pool()?)?;
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let turn = whole.saturating_sub(begin.elapsed()) / (cells.len() as u32 * RUNS);
    measure(&bed, &cells, turn.max(LEAST))
}

fn measure(bed: &Bed, cells: &[Cell], turn: Duration) -> Result<Vec<Row>, BenchError> {
    let within: Arc<[u32]> = routable(Pattern::Prefix, &bed.ipv4);
    let flow: Arc<[u32]> = routable(Pattern::Flow, &bed.ipv4);
    let subjects = cells.iter().map(|cell| cell.traffic.subject.into()).collect();
    let measured = alternate_samples(RUNS, subjects, |index| -> Result<Sample, BenchError> {
        let Cell { receive, send, traffic } = cells[index];
        let destinations = if traffic.pattern == Pattern::Flow { &flow } else { &within };
        let mut running = bed.router(destinations, Batching { receive, send })?;
        repeat(turn / WARM_UP, &mut || breathe(&mut running));
        let sample = repeat(turn - turn / WARM_UP, &mut || breathe(&mut running));
        check_all(&cells[index].case(), &bed.ipv4, std::slice::from_mut(&mut running), 1)?;
        Ok(sample)
    })?;
    let rows =
        cells.iter().zip(&measured).map(|(cell, one)| row(cell, one, best(cells, &measured, cell.traffic)));
    Ok(rows.collect())
}

/// The highest rate with this traffic.
fn best(cells: &[Cell], measured: &[Series], traffic: Traffic) -> f64 {
    let of_traffic = cells.iter().zip(measured).filter(|(cell, _)| cell.traffic == traffic);
    of_traffic.map(|(_, measured)| measured.rates().median).fold(0.0, f64::max)
}

fn row(cell: &Cell, measured: &Series, best: f64) -> Row {
    let of_best = (measured.rates().median / best * 1000.0).round() / 1000.0;
    Row::mpps("batch", &cell.case(), measured)
        .with("receive", cell.receive)
        .with("send", cell.send)
        .with("of_best", of_best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_testbed::tables::{TableOptions, generate};

    #[test]
    fn every_case_forwards_all_it_receives() {
        let options = TableOptions { ipv4: 1_000, ipv6: 10, ..TableOptions::default() };
        let bed = Bed::new(generate(&options).unwrap(), Bed::frame_pool().unwrap()).unwrap();
        let sizes = [(1, 1), (8, 128), (32, 32), (256, 2), (1024, 128)];
        let cells = sizes
            .into_iter()
            .flat_map(|(receive, send)| TRAFFIC.map(|traffic| Cell { receive, send, traffic }));
        let cells: Vec<Cell> = cells.collect();
        let rows = measure(&bed, &cells, Duration::from_millis(2)).unwrap();
        assert!(rows.iter().all(|row| row.median > 0.0));
        assert_eq!(rows.len(), sizes.len() * TRAFFIC.len());
        assert_eq!(rows[0].case, "ipv4-full-send-1-batch-1");
        let best =
            rows.iter().filter(|row| row.subject == "one-flow").map(|row| row.detail["of_best"].as_f64());
        assert!(best.flatten().any(|of_best| of_best == 1.0));
    }

    #[test]
    fn reports_unknown_cases() {
        let outcome = batch(&Options { case: Some("flags".into()), ..Options::default() });
        assert!(matches!(outcome, Err(BenchError::NoCase { wanted }) if wanted == "flags"));
    }
}
