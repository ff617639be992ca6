//! Ordinary set-ups of a router between a LAN and the Internet, by the commands that an engineer types: firewalls, NAT,
//! Docker's rules, block lists, limits, policy routing, shaping. In each, one connection of TCP and one of UDP are
//! established and 1,500 packets follow in each direction, in Linux alone and in brickmoon on each path. Every frame is
//! as from Linux alone, and `Fast` in `table.rs` says which share of the packets brickmoon must forward itself.
//!
//! `BM_SETUP=N` runs the Nth set-up only. The end of the output is a table of the shares.

#[path = "setups/table.rs"]
mod table;

use bm_tests::conversation::{Conversation, Host, lacking};
use bm_tests::exchange::Seen;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::rulesets::{self, Random};
use bm_tests::subject::{Forwarding, Router, Subject};
use bm_tests::{command, connections, report};
use bm_wire::protocol::{TCP, UDP};
use std::fmt::Write;
use std::time::{Duration, Instant};
use table::{Fast, Opens, SETUPS, Setup};

/// Whether the kernel path knows flows.
pub(crate) const FLOWS: bool = true;
/// Whether workers do.
pub(crate) const FLOWS_OF_WORKERS: bool = false;

/// Packets of established connections in each direction.
const PACKETS: usize = 1500;
/// Packets of one direction that are sent at once, fewer than the ring of a veth holds.
const BATCH: usize = 30;
/// The least share, in percent, that brickmoon forwards itself where it is fast; where it is not, the share is less.
const FAST: u64 = 95;
/// How long it may take until brickmoon has counted all.
const PATIENCE: Duration = Duration::from_secs(10);

/// What comes of a set-up in one router.
struct Outcome {
    /// All frames that came to the ends, sorted.
    seen: Vec<Seen>,
    /// Percent of the packets of established connections that brickmoon forwarded itself.
    share: u64,
    /// What brickmoon says why it left packets to Linux.
    why: String,
}

/// Whether brickmoon must forward the packets of established connections itself.
fn is_fast(subject: &Subject, fast: Fast) -> bool {
    let workers = matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let knows_flows = if workers { FLOWS_OF_WORKERS } else { FLOWS };
    fast == Fast::Always || fast == Fast::ByFlows && knows_flows
}

/// The connection that is tried: where it begins and ends, and at which end it appears first.
fn ends(setup: &Setup, protocol: u8, number: usize) -> (Host, Side) {
    // A port of its own in each set-up: Linux keeps it, since nobody else has it.
    let from = 20_000 + 10 * number as u16 + u16::from(protocol == TCP);
    let (side, own, peer, to) = match (setup.opens, protocol) {
        (Opens::Lan, TCP) => (Side::Src, "192.0.2.7", "10.9.9.9:443", Side::Snk),
        (Opens::Lan, _) => (Side::Src, "192.0.2.7", "10.9.9.9:53", Side::Snk),
        (Opens::Wan, TCP) => (Side::Snk, "198.51.100.7", "198.51.100.1:8080", Side::Src),
        (Opens::Wan, _) => (Side::Snk, "198.51.100.7", "198.51.100.1:5353", Side::Src),
    };
    let own = (own.parse::<std::net::IpAddr>().expect("an address"), from).into();
    (Host::new(side, own, peer.parse().expect("an address and a port")), to)
}

/// Sends packets of both connections in both directions, of random sizes; how many there were.
fn talk(lab: &Lab, both: &mut [Conversation; 2], seed: u64, seen: &mut Vec<Seen>) -> Result<u64, String> {
    let mut random = Random::from_seed(seed);
    for round in 0..PACKETS / BATCH * 2 {
        let by_opener = round % 2 == 0;
        let mut one = || {
            let which = random.below(2);
            both[which].say(by_opener, random.below(1400))
        };
        let frames = (0..BATCH).map(|_| one()).collect();
        both[0].cross(lab, by_opener, frames, seen)?;
    }
    Ok((PACKETS / BATCH * 2 * BATCH) as u64)
}

/// Frames that brickmoon has sent, once that number rests: workers update their counters with a short delay.
fn sent(router: &Router) -> u64 {
    let (begin, mut last) = (Instant::now(), router.sent());
    while router.is_brickmoon() {
        std::thread::sleep(Duration::from_millis(20));
        let now = router.sent();
        if now == last {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "brickmoon still sends\n{}", router.status_text());
        last = now;
    }
    last
}

/// Sends packets that say nothing new until both directions of both connections go by flow.
fn wait_for_flows(lab: &Lab, router: &Router, both: &[Conversation; 2]) -> Result<(), String> {
    let begin = Instant::now();
    while router.flows() < 4 {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{} flows of 4 after {PATIENCE:?}", router.flows()));
        }
        for (conversation, by_opener) in both.iter().flat_map(|one| [(one, true), (one, false)]) {
            let frame = conversation.repeat(by_opener);
            conversation.cross(lab, by_opener, vec![frame], &mut Vec::new())?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether `explain` says that a datagram of the opener goes by its flow.
fn explains(router: &Router, opener: &Host) -> Result<(), String> {
    let [from, to] = [opener.own, opener.peer].map(|end| (end.ip().to_string(), end.port().to_string()));
    let port = opener.side.router();
    let words = ["explain", &to.0, "--from", &from.0, "--in", port, "--sport", &from.1, "--dport", &to.1];
    let explained = router.json(&words);
    let steps = explained["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let has_flow = steps.iter().any(|step| step["step"] == "flow");
    if has_flow && explained["fate"] == "sent" { Ok(()) } else { Err(format!("explain says {explained}")) }
}

/// Establishes both connections, and lets packets pass.
fn converse(lab: &Lab, router: &Router, setup: &Setup, number: usize) -> Result<Outcome, String> {
    let mut seen = Vec::new();
    let [first, second] = [TCP, UDP].map(|protocol| {
        let (opener, to) = ends(setup, protocol, number);
        Conversation::open(lab, protocol, opener, to, &mut seen)
    });
    let mut both = [first?, second?];
    if setup.fast == Fast::ByFlows && FLOWS && router.is_kernel() {
        wait_for_flows(lab, router, &both)?;
    }
    let before = sent(router);
    let count = talk(lab, &mut both, number as u64, &mut seen)?;
    let by_itself = sent(router) - before;
    if setup.fast == Fast::ByFlows && FLOWS && router.is_kernel() {
        explains(router, &ends(setup, UDP, number).0)?;
    }
    both.iter_mut().try_for_each(|one| one.close(lab, &mut seen))?;
    seen.sort();
    Ok(Outcome { seen, share: by_itself * 100 / count, why: why(router) })
}

/// Why brickmoon leaves packets to Linux, in its own words.
fn why(router: &Router) -> String {
    let status = router.status_text();
    let mut reasons = status.lines().filter_map(|line| line.split_once("left to Linux: "));
    reasons.next().map_or_else(String::new, |(_, why)| why.to_owned())
}

/// Sets one up, tries it, and undoes it. `None` if Linux refuses it.
fn attempt(lab: &Lab, router: &Router, setup: &Setup, number: usize) -> Option<Outcome> {
    connections::forget(&lab.rtr);
    let set = lab.rtr.feed("sh -e", setup.set);
    let outcome = match &set {
        Ok(()) => {
            router.settle();
            lab.drain();
            let tried = converse(lab, router, setup, number);
            Some(tried.unwrap_or_else(|why| {
                panic!("{}: {}: {why}\n{}", router.name(), setup.name, router.status_text())
            }))
        }
        Err(why) => {
            assert!(!router.is_brickmoon(), "{}: only beside brickmoon: {why}", setup.name);
            report::skip("setups", &format!("{}: {why}", setup.name));
            None
        }
    };
    let flush = if command::has("nft") { "nft flush ruleset\n" } else { "" };
    let unset = lab.rtr.feed("sh", &format!("{}{flush}", setup.unset));
    assert!(set.is_err() || unset.is_ok(), "{}: {unset:?}", setup.name);
    router.settle();
    outcome
}

/// What is wrong with an outcome beside that of Linux alone.
fn fault(subject: &Subject, setup: &Setup, outcome: &Outcome, of_linux: &Outcome) -> Option<String> {
    if outcome.seen != of_linux.seen {
        let (extra, missing) =
            (lacking(&outcome.seen, &of_linux.seen), lacking(&of_linux.seen, &outcome.seen));
        return Some(format!("Linux does not send:{extra}\nmissing:{missing}"));
    }
    let fast = is_fast(subject, setup.fast);
    // In some set-ups only packets of one direction are left to Linux, so the other half is no fault.
    if fast != (outcome.share >= FAST) {
        return Some(format!("forwards {} % itself: {}", outcome.share, outcome.why));
    }
    (!fast && outcome.why.is_empty()).then(|| "does not say why Linux forwards".to_owned())
}

#[test]
fn ordinary_setups_are_as_with_linux_alone() {
    let subjects = Subject::with_tc("setups");
    if subjects.first() != Some(&Subject::Linux) {
        return report::skip("setups", "Linux is no subject of this run");
    }
    let labs: Vec<Lab> =
        subjects.iter().map(|subject| Lab::new(&format!("set-{subject}"), Ends::Silent)).collect();
    let mut routers: Vec<(&Lab, Router)> = Vec::new();
    for (lab, subject) in labs.iter().zip(&subjects) {
        routers.push((lab, subject.start_with_flows(lab)));
    }
    let (mut faults, mut shares) = (Vec::new(), String::new());
    for (number, setup) in (1..).zip(SETUPS) {
        // The first one always: in it each daemon does something, which is checked at the end.
        if number > 1 && rulesets::number("BM_SETUP").is_some_and(|wanted| wanted != number as u64) {
            continue;
        }
        if let Some(program) = setup.needs.iter().find(|program| !command::has(program)) {
            report::skip("setups", &format!("{}: there is no {program}", setup.name));
            continue;
        }
        let (linux, others) = routers.split_first().expect("Linux at least");
        let Some(of_linux) = attempt(linux.0, &linux.1, setup, number) else { continue };
        for ((lab, router), subject) in others.iter().zip(&subjects[1..]) {
            let Some(outcome) = attempt(lab, router, setup, number) else { continue };
            let fault = fault(subject, setup, &outcome, &of_linux);
            faults.extend(fault.map(|what| format!("{subject}: {number} {}: {what}", setup.name)));
            let (name, share, why) = (router.name(), outcome.share, outcome.why);
            let _written = writeln!(shares, "{number:2} {:32} {name:17}{share:4} %  {why}", setup.name);
        }
    }
    report::say(&format!("setups: forwarded by brickmoon itself\n{shares}"));
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    for (_, router) in routers {
        router.settle();
        router.stop();
    }
}
