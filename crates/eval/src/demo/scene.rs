//! The stage of the demo: namespaces with the table in the kernel, and the traffic to send through them.

use std::time::Duration;

use bm_testbed::addresses::{Pattern, Sizes, destinations};
use bm_testbed::interrupt;
use bm_testbed::oracle::Oracle;
use bm_testbed::random::Seed;
use bm_testbed::tables::{Route, Table};
use bm_testbed::testbed::cores::Cores;
use bm_testbed::testbed::kernel::Change;
use bm_testbed::testbed::napi::{Napi, POLLING_PRIORITY, kernel_threads_are_seen};
use bm_testbed::testbed::{Testbed, TestbedError};
use bm_testbed::traffic::{DESTINATIONS_MAX, Programs, Sink, SinkMode, Stream, Traffic};

use super::daemon::{Daemon, ForwardingPath};
use super::results::Outcome;
use super::story::Story;
use super::{DemoError, DemoOptions};
use crate::measure::Measure;
use bm_api::number::count;

/// Slices of one measurement.
const SLICES: u32 = 5;
/// Until the kernel path has seen that a far end takes frames.
const NOTICED: Duration = Duration::from_millis(1500);
/// Destinations of the thin flow: few enough that its order can be tracked.
const THIN_DESTINATIONS: usize = 4096;
/// Packets a second of the flow that goes on while the daemon dies.
pub const THIN_RATE: f64 = 10_000.0;
/// The share of Linux's own rate at which nobody should lose anything.
const LIGHT_SHARE: f64 = 0.5;

/// Everything that stays from the first measurement to the last.
pub struct Scene {
    pub testbed: Testbed,
    pub programs: Programs,
    /// For the flow that goes on while the daemon dies.
    pub thin: Stream,
    cases: Vec<Case>,
    cores: Option<Cores>,
    routes: usize,
}

/// A kind of traffic.
struct Case {
    /// As in `ipv4-full-prefix-64`.
    name: String,
    /// For people.
    title: String,
    stream: Stream,
}

impl Scene {
    pub fn set(options: &DemoOptions, table: &Table, story: &mut Story<'_>) -> Result<Self, DemoError> {
        let testbed = story.step("make three namespaces", || Testbed::up(&options.testbed))?;
        let (ipv4, ipv6) = (count(table.ipv4.len() as u64), count(table.ipv6.len() as u64));
        let what = format!("load {ipv4} IPv4 and {ipv6} IPv6 routes into the kernel");
        let changed = story.step(&what, || testbed.change_routes(Change::Add, table))?;
        if let Some(error) = changed.first_error {
            let refused = count(changed.refused as u64);
            story.note(&format!("{refused} routes were refused, the first with: {error}"))?;
        }
        let programs = Programs::load()?;
        let (cases, thin) = story.step("choose addresses under all prefixes", || streams(table))?;
        let cores = Cores::deal();
        if cores.is_none() {
            story.note(
                "this machine has only one core: generator and router share it, so the figures are low",
            )?;
        }
        if !kernel_threads_are_seen() {
            story.note(
                "kernel threads are not visible in this container: their CPU time is unknown, and they are not pinned",
            )?;
        }
        Ok(Self { testbed, programs, thin, cases, cores, routes: changed.done })
    }

    /// Moves polling to threads, the router's on its own core, the sink's too if there is one left.
    pub fn polled(&self) -> Result<Polled<'_>, TestbedError> {
        let (bed, mut threads) = (&self.testbed, Vec::new());
        if let Some(cores) = self.cores {
            threads.push((Napi::threaded(&bed.router, &bed.interfaces.router_in)?, cores.router));
            if let Some(core) = cores.sink {
                threads.push((Napi::threaded(&bed.sink, &bed.interfaces.sink)?, core));
            }
        }
        let polled = Polled { threads };
        polled.pin()?;
        Ok(polled)
    }

    pub fn start_daemon(
        &self,
        options: &DemoOptions,
        path: ForwardingPath,
        story: &mut Story<'_>,
    ) -> Result<Daemon, DemoError> {
        let what = match path {
            ForwardingPath::User => {
                format!("start brickmoon, which mirrors {} routes", count(self.routes as u64))
            }
            ForwardingPath::Kernel | ForwardingPath::KernelTc | ForwardingPath::Auto => {
                "start it with --path kernel".into()
            }
        };
        let daemon = story.step(&what, || self.daemon(options, path))?;
        if let Some(bytes) = daemon.resident_bytes() {
            story.note(&format!("it uses {} MiB of memory", count(bytes >> 20)))?;
        }
        Ok(daemon)
    }

    /// Starts a daemon on this path, and prints nothing.
    pub fn daemon(&self, options: &DemoOptions, path: ForwardingPath) -> Result<Daemon, DemoError> {
        let core = self.cores.map(|cores| cores.router);
        Ok(Daemon::start(&self.testbed, &options.testbed.prefix, options.program.as_deref(), path, core)?)
    }

    /// Measures all kinds of traffic, and at last how much is lost of a light load: `light` packets a
    /// second, or without it half of what was just measured.
    pub fn measure(
        &self,
        options: &DemoOptions,
        polled: &Polled<'_>,
        daemon: Option<(&Daemon, ForwardingPath)>,
        light: Option<f64>,
        story: &mut Story<'_>,
    ) -> Result<Vec<Outcome>, DemoError> {
        let in_kernel = daemon.is_some_and(|(_, path)| path == ForwardingPath::Kernel);
        // Each path has the sink that is cheapest for what it sends.
        let mode = if in_kernel { SinkMode::Frames } else { SinkMode::Skbs };
        let sink = Sink::attach(&self.programs, &self.testbed, mode)?;
        if in_kernel {
            // The kernel path sends through a veth once its far end has a program, and looks once a second.
            interrupt::sleep(NOTICED)?;
        }
        polled.pin()?;
        let whole = Duration::from_secs_f64(options.seconds.max(0.1));
        let measure = Measure {
            testbed: &self.testbed,
            programs: &self.programs,
            sink: &sink,
            core: self.cores.map(|cores| cores.source),
            warm_up: whole / 8,
            time: whole * 7 / 8,
            slices: SLICES,
        };
        // Half of it would be no figure to compare.
        let core_ns = || match kernel_threads_are_seen() {
            true => polled.router_ns() + daemon.map_or(0, |(daemon, _)| daemon.core_ns()),
            false => 0,
        };
        let mut outcomes = Vec::new();
        let mut run = |name: &str, title: &str, stream: &Stream| -> Result<f64, DemoError> {
            let flow = measure.run(stream, core_ns)?;
            let (rate, is_light) = (flow.forwarded(), stream.has_rate());
            let outcome = Outcome { name: name.into(), title: title.into(), is_light, flow };
            story.note(&outcome.line())?;
            outcomes.push(outcome);
            Ok(rate)
        };
        let mut rates = Vec::new();
        for case in &self.cases {
            rates.push(run(&case.name, &case.title, &case.stream)?);
        }
        let light = light.unwrap_or(rates[0] * LIGHT_SHARE);
        let stream = self.cases[0].stream.clone().at_rate(light);
        run("ipv4-full-prefix-light", "IPv4, half of Linux's load", &stream)?;
        Ok(outcomes)
    }
}

/// Polling threads, each with its core.
pub struct Polled<'a> {
    threads: Vec<(Napi<'a>, usize)>,
}

impl Polled<'_> {
    /// Binds them again: an interface polls by new threads after XDP has come or gone.
    pub fn pin(&self) -> Result<(), TestbedError> {
        self.threads.iter().try_for_each(|(napi, core)| napi.pin(*core, POLLING_PRIORITY))
    }

    /// Time that the router's threads have held a core.
    fn router_ns(&self) -> u64 {
        self.threads.first().map_or(0, |(napi, _)| napi.core_ns())
    }
}

fn streams(table: &Table) -> Result<(Vec<Case>, Stream), DemoError> {
    let (ipv4, ipv6) = (Oracle::new(&table.ipv4), Oracle::new(&table.ipv6));
    let mut all = cases("IPv4", &table.ipv4, &ipv4)?;
    all.extend(cases("IPv6", &table.ipv6, &ipv6)?);
    let few = forwardable(Seed(5), THIN_DESTINATIONS, &table.ipv4);
    Ok((all, u32::stream(&few, Sizes::Fixed(64), &ipv4).at_rate(THIN_RATE)))
}

fn cases<A: Traffic>(
    family: &'static str,
    routes: &[Route<A>],
    oracle: &Oracle<A>,
) -> Result<Vec<Case>, DemoError> {
    let addresses = forwardable(Seed(4), DESTINATIONS_MAX, routes);
    if addresses.is_empty() {
        return Err(DemoError::NoRoutes { family });
    }
    let case = |sizes: Sizes, title: String| Case {
        name: format!("{}-full-prefix-{sizes}", A::NAME),
        title,
        stream: A::stream(&addresses, sizes, oracle),
    };
    let least = A::FRAME_BYTES_MIN;
    Ok(vec![
        case(Sizes::Fixed(least), format!("{family}, {least} bytes")),
        case(Sizes::Imix, format!("{family}, IMIX")),
    ])
}

/// Addresses within prefixes that a router may forward to: a table from a file may hold others.
fn forwardable<A: Traffic>(seed: Seed, count: usize, routes: &[Route<A>]) -> Vec<A> {
    let mut addresses = destinations(Pattern::Prefix, seed, count, routes);
    addresses.retain(|&address| address.is_forwardable());
    addresses
}
