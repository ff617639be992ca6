//! An hour under all loads at once (`make soak`), or half a minute of it in `make test`.
//!
//! ```text
//!   a stream of 10,000 packets a second ──► router on the user path,   both at the same time,
//!   the same                            ──► router on the kernel path  each with these loads:
//! ```
//!
//! A full table in which 10,000 routes change a second, including those of the stream; a reload each second, which
//! changes filters and hooks; counters read from shared memory a thousand times a second, and up to as many requests
//! to the daemon; clients that read long answers slowly; neighbors that are added and deleted, a scan of addresses
//! that do not exist, and a link that flaps.
//!
//! At the end every lost packet must be in a counter of the router, of Linux or of the receiver's own socket; memory
//! and descriptors must not have grown, and `verify` must succeed. The report shows all of this.
//!
//! | variable | meaning |
//! |---|---|
//! | `BM_SOAK=SECONDS` | how long (20) |
//! | `BM_SOAK_ROUTES=N` | how many routes (100,000; a million from ten minutes on) |

mod clients;
mod loads;
mod losses;
mod summary;
mod traffic;

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::usage::Usage;
use loads::Loads;
use std::time::{Duration, Instant};

/// Packets a second of each stream.
const RATE: u32 = 10_000;
/// Number of destinations of a stream.
const DESTINATIONS: u32 = 64;
/// Runs from this length on are long, and their growth is checked.
const LONG: Duration = Duration::from_secs(600);
/// How often a long run reports its progress.
const SAY_EVERY: Duration = Duration::from_secs(300);
/// How long it may take until `verify` succeeds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long it takes.
    pub time: Duration,
    /// Number of routes.
    pub routes: u32,
    /// Changes of routes a second.
    pub changes: f64,
    /// The file of the hook.
    pub hook: String,
}

impl Plan {
    /// The parameters from the environment.
    fn of(name: &str) -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u32>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
        };
        let time = Duration::from_secs(u64::from(number("BM_SOAK").unwrap_or(20)));
        let usual = if time >= LONG { 1_000_000 } else { 100_000 };
        let hook = std::env::temp_dir().join(format!("bm-soak-{}-{name}.lua", std::process::id()));
        Self {
            time,
            routes: number("BM_SOAK_ROUTES").unwrap_or(usual),
            changes: 10_000.0,
            hook: hook.to_string_lossy().into_owned(),
        }
    }

    /// How often resource usage is sampled.
    fn interval(&self) -> Duration {
        (self.time / 200).clamp(Duration::from_millis(500), Duration::from_secs(10))
    }

    /// A stream to routes all over the table that change their neighbor but are never deleted.
    fn stream(&self) -> Stream {
        let steps = self.routes / DESTINATIONS;
        let numbers = (0..DESTINATIONS).map(|step| step * steps / 64 * 64 + step % 56);
        Stream { destinations: numbers.map(loads::address).collect(), rate: RATE }
    }
}

/// Resource usage of a process, with the time in seconds since the start of the loads.
pub type Samples = Vec<(f64, Usage)>;

/// Samples the daemon's usage until the time is over, and reports it now and then.
fn watch(process: u32, name: &str, plan: &Plan, losses: impl Fn() -> losses::Counters) -> Samples {
    let start = Instant::now();
    let mut said = start;
    let mut samples = Samples::new();
    while start.elapsed() < plan.time {
        let usage = Usage::of(process).unwrap_or_else(|error| panic!("the daemon has ended: {error}"));
        samples.push((start.elapsed().as_secs_f64(), usage));
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            report::say(&format!(
                "soak: {name}: {:.0} s: {usage}; lost perhaps: {:?}",
                start.elapsed().as_secs_f64(),
                losses()
            ));
        }
        std::thread::sleep(plan.interval().min(plan.time.saturating_sub(start.elapsed())));
    }
    samples
}

/// Waits until the tables equal the kernel's; returns how long that took.
fn until_verified(router: &Router) -> Duration {
    let start = Instant::now();
    loop {
        let verify = router.ask("verify", &[]).expect("a daemon");
        if verify.status.success() {
            return start.elapsed();
        }
        let said = String::from_utf8_lossy(&[verify.stdout, verify.stderr].concat()).into_owned();
        assert!(start.elapsed() < PATIENCE, "{}: verify still fails:\n{said}", router.name());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn soak(subject: &Subject) {
    let name = subject.to_string();
    let plan = Plan::of(&name);
    let lab =
        Lab::new(&format!("soak-{}", if name == "brickmoon" { "user" } else { "kernel" }), Ends::Silent);
    // The lab's sockets are not read here, and would only use memory.
    lab.sockets().iter().for_each(|socket| socket.stop_listening().expect("a socket"));
    let mut router = subject.start(&lab);
    router.end(&[]);
    loads::write_hook(&plan, 0);
    let config = loads::config(&router, &plan, 0);
    router.restart_with(&SIDES.map(|side| side.router()), &config);
    let filled = loads::fill(&lab, plan.routes);
    let followed = until_verified(&router);
    report::say(&format!(
        "soak: {name}: {} routes in Linux after {:.1} s, verified {:.1} s later",
        plan.routes,
        filled.as_secs_f64(),
        followed.as_secs_f64()
    ));
    let process = router.process().expect("a daemon");
    let before = losses::all(&lab, &router);
    let ((samples, done), traffic) = traffic::during(&plan.stream(), &lab, || {
        let losses = || losses::since(&before, &losses::all(&lab, &router));
        loads::during(&lab, &router, &plan, || watch(process, &name, &plan, losses))
    });
    let counters = losses::since(&before, &losses::all(&lab, &router));
    let settled = until_verified(&router);
    let faults = summary::report(&plan, &router, &summary::Run { samples, done, traffic, counters, settled });
    let _gone = std::fs::remove_file(&plan.hook);
    assert!(faults.is_empty(), "{name}: {}", faults.join("; "));
    router.stop();
}

#[test]
fn both_paths_at_once() {
    let subjects = Subject::all("soak").into_iter().filter(|subject| *subject != Subject::Linux);
    let subjects: Vec<_> = subjects.collect();
    std::thread::scope(|scope| {
        let runs: Vec<_> = subjects.iter().map(|subject| scope.spawn(|| soak(subject))).collect();
        let failed = runs.into_iter().filter_map(|run| run.join().err()).next();
        if let Some(panic) = failed {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn the_stream_uses_routes_that_are_never_deleted() {
    for routes in [100_000, 1_000_000] {
        let plan = Plan { routes, ..Plan::of("plan") };
        let stream = plan.stream();
        let gone: Vec<_> =
            (0..routes).filter(|number| loads::comes_and_goes(*number)).map(loads::address).collect();
        let all: Vec<_> = (0..routes).map(loads::address).collect();
        assert_eq!(stream.destinations.len(), 64);
        assert!(stream.destinations.iter().all(|to| all.contains(to) && !gone.contains(to)));
        assert!(stream.destinations.iter().any(|to| to.contains(':')));
    }
}
