//! The differential rule: Linux is judged by docs/conformance.md, brickmoon by Linux.
//!
//! Both subjects get the same cases in labs built the same way; only `normalise` makes their output comparable. A
//! difference fails unless `differences.toml` lists it, and then brickmoon must do what the case expects of a router
//! that follows the RFCs. A listed difference that does not exist fails as well, so the list stays true.

use crate::case::{Case, Change};
use crate::exchange::Seen;
use crate::lab::{Ends, Lab};
use crate::netns::Namespace;
use crate::subject::{Forwarding, Router, Subject};
use crate::{normalise, report};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How long a setting without events may take to reach a mirror.
const UNANNOUNCED: Duration = Duration::from_secs(3);
/// Longest wait for carriers that the kernel has not noticed yet.
const CARRIER_MAX: Duration = Duration::from_secs(5);
/// Bytes of a frame that a failure shows.
const SHOWN: usize = 96;

/// An intended difference, from `differences.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// Name of the case.
    case: String,
    /// Number in docs/conformance.md.
    check: u16,
    /// Why brickmoon behaves differently from Linux.
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    #[serde(default)]
    difference: Vec<Difference>,
}

/// Runs the cases on every subject of this run, and fails with all that is wrong.
pub fn run(group: &str, cases: &[Case]) {
    let names: HashSet<_> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len(), "{group}: two cases have one name");
    let mut faults = Vec::new();
    let mut of_linux = None;
    for subject in Subject::with_tc(group) {
        let heard = observe(&subject, group, cases, &mut faults);
        match &subject {
            Subject::Linux => {
                judge_linux(group, cases, &heard, &mut faults);
                of_linux = Some(heard);
            }
            Subject::Brickmoon { forwarding, .. } => {
                // On the kernel path Linux itself does everything but plain forwarding, so nothing may differ.
                let listed = if *forwarding == Forwarding::User { differences() } else { Vec::new() };
                let name = subject.to_string();
                judge_brickmoon((group, &name), cases, of_linux.as_deref(), &heard, &listed, &mut faults);
            }
        }
    }
    assert!(faults.is_empty(), "{group}: {} faults\n{}", faults.len(), faults.join("\n"));
}

/// What a subject sends for each case.
fn observe(subject: &Subject, group: &str, cases: &[Case], faults: &mut Vec<String>) -> Vec<Vec<Seen>> {
    let lab = Lab::new(group, Ends::Silent);
    let router = subject.start(&lab);
    let start = settled_state(&lab.rtr, |state| !state.contains(" linkdown"));
    let mut heard = Vec::new();
    for case in cases {
        let before = apply(&lab.rtr, &case.changes);
        if !case.changes.is_empty() {
            router.settle();
        }
        heard.push(settled_exchange(&lab, case, subject, faults));
        undo(&lab.rtr, &case.changes, &before);
        if !case.changes.is_empty() {
            settle_again(&router, &lab, case, &start);
        }
    }
    router.stop();
    heard
}

/// Runs one exchange and makes its frames comparable.
fn exchange(lab: &Lab, case: &Case, subject: &Subject, faults: &mut Vec<String>) -> Vec<Seen> {
    let heard = lab.exchange(&case.frames, case.expected_of_linux().len(), case.fenced);
    if !heard.complete {
        faults.push(format!("{subject}: {}: the fence did not come through", case.name));
    }
    comparable(&heard.seen)
}

/// The exchange of a case, repeated while its settings may not have reached a mirror yet.
///
/// For few of them the kernel sends events, so brickmoon polls the others; Linux applies them immediately.
fn settled_exchange(lab: &Lab, case: &Case, subject: &Subject, faults: &mut Vec<String>) -> Vec<Seen> {
    let deadline = Instant::now() + UNANNOUNCED;
    let waits =
        *subject != Subject::Linux && case.changes.iter().any(|change| matches!(change, Change::Setting(..)));
    loop {
        let mut found = Vec::new();
        let heard = exchange(lab, case, subject, &mut found);
        if !waits || heard == comparable(case.expected_of_linux()) || Instant::now() > deadline {
            faults.extend(found);
            return heard;
        }
    }
}

fn settle_again(router: &Router, lab: &Lab, case: &Case, start: &str) {
    router.settle();
    let now = settled_state(&lab.rtr, |now| now == start);
    assert_eq!(now, start, "{}: undoing its changes does not restore the state before", case.name);
}

/// Frames as the comparison sees them, sorted by end and bytes.
fn comparable(seen: &[Seen]) -> Vec<Seen> {
    let mut seen: Vec<Seen> = seen
        .iter()
        .map(|seen| Seen { side: seen.side, frame: normalise::frame(seen.frame.clone()) })
        .collect();
    seen.sort();
    seen
}

/// Makes the changes; returns the previous settings.
fn apply(router: &Namespace, changes: &[Change]) -> Vec<String> {
    let one = |change: &Change| match change {
        Change::Ip(lines, _) => {
            router.ip(lines);
            String::new()
        }
        Change::Setting(name, value) => {
            let before = router.setting(name);
            router.set(&[(name, value)]);
            before
        }
    };
    changes.iter().map(one).collect()
}

fn undo(router: &Namespace, changes: &[Change], before: &[String]) {
    for (change, before) in changes.iter().zip(before).rev() {
        match change {
            Change::Ip(_, lines) => drop(router.ip(lines)),
            Change::Setting(name, _) => router.set(&[(name, before)]),
        }
    }
}

/// The state once it is as wanted, or after [`CARRIER_MAX`]: the kernel notices late that an interface has a carrier, and
/// marks its routes `linkdown` until then.
fn settled_state(router: &Namespace, is_wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + CARRIER_MAX;
    loop {
        let now = state(router);
        if is_wanted(&now) || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Addresses, routes, rules, next hops and neighbors as text.
fn state(router: &Namespace) -> String {
    let text = router.ip(
        "addr show\nroute show table all\nrule show\nnexthop show\nneigh show\n-6 route show table all\n-6 rule show",
    );
    // An interface's queue and flags depend on the programs attached to it, and are not part of the routing state.
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.retain(|line| !line.contains("qdisc"));
    lines.sort();
    lines.join("\n")
}

fn judge_linux(group: &str, cases: &[Case], heard: &[Vec<Seen>], faults: &mut Vec<String>) {
    let before = faults.len();
    let mut deviations = 0;
    for (case, heard) in cases.iter().zip(heard) {
        let expected = comparable(case.expected_of_linux());
        if *heard != expected {
            faults.push(contrast(&format!("linux: {} (check {})", case.name, case.check), &expected, heard));
        }
        if let Some((words, _)) = &case.linux {
            deviations += 1;
            report::say(&format!("{group}: linux deviates: check {} {}: {words}", case.check, case.name));
        }
    }
    let wrong = faults.len() - before;
    report::say(&format!(
        "{group}: linux: {} cases, {deviations} stated deviations, {wrong} surprises",
        cases.len()
    ));
}

fn judge_brickmoon(
    (group, name): (&str, &str),
    cases: &[Case],
    linux: Option<&[Vec<Seen>]>,
    heard: &[Vec<Seen>],
    listed: &[Difference],
    faults: &mut Vec<String>,
) {
    let (mut equal, mut chosen, mut wrong) = (0, 0, 0);
    for (index, (case, heard)) in cases.iter().zip(heard).enumerate() {
        let title = format!("{name}: {} (check {})", case.name, case.check);
        let oracle = linux.map_or_else(|| comparable(case.expected_of_linux()), |linux| linux[index].clone());
        let listed = listed.iter().find(|listed| listed.case == case.name);
        let by_the_book = comparable(&case.expected);
        match listed {
            None if *heard == oracle => equal += 1,
            Some(_) if *heard == oracle => {
                wrong += 1;
                faults.push(format!("{title}: as Linux has it; take it out of differences.toml"));
            }
            Some(listed) if *heard == by_the_book && listed.check == case.check => {
                chosen += 1;
                report::say(&format!(
                    "{group}: chosen: check {} {}: {}",
                    case.check, case.name, listed.reason
                ));
            }
            _ => {
                wrong += 1;
                let expected = if listed.is_some() { &by_the_book } else { &oracle };
                faults.push(contrast(&title, expected, heard));
            }
        }
    }
    report::say(&format!(
        "{group}: {name}: {} cases, {equal} as linux, {chosen} listed differences, {wrong} wrong",
        cases.len()
    ));
}

fn differences() -> Vec<Difference> {
    let text = include_str!("../differences.toml");
    let differences: Differences =
        toml::from_str(text).unwrap_or_else(|error| panic!("differences.toml: {error}"));
    differences.difference
}

/// Fails if a listed difference names no case, or a check other than that of the case.
pub fn assert_list_is_true(cases: &[Case]) {
    for listed in differences() {
        let case = cases.iter().find(|case| case.name == listed.case);
        let case = case.unwrap_or_else(|| panic!("differences.toml: no case is called {:?}", listed.case));
        assert_eq!(case.check, listed.check, "differences.toml: {} belongs to another check", case.name);
        assert!(!listed.reason.is_empty(), "differences.toml: {} has no reason", case.name);
    }
}

/// What differs between both lists, in hexadecimal, with the position of the first difference.
fn contrast(title: &str, expected: &[Seen], heard: &[Seen]) -> String {
    let mut text = title.to_string();
    let missing: Vec<_> = expected.iter().filter(|seen| !heard.contains(seen)).collect();
    let extra: Vec<_> = heard.iter().filter(|seen| !expected.contains(seen)).collect();
    let _ = write!(text, ": expected {} frames, got {}", expected.len(), heard.len());
    if let (Some(one), Some(other)) = (missing.first(), extra.first()) {
        let same = one.frame.iter().zip(&other.frame).take_while(|(a, b)| a == b).count();
        let _ =
            write!(text, "; the first pair differs from byte {same} (packet byte {})", same as isize - 14);
    }
    for (words, list) in [("missing", missing), ("not expected", extra)] {
        for seen in list.iter().take(4) {
            let _ = write!(
                text,
                "\n  {words} at {:?}, {} bytes: {}",
                seen.side,
                seen.frame.len(),
                hex(&seen.frame)
            );
        }
    }
    text
}

/// Bytes in hexadecimal: the two MAC addresses, the type, then words of four bytes.
fn hex(frame: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in frame.iter().take(SHOWN).enumerate() {
        if matches!(index, 6 | 12 | 14) || index > 14 && (index - 14) % 4 == 0 {
            text.push(' ');
        }
        let _ = write!(text, "{byte:02x}");
    }
    if frame.len() > SHOWN { text + " .." } else { text }
}
