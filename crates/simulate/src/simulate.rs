//! A whole simulation: from its options to its report.

use crate::options::Options;
use crate::report::Report;
use crate::run::Run;

/// A check that failed: a bug in the cluster's code, or in the simulator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} after {} us; --seed {} repeats it", .what, .at_ns / 1000, .seed)]
pub struct SimulationError {
    /// What is wrong.
    pub what: String,
    /// When.
    pub at_ns: u64,
    /// The seed that repeats it.
    pub seed: u64,
}

/// Runs a simulation. The same options give the same report, bit for bit.
pub fn simulate(options: &Options) -> Result<Report, SimulationError> {
    let failed = |what| SimulationError { what, at_ns: 0, seed: options.seed };
    options.check().map_err(failed)?;
    let topology = options.topology().map_err(|why| failed(why.to_string()))?;
    let mut run = Run::new(*options, topology);
    run.start();
    run.go().map_err(|(at_ns, what)| SimulationError { what, at_ns, seed: options.seed })?;
    let report = Report::new(&run);
    report.check(options).map_err(|what| SimulationError {
        what,
        at_ns: options.time_ns,
        seed: options.seed,
    })?;
    Ok(report)
}

#[cfg(test)]
mod tests;
