//! The report of a run, and its faults.

use crate::soak::{LONG, Plan, RATE, Samples, loads, losses, traffic};
use bm_tests::report;
use bm_tests::subject::Router;
use bm_tests::usage::{Usage, growth, rises};
use std::collections::BTreeMap;
use std::time::Duration;

/// Part of the time that is ignored at the start, while caches, stacks and tables still fill.
const WARM_UP: f64 = 0.15;
/// Allowed growth of memory over a long run, by linear regression. More is a fault only if it is also a trend
/// ([`rises`]): memory of the user path fluctuates by a tenth, and with it the end of the regression line.
const MEMORY_GROWTH: f64 = 0.02;
/// Allowed growth of descriptors, since the number of open connections varies.
const DESCRIPTORS_GROWTH: f64 = 3.0;

/// All results of a run.
#[derive(Debug)]
pub struct Run {
    /// The daemon's resource usage over time.
    pub samples: Samples,
    /// The loads.
    pub done: loads::Done,
    /// The stream.
    pub traffic: traffic::Outcome,
    /// Counters that may have counted lost packets of the stream.
    pub counters: losses::Counters,
    /// How long after the loads `verify` succeeded.
    pub settled: Duration,
}

/// Reports everything, and returns the faults.
pub fn report(plan: &Plan, router: &Router, run: &Run) -> Vec<String> {
    let name = router.name();
    let say = |line: String| report::say(&format!("soak: {name}: {line}"));
    let mut faults = Vec::new();
    of_traffic(run, &say, &mut faults);
    of_loads(plan, run, &say, &mut faults);
    of_process(plan, run, &say, &mut faults);
    for (line, count) in of_log(&router.log()).iter().take(20) {
        say(format!("log: {count} times: {line}"));
    }
    say(format!("verify clean {:.1} s after the loads", run.settled.as_secs_f64()));
    say(if faults.is_empty() { "passed".into() } else { format!("FAILED: {}", faults.join("; ")) });
    faults
}

/// Warnings of the log without their numbers, and how often each occurs: most frequent first.
fn of_log(log: &str) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::<String, usize>::new();
    let warns = |line: &&str| ["WARN", "ERROR"].iter().any(|level| line.trim_start().starts_with(level));
    for line in log.lines().filter(warns) {
        let words = line.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
        *counts.entry(words.collect::<Vec<_>>().join("N")).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn of_traffic(run: &Run, say: &dyn Fn(String), faults: &mut Vec<String>) {
    let traffic::Outcome { sent, refused, ledger } = &run.traffic;
    say(format!(
        "{sent} packets sent, {} received, {} lost, {} twice, {} late; slowest {:.1} ms; the sender's interface \
         refused {refused} at first",
        ledger.received,
        ledger.lost,
        ledger.twice,
        ledger.late,
        ledger.slowest.as_secs_f64() * 1e3
    ));
    say(format!("lost in the receiver's own socket: {}", ledger.overflowed));
    for (counter, count) in &run.counters {
        say(format!("lost perhaps: {counter}: {count}"));
    }
    // Refusals by the sender's interface are counted, too, but these packets were sent again.
    let explained = (ledger.overflowed + losses::explained(&run.counters)).saturating_sub(*refused);
    let unexplained = ledger.lost.saturating_sub(explained);
    say(format!("unexplained: {unexplained}"));
    for traffic::Run { first, length } in ledger.runs.iter().take(20) {
        say(format!(
            "lost: {length} from number {first}, {:.1} s after the start",
            f64::from(*first) / f64::from(RATE)
        ));
    }
    if unexplained > 0 {
        faults.push(format!("{unexplained} packets lost that no counter knows"));
    }
    if ledger.twice > 0 {
        faults.push(format!("{} packets came twice", ledger.twice));
    }
    say(rates(&ledger.rates));
}

/// Packets a second: in the first and the last fifth of the run, and in single seconds.
fn rates(rates: &[u32]) -> String {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable();
    let fifth = (rates.len() / 5).max(1).min(rates.len());
    let mean =
        |part: &[u32]| part.iter().map(|rate| u64::from(*rate)).sum::<u64>() / part.len().max(1) as u64;
    let at =
        |share: usize| sorted.get(sorted.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    format!(
        "received a second: first fifth {}, last fifth {}; of single seconds the least {}, 1 % {}, half {}, most {}",
        mean(&rates[..fifth]),
        mean(&rates[rates.len() - fifth..]),
        at(0),
        at(1),
        at(50),
        at(100)
    )
}

fn of_loads(plan: &Plan, run: &Run, say: &dyn Fn(String), faults: &mut Vec<String>) {
    let done = &run.done;
    let a_second = |count: u64| count as f64 / plan.time.as_secs_f64();
    say(format!(
        "{} routes, {:.0} changes a second ({} in all, {} refused by Linux), {:.0} changes of neighbors a second, \
         {:.0} packets a second to unknown ones, {} flaps",
        plan.routes,
        a_second(done.routes),
        done.routes,
        done.refused,
        a_second(done.neighbors),
        a_second(done.scans),
        done.flaps
    ));
    say(format!(
        "{} reloads; counters in shared memory read {:.0} times a second; {:.0} questions a second, slowest {:.0} ms, {} \
         connections ended; slow readers took {} KiB",
        done.reloads,
        a_second(done.counters),
        a_second(done.statistics.answers),
        done.statistics.slowest.as_secs_f64() * 1e3,
        done.statistics.reconnected,
        done.slow_bytes / 1024
    ));
    faults.extend(done.reload_failed.as_ref().map(|why| format!("a reload failed: {why}")));
    faults.extend(done.statistics.failure.as_ref().map(|why| format!("a question failed: {why}")));
    if done.refused > 0 {
        faults.push(format!("Linux refused {} changes of routes", done.refused));
    }
    if [
        done.routes,
        done.neighbors,
        done.scans,
        done.flaps,
        done.reloads,
        done.statistics.answers,
        done.counters,
    ]
    .contains(&0)
    {
        faults.push("a load did nothing".into());
    }
}

/// How much a part of the daemon's memory grew.
struct Grown {
    growth: f64,
    mean: f64,
    rises: bool,
}

fn of_process(plan: &Plan, run: &Run, say: &dyn Fn(String), faults: &mut Vec<String>) {
    let warm: Vec<_> =
        run.samples.iter().filter(|(at, _)| *at >= WARM_UP * plan.time.as_secs_f64()).collect();
    let [Some((begin, first)), Some((end, last))] = [warm.first(), warm.last()] else {
        faults.push("the run was too short to look at the daemon".into());
        return;
    };
    if let Some((_, start)) = run.samples.first() {
        say(format!("at the start: {start}"));
    }
    say(format!("after {begin:.0} s: {first}"));
    say(format!("after {end:.0} s: {last}"));
    let used = last.processor.saturating_sub(first.processor).as_secs_f64() / (end - begin).max(0.001);
    say(format!("processor: {:.0} % of a core", used * 100.0));
    let grown = |of: fn(&Usage) -> u64| {
        let series: Vec<_> = warm.iter().map(|(at, usage)| (*at, of(usage) as f64)).collect();
        let mean = series.iter().map(|sample| sample.1).sum::<f64>() / series.len() as f64;
        Grown { growth: growth(&series), mean, rises: rises(&series) }
    };
    let [pss, rss, bpf] =
        [grown(|usage| usage.pss_kib), grown(|usage| usage.rss_kib), grown(|usage| usage.bpf_kib)];
    let descriptors = grown(|usage| usage.descriptors).growth;
    say(format!(
        "growth in that time, by the line that fits best: PSS {:+.0} KiB ({:+.2} %{}), RSS {:+.0} KiB, BPF {:+.0} \
         KiB, descriptors {descriptors:+.1}",
        pss.growth,
        pss.growth / pss.mean * 100.0,
        if pss.rises { "" } else { ", without a trend" },
        rss.growth,
        bpf.growth
    ));
    if plan.time < LONG {
        return;
    }
    for (what, grown) in [("PSS", pss), ("RSS", rss), ("memory of BPF", bpf)] {
        if grown.growth > grown.mean * MEMORY_GROWTH && grown.rises {
            faults.push(format!("{what} has grown by {:.0} KiB", grown.growth));
        }
    }
    if descriptors > DESCRIPTORS_GROWTH {
        faults.push(format!("{descriptors:.1} descriptors more"));
    }
}
