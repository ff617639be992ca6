//! The program on frames (BPF_PROG_TEST_RUN), each beside what `bm_vlb` says of it, byte by byte.

use bm_vlb::address::{Destination, Node, Port, Sample, Source, To};
use bm_vlb::membership::{Accepted, Epoch};
use bm_vlb::reorder::OrderCounter;
use bm_vlb::transit::{self, Step, TransitDrop};
use bm_wire::ethernet::Mac;
use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::layout::{Neighbor, PORT_PROBE};
use crate::program::Program;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
const PORT_PROBE_REPLY: u8 = 2;
/// The loopback, by which test runs come in.
const INGRESS: u32 = 1;
const OWN: u16 = 5;
/// Links to these nodes exist, and one to 9, whose interface does not.
const PEERS: [u16; 3] = [0, 6, 2046];
const LATE: u16 = 9;
const EPOCH: u8 = 0;
const BEFORE: u8 = 255;
const TO: [u8; 6] = [2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee];
const FROM: [u8; 6] = [2, 1, 2, 3, 4, 5];
/// The neighbor that exists, and its check.
const INDEX: u16 = 0x0708;
const PORT: u8 = 31;

/// A MAC as the program has it.
fn number([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, d, e, f, 0, 0]
}

fn node(number: u16) -> Node {
    Node::new(number).expect("a node")
}

fn to(output: u16, port: u8, to: To) -> Destination {
    let port = Port::new(port).expect("a port");
    Destination { epoch: Epoch::new(EPOCH), output: node(output), port, to }
}

fn from(input: u16, via: Option<u16>) -> Source {
    Source { input: node(input), via: via.map(node), sample: Some(Sample { flow: 0xa5, sequence: 0x3c3 }) }
}

/// A frame with an invalid packet: the program does not read it.
fn frame(to: Mac, from: Mac) -> Vec<u8> {
    [&to.0[..], &from.0, &[0x08, 0x00], &[0xff; 46]].concat()
}

/// The program with its maps. Without the necessary rights it says so and returns `None`.
struct Lab(Program);

impl Lab {
    fn new() -> Option<Self> {
        let program = match Program::load(&[]) {
            Ok(program) => program,
            Err(why) => {
                eprintln!("skipped: needs root for BPF: {why}");
                return None;
            }
        };
        program.set_own(node(OWN), Epoch::new(EPOCH), Some(Epoch::new(BEFORE))).unwrap();
        // All links are the loopback: test runs only return the decision and send nothing.
        PEERS.iter().for_each(|peer| program.set_link(node(*peer), INGRESS).unwrap());
        program.set_link(node(LATE), crate::layout::NO_INTERFACE).unwrap();
        program.count(INGRESS, true).unwrap();
        [3, PORT].iter().for_each(|port| program.set_port(*port, INGRESS).unwrap());
        let neighbor = Neighbor {
            to: number(TO),
            from: number(FROM),
            ifindex: INGRESS,
            check: PORT.into(),
            ..Neighbor::default()
        };
        program.set_neighbor(INDEX, &neighbor).unwrap();
        Some(Self(program))
    }

    /// What the program does with a frame, the frame as it is then, and the name under which it is counted.
    fn run(&mut self, frame: &[u8]) -> (u32, Vec<u8>, String) {
        let before = self.0.counters(INGRESS).unwrap();
        let mut out = vec![0; frame.len() + 256];
        let input =
            ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..ProgramInput::default() };
        let done = self.0.xdp_program().test_run(input).unwrap();
        let (verdict, length) = (done.return_value, done.data.map_or(0, |data| data.len()));
        out.truncate(length);
        let after = self.0.counters(INGRESS).unwrap();
        assert_eq!(after.received(), before.received() + 1, "each frame is counted once");
        let bytes = after.get("received_bytes") - before.get("received_bytes");
        assert_eq!(bytes, frame.len() as u64);
        let counted = after.named().zip(before.named()).find(|(after, before)| after.1 != before.1);
        (verdict, out, counted.map(|((name, _), _)| name.to_string()).unwrap_or_default())
    }

    #[track_caller]
    fn goes(&mut self, to: Mac, from: Mac, expected: (u32, Option<(Mac, Mac)>, &str)) {
        let (verdict, out, name) = self.run(&frame(to, from));
        let (to, from) = expected.1.unwrap_or((to, from));
        assert_eq!((verdict, name.as_str()), (expected.0, expected.2), "{to} {from}");
        assert_eq!(out, frame(to, from), "{name}");
    }
}

fn own_mac() -> Mac {
    Source { input: node(OWN), via: None, sample: None }.mac()
}

#[test]
fn forwards_or_drops_each_kind_of_frame() {
    let Some(mut lab) = Lab::new() else { return };
    let neighbor = to(OWN, PORT, To::Neighbor(INDEX));
    let straight = from(6, None).mac();
    let sent = Some((Mac(TO), Mac(FROM)));
    lab.goes(neighbor.mac(), straight, (XDP_REDIRECT, sent, "output"));
    assert!(lab.0.take_used(INDEX) && !lab.0.take_used(INDEX));
    // This node is intermediate and output node in one.
    lab.goes(neighbor.mac(), from(6, Some(OWN)).mac(), (XDP_REDIRECT, sent, "output"));
    let before = Destination { epoch: Epoch::new(BEFORE), ..neighbor };
    lab.goes(before.mac(), straight, (XDP_REDIRECT, sent, "output"));
    let old = Destination { epoch: Epoch::new(BEFORE - 1), ..neighbor };
    lab.goes(old.mac(), straight, (XDP_DROP, None, "drop_epoch"));
    lab.goes(to(OWN, PORT, To::Neighbor(1)).mac(), straight, (XDP_DROP, None, "drop_neighbor"));
    lab.goes(to(OWN, 30, To::Neighbor(INDEX)).mac(), straight, (XDP_DROP, None, "drop_neighbor"));
    // To Linux, with the MAC of the interface.
    let host = to(OWN, 3, To::Host);
    lab.goes(host.mac(), straight, (XDP_PASS, Some((own_mac(), straight)), "linux_host"));
    lab.goes(to(OWN, 4, To::Resolve).mac(), straight, (XDP_DROP, None, "drop_neighbor"));
    let resolve = to(OWN, 3, To::Resolve);
    lab.goes(resolve.mac(), straight, (XDP_PASS, Some((own_mac(), straight)), "linux_resolve"));
    // As intermediate: only this node's own name is removed from the source.
    let on = to(2046, 1, To::Neighbor(9));
    let (arrives, leaves) = (from(6, Some(OWN)).mac(), from(6, None).mac());
    lab.goes(on.mac(), arrives, (XDP_REDIRECT, Some((on.mac(), leaves)), "transit"));
    lab.goes(to(LATE, 1, To::Host).mac(), arrives, (XDP_DROP, None, "drop_link"));
    lab.goes(to(7, 1, To::Host).mac(), arrives, (XDP_DROP, None, "drop_link"));
    lab.goes(on.mac(), from(6, Some(0)).mac(), (XDP_DROP, None, "drop_stray"));
    lab.goes(on.mac(), straight, (XDP_DROP, None, "drop_stray"));
    lab.goes(neighbor.mac(), from(7, None).mac(), (XDP_DROP, None, "drop_member"));
    lab.goes(neighbor.mac(), from(LATE, None).mac(), (XDP_REDIRECT, sent, "output"));
}

#[test]
fn passes_messages_to_linux_and_returns_probes() {
    let Some(mut lab) = Lab::new() else { return };
    let straight = from(6, None).mac();
    let control = |port, epoch| Destination { epoch: Epoch::new(epoch), ..to(OWN, port, To::Control) }.mac();
    // Of any epoch, since its sender has to be named.
    for epoch in [EPOCH, 77] {
        lab.goes(control(0, epoch), straight, (XDP_PASS, None, "linux_control"));
        lab.goes(control(PORT_PROBE_REPLY, epoch), straight, (XDP_PASS, None, "linux_control"));
        let back = Some((to(6, PORT_PROBE_REPLY, To::Control).mac(), own_mac()));
        lab.goes(control(PORT_PROBE, epoch), straight, (XDP_TX, back, "probes"));
    }
    for foreign in [
        Mac([0xff; 6]),
        Mac([0x33, 0x33, 0, 0, 0, 1]),
        Mac([0, 0x1b, 0x21, 0, 0, 1]),
        Mac([2, 0x42, 0, 0, 0, 2]),
    ] {
        lab.goes(foreign, straight, (XDP_PASS, None, "linux_other"));
        lab.goes(control(0, EPOCH), foreign, (XDP_PASS, None, "linux_other"));
    }
    // Shorter than an Ethernet header: the kernel itself refuses to run it.
    let short = ProgramInput { data_in: Some(&[0; 10]), ..ProgramInput::default() };
    assert!(lab.0.xdp_program().test_run(short).is_err());
}

/// What the program has to do with a frame, according to the simulator's code.
fn expected(to_mac: Mac, from_mac: Mac) -> (u32, &'static str) {
    let is_marked = |mac: Mac| mac.0[0] >> 4 == 0xb && mac.0[0] & 3 == 2;
    if !is_marked(to_mac) || !is_marked(from_mac) {
        return (XDP_PASS, "linux_other");
    }
    let (Ok(to), Ok(from)) = (Destination::parse(to_mac), Source::parse(from_mac)) else {
        return (XDP_DROP, "drop_malformed");
    };
    let input = from.input.number();
    if !PEERS.contains(&input) && input != LATE {
        return (XDP_DROP, "drop_member");
    }
    let is_control = to.to == To::Control;
    let mut tables = Accepted::new(Epoch::new(BEFORE), ());
    tables.advance(Epoch::new(EPOCH), ());
    let any_epoch = if is_control { Destination { epoch: Epoch::new(EPOCH), ..to } } else { to };
    match (transit::receive(node(OWN), false, &any_epoch, from, &mut tables), to.to) {
        (Step::Drop(TransitDrop::Epoch), _) => (XDP_DROP, "drop_epoch"),
        (Step::Drop(TransitDrop::Stray), _) => (XDP_DROP, "drop_stray"),
        (Step::Forward(on, _), _) if PEERS.contains(&on.number()) => (XDP_REDIRECT, "transit"),
        (Step::Forward(..), _) => (XDP_DROP, "drop_link"),
        (Step::Deliver(()), To::Control) if to.port.number() == PORT_PROBE => (XDP_TX, "probes"),
        (Step::Deliver(()), To::Control) => (XDP_PASS, "linux_control"),
        (Step::Deliver(()), To::Resolve) if [3, PORT].contains(&to.port.number()) => {
            (XDP_PASS, "linux_resolve")
        }
        (Step::Deliver(()), To::Resolve) => (XDP_DROP, "drop_neighbor"),
        (Step::Deliver(()), To::Host) => (XDP_PASS, "linux_host"),
        (Step::Deliver(()), To::Neighbor(INDEX)) if to.port.number() == PORT => (XDP_REDIRECT, "output"),
        (Step::Deliver(()), To::Neighbor(_)) => (XDP_DROP, "drop_neighbor"),
    }
}

/// Numbers of nodes that matter, and others.
fn nodes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(u64::from(OWN)), Just(6), Just(2046), Just(2047), Just(u64::from(LATE)), 0..2048u64]
}

fn addresses() -> impl Strategy<Value = (Mac, Mac)> {
    let epoch = prop_oneof![Just(u64::from(EPOCH)), Just(u64::from(BEFORE)), 0..256u64];
    let index = prop_oneof![Just(0), Just(u64::from(INDEX)), 0..65_536u64];
    let port = prop_oneof![Just(u64::from(PORT)), Just(1), Just(3), 0..32u64];
    let sample = prop_oneof![Just((0, 0)), (Just(2u64), 0..1u64 << 18), (0..4u64, 0..1u64 << 18)];
    let first = prop_oneof![20 => Just(0xb2u64), 1 => 0..256u64];
    let to = (first.clone(), 0..4u64, epoch, nodes(), port, index);
    let from = (first, sample, nodes(), nodes());
    (to, from).prop_map(
        |((first, kind, epoch, output, port, index), (first_from, (sampled, sample), input, via))| {
            let to = first << 40 | kind << 42 | epoch << 32 | output << 21 | port << 16 | index;
            let from = first_from << 40 | sampled << 42 | input << 29 | via << 18 | sample;
            let mac = |bits: u64| Mac(*bits.to_be_bytes().last_chunk().expect("eight bytes"));
            (mac(to), mac(from))
        },
    )
}

/// The program and the code that the simulator runs do the same with any two addresses.
#[test]
fn program_and_simulator_agree() {
    let Some(lab) = Lab::new() else { return };
    let lab = std::cell::RefCell::new(lab);
    let mut runner =
        TestRunner::new(Config { cases: 20_000, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&addresses(), |(to, from)| {
        let (verdict, out, name) = lab.borrow_mut().run(&frame(to, from));
        prop_assert_eq!((verdict, name.as_str()), expected(to, from));
        let now = |at: usize| Mac(*out[at..].first_chunk().expect("a MAC"));
        let parsed = Source::parse(from);
        let macs = match name.as_str() {
            "output" => (Mac(TO), Mac(FROM)),
            "transit" => (to, parsed.expect("accepted").arrived(node(OWN)).mac()),
            "linux_host" | "linux_resolve" => (own_mac(), from),
            "probes" => (to_input(parsed.expect("accepted").input), own_mac()),
            _ => (to, from),
        };
        prop_assert_eq!((now(0), now(6)), macs);
        prop_assert_eq!(&out[12..], &frame(to, from)[12..], "the packet is not touched");
        Ok(())
    });
    ran.unwrap();
}

/// The program counts late frames as `OrderCounter` does, of two flows that share nothing and of one that starts anew.
#[test]
fn counts_late_frames() {
    let Some(mut lab) = Lab::new() else { return };
    let neighbor = to(OWN, PORT, To::Neighbor(INDEX)).mac();
    let mut oracle = OrderCounter::default();
    let numbers = [5u16, 6, 8, 7, 9, 4, 10, 1023, 0, 1022, 1, 600, 601, 2];
    let flows = [(6, 1u8), (0, 1), (6, 200)];
    for (input, flow) in flows {
        for sequence in numbers.into_iter().chain((0..40).map(|at| (800 + at) % 1024)) {
            let source = Source { input: node(input), via: None, sample: Some(Sample { flow, sequence }) };
            oracle.count(&source);
            lab.run(&frame(neighbor, source.mac()));
        }
        // Neither frames without a number nor those that are dropped.
        lab.run(&frame(neighbor, Source { input: node(input), via: None, sample: None }.mac()));
        lab.run(&frame(to(OWN, 30, To::Neighbor(INDEX)).mac(), from(input, None).mac()));
    }
    let counted = lab.0.counters(INGRESS).unwrap();
    assert_eq!((counted.get("sampled"), counted.get("reordered")), (oracle.packets(), oracle.reordered()));
    assert!(oracle.reordered() > 20 && oracle.packets() == 3 * 54, "{}", oracle.reordered());
}

fn to_input(input: Node) -> Mac {
    to(input.number(), PORT_PROBE_REPLY, To::Control).mac()
}
