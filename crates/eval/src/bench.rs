//! The benches of `brickmoon bench`: each answers one question with [`Row`]s.
//!
//! A bench takes an options struct and returns rows; [`text`] prints them and [`plot`] draws them, so that the output
//! of all benches looks alike. Rivals of one case are measured in turn ([`crate::alternate`]).

pub mod forward;
pub mod ipsec;
pub mod kernel;
pub mod lookup;
pub mod loss;
pub mod lua;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bm_testbed::addresses::Sizes;
use bm_testbed::rib::{self, RibError};
use bm_testbed::tables::{self, Table, TableError, TableOptions};
use bm_testbed::testbed::TestbedError;
use bm_testbed::traffic::Arrived;

use crate::demo::DaemonError;
use crate::report::{self, Row};

pub use forward::batch::batch;
pub use forward::ports::{PortsFound, ports};
pub use forward::workers::{WorkersFound, workers};
pub use forward::{BreathCount, CountOptions, forward, forward_counted};
pub use ipsec::ipsec;
pub use kernel::{KernelOptions, kernel};
pub use lookup::{LookupOptions, lookup};
pub use loss::{LossOptions, loss};
pub use lua::{Minute, lua, soak, soak_table};

/// The size of cases whose name contains none.
const SMALLEST: Sizes = Sizes::Fixed(64);

/// The end of a case's name for a size: empty for the smallest.
fn size_suffix(sizes: Sizes) -> String {
    if sizes == SMALLEST { String::new() } else { format!("-{sizes}") }
}

/// With three digits after the point.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Options of every bench that uses a routing table.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Files of routes; without any, a table is generated from a seed.
    pub rib: Vec<PathBuf>,
    /// Time limit of the whole bench in seconds; 0 for the bench's own.
    pub seconds: u64,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// Sizes of frames, for benches that measure several; empty for 64 bytes alone.
    pub sizes: Vec<Sizes>,
}

/// Why a bench has no results.
#[derive(Debug)]
pub enum BenchError {
    /// A file of routes cannot be read.
    Rib(RibError),
    /// No table can be generated.
    Table(TableError),
    /// The subject cannot be built.
    Build { part: &'static str, error: Box<dyn std::error::Error + Send + Sync> },
    /// No case has this in its name.
    NoCase {
        /// As given.
        wanted: String,
    },
    /// Routes were given, but no selected case uses a table of routes.
    UnusedRib {
        /// What the names of the cases should contain.
        wanted: String,
    },
    /// Not all frames were forwarded, so the figures would be about something else.
    Lost {
        case: String,
        /// Counters that should be zero, or equal, with their values.
        counters: String,
    },
    /// No frame was sent, so there are no figures.
    NothingLeft { case: String },
    /// A frame was sent with other bytes than it should have.
    Wrong {
        case: String,
        /// The expected bytes.
        expected: Vec<u8>,
        /// The bytes that were sent.
        found: Vec<u8>,
    },
    /// No structure has this name.
    NoStructure {
        /// As given.
        wanted: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// A structure returns another next hop than the oracle.
    Differs {
        case: String,
        /// The structure.
        subject: String,
        /// The first address with a wrong answer.
        address: std::net::IpAddr,
        /// The oracle's next hop, 0 for none.
        expected: u32,
        /// The structure's next hop.
        found: u32,
        /// How many addresses have a wrong answer.
        count: usize,
    },
    /// The test bed failed.
    Testbed(TestbedError),
    /// The daemon failed.
    Daemon(DaemonError),
    /// The router has no core of its own.
    Cores,
    /// The router's threads cannot be pinned to a core.
    KernelThreads,
    /// Packets arrived with errors, or none arrived.
    Arrived {
        case: String,
        /// The subject that forwarded them.
        subject: String,
        /// What arrived.
        arrived: Arrived,
    },
    /// DPDK is not available.
    Dpdk(bm_port_dpdk::DpdkError),
    /// The chart cannot be written.
    Plot {
        /// Its path.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl BenchError {
    /// For `map_err`: `part` cannot be built.
    fn build<E: Into<Box<dyn std::error::Error + Send + Sync>>>(part: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Build { part, error: error.into() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rib(error) => error.fmt(f),
            Self::Table(error) => error.fmt(f),
            Self::Build { part, error } => write!(f, "{part}: {error}"),
            Self::NoCase { wanted } => {
                write!(f, "no case with {wanted:?} in its name has routes of its address family")
            }
            Self::UnusedRib { wanted } => {
                write!(f, "--rib has no effect on cases with {wanted:?} in their names: leave it out")
            }
            Self::NothingLeft { case } => {
                write!(f, "{case}: the check of the router forwarded no frame")
            }
            Self::Lost { case, counters } => write!(f, "{case}: not every frame was forwarded: {counters}"),
            Self::Wrong { case, expected, found } => {
                write!(f, "{case}: a frame was sent as {found:02x?}, expected {expected:02x?}")
            }
            Self::NoStructure { wanted, known } => {
                write!(f, "there is no structure {wanted:?}: use all or one of {}", known.join(", "))
            }
            Self::Differs { case, subject, address, expected, found, count } => write!(
                f,
                "{case}: {subject} returns next hop {found} for {address}, expected {expected}; {count} answers are \
                 wrong"
            ),
            Self::Testbed(error) => error.fmt(f),
            Self::Daemon(error) => error.fmt(f),
            Self::Cores => f.write_str("this bench needs two cores: one for the generator and one for the router"),
            Self::KernelThreads => f.write_str(
                "kernel threads are not visible in this container, so they cannot be pinned to cores: run the bench outside \
                 of it, or start the container with `docker run --pid host`",
            ),
            Self::Arrived { case, subject, arrived } => {
                write!(f, "{case}: {subject} did not forward every packet correctly: {arrived:?}")
            }
            Self::Dpdk(error) => error.fmt(f),
            Self::Plot { file, error } => write!(f, "{}: {error}", file.display()),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<RibError> for BenchError {
    fn from(error: RibError) -> Self {
        Self::Rib(error)
    }
}

impl From<TestbedError> for BenchError {
    fn from(error: TestbedError) -> Self {
        Self::Testbed(error)
    }
}

impl From<DaemonError> for BenchError {
    fn from(error: DaemonError) -> Self {
        Self::Daemon(error)
    }
}

impl From<TableError> for BenchError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl Options {
    /// Reads the routes of the files, or generates some, over `next_hops` next hops.
    pub fn table(&self, next_hops: u16) -> Result<Table, BenchError> {
        if self.rib.is_empty() {
            return Ok(tables::generate(&TableOptions { next_hops, ..TableOptions::default() })?);
        }
        Ok(rib::read(&self.rib)?.table.folded(next_hops))
    }

    /// Refuses files of routes if no selected case uses a table of routes; `cases` are all names, and whether each uses
    /// one.
    fn refuse_unused_rib(&self, cases: impl Iterator<Item = (String, bool)>) -> Result<(), BenchError> {
        let wanted: Vec<_> = cases.filter(|(name, _)| self.wants(name)).collect();
        if self.rib.is_empty() || wanted.is_empty() || wanted.iter().any(|(_, has_table)| *has_table) {
            return Ok(());
        }
        Err(BenchError::UnusedRib { wanted: self.case.clone().unwrap_or_default() })
    }

    /// The sizes that were selected.
    fn sizes(&self) -> Vec<Sizes> {
        if self.sizes.is_empty() { vec![SMALLEST] } else { self.sizes.clone() }
    }

    /// Whether a case is selected.
    fn wants(&self, case: &str) -> bool {
        self.case.as_ref().is_none_or(|wanted| case.contains(wanted))
    }
}

/// The rows as they are printed: JSON lines, or a table.
pub fn text(rows: &[Row], json: bool) -> String {
    if json { report::json_lines(rows) } else { report::table(rows) }
}

/// Draws the rows as an SVG file.
///
/// # Errors
/// [`BenchError::Plot`] if it cannot be written.
pub fn plot(title: &str, rows: &[Row], file: &Path) -> Result<(), BenchError> {
    let written = fs::write(file, report::svg(title, rows));
    written.map_err(|error| BenchError::Plot { file: file.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_invalid_options() {
        let missing = Options { rib: vec!["/nonexistent/rib.gz".into()], ..Options::default() };
        let error = missing.table(16).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/rib.gz: "), "{error}");
        let plot = plot("t", &[], Path::new("/nonexistent/plot.svg")).unwrap_err().to_string();
        assert!(plot.starts_with("/nonexistent/plot.svg: "), "{plot}");
        let options = Options { case: Some("ipv6-full".into()), ..Options::default() };
        assert!(options.wants("ipv6-full-zipf") && !options.wants("ipv4-full-zipf"));
    }
}
