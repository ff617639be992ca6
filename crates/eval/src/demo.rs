//! `make demo`: the main use of brickmoon with real input, from beginning to end.
//!
//! Creates namespaces, loads a full table into the kernel, and sends traffic to addresses under all of its prefixes.
//! First Linux forwards it alone, then brickmoon with the same routes. Then the daemon is killed during a flow and
//! started again, and the longest gap is reported. Everything is removed at the end, whatever happens.

pub mod cluster;
pub(crate) mod daemon;
mod failover;
mod results;
mod scene;
mod story;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use bm_testbed::interrupt::{Interrupted, Watch};
use bm_testbed::rib::{self, RibError};
use bm_testbed::tables::{Table, TableError, TableOptions, generate};
use bm_testbed::testbed::{self, TestbedError, TestbedOptions};

pub use daemon::DaemonError;
use daemon::ForwardingPath;
use scene::Scene;
use story::Story;

/// What to show, and with what.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Tables to use, as `rib` reads them; without any, the generator makes one.
    pub rib: Vec<PathBuf>,
    /// IPv4 routes from the generator; IPv6 gets a fifth of that.
    pub routes: usize,
    /// How long each measurement takes, in seconds.
    pub seconds: f64,
    /// Print the result as one JSON object per line, and progress on standard error.
    pub json: bool,
    /// The router's program; by default `brickmoon` in the folder of this program, or in PATH.
    pub program: Option<PathBuf>,
    /// Names of namespaces and interfaces, and the number of next hops.
    pub testbed: TestbedOptions,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            rib: Vec::new(),
            routes: 1_000_000,
            seconds: 4.0,
            json: false,
            program: None,
            testbed: TestbedOptions::default(),
        }
    }
}

/// Why the demo failed.
#[derive(Debug)]
pub enum DemoError {
    /// A table cannot be read.
    Rib(RibError),
    /// A table cannot be made.
    Table(TableError),
    /// The table has no route of a family to whose addresses anything can be sent.
    NoRoutes {
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// The test bed failed.
    Testbed(TestbedError),
    /// The daemon failed.
    Daemon(DaemonError),
    /// The nodes of a cluster do not know each other.
    NotReady(String),
    /// The result cannot be written.
    Output(io::Error),
    /// Something was not removed at the end.
    LeftBehind(String),
}

impl fmt::Display for DemoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rib(error) => error.fmt(f),
            Self::Table(error) => error.fmt(f),
            Self::NoRoutes { family } => {
                write!(f, "there is no {family} route to send to: add another --rib")
            }
            Self::Testbed(error) => error.fmt(f),
            Self::Daemon(error) => error.fmt(f),
            Self::NotReady(state) => write!(f, "the nodes of the cluster do not find each other: {state}"),
            Self::Output(error) => write!(f, "write the result: {error}"),
            Self::LeftBehind(what) => write!(f, "left behind: {what}"),
        }
    }
}

impl std::error::Error for DemoError {}

macro_rules! from {
    ($($error:ty => $variant:ident),* $(,)?) => {
        $(impl From<$error> for DemoError {
            fn from(error: $error) -> Self {
                Self::$variant(error.into())
            }
        })*
    };
}
from!(
    RibError => Rib,
    TableError => Table,
    TestbedError => Testbed,
    Interrupted => Testbed,
    DaemonError => Daemon,
    io::Error => Output,
);

/// Runs the demo; the result is written to `out`.
pub fn run(options: &DemoOptions, out: &mut dyn Write) -> Result<(), DemoError> {
    testbed::require_root()?;
    let _watch = Watch::begin();
    let before = daemon::Before::look();
    let mut story = Story::begin(out, options.json);
    let told = tell(options, &mut story);
    // Everything has been dropped by now, also after an error: check before reporting success.
    let left = daemon::left_behind(&options.testbed.prefix, &before);
    let results = told?;
    if let Some(what) = left {
        return Err(DemoError::LeftBehind(what));
    }
    Ok(story.end(&results)?)
}

fn tell(options: &DemoOptions, story: &mut Story<'_>) -> Result<results::Results, DemoError> {
    let table = table(options, story)?;
    let scene = Scene::set(options, &table, story)?;
    drop(table);
    let polled = scene.polled()?;
    story.say("Linux alone")?;
    let linux = scene.measure(options, &polled, None, None, story)?;
    let light = linux.last().map(|outcome| outcome.flow.offered);
    let mut daemon = scene.start_daemon(options, ForwardingPath::Kernel, story)?;
    polled.pin()?;
    story.say("brickmoon in the kernel, with the same routes and packets")?;
    let kernel = scene.measure(options, &polled, Some((&daemon, ForwardingPath::Kernel)), light, story)?;
    daemon.stop()?;
    let mut daemon = scene.start_daemon(options, ForwardingPath::User, story)?;
    polled.pin()?;
    story.say("brickmoon in user space")?;
    let user = scene.measure(options, &polled, Some((&daemon, ForwardingPath::User)), light, story)?;
    // A slow flow needs no polling threads; new ones would not be pinned when the daemon ends.
    drop(polled);
    let gaps = failover::run(options, &scene, &mut daemon, story)?;
    drop(daemon);
    story.step("clean up", move || {
        drop(scene);
        Ok::<_, DemoError>(())
    })?;
    Ok(results::Results { linux, user, kernel, gaps })
}

fn table(options: &DemoOptions, story: &mut Story<'_>) -> Result<Table, DemoError> {
    let next_hops = options.testbed.next_hops;
    let (ipv4, ipv6) = (options.routes, options.routes / 5);
    let wanted = TableOptions { ipv4, ipv6, next_hops, ..TableOptions::default() };
    if options.rib.is_empty() {
        return story.step("make a table from a seed", || generate(&wanted));
    }
    let mut table = story.step("read the table", || rib::read(&options.rib))?.table.folded(next_hops);
    // A file often has routes of one family only; the other family is shown nevertheless.
    if table.ipv4.is_empty() || table.ipv6.is_empty() {
        let missing = if table.ipv4.is_empty() { "IPv4" } else { "IPv6" };
        let made = story
            .step(&format!("make {missing} routes from a seed, as none are given"), || generate(&wanted))?;
        if table.ipv4.is_empty() {
            table.ipv4 = made.ipv4;
        } else {
            table.ipv6 = made.ipv6;
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
