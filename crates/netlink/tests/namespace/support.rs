//! A watch in a namespace, and waiting until it has nothing left to process.

use bm_netlink::{Change, Findings, Mirror, Options, Watch};
use std::time::{Duration, Instant};

/// Options with which the watch runs no comparisons by itself.
pub fn alone() -> Options {
    let never = Duration::from_secs(86_400);
    Options { audit_every: None, audit_delay: never, ..Options::default() }
}

/// A watch of the calling thread's namespace, without pending changes.
pub fn watch(options: Options) -> Watch {
    let mut watch = Watch::open(options).unwrap();
    assert_eq!(watch.process(Instant::now()).unwrap(), [Change::Everything]);
    watch
}

/// Applies events until none has arrived for a while; returns the changes.
pub fn settle(watch: &mut Watch) -> Vec<Change> {
    let mut all = Vec::new();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(150) {
        watch.wait(Duration::from_millis(20)).unwrap();
        let changes = watch.process(Instant::now()).unwrap();
        if !changes.is_empty() {
            quiet = Instant::now();
        }
        all.extend(changes);
    }
    all
}

/// Applies events until `done` is true, for at most a minute: zebra alone needs seconds of CPU time.
pub fn until(watch: &mut Watch, what: &str, done: impl Fn(&Mirror) -> bool) {
    let start = Instant::now();
    while !done(watch.mirror()) {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out: {what}");
        watch.wait(Duration::from_millis(20)).unwrap();
        watch.process(Instant::now()).unwrap();
    }
}

/// Settles, and asserts that the mirror equals a fresh dump.
pub fn agrees(watch: &mut Watch, after: &str) {
    settle(watch);
    let audit = watch.compare().unwrap();
    assert_eq!(audit.findings.count, 0, "after {after}: {}", listed(&audit.findings));
}

/// Findings as text, one per line.
pub fn listed(findings: &Findings) -> String {
    findings.list.iter().take(20).map(|difference| format!("\n  {difference}")).collect()
}
