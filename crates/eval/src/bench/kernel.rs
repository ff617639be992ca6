//! `bench kernel`: how long does the kernel path take per packet, compared with Linux and with a fixed next hop?
//!
//! There are three namespaces in a row, and a generator sends faster than anything in the middle one can forward. The
//! middle one has a core of its own. Four subjects take turns there, with the same routes, addresses and packets:
//!
//! ```text
//! linux        no program: the network stack
//! fib-helper   XDP that queries the stack's tables with bpf_fib_lookup()
//! brickmoon    `brickmoon up --path kernel`, its own program with its own tables
//! floor        XDP that sends everything to one next hop, without a lookup
//! ```
//!
//! Cases named `tcp-..` send one TCP connection through Linux, both kinds of the kernel path, and the user path.
//!
//! Cases named `user-..` send packets through Linux, the user path, and AF_XDP ports without a router.
//!
//! Cases named `auto-..` send from sockets through Linux and through brickmoon as it comes, on several kinds of veth.
//!
//! Cases named `flows-..` send packets of connections through Linux's firewall and NAT, and through brickmoon, which repeats
//! what these have decided; one opens connections.
//!
//! Cases named `switch-..` have a switch in place of the router: Linux's bridge and ours, in turn.
//!
//! The daemon runs all the time. Its program is attached to the interfaces only during its own turns, so that the
//! others can use them in theirs; nothing is attached or detached while a turn is measured. At the end of each turn
//! every packet that arrived is checked: a single wrong one ends the bench.

mod auto;
mod bed;
mod figures;
mod flows;
mod rivals;
mod switch;
mod tcp;
mod user;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{BenchError, Options};
use crate::demo::daemon;
use crate::measure::Flow;
use crate::report::Row;
use bed::{Bed, Flows, Turns};
use bm_testbed::addresses::{Pattern, Sizes, destinations};
use bm_testbed::interrupt::Watch;
use bm_testbed::oracle::Oracle;
use bm_testbed::random::Seed;
use bm_testbed::tables::{Route, Table};
use bm_testbed::testbed::TestbedOptions;
use bm_testbed::testbed::kernel::Change;
use bm_testbed::testbed::napi::kernel_threads_are_seen;
use bm_testbed::traffic::{DESTINATIONS_MAX, Traffic};
use bm_wire::prefix::Prefix;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 120;
const SEED: Seed = Seed(11);
/// Names of the subjects, in the order of reports.
const SUBJECTS: [&str; 4] = ["linux", "fib-helper", "brickmoon", "floor"];

/// Options of the bench.
#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// Options that every bench has.
    pub common: Options,
    /// The router's program; by default `brickmoon` in the folder of this program, or in PATH.
    pub program: Option<PathBuf>,
    /// Names of namespaces and interfaces, and the number of next hops.
    pub testbed: TestbedOptions,
}

impl KernelOptions {
    /// Options with the usual test bed and the installed router.
    pub fn new(common: Options) -> Self {
        let testbed = TestbedOptions { prefix: "bm-kernel".into(), ..TestbedOptions::default() };
        Self { common, program: None, testbed }
    }
}

/// Which family, table and frames.
#[derive(Clone, Copy)]
struct Case {
    family: &'static str,
    table: &'static str,
    pattern: Pattern,
    /// The name of the sizes: without the frame check sequence for the largest frame.
    size: &'static str,
}

impl Case {
    /// One route first: the full table is added later.
    const ALL: [Self; 8] = {
        const fn full(family: &'static str, size: &'static str) -> Case {
            Case { family, table: "full", pattern: Pattern::Prefix, size }
        }
        const fn one(family: &'static str) -> Case {
            Case { family, table: "one", pattern: Pattern::Uniform, size: "64" }
        }
        [
            one("ipv4"),
            one("ipv6"),
            full("ipv4", "64"),
            full("ipv4", "imix"),
            full("ipv4", "1514"),
            full("ipv6", "64"),
            full("ipv6", "imix"),
            full("ipv6", "1514"),
        ]
    };

    fn name(&self) -> String {
        format!("{}-{}-{}-{}", self.family, self.table, self.pattern, self.size)
    }

    fn sizes(&self) -> Sizes {
        match self.size {
            "imix" => Sizes::Imix,
            "1514" => Sizes::Fixed(1518),
            _ => Sizes::Fixed(64),
        }
    }

    fn flows(&self, table: &Table) -> Option<Flows> {
        match self.family {
            "ipv4" => flows(self, &table.ipv4),
            _ => flows(self, &table.ipv6),
        }
    }
}

/// The cases that are to be measured.
struct Cases {
    routers: Vec<Case>,
    switches: Vec<switch::Case>,
    connections: Vec<tcp::Case>,
    users: Vec<user::Case>,
    autos: Vec<auto::Case>,
    flows: Vec<flows::Case>,
}

impl Cases {
    fn of(options: &Options) -> Self {
        // A case for which the daemon is started many times takes long, so these are only measured if they are asked for.
        let is_asked = options.case.is_some();
        let mut selected = Self {
            routers: Case::ALL.to_vec(),
            switches: switch::Case::ALL.to_vec(),
            connections: tcp::Case::ALL.to_vec(),
            users: user::Case::ALL.to_vec(),
            autos: auto::Case::all(),
            flows: flows::Case::selected(options),
        };
        selected.routers.retain(|case| options.wants(&case.name()));
        selected.switches.retain(|case| options.wants(case.name));
        selected.connections.retain(|case| options.wants(case.name));
        selected.users.retain(|case| options.wants(case.name));
        selected.autos.retain(|case| is_asked && options.wants(&case.name));
        selected
    }

    /// Whether any of them has the full table.
    fn wants_full(&self) -> bool {
        self.routers.iter().any(|case| case.table == "full") || self.users.iter().any(|case| case.is_full)
    }

    /// How much of the time each kind of cases has, in the order of the fields.
    fn times(&self, whole: Duration) -> [Duration; 6] {
        // A switch case has two subjects, so it takes half as long.
        let shares = [
            self.routers.len() as f64,
            self.switches.len() as f64 / 2.0,
            self.connections.len() as f64,
            self.users.len() as f64,
            self.autos.len() as f64,
            self.flows.len() as f64,
        ];
        shares.map(|share| whole.mul_f64(share / shares.iter().sum::<f64>()))
    }

    fn is_empty(&self) -> bool {
        self.routers.is_empty()
            && self.switches.is_empty()
            && self.connections.is_empty()
            && self.users.is_empty()
            && self.autos.is_empty()
            && self.flows.is_empty()
    }
}

/// Measures all selected cases; if files of routes are given, those whose family they have routes of.
///
/// # Errors
/// See [`BenchError`]; without root, or with a single core, nothing can be measured.
pub fn kernel(options: &KernelOptions) -> Result<Vec<Row>, BenchError> {
    let begin = Instant::now();
    refuse_unused_rib(&options.common)?;
    bm_testbed::testbed::require_root()?;
    if !kernel_threads_are_seen() {
        return Err(BenchError::KernelThreads);
    }
    let mut selected = Cases::of(&options.common);
    let full = match selected.wants_full() {
        true => options.common.table(options.testbed.next_hops)?,
        false => Table { ipv4: Vec::new(), ipv6: Vec::new() },
    };
    selected.routers.retain(|case| match (case.table, case.family) {
        ("one", _) => true,
        (_, "ipv4") => !full.ipv4.is_empty(),
        _ => !full.ipv6.is_empty(),
    });
    if selected.is_empty() {
        return Err(BenchError::NoCase { wanted: options.common.case.clone().unwrap_or_default() });
    }
    let _watch = Watch::begin();
    let before = daemon::Before::look();
    let rows = measure_all(options, &selected, &full, begin);
    // Everything has been dropped by now, also after an error.
    match daemon::left_behind(&options.testbed.prefix, &before) {
        Some(left) if rows.is_ok() => Err(BenchError::build("clean up")(format!("left behind: {left}"))),
        _ => rows,
    }
}

/// Refuses files of routes if no selected case uses them: a switch has no routes, and some cases have a single one.
fn refuse_unused_rib(options: &Options) -> Result<(), BenchError> {
    let routers = Case::ALL.iter().map(|case| (case.name(), case.table == "full"));
    let switches = switch::Case::ALL.iter().map(|case| (case.name.to_string(), false));
    let connections = tcp::Case::ALL.iter().map(|case| (case.name.to_string(), false));
    let users = user::Case::ALL.iter().map(|case| (case.name.to_string(), case.is_full));
    let autos = auto::Case::all().into_iter().map(|case| (case.name, false));
    let flows = flows::Case::ALL.iter().map(|case| (case.name.to_string(), false));
    options
        .refuse_unused_rib(routers.chain(switches).chain(connections).chain(users).chain(autos).chain(flows))
}

fn measure_all(
    options: &KernelOptions,
    selected: &Cases,
    full: &Table,
    begin: Instant,
) -> Result<Vec<Row>, BenchError> {
    let [routers, switches, connections, users, autos, flows] = selected.times(whole(options));
    let mut rows = measure(options, &selected.routers, full, begin, routers)?;
    rows.extend(switch::measure(options, &selected.switches, switches)?);
    rows.extend(tcp::measure(options, &selected.connections, connections)?);
    rows.extend(measure_user(options, &selected.users, full, users)?);
    rows.extend(auto::measure(options, &selected.autos, autos)?);
    rows.extend(flows::measure(options, &selected.flows, flows)?);
    Ok(rows)
}

/// Whether packets arrived in every slice, and all were correct.
///
/// # Errors
/// [`BenchError::Arrived`] if not.
fn check_arrived(case: &str, subject: &str, flow: &Flow) -> Result<(), BenchError> {
    if flow.arrived.bad() > 0 || flow.samples.iter().any(|sample| sample.items == 0) {
        let (case, subject) = (case.into(), subject.into());
        return Err(BenchError::Arrived { case, subject, arrived: flow.arrived });
    }
    Ok(())
}

/// How long the bench may take.
fn whole(options: &KernelOptions) -> Duration {
    Duration::from_secs(if options.common.seconds == 0 { SECONDS } else { options.common.seconds })
}

/// One test bed; the daemon is restarted for each of the two tables.
fn measure(
    options: &KernelOptions,
    cases: &[Case],
    full: &Table,
    begin: Instant,
    whole: Duration,
) -> Result<Vec<Row>, BenchError> {
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let (mut bed, one) = (Bed::up(&options.testbed)?, one_route());
    let mut rows = Vec::new();
    let mut left = cases.len();
    for (name, table) in [("one", &one), ("full", full)] {
        let cases: Vec<_> = cases.iter().filter(|case| case.table == name).collect();
        if cases.is_empty() {
            continue;
        }
        bed.testbed.change_routes(Change::Add, table)?;
        bed.start(options)?;
        for case in cases {
            let Some(flows) = case.flows(table) else { continue };
            let turns = Turns::within(whole.saturating_sub(begin.elapsed()), left);
            left -= 1;
            rows.extend(figures::rows(&case.name(), &bed.measure(&case.name(), &flows, turns)?, &bed));
        }
        bed.stop()?;
        bed.testbed.change_routes(Change::Delete, table)?;
    }
    Ok(rows)
}

/// The cases of the user path, IPv4, each with a test bed of its own.
fn measure_user(
    options: &KernelOptions,
    cases: &[user::Case],
    full: &Table,
    whole: Duration,
) -> Result<Vec<Row>, BenchError> {
    let (one, mut rows) = (one_route(), Vec::new());
    for case in cases {
        let (table, pattern) = if case.is_full { (full, Pattern::Prefix) } else { (&one, Pattern::Uniform) };
        let traffic = Case { family: "ipv4", table: "", pattern, size: case.size };
        let Some(flows) = traffic.flows(table) else { continue };
        rows.extend(user::measure(options, case, table, &flows, whole / cases.len() as u32)?);
    }
    Ok(rows)
}

/// The one route of each family: the default route.
fn one_route() -> Table {
    Table {
        ipv4: vec![Route { prefix: Prefix::default(), next_hop: 1 }],
        ipv6: vec![Route { prefix: Prefix::default(), next_hop: 1 }],
    }
}

/// Packets of a case, or `None` if the table has no route to an address that a router may forward to.
fn flows<A: Traffic>(case: &Case, routes: &[Route<A>]) -> Option<Flows> {
    let mut addresses = destinations(case.pattern, SEED, DESTINATIONS_MAX, routes);
    addresses.retain(|&address| address.is_forwardable());
    if addresses.is_empty() {
        return None;
    }
    let checked = A::stream(&addresses, case.sizes(), &Oracle::new(routes));
    Some(Flows { anywhere: checked.clone().expecting_any(), checked, routes: routes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_the_documented_names() {
        let names: Vec<_> = Case::ALL.iter().map(Case::name).collect();
        assert!(
            names.contains(&"ipv4-full-prefix-imix".into()) && names.contains(&"ipv6-one-uniform-64".into())
        );
        assert_eq!(Case::ALL[4].sizes().in_memory(0), [1514]);
    }

    #[test]
    fn reports_errors_before_creating_anything() {
        if bm_testbed::testbed::require_root().is_err() {
            return eprintln!("skipped reports_errors_before_creating_anything: needs root");
        }
        let common = Options { case: Some("ipv5".into()), ..Options::default() };
        let error = kernel(&KernelOptions::new(common)).unwrap_err().to_string();
        assert!(error.contains("no case with \"ipv5\""), "{error}");
    }
}
