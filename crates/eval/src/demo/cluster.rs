//! `brickmoon cluster demo`: four nodes as one router, in network namespaces, or eight that relays connect.
//!
//! Every node has its external port on workers, which balance by Direct VLB. Hosts send matrices of packets at R a port;
//! counters of the nodes say where these went. FRR on each node learns a prefix from its host, if FRR is installed. Then a
//! daemon is killed and started, a link cut, a node switched off, and a neighbor moved to another node, while packets flow.
//! The members come from etcd if that is installed, which is also killed for a while. Everything goes away at the end,
//! whatever happens.

mod delays;
mod frr;
mod matrix;
mod mesh;
mod moved;
mod relays;
mod report;
mod store;
mod traffic;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bm_testbed::interrupt::{self, Watch};
use bm_testbed::testbed;

use super::{DemoError, daemon};
use matrix::Matrix;
use mesh::Mesh;
use moved::MoveResult;
use report::{Event, Load, Report};
use traffic::{Addresses, Run, Traffic};

/// How the nodes are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Four nodes, each with a link to each other one.
    #[default]
    Mesh,
    /// Eight nodes and twelve relays: a 2-ary 3-fly.
    Fly,
}

impl Shape {
    /// How many nodes there are.
    pub fn nodes(self) -> usize {
        match self {
            Self::Mesh => 4,
            Self::Fly => relays::TERMINALS,
        }
    }

    /// R if none is asked for: what two cores can do, with twenty servers less.
    pub fn rate(self) -> u32 {
        match self {
            Self::Mesh => 10_000,
            Self::Fly => 2000,
        }
    }

    /// In what loads of links are.
    fn links(self) -> &'static str {
        match self {
            Self::Mesh => "links in R/N",
            Self::Fly => "relays the same, cables in R",
        }
    }

    /// Relays between two nodes.
    fn relays_between(self) -> usize {
        match self {
            Self::Mesh => 0,
            Self::Fly => 3,
        }
    }
}

/// Between the start of packets and an event.
const BEFORE_EVENT: Duration = Duration::from_secs(1);
/// After it, at least: longer than it takes to notice that a node is silent.
const AFTER_EVENT: Duration = Duration::from_secs(3);

/// What to show.
#[derive(Clone, Debug)]
pub struct ClusterDemoOptions {
    /// How the nodes are connected.
    pub shape: Shape,
    /// R: packets a second that each external port receives.
    pub rate: u32,
    /// How long each matrix is offered, in seconds.
    pub seconds: f64,
    /// One JSON object a line as the result, and the telling on standard error.
    pub json: bool,
    /// The router's program; by default `brickmoon` beside the one that is running, or in PATH.
    pub program: Option<PathBuf>,
    /// What all names of namespaces begin with.
    pub prefix: String,
}

impl Default for ClusterDemoOptions {
    fn default() -> Self {
        let shape = Shape::default();
        Self {
            shape,
            rate: shape.rate(),
            seconds: 4.0,
            json: false,
            program: None,
            prefix: "bm-cluster".into(),
        }
    }
}

/// Shows it all; `out` gets the result.
///
/// # Errors
/// What failed, or what was left behind.
pub fn run(options: &ClusterDemoOptions, out: &mut dyn Write) -> Result<(), DemoError> {
    testbed::require_root()?;
    let _watch = Watch::begin();
    let before = daemon::Before::look();
    let mut report = Report::new(out, options.json, options.shape);
    let told = tell(options, &mut report);
    // Everything has been dropped by now, also after an error: look before saying that all went well.
    let left = mesh::left_behind(&options.prefix, &before);
    told?;
    if let Some(what) = left {
        return Err(DemoError::LeftBehind(what));
    }
    Ok(report.end()?)
}

fn tell(options: &ClusterDemoOptions, report: &mut Report<'_>) -> Result<(), DemoError> {
    let shape = match options.shape {
        Shape::Mesh => "4 nodes, a full mesh",
        Shape::Fly => "8 nodes and 12 relays, a 2-ary 3-fly",
    };
    report.say(&format!(
        "{shape}, R = {} packets/s of {} bytes on the link ({} Mbit/s) for each port",
        options.rate,
        matrix::ON_THE_LINK,
        matrix::speed(options.rate),
    ))?;
    let mut mesh = Mesh::up(options)?;
    let members = if mesh.has_store() { "from etcd" } else { "configured: etcd is not installed" };
    report.say(&format!("nodes are up, and know each other's hosts; the members are {members}"))?;
    report.begin_loads()?;
    for matrix in Matrix::ALL {
        let load = measure(&mesh, options, matrix, Addresses::Hosts)?;
        report.load(matrix.name(), &load)?;
    }
    if frr::is_installed() {
        tell_of_frr(&mut mesh, options, report)?;
    } else {
        report.say("FRR is not installed (Debian package frr): nodes learn no prefixes")?;
    }
    tell_of_delays(&mesh, options, report)?;
    report.begin_events()?;
    for event in Event::all(mesh.has_store()) {
        if event == Event::NeighborMoved {
            let (traffic, moved) = move_neighbor(&mesh, options)?;
            report.event(event, &traffic, Some(moved.stream), None)?;
            report.moved(moved.found)?;
            continue;
        }
        let (traffic, share) = disturb(&mut mesh, options, event)?;
        report.event(event, &traffic, None, share)?;
    }
    mesh.stop()
}

/// Cuts a link, so that packets between some nodes go over others, and compares delays.
fn tell_of_delays(
    mesh: &Mesh,
    options: &ClusterDemoOptions,
    report: &mut Report<'_>,
) -> Result<(), DemoError> {
    mesh.set_link(false)?;
    interrupt::sleep(BEFORE_EVENT)?;
    let run = Run::start(mesh, Matrix::Uniform, options.rate, Addresses::Hosts)?;
    interrupt::sleep(Duration::from_secs_f64(options.seconds.max(0.2)))?;
    let traffic = run.end()?;
    mesh.set_link(true)?;
    mesh.until_ready()?;
    let straight = traffic.delays(|from, to| !mesh.is_detoured(from, to));
    let over = traffic.delays(|from, to| mesh.is_detoured(from, to));
    Ok(report.delays(&straight, &over)?)
}

/// Starts FRR, and sends to the prefixes that it learns.
fn tell_of_frr(
    mesh: &mut Mesh,
    options: &ClusterDemoOptions,
    report: &mut Report<'_>,
) -> Result<(), DemoError> {
    let took = mesh.start_frr()?;
    // So that workers have the routes, too.
    interrupt::sleep(Duration::from_millis(500))?;
    let load = measure(mesh, options, Matrix::Uniform, Addresses::Learned)?;
    report.load("uniform, BGP", &load)?;
    let pings = frr::ping(&mesh.hosts)?;
    Ok(report.frr(took, pings)?)
}

/// Moves a neighbor from one node to another while packets flow between all, and a stream to it.
fn move_neighbor(mesh: &Mesh, options: &ClusterDemoOptions) -> Result<(Traffic, MoveResult), DemoError> {
    let run = Run::start(mesh, Event::NeighborMoved.matrix(), options.rate, Addresses::Hosts)?;
    let stream = moved::during_a_stream(mesh)?;
    let traffic = run.end()?;
    mesh.until_ready()?;
    Ok((traffic, stream))
}

/// Offers a matrix for as long as asked, and returns the loads.
fn measure(
    mesh: &Mesh,
    options: &ClusterDemoOptions,
    matrix: Matrix,
    addresses: Addresses,
) -> Result<Load, DemoError> {
    // Flows of before are over, and no quota is used up.
    interrupt::sleep(Duration::from_millis(300))?;
    let before = (mesh.counters()?, mesh.relay_counts()?);
    let run = Run::start(mesh, matrix, options.rate, addresses)?;
    let seconds = options.seconds.max(0.2);
    interrupt::sleep(Duration::from_secs_f64(seconds))?;
    let traffic = run.end()?;
    let (after, most) = ((mesh.counters()?, mesh.relay_counts()?), seconds * f64::from(options.rate));
    let mut load = Load::of(&before.0, &after.0, traffic, most);
    if let Some(relays) = mesh.relays() {
        load.add_cables(&relays.carried(&before.1, &after.1), most);
    }
    Ok(load)
}

/// Makes something happen while packets flow, and repairs it. Returns what happened to the packets, and how many the node
/// forwarded for other nodes in a second before.
fn disturb(
    mesh: &mut Mesh,
    options: &ClusterDemoOptions,
    event: Event,
) -> Result<(Traffic, Option<f64>), DemoError> {
    let run = Run::start(mesh, event.matrix(), options.rate, Addresses::Hosts)?;
    interrupt::sleep(BEFORE_EVENT / 2)?;
    let (before, began) = (mesh.counters()?, Instant::now());
    interrupt::sleep(BEFORE_EVENT / 2)?;
    let after = mesh.counters()?;
    let forwarded = report::transit(&after[event.node()]) - report::transit(&before[event.node()]);
    let share = forwarded as f64 / began.elapsed().as_secs_f64();
    match event {
        Event::NodeSilent => mesh.silence(event.node())?,
        Event::NodeDrained => mesh.drain(event.node())?,
        Event::DaemonKilled => mesh.kill_daemon(event.node())?,
        Event::StoreKilled => mesh.set_store(false)?,
        Event::LinkCut => mesh.set_link(false)?,
        Event::NodeDown => {
            mesh.kill_daemon(event.node())?;
            mesh.set_node(event.node(), false)?;
        }
        Event::NeighborMoved => {}
    }
    interrupt::sleep(AFTER_EVENT)?;
    if matches!(event, Event::DaemonKilled | Event::NodeDrained) {
        mesh.start_daemon(options, event.node())?;
        interrupt::sleep(BEFORE_EVENT)?;
    }
    if event == Event::StoreKilled {
        mesh.set_store(true)?;
        interrupt::sleep(BEFORE_EVENT)?;
    }
    let traffic = run.end()?;
    match event {
        Event::DaemonKilled | Event::NodeDrained | Event::StoreKilled | Event::NeighborMoved => {}
        Event::NodeSilent => mesh.start_daemon(options, event.node())?,
        Event::LinkCut => mesh.set_link(true)?,
        Event::NodeDown => {
            mesh.set_node(event.node(), true)?;
            mesh.start_daemon(options, event.node())?;
        }
    }
    mesh.until_ready()?;
    let counts = matches!(event, Event::NodeSilent);
    Ok((traffic, counts.then_some(share)))
}
