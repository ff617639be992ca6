//! Random rulesets about connections, and random packets of a few dozen connections through them: Linux alone, and
//! brickmoon on each path. What comes out of brickmoon is what comes out of Linux, byte by byte, also while rules are
//! added, removed and replaced in the middle of connections, and after all connections have been forgotten.
//!
//! All routers get the same packets. What is sent next depends on what has come out of Linux alone: NAT's addresses and
//! ports are answered, and lost segments are sent again. Segments outside of the window of TCP are only sent while
//! Linux takes them (`nf_conntrack_tcp_be_liberal`), and checksums are right: in flows brickmoon checks neither.
//!
//! `BM_SEED` sets the seed, and `BM_FLOWS_SECONDS` makes a run longer.

#[path = "flows/rules.rs"]
mod rules;
#[path = "flows/traffic.rs"]
mod traffic;

use crate::setups::{FLOWS, FLOWS_OF_WORKERS};
use bm_tests::conversation::{Conversation, Host, lacking};
use bm_tests::counters::Counters;
use bm_tests::exchange::Seen;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::put16;
use bm_tests::rulesets::{Random, number};
use bm_tests::subject::{Router, Subject};
use bm_tests::{command, connections, normalise, reassembly, report, sys};
use bm_wire::protocol::{ICMP, ICMPV6, TCP, UDP};
use rules::Loads;
use std::fmt::Write;
use std::time::{Duration, Instant};
use traffic::Traffic;

/// Seconds of a run, by default.
const SECONDS: u64 = 40;
/// Changes of rules and batches of packets with the same connections.
const STEPS: usize = 30;
/// How long nothing has to come before a capture is whole. What comes later is found by the next one.
const QUIET: Duration = Duration::from_millis(25);
/// How long a frame that Linux alone lets out may take through brickmoon on a busy machine.
const LATE: Duration = Duration::from_secs(10);
const PACKET: usize = 14;

/// One of the routers.
struct Bed<'a> {
    lab: &'a Lab,
    router: Router<'a>,
}

/// Does something with all of them at the same time.
fn each<'a, T: Send>(beds: &mut [Bed<'a>], action: impl Fn(&mut Bed<'a>) -> T + Sync) -> Vec<T> {
    let action = &action;
    std::thread::scope(|scope| {
        let threads: Vec<_> = beds.iter_mut().map(|bed| scope.spawn(move || action(bed))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

impl Bed<'_> {
    /// The resulting frames: at least `expected`, and all that follow until none does.
    fn exchange(&self, frames: &[(Side, Vec<u8>)], expected: usize) -> Vec<Seen> {
        frames.iter().for_each(|(side, frame)| self.lab.send(*side, frame));
        let (begin, mut seen) = (Instant::now(), Vec::new());
        loop {
            let more = sys::wait_readable(&self.lab.sockets(), QUIET).expect("poll works on open sockets");
            let lacks = seen.len() < expected && begin.elapsed() < LATE;
            if !more && !lacks {
                return seen;
            }
            for side in SIDES {
                while let Some(captured) = self.lab.receive(side) {
                    if !normalise::is_noise(&captured.frame) {
                        seen.push(Seen { side, frame: comparable(captured.frame) });
                    }
                }
            }
        }
    }

    /// Waits until brickmoon knows the rules, and makes it forget flows when Linux knows no connections: those of packets that
    /// are not tracked have nothing that ends them.
    fn settle(&self) {
        self.router.settle();
        if self.router.is_brickmoon() && self.lab.rtr.setting("net.netfilter.nf_conntrack_count") == "0" {
            self.router.clear_flows();
        }
    }
}

/// A frame without what Linux makes up: packets of the router itself, which have not lost a hop, have any identification
/// or flow label.
fn comparable(mut frame: Vec<u8>) -> Vec<u8> {
    let packet = frame.get_mut(PACKET..).unwrap_or_default();
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 && packet[8] != 63 && matches!(packet[9], ICMP | TCP) => {
            put16(packet, 4, 0);
            put16(packet, 10, 0);
        }
        Some(6) if packet.len() >= 40 && packet[7] != 63 && matches!(packet[6], ICMPV6 | TCP) => {
            packet[1] &= 0xf0;
            packet[2..4].fill(0);
        }
        _ => {}
    }
    frame
}

/// What has been done with one set of connections, for the report of a difference.
struct Epoch<'a, 'b> {
    beds: &'a mut [Bed<'b>],
    traffic: Traffic,
    history: String,
    counts: Counts,
}

/// What a run has tried.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Rulesets and changes, and how many of them Linux has refused.
    loads: usize,
    refused: usize,
    /// Packets sent, and frames that came out of Linux alone.
    sent: usize,
    came: usize,
}

impl Epoch<'_, '_> {
    /// Sets rules in all routers, or has all of them refuse these. What follows a refused part is left out: it may need
    /// the table `base`.
    fn load(&mut self, loads: &Loads) {
        for (line, text) in loads {
            let results = each(self.beds, |bed| bed.lab.rtr.feed(line, text));
            let _written = writeln!(self.history, "{line}\n{text}");
            let refused = results[0].is_err();
            let same = results.iter().all(|result| result.is_err() == refused);
            assert!(same, "not the same in all routers: {results:?}\n{}", self.history);
            self.counts.loads += 1;
            if refused {
                self.counts.refused += 1;
                let _written = writeln!(self.history, "# refused: {:?}", results[0]);
                break;
            }
        }
        each(self.beds, |bed| bed.settle());
    }

    fn forget(&mut self, random: &mut Random) {
        self.history += "# all connections are forgotten\n";
        each(self.beds, |bed| {
            connections::forget(&bed.lab.rtr);
            bed.settle();
        });
        self.traffic.forget(random);
    }

    /// Sets rules. Where packets were or are not tracked, connections begin again: what was not translated would be
    /// answered, and that answer finds the ports taken by the connection that was.
    fn change(&mut self, random: &mut Random, loads: &Loads) {
        let untracks = |bed: &Bed| bed.lab.rtr.run("nft list ruleset").contains("notrack");
        let before = untracks(&self.beds[0]);
        self.load(loads);
        if before || untracks(&self.beds[0]) {
            self.forget(random);
        }
    }

    /// Sends what hosts at each side have to send, and compares what comes of it.
    fn packets(&mut self, random: &mut Random) {
        for side in traffic::sides(random) {
            let sent = self.traffic.next(random, side);
            let frames = sent.iter().flat_map(|packet| &packet.frames);
            let frames: Vec<_> = frames.map(|frame| (side, frame.clone())).collect();
            let before: Vec<Counters> = self.beds.iter().map(|bed| Counters::read(bed.lab)).collect();
            let (linux, others) = self.beds.split_first_mut().expect("Linux at least");
            let of_linux = linux.exchange(&frames, 0);
            let of_others = each(others, |bed| bed.exchange(&frames, of_linux.len()));
            self.counts.sent += frames.len();
            self.counts.came += of_linux.len();
            let _written =
                writeln!(self.history, "# {} frames from {side:?}, {} came", frames.len(), of_linux.len());
            for packet in &sent {
                self.history += &traffic::line(packet, &of_linux);
            }
            let expected = reassembly::datagrams(&of_linux);
            for (bed, seen) in self.beds[1..].iter().zip(&of_others) {
                let seen = reassembly::datagrams(seen);
                if seen != expected && !differs_by_lost_icmp(self.beds, &before, &seen, &expected) {
                    panic!("{}", difference(bed, &seen, &expected, &frames, &self.history));
                }
            }
            self.traffic.heard(&sent, &of_linux);
        }
    }
}

/// Whether frames differ only by errors and replies of a router, and Linux counts that it could not send some.
fn differs_by_lost_icmp(beds: &[Bed], before: &[Counters], seen: &[Seen], expected: &[Seen]) -> bool {
    let failed = beds
        .iter()
        .zip(before)
        .any(|(bed, before)| Counters::read(bed.lab).failed_to_send_icmp_since(before));
    failed && without_own_icmp(seen) == without_own_icmp(expected)
}

fn without_own_icmp(frames: &[Seen]) -> Vec<&Seen> {
    frames.iter().filter(|one| !normalise::is_own_icmp(&one.frame)).collect()
}

/// A difference in words, with all that has led to it.
fn difference(
    bed: &Bed,
    seen: &[Seen],
    of_linux: &[Seen],
    sent: &[(Side, Vec<u8>)],
    history: &str,
) -> String {
    let sent: String = sent.iter().map(|(side, frame)| format!("\n  {side:?} {}", hex(frame))).collect();
    format!(
        "{}: {} frames, {} by Linux alone\nLinux does not send:{}\nmissing:{}\nsent:{sent}\n{history}\n{}",
        bed.router.name(),
        seen.len(),
        of_linux.len(),
        lacking(seen, of_linux),
        lacking(of_linux, seen),
        bed.router.status_text()
    )
}

fn hex(frame: &[u8]) -> String {
    frame.iter().take(120).map(|byte| format!("{byte:02x}")).collect()
}

/// Settings of all routers: Linux forgets no connection by itself, since when it would is chance, and reads packets of a
/// connection outside of their window or does not.
fn calm(lab: &Lab, liberal: bool) {
    let timeouts = "for f in /proc/sys/net/netfilter/nf_conntrack_*timeout*; do echo 86400 > $f; done";
    lab.rtr.feed(timeouts, "").unwrap_or_else(|why| panic!("{timeouts}: {why}"));
    let liberal = if liberal { "1" } else { "0" };
    // A datagram that lacks a fragment is not reported either.
    lab.rtr.set(&[("net.netfilter.nf_conntrack_tcp_be_liberal", liberal), ("net.ipv4.ipfrag_time", "86400")]);
}

/// New connections and rules, some steps with them, and the end of all.
fn epoch(beds: &mut [Bed], random: &mut Random, number: u16, until: Instant, counts: &mut Counts) {
    let liberal = random.one_in(2);
    let traffic = Traffic::new(random, 5000 + number % 100 * 64, liberal);
    let history = format!("# nf_conntrack_tcp_be_liberal: {liberal}\n");
    let mut epoch = Epoch { beds, traffic, history, counts: *counts };
    epoch.load(&rules::first());
    epoch.load(&rules::ruleset(random));
    each(epoch.beds, |bed| calm(bed.lab, liberal));
    for _ in 0..STEPS {
        if Instant::now() > until {
            break;
        }
        match random.below(12) {
            step @ 0..3 => {
                let loads = if step == 0 { rules::ruleset(random) } else { rules::change(random) };
                epoch.change(random, &loads);
            }
            3 if random.one_in(2) => epoch.forget(random),
            _ => epoch.packets(random),
        }
    }
    *counts = epoch.counts;
    each(beds, |bed| {
        bed.lab.rtr.run("nft flush ruleset");
        connections::forget(&bed.lab.rtr);
        bed.settle();
    });
}

#[test]
fn connections_are_as_with_linux_alone() {
    let subjects = Subject::with_tc("flows");
    if subjects.first() != Some(&Subject::Linux) || !command::has("nft") {
        return report::skip("flows", "needs nft, and Linux as a subject of the run");
    }
    let labs: Vec<Lab> =
        subjects.iter().map(|subject| Lab::new(&format!("flo-{subject}"), Ends::Silent)).collect();
    let mut beds: Vec<Bed> = labs
        .iter()
        .zip(&subjects)
        .map(|(lab, subject)| Bed { lab, router: subject.start_with_flows(lab) })
        .collect();
    for bed in &beds {
        // Without rules, each daemon does something, which is checked at the end.
        let address = |text: &str| text.parse().expect("an address and a port");
        let opener = Host::new(Side::Src, address("192.0.2.7:4002"), address("10.9.9.9:53"));
        let opened = Conversation::open(bed.lab, UDP, opener, Side::Snk, &mut Vec::new());
        assert!(opened.is_ok(), "{}: {opened:?}", bed.router.name());
    }
    let mut random = Random::of_this_run();
    let until = Instant::now() + Duration::from_secs(number("BM_FLOWS_SECONDS").unwrap_or(SECONDS));
    let (mut counts, mut epochs) = (Counts::default(), 0);
    while Instant::now() < until {
        epoch(&mut beds, &mut random, epochs, until, &mut counts);
        epochs += 1;
    }
    let Counts { loads, refused, sent, came } = counts;
    report::say(&format!(
        "flows: {epochs} sets of connections, {sent} frames, of which {came} came out, {loads} changes of rules, of which \
         Linux refused {refused}"
    ));
    for bed in beds {
        let (name, by_itself) = (bed.router.name(), bed.router.sent());
        report::say(&format!("flows: {name} sent {by_itself} frames itself"));
        let knows_flows = if bed.router.is_kernel() { FLOWS } else { FLOWS_OF_WORKERS };
        let enough = !knows_flows || !bed.router.is_brickmoon() || by_itself as usize * 50 > came;
        assert!(enough, "{name} sends few packets itself\n{}", bed.router.status_text());
        bed.router.settle();
        bed.router.stop();
    }
    assert!(came * 4 > sent && refused * 2 <= loads, "this run has tried little");
}
