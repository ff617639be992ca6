//! Random rulesets of nftables, both iptables, IPsec policies and tc, set in three routers side by side: Linux alone, and
//! brickmoon on both paths. What comes out of the two is what comes out of Linux, byte by byte: no packet passes that
//! Linux drops, and none is changed otherwise. Datagrams that Linux reassembles are compared as a whole, since the size of
//! the fragments that it then sends varies. Hosts answer what reaches them, since rules about connections, and NAT, concern
//! both directions; and what Linux's rules have counted at its forward hook must be the same.
//!
//! `BM_SEED` sets the seed, `BM_RULESETS` makes a run longer.

use bm_tests::exchange::Seen;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::rulesets::{self, Cut, LEGACY_FLUSH, Net, Probe, Random, Shape};
use bm_tests::subject::{Router, Subject};
use bm_tests::{command, connections, normalise, reassembly, report, sys};
use std::time::{Duration, Instant};

/// Rulesets of a run, by default.
const RULESETS: usize = 24;
/// Packets for each, fewer than the ring of a veth holds.
const PACKETS: u32 = 100;
/// How long a frame that Linux lets out may take through brickmoon on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing has to come before a capture is whole. What comes later is found by the next one.
const QUIET: Duration = Duration::from_millis(75);
const TCP: u8 = 6;
const NET: Net = Net {
    input: "r0",
    outputs: &["r1", "r2"],
    sources4: &["192.0.2.2", "192.0.2.7", "172.16.0.9", UNREACHABLE],
    targets4: &["10.9.9.9", "10.9.200.1", "10.1.1.200", "10.2.9.9"],
    sources6: &["2001:db8:1::2", "2001:db8:c000::7", "2001:db8:c001::7"],
    targets6: &["2001:db8:a000::9", "2001:db8:a101::1", "2001:db8:b000::9"],
};

/// A sort of settings.
struct Sort {
    name: &'static str,
    /// Programs that it needs.
    needs: &'static [&'static str],
    /// Takes in a ruleset in place of the one before.
    load: &'static str,
    clear: &'static str,
    make: fn(&Net, &mut Random) -> String,
}

const SORTS: &[Sort] = &[
    Sort {
        name: "nftables",
        needs: &["nft"],
        load: "nft -f -",
        clear: "nft flush ruleset",
        make: rulesets::nftables,
    },
    Sort {
        name: "nftables with sets and maps",
        needs: &["nft"],
        load: "nft -f -",
        clear: "nft flush ruleset",
        make: rulesets::elements,
    },
    Sort {
        name: "connection tracking",
        needs: &["nft"],
        load: "nft -f -",
        clear: "nft flush ruleset",
        make: rulesets::tracking,
    },
    Sort {
        name: "iptables",
        needs: &["nft", "iptables-nft-restore"],
        load: "iptables-nft-restore",
        clear: "nft flush ruleset",
        make: rulesets::iptables,
    },
    Sort {
        name: "legacy iptables",
        needs: &["iptables-legacy-restore"],
        load: "iptables-legacy-restore",
        clear: LEGACY_FLUSH,
        make: rulesets::iptables,
    },
    Sort {
        name: "xfrm",
        needs: &["ip"],
        load: "ip -batch -",
        clear: "ip xfrm policy flush",
        make: rulesets::xfrm,
    },
    Sort {
        name: "tc",
        needs: &["tc"],
        load: "tc -batch -",
        clear: "for i in r0 r1 r2; do tc qdisc del dev $i clsact; tc qdisc del dev $i root; done 2>/dev/null; true",
        make: rulesets::tc,
    },
];

/// Linux forgets no connection while a run goes on: when it would is chance.
const CONNECTIONS: &str = "for f in /proc/sys/net/netfilter/nf_conntrack_*timeout*; do echo 86400 > $f; done";

/// One of the routers.
struct Bed<'a> {
    lab: &'a Lab,
    router: Router<'a>,
}

impl Bed<'_> {
    fn set(&self, line: &str, text: &str) -> Result<(), String> {
        self.lab.rtr.feed(line, text)
    }

    /// The resulting frames: at least `expected`, and all that follow until none does.
    fn exchange(&self, frames: &[Seen], expected: usize) -> Vec<Seen> {
        for Seen { side, frame } in frames {
            self.lab.send(*side, frame);
        }
        let (begin, mut seen) = (Instant::now(), Vec::new());
        loop {
            let more = sys::wait_readable(&self.lab.sockets(), QUIET).expect("poll works on open sockets");
            let lacks = seen.len() < expected && begin.elapsed() < PATIENCE;
            if !more && !lacks {
                seen.sort();
                return seen;
            }
            for side in bm_tests::lab::SIDES {
                while let Some(captured) = self.lab.receive(side) {
                    if !normalise::is_noise(&captured.frame) {
                        seen.push(Seen { side, frame: comparable(side, captured.frame) });
                    }
                }
            }
        }
    }

    /// Sends packets; returns what arrives, and what the kernel has counted of fragments meanwhile.
    fn exchange_counted(&self, frames: &[Seen], expected: usize) -> (Vec<Seen>, [u64; 6]) {
        let before = reassembly::counted(&self.lab.rtr);
        let seen = self.exchange(frames, expected);
        let mut after = reassembly::counted(&self.lab.rtr).into_iter().zip(before);
        (seen, [(); 6].map(|()| after.next().map_or(0, |(after, before)| after - before)))
    }

    /// What rules have counted, in order of the counts, if all of them are at the forward hook, where only packets of this
    /// test come by.
    fn rule_counts(&self) -> Vec<String> {
        let ruleset = if command::has("nft") { self.lab.rtr.run("nft list ruleset") } else { String::new() };
        if ruleset.matches("hook ").count() != ruleset.matches("hook forward").count() {
            return Vec::new();
        }
        let words: Vec<&str> = ruleset.split_whitespace().collect();
        let counts = words.windows(4).filter(|words| words[0] == "packets" && words[2] == "bytes");
        let mut counts: Vec<_> = counts.map(|words| words.join(" ")).collect();
        counts.sort();
        counts
    }

    /// Holds what comes of packets against what comes of them in Linux.
    ///
    /// If Linux reassembles, brickmoon leaves all fragments to it, so the kernels count the same. The size of the
    /// fragments that they then send varies.
    fn check(&self, frames: &[Seen], (of_linux, counted): &(Vec<Seen>, [u64; 6]), ruleset: &str) {
        let (mut seen, here) = self.exchange_counted(frames, of_linux.len());
        let mut of_linux = of_linux.clone();
        if *counted != [0; 6] {
            (seen, of_linux) = (reassembly::datagrams(&seen), reassembly::datagrams(&of_linux));
        }
        let lacks = |list: &[Seen], other: &[Seen]| {
            let lacking = list.iter().filter(|seen| !other.contains(seen)).take(5);
            lacking.map(|seen| format!("\n  {:?} {}", seen.side, hex(&seen.frame))).collect::<String>()
        };
        assert!(
            seen == of_linux,
            "{}: {} frames, {} by Linux\nLinux does not send:{}\nmissing:{}\n{ruleset}\n{}",
            self.router.name(),
            seen.len(),
            of_linux.len(),
            lacks(&seen, &of_linux),
            lacks(&of_linux, &seen),
            self.router.status_text()
        );
        assert_eq!(
            here,
            *counted,
            "{}: fragments received, datagrams reassembled, fragments created; IPv4, then IPv6\n{ruleset}\n{}",
            self.router.name(),
            self.router.status_text()
        );
    }
}

/// Some have no hop left, and are answered.
fn ttl(probe: &Probe) -> u8 {
    if probe.id.is_multiple_of(10) { 1 } else { 64 }
}

/// A frame without what Linux makes up: NAT may give the router's own errors another source, so `normalise` alone does
/// not know them. What goes back to the source is errors, and none is forwarded there.
fn comparable(side: Side, frame: Vec<u8>) -> Vec<u8> {
    let mut frame = normalise::frame(frame);
    if side == Side::Src && frame.get(12..14) == Some(&[8, 0]) && frame.len() >= 34 {
        // Identification and header checksum.
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    frame
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Which sorts this machine has.
fn sorts() -> Vec<&'static Sort> {
    let there = |sort: &&Sort| {
        let there = sort.needs.iter().all(|program| command::has(program));
        if !there {
            report::skip("rulesets", &format!("{}: needs {}", sort.name, sort.needs.join(", ")));
        }
        there
    };
    SORTS.iter().filter(there).collect()
}

/// Settings of one sort or of two, one behind the other, with what says how to set them.
fn ruleset(random: &mut Random, sorts: &[&'static Sort]) -> Vec<(&'static Sort, String)> {
    let first = random.choice(sorts);
    let second = Some(random.choice(sorts)).filter(|second| second.clear != first.clear && random.one_in(3));
    let both = std::iter::once(first).chain(second);
    both.map(|sort| (sort, (sort.make)(&NET, random))).collect()
}

/// Sets a ruleset in all routers, which know no connections of the one before; `false` if Linux refuses it.
///
/// A packet that brickmoon forwards itself begins no connection, and with Linux alone it does, if others are tracked.
/// Under the next ruleset, NAT would then know that connection in one router, and translate it in the other.
fn set(beds: &[Bed], ruleset: &[(&Sort, String)]) -> bool {
    for (number, bed) in beds.iter().enumerate() {
        for (sort, text) in ruleset {
            if let Err(why) = bed.set(sort.load, text) {
                assert_eq!(number, 0, "refused by one alone: {why}\n{text}");
                println!("{}: {why}{text}", sort.name);
                return false;
            }
        }
    }
    beds.iter().for_each(|bed| {
        bed.router.settle();
        connections::forget(&bed.lab.rtr);
    });
    true
}

fn clear(beds: &[Bed], ruleset: &[(&Sort, String)]) {
    for (bed, (sort, _)) in beds.iter().flat_map(|bed| ruleset.iter().map(move |set| (bed, set))) {
        bed.set(sort.clear, "").unwrap_or_else(|why| panic!("{}: {why}", sort.clear));
    }
}

/// The frames in which the source sends probes.
fn frames(probes: &[Probe]) -> Vec<Seen> {
    let packets = probes.iter().flat_map(|probe| probe.packets(ttl(probe)));
    packets.map(|packet| Seen { side: Side::Src, frame: Side::Src.to_router(&packet) }).collect()
}

/// The source to which the router has no route: how often it says so is a matter of time.
const UNREACHABLE: &str = "172.31.1.1";

/// The frames in which hosts behind the router answer what has reached them.
fn answers(seen: &[Seen]) -> Vec<Seen> {
    let reached = seen.iter().filter(|seen| seen.side != Side::Src);
    let answers = reached.filter_map(|seen| Some((seen.side, Probe::answer_to(seen.frame.get(14..)?)?)));
    let answers = answers.filter(|(_, answer)| answer.destination.to_string() != UNREACHABLE);
    answers.map(|(side, answer)| Seen { side, frame: side.to_router(&answer.bytes(64)) }).collect()
}

/// Sends packets through all routers; how many Linux did not forward unchanged.
fn try_packets(beds: &[Bed], probes: &[Probe], ruleset: &str) -> usize {
    let (linux, others) = beds.split_first().expect("Linux at least");
    let sent = frames(probes);
    let of_linux = linux.exchange_counted(&sent, 0);
    others.iter().for_each(|bed| bed.check(&sent, &of_linux, ruleset));
    let answers = answers(&of_linux.0);
    let answered = linux.exchange_counted(&answers, 0);
    others.iter().for_each(|bed| bed.check(&answers, &answered, ruleset));
    let counts = linux.rule_counts();
    for bed in others {
        assert_eq!(bed.rule_counts(), counts, "{}: counted by rules\n{ruleset}", bed.router.name());
    }
    let came =
        |packet: Vec<u8>| of_linux.0.iter().any(|seen| seen.side != Side::Src && seen.frame[14..] == packet);
    let unchanged = |probe: &&Probe| probe.packets(63).into_iter().all(came);
    probes.len() - probes.iter().filter(unchanged).count()
}

/// Runs a test on all routers side by side, unless Linux is not one of them.
fn with_beds(name: &str, test: impl FnOnce(&[Bed])) {
    let subjects = Subject::all("rulesets");
    if subjects.first() != Some(&Subject::Linux) {
        return report::skip("rulesets", "Linux is no subject of this run");
    }
    let labs: Vec<Lab> =
        subjects.iter().map(|subject| Lab::new(&format!("{name}-{subject}"), Ends::Silent)).collect();
    let start = |(lab, subject): (_, &Subject)| Bed { lab, router: subject.start(lab) };
    let beds: Vec<Bed> = labs.iter().zip(&subjects).map(start).collect();
    beds.iter().for_each(|bed| drop(bed.set(CONNECTIONS, "")));
    test(&beds);
    for bed in beds {
        bed.router.settle();
        bed.router.stop();
    }
}

#[test]
fn output_equals_that_of_linux() {
    with_beds("rules", try_rulesets);
}

fn try_rulesets(beds: &[Bed]) {
    let (mut random, sorts, rounds) = (Random::of_this_run(), sorts(), rulesets::count(RULESETS));
    let probes = |random: &mut Random, round: usize| -> Vec<Probe> {
        let probe = |id| {
            let probe = Probe::random(&NET, random, (round as u32 + 1) << 8 | id);
            if random.one_in(4) { probe.in_pieces(random) } else { probe }
        };
        (0..PACKETS).map(probe).collect()
    };
    let kept = try_packets(beds, &probes(&mut random, rounds), "nothing is set");
    assert!(kept <= PACKETS as usize / 10 + 1, "Linux forwards all that have a hop left: {kept}");
    let (mut judged, mut refused) = (0, 0);
    for round in 0..rounds {
        let ruleset = ruleset(&mut random, &sorts);
        if set(beds, &ruleset) {
            let text: String = ruleset.iter().map(|(sort, text)| format!("{}:\n{text}", sort.name)).collect();
            judged += try_packets(beds, &probes(&mut random, round), &text);
        } else {
            refused += 1;
        }
        clear(beds, &ruleset);
    }
    let tried = rounds - refused;
    report::say(&format!(
        "rulesets: {tried} with {PACKETS} packets each, of which Linux dropped, changed or answered {judged}"
    ));
    for bed in beds {
        report::say(&format!("rulesets: {} sent {} frames itself", bed.router.name(), bed.router.sent()));
        assert!(
            bed.router.sent() > u64::from(PACKETS) || !bed.router.is_brickmoon(),
            "{}",
            bed.router.status_text()
        );
    }
    assert!(refused * 4 <= rounds && judged > 0, "the rulesets have tried nothing: {refused} refused");
}

/// Tracks connections for the machine itself, so that Linux reassembles all datagrams, and drops routed ones by a port
/// that only first fragments have. Only fragments and what goes to that port need Linux.
const TRACKED: &str = "flush ruleset
table inet t {
 chain own { type filter hook input priority 0; ct state invalid drop; }
 chain routed { type filter hook forward priority 0; tcp dport 22 drop; }
}
";

#[test]
fn reassembled_datagrams_match_linux() {
    with_beds("pieces", |beds| {
        let tracked: Vec<_> = SORTS.iter().filter(|sort| sort.name == "connection tracking").collect();
        if !tracked.iter().all(|sort| sort.needs.iter().all(|program| command::has(program))) {
            return report::skip("rulesets", "reassembled datagrams: needs nft");
        }
        let ruleset: Vec<_> = tracked.into_iter().map(|sort| (sort, TRACKED.to_owned())).collect();
        let mut random = Random::of_this_run();
        assert!(set(beds, &ruleset), "Linux refuses the ruleset");
        let cuts = [Cut::InOrder, Cut::InOrder, Cut::Reversed, Cut::BehindOptions];
        for round in 1..=5 {
            let probe = |id: u32| {
                let mut probe = Probe::random(&NET, &mut random, round << 8 | id);
                // Each is a connection of its own: if two CPUs begin the same one, Linux drops one of the packets.
                (probe.protocol, probe.ports) = (TCP, (1024 + id as u16, random.choice(&[22, 80])));
                let whole = random.one_in(4);
                probe.shape = if whole { Shape::Plain } else { Shape::Pieces(random.choice(&cuts)) };
                probe
            };
            let probes: Vec<_> = (0..PACKETS / 2).map(probe).collect();
            let judged = try_packets(beds, &probes, TRACKED);
            assert!(judged > 0, "Linux drops what goes to port 22");
        }
        for bed in beds.iter().filter(|bed| bed.router.is_brickmoon()) {
            report::say(&format!(
                "rulesets: {} sent {} whole packets itself",
                bed.router.name(),
                bed.router.sent()
            ));
            assert!(bed.router.sent() > 0, "only fragments need Linux\n{}", bed.router.status_text());
        }
        clear(beds, &ruleset);
    });
}
