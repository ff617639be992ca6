//! The program on packet literals, run by the kernel itself (BPF_PROG_TEST_RUN), in a network namespace of the
//! test's own.

use super::*;
use crate::attach::{AttachChoice, Attachment};
use crate::configuration::Interface;
use bm_fib::memory::Part;
use bm_fib::next_hop::{Action, Gateway, NextHopWriter};
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Chunk17, NextHop, Range6};
use bm_wire::ReversePath;
use libbpf_rs::{MapCore, ProgramInput};
use std::process::Command;

mod cost;
mod filters;
mod flows;
mod hold;
mod outlives;
mod sampled;
mod sums;
mod tagged;
mod tc;
mod unresolved;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
/// Of the interface `in`, and of `out`.
const IN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUT: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// UDP from 192.0.2.1 to 198.51.100.7 with TTL 2 and four bytes, addressed to `in`.
const IPV4: [u8; 46] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 9, 9, 8, 0, // Ethernet
    0x45, 0, 0, 32, 0, 1, 0, 0, 2, 17, 0xcc, 0x90, 192, 0, 2, 1, 198, 51, 100, 7, // IPv4
    0x12, 0x34, 0, 53, 0, 12, 0, 0, 0xde, 0xad, 0xbe, 0xef, // UDP
];
/// UDP from 2001:db8:1::1 to 2001:db8:2::7 with hop limit 2.
const IPV6: [u8; 66] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 9, 9, 0x86, 0xdd, // Ethernet
    0x60, 0, 0, 0, 0, 12, 17, 2, // IPv6
    0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
    0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, //
    0x12, 0x34, 0, 53, 0, 12, 0, 0, 0xde, 0xad, 0xbe, 0xef, // UDP
];

/// A kernel path with one interface, next hops and both tables.
struct Lab {
    kernel: Kernel,
    readers: Readers,
    hops: NextHopWriter,
    ipv4: Chunk17,
    ipv6: Range6,
    configuration: Configuration,
    ifindex: u32,
}

fn run(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// A lab in a new network namespace; `None`, with a message, without the privileges for that.
fn lab() -> Option<Lab> {
    if bm_sys::Namespace::Network.unshare().is_err() {
        eprintln!("skipped: needs root for a network namespace and BPF");
        return None;
    }
    bm_bpf::testing::own_bpffs().unwrap();
    // Otherwise Linux sends router solicitations, which the program counts.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    run("link add name in address 02:00:00:00:00:01 type veth peer name far");
    run("link set dev in up");
    run("link set dev far up");
    let mut kernel = Kernel::load(Duration::from_secs(60)).unwrap();
    let Attachment { ifindex, generic, .. } = kernel.attach("in", AttachChoice::Xdp).unwrap();
    assert!(!generic, "veth knows XDP");
    let readers = Readers::new();
    let source = kernel.source(Part::NextHops).unwrap();
    let hops = NextHopWriter::with_room_in(1 << 16, 18, &readers, &source).unwrap();
    let ipv4 = Chunk17::build_in(&mut [].into_iter(), &readers, &kernel.source(Part::Ipv4).unwrap()).unwrap();
    let ipv6 = Range6::build_in(&mut [].into_iter(), &readers, &kernel.source(Part::Ipv6).unwrap()).unwrap();
    let input = Interface {
        index: 0,
        ifindex,
        mac: IN,
        mtu: 1500,
        forward: [true, true],
        up: true,
        sends: true,
        ..Interface::default()
    };
    let output = Interface { index: 1, ifindex: 77, mac: OUT, forward: [false, false], ..input.clone() };
    let local_ipv4 = vec!["192.0.2.254".parse().unwrap()];
    let configuration =
        Configuration { interfaces: vec![input, output], local_ipv4, ..Configuration::default() };
    let mut lab = Lab { kernel, readers, hops, ipv4, ipv6, configuration, ifindex };
    lab.publish();
    Some(lab)
}

/// A kernel path that is pinned, on no interface yet; and the interface `in` without a program.
fn pinned() -> Option<(impl Fn() -> Kernel, u32)> {
    let ifindex = lab()?.ifindex;
    Some((|| Kernel::load(Duration::from_secs(60)).unwrap().pinned(crate::claim_pins().unwrap()), ifindex))
}

impl Lab {
    fn publish(&mut self) {
        self.kernel.publish(&self.configuration).unwrap();
    }

    fn hop(&mut self, number: u16) -> NextHop {
        let [high, low] = number.to_be_bytes();
        let action = Action::Forward { mac: [2, 0, 0, 1, high, low], interface: 1 };
        self.hops.add(action, Gateway::default(), 0).unwrap()
    }

    fn set4(&mut self, prefix: &str, hop: NextHop) {
        self.ipv4.apply(&[Change::Set(prefix.parse().unwrap(), hop)]).unwrap();
    }

    fn set6(&mut self, prefix: &str, hop: NextHop) {
        self.ipv6.apply(&[Change::Set(prefix.parse().unwrap(), hop)]).unwrap();
    }

    /// Runs the program on a frame: what it says, and the frame as it is then.
    fn pass(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        let (verdict, out) = self.kernel.trial(self.ifindex, frame).unwrap();
        let verdict = match verdict {
            Verdict::Drop => XDP_DROP,
            Verdict::Linux => XDP_PASS,
            Verdict::Redirect => XDP_REDIRECT,
        };
        (verdict, out)
    }

    /// The frame goes to Linux as it was, for this reason.
    fn check_linux(&mut self, frame: &[u8], reason: &str) {
        let before = self.count(reason);
        let (verdict, out) = self.pass(frame);
        assert_eq!((verdict, out.as_slice()), (XDP_PASS, frame), "{reason}");
        assert_eq!(self.count(reason) - before, 1, "{reason}: {:?}", self.kernel.counters(0));
    }

    fn count(&self, name: &str) -> u64 {
        self.kernel.counters(0).unwrap().named().find(|(other, _)| *other == name).unwrap().1
    }
}

/// On Linux 6.1 too, where the kernel's answer about its program does not say that it has gone.
#[test]
fn a_deleted_interface_blocks_nothing() {
    let Some(mut lab) = lab() else { return };
    assert!(attach::exists(lab.ifindex));
    run("link del in");
    assert!(!attach::exists(lab.ifindex) && !attach::takes_frames(lab.ifindex));
    // Another program, which every interface that is there has to be switched to.
    lab.kernel.source(Part::Ipv4).unwrap();
    lab.publish();
}

#[test]
fn the_programs_settings_are_read_back() {
    let Some(mut lab) = lab() else { return };
    assert_eq!(lab.kernel.differences(&lab.configuration), [""; 0]);
    let mut other = lab.configuration.clone();
    other.interfaces[0].linux_only = [true, false];
    let current = lab.kernel.mapped.head().current.load(Relaxed) as usize & 1;
    lab.kernel.mapped.write(current, &other.view());
    assert_eq!(lab.kernel.differences(&other), [""; 0]);
    let found = lab.kernel.differences(&lab.configuration);
    assert!(found.len() == 1 && found[0].contains(&format!("ifindex: {:x}", lab.ifindex)), "{found:?}");
    other.filters = Some(std::sync::Arc::default());
    assert_eq!(lab.kernel.differences(&other).len(), 1, "it does not filter");
    lab.kernel.publish(&other).unwrap();
    assert_eq!(lab.kernel.differences(&other), [""; 0]);
    let more = bm_filter::Filters { drop_unmatched: true, ..bm_filter::Filters::default() };
    other.filters = Some(std::sync::Arc::new(more));
    assert_eq!(lab.kernel.differences(&other).len(), 1, "it filters by other rules");
}

/// With other bytes at a place, and the IPv4 checksum updated.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    if frame[12..14] == [8, 0] {
        // By hand, since what is broken on purpose cannot be parsed.
        frame[24..26].fill(0);
        let sum = bm_wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn forwards_ipv4_with_decremented_ttl() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(0x1234);
    lab.set4("198.51.100.0/24", hop);
    let mut expected = IPV4;
    expected[..12].copy_from_slice(&[2, 0, 0, 1, 0x12, 0x34, 2, 0, 0, 0, 0, 2]);
    (expected[22], expected[24], expected[25]) = (1, 0xcd, 0x90);
    assert_eq!(lab.pass(&IPV4), (XDP_REDIRECT, expected.to_vec()));
    let bytes = |lab: &Lab| (lab.count("received_bytes"), lab.count("forwarded_bytes"));
    assert_eq!((lab.count("forwarded"), bytes(&lab)), (1, (46, 46)));
    // Padding, which Linux takes off as well, is not forwarded.
    let padded = [&IPV4[..], &[0; 14]].concat();
    assert_eq!(lab.pass(&padded), (XDP_REDIRECT, expected.to_vec()));
    assert_eq!(bytes(&lab), (46 + 60, 2 * 46));
    assert!(lab.hops.take_used(hop), "control learns that the neighbor is in use");
    // Another MAC is one store and meets the next packet.
    lab.hops.set(hop, Action::Forward { mac: [2, 9, 9, 9, 9, 9], interface: 1 }).unwrap();
    assert_eq!(lab.pass(&IPV4).1[..6], [2, 9, 9, 9, 9, 9]);
}

#[test]
fn forwards_ipv6_with_decremented_hop_limit() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(7);
    lab.set6("2001:db8:2::/48", hop);
    let mut expected = IPV6;
    expected[..12].copy_from_slice(&[2, 0, 0, 1, 0, 7, 2, 0, 0, 0, 0, 2]);
    expected[21] = 1;
    assert_eq!(lab.pass(&IPV6), (XDP_REDIRECT, expected.to_vec()));
    let padded = [&IPV6[..], &[0; 3]].concat();
    assert_eq!(lab.pass(&padded), (XDP_REDIRECT, expected.to_vec()));
}

#[test]
fn leaves_unusual_ipv4_packets_to_linux() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    assert_eq!(lab.pass(&IPV4).0, XDP_REDIRECT);
    lab.check_linux(&with(&IPV4, 0, &[2, 0, 0, 0, 0, 9]), "linux_other_mac");
    lab.check_linux(&with(&IPV4, 0, &[0xff; 6]), "linux_other_mac");
    let mut arp = IPV4;
    arp[13] = 6;
    lab.check_linux(&arp, "linux_other_type");
    lab.check_linux(&IPV4[..33], "linux_header");
    let mut broken = IPV4;
    broken[25] ^= 1;
    lab.check_linux(&broken, "linux_header");
    for (at, bytes) in [
        (20, vec![0x20, 1]),      // an offset: not the first fragment
        (26, vec![127, 0, 0, 1]), // sources that are no single host
        (26, vec![224, 0, 0, 1]),
        (26, vec![0, 0, 0, 0]),
        (30, vec![127, 0, 0, 1]), // destinations
        (30, vec![239, 1, 2, 3]),
        (30, vec![255; 4]),
        (16, vec![0, 33]), // longer than the frame
    ] {
        lab.check_linux(&with(&IPV4, at, &bytes), "linux_header");
    }
    let mut short = IPV4;
    short[16..18].copy_from_slice(&[0, 19]);
    lab.check_linux(&short, "linux_header");
    let mut options = with(&IPV4, 14, &[0x46]);
    options[14] = 0x46;
    lab.check_linux(&options, "linux_header");
    for ttl in [1, 0] {
        lab.check_linux(&with(&IPV4, 22, &[ttl]), "linux_hops");
    }
    // The sum holds for every value of the field.
    for id in (0..=u16::MAX).step_by(997) {
        let (verdict, out) = lab.pass(&with(&IPV4, 18, &id.to_be_bytes()));
        assert_eq!(verdict, XDP_REDIRECT);
        assert!(bm_wire::ipv4::Ipv4::parse(&out[14..]).unwrap().checksum_ok(), "id {id}");
    }
}

#[test]
fn leaves_partial_checksums_to_linux() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    // 192.0.2.1 + 198.51.100.7 + protocol 17 + length 12.
    let four = with(&IPV4, 40, &0xec59u16.to_be_bytes());
    // Twice 2001:db8, 1 + 1, 2 + 7, protocol 17 + length 12.
    let six = with(&IPV6, 60, &0x5b9au16.to_be_bytes());
    assert_eq!(
        (lab.pass(&four).0, lab.pass(&six).0),
        (XDP_REDIRECT, XDP_REDIRECT),
        "no veth, as far as known"
    );
    lab.configuration.interfaces[0].partial_sums = true;
    lab.publish();
    lab.check_linux(&four, "linux_partial_sum");
    lab.check_linux(&six, "linux_partial_sum");
    assert_eq!(lab.pass(&with(&four, 41, &[0x58])).0, XDP_REDIRECT, "another value");
}

#[test]
fn leaves_frames_of_several_buffers_to_linux() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.configuration.interfaces.iter_mut().for_each(|interface| interface.mtu = 9000);
    lab.publish();
    let of = |bytes: u16| {
        let mut frame = with(&IPV4, 16, &bytes.to_be_bytes());
        frame.resize(14 + usize::from(bytes), 7);
        frame
    };
    assert_eq!(lab.pass(&of(3000)).0, XDP_REDIRECT, "in one");
    lab.check_linux(&of(8000), "linux_mtu");
}

#[test]
fn leaves_unusual_ipv6_packets_to_linux() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set6("::/0", hop);
    assert_eq!(lab.pass(&IPV6).0, XDP_REDIRECT);
    for (at, bytes) in [
        (14, vec![0x50]),    // version
        (18, vec![0, 13]),   // longer than the frame
        (20, vec![0]),       // hop-by-hop options
        (22, vec![0xff, 2]), // sources
        (22, vec![0xfe, 0x80]),
        (22, vec![0; 16]),
        (38, vec![0xff, 5]), // destinations
        (38, vec![0xfe, 0x80]),
        (38, vec![0; 16]),
    ] {
        lab.check_linux(&with(&IPV6, at, &bytes), "linux_header");
    }
    for limit in [1, 0] {
        lab.check_linux(&with(&IPV6, 21, &[limit]), "linux_hops");
    }
}

#[test]
fn drops_what_blackhole_routes_reject() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hops.add(Action::Blackhole, Gateway::default(), 0).unwrap();
    lab.set4("198.51.100.0/24", hop);
    lab.set6("2001:db8:2::/48", hop);
    for frame in [&IPV4[..], &IPV6] {
        let before = lab.count("drop_blackhole");
        assert_eq!(lab.pass(frame), (XDP_DROP, frame.to_vec()));
        assert_eq!(lab.at_tc(frame, 0).0, Verdict::Drop);
        assert_eq!(lab.count("drop_blackhole") - before, 2);
    }
}

#[test]
fn leaves_next_hops_of_linux_to_linux() {
    let Some(mut lab) = lab() else { return };
    lab.check_linux(&IPV4, "linux_no_route");
    lab.check_linux(&IPV6, "linux_no_route");
    for (action, reason) in [
        (Action::Host, "linux_local"),
        (Action::Resolve, "linux_unresolved"),
        (Action::Unreachable, "linux_unreachable"),
        (Action::Prohibit, "linux_prohibit"),
    ] {
        let hop = lab.hops.add(action, Gateway::default(), 0).unwrap();
        lab.set4("198.51.100.0/24", hop);
        lab.set6("2001:db8:2::/48", hop);
        lab.check_linux(&IPV4, reason);
        lab.check_linux(&IPV6, reason);
    }
    // MTU of the route, then of the interface; an interface that cannot be sent through.
    let forward = Action::Forward { mac: [2; 6], interface: 1 };
    let narrow = lab.hops.add(forward, Gateway::default(), 31).unwrap();
    lab.set4("198.51.100.0/24", narrow);
    lab.check_linux(&IPV4, "linux_mtu");
    lab.hops.set_mtu(narrow, 32).unwrap();
    assert_eq!(lab.pass(&IPV4).0, XDP_REDIRECT);
    lab.configuration.interfaces[1].mtu = 31;
    lab.publish();
    lab.check_linux(&IPV4, "linux_mtu");
    lab.configuration.interfaces[1].sends = false;
    lab.publish();
    lab.check_linux(&IPV4, "linux_egress");
    // Back where it came from: Linux may answer with a redirect.
    let back = Action::Forward { mac: [2; 6], interface: 0 };
    let back = lab.hops.add(back, Gateway::default(), 0).unwrap();
    lab.set4("198.51.100.0/24", back);
    lab.check_linux(&IPV4, "linux_same_interface");
    // Forwarding switched off, one family after the other.
    lab.configuration.interfaces[0].forward = [false, true];
    lab.publish();
    lab.check_linux(&IPV4, "linux_inactive");
}

#[test]
fn checks_sources() {
    let Some(mut lab) = lab() else { return };
    let (there, back) =
        (lab.hop(1), lab.hops.add(Action::Forward { mac: [2; 6], interface: 0 }, Gateway::default(), 0));
    let (back, host) = (back.unwrap(), lab.hops.add(Action::Host, Gateway::default(), 0).unwrap());
    lab.set4("198.51.100.0/24", there);
    lab.set4("192.0.2.254/32", host);
    lab.check_linux(&with(&IPV4, 26, &[192, 0, 2, 254]), "linux_source");
    // No route to the source: neither filter is content.
    for filter in [ReversePath::Strict, ReversePath::Loose] {
        lab.configuration.interfaces[0].reverse_path = filter;
        lab.publish();
        lab.check_linux(&IPV4, "linux_source");
    }
    lab.set4("192.0.2.0/24", there);
    assert_eq!(lab.pass(&IPV4).0, XDP_REDIRECT, "loose: some route");
    lab.configuration.interfaces[0].reverse_path = ReversePath::Strict;
    lab.publish();
    lab.check_linux(&IPV4, "linux_source");
    lab.set4("192.0.2.0/24", back);
    assert_eq!(lab.pass(&IPV4).0, XDP_REDIRECT, "strict: the route leads back");
}

#[test]
fn chooses_members_by_the_flow_as_workers_do() {
    use bm_wire::flow::{self, Policy};
    let Some(mut lab) = lab() else { return };
    let members: Vec<_> = (1..=5).map(|number| (lab.hop(number), u32::from(number))).collect();
    let group = lab.hops.add_group(&members).unwrap();
    lab.set4("0.0.0.0/0", group);
    lab.set6("::/0", group);
    lab.configuration.flow_seed = 0x1234_5678;
    let mut seen = std::collections::BTreeSet::new();
    for (number, policy) in [(0, Policy::Addresses), (1, Policy::Ports)] {
        lab.configuration.policies = [number; 2];
        lab.publish();
        for flow in 0..200u16 {
            let port = flow.wrapping_mul(331).to_be_bytes();
            let four = with(&with(&IPV4, 34, &port), 28, &[port[1] & 0x7f, 9]);
            let ip = bm_wire::ipv4::Ipv4::parse(&four[14..]).unwrap();
            let hash = flow::ipv4(&ip, policy).hash(u64::from(lab.configuration.flow_seed));
            let (hop, _) = lab.hops.table().resolve(group, hash);
            let (verdict, out) = lab.pass(&four);
            assert_eq!(
                (verdict, u32::from(out[5])),
                (XDP_REDIRECT, hop.0 - members[0].0.0 + 1),
                "flow {flow}"
            );
            seen.insert(hop);
            let six = with(&with(&IPV6, 54, &port), 36, &port);
            let ip = bm_wire::ipv6::Ipv6::parse(&six[14..]).unwrap();
            let hash = flow::ipv6(&ip, policy).hash(u64::from(lab.configuration.flow_seed));
            let (hop, _) = lab.hops.table().resolve(group, hash);
            let (verdict, out) = lab.pass(&six);
            assert_eq!(
                (verdict, u32::from(out[5])),
                (XDP_REDIRECT, hop.0 - members[0].0.0 + 1),
                "flow {flow}"
            );
        }
    }
    assert_eq!(seen.len(), 5, "all members are used");
    lab.configuration.policies = [2; 2];
    lab.publish();
    lab.check_linux(&IPV4, "linux_flow");
    lab.check_linux(&IPV6, "linux_flow");
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[test]
fn finds_the_same_routes_as_user_space_readers() {
    use bm_wire::prefix::Prefix;
    let Some(mut lab) = lab() else { return };
    let hops: Vec<_> = (0..500).map(|number| lab.hop(number)).collect();
    let mut seed = 1;
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for _ in 0..3_000 {
        let bits = next(&mut seed);
        let (hop, length) = (hops[(bits >> 40) as usize % 500], 8 + (bits >> 20) as u8 % 25);
        let address = 0x0c00_0000 | (bits as u32 & 0x03ff_ffff);
        four.push(Change::Set(Prefix::containing(address, length).unwrap(), hop));
        let low = u128::from(next(&mut seed)) << 64 | u128::from(next(&mut seed));
        let address = 0x2001_0db8 << 96 | (low & 0x3f_ffff_ffff_ffff_ffff_ffff_ffffu128);
        six.push(Change::Set(Prefix::containing(address, 20 + (bits >> 10) as u8 % 109).unwrap(), hop));
    }
    // In the place of the program's own tables, so that a renewed program is tested too.
    let source = lab.kernel.source(Part::Ipv4).unwrap();
    lab.ipv4 = Chunk17::build_in(&mut [].into_iter(), &lab.readers, &source).unwrap();
    lab.publish();
    lab.ipv4.apply(&four).unwrap();
    lab.ipv6.apply(&six).unwrap();
    let (reader4, reader6) = (lab.ipv4.reader(), lab.ipv6.reader());
    let mut forwarded = 0;
    for index in 0..1_000 {
        let near = next(&mut seed);
        let address = four[index].prefix().first().wrapping_add(near as u32 % 3).wrapping_sub(1);
        let (verdict, out) = lab.pass(&with(&IPV4, 30, &address.to_be_bytes()));
        let found =
            if verdict == XDP_REDIRECT { u32::from_be_bytes([0, 0, out[4], out[5]]) + hops[0].0 } else { 0 };
        assert_eq!(found, reader4.lookup(address).0, "{address:08x}");
        let address = six[index].prefix().first().wrapping_add(u128::from(near % 3)).wrapping_sub(1);
        let (verdict, out) = lab.pass(&with(&IPV6, 38, &address.to_be_bytes()));
        let found =
            if verdict == XDP_REDIRECT { u32::from_be_bytes([0, 0, out[4], out[5]]) + hops[0].0 } else { 0 };
        assert_eq!(found, reader6.lookup(address).0, "{address:032x}");
        forwarded += u32::from(verdict == XDP_REDIRECT);
    }
    assert!(forwarded > 500, "{forwarded}");
}
