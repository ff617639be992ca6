//! Switches in a network namespace of the test's own: ports `p0`, `p1`.. with far ends `f0`, `f1`.., on which
//! frames are sent and caught; and the program on packet literals (BPF_PROG_TEST_RUN).

use super::fdb::now_ns;
use super::*;
use crate::layout::FdbEntry;
use crate::settings::{Address, Pattern, PortRule, Static, Vlans};
use bm_bpf::{AttachedProgram, testing};
use std::process::Command;

mod adversary;
mod guards;
mod hostile;
mod socket;
mod sums;
use socket::PacketSocket;

const BROADCAST: [u8; 6] = [0xff; 6];
/// How long a frame takes at most, where one is expected.
const SOON: Duration = Duration::from_secs(2);
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// A MAC address by number.
fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A frame of an experimental type (IEEE 802 local) with 46 bytes.
fn frame(to: [u8; 6], from: [u8; 6], text: &str) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &[0x88, 0xb5], text.as_bytes()].concat();
    frame.resize(60, 0);
    frame
}

/// The same with a tag.
fn tagged(frame: &[u8], control: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &control.to_be_bytes(), &frame[12..]].concat()
}

struct Lab {
    switch: Switch,
    far: Vec<PacketSocket>,
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// A new network namespace with `count` veth pairs; `None`, with a message, without the privileges for that.
fn pairs(count: usize) -> Option<()> {
    if bm_sys::Namespace::Network.unshare().is_err() {
        eprintln!("skipped: needs root for a network namespace and BPF");
        return None;
    }
    bm_bpf::testing::own_bpffs().unwrap();
    // Without IPv6 nothing is sent but what the test sends.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    (0..count).for_each(pair);
    Some(())
}

fn pair(number: usize) {
    ip(&format!("link add p{number} type veth peer name f{number}"));
    for end in ["p", "f"] {
        ip(&format!("link set {end}{number} up"));
    }
    interface::prepare_peer(&Interfaces::open().unwrap(), &format!("f{number}")).unwrap();
}

fn settings() -> Settings {
    let mut settings = Settings::new("lan");
    settings.ports = vec![Pattern::new("p*")];
    settings
}

impl Lab {
    fn with_ports(count: usize, settings: Settings) -> Option<Self> {
        pairs(count)?;
        let far = (0..count).map(|number| PacketSocket::open(&format!("f{number}"))).collect();
        Some(Self { switch: Switch::open(settings).unwrap(), far })
    }

    fn send(&self, port: usize, frame: &[u8]) {
        self.far[port].send(frame);
    }

    /// The ports that get a frame within a moment, with what each got.
    fn caught(&self, expected: usize) -> Vec<(usize, Vec<u8>)> {
        let deadline = Instant::now() + SOON;
        let mut caught = Vec::new();
        while caught.len() < expected && Instant::now() < deadline {
            for (port, socket) in self.far.iter().enumerate() {
                caught.extend(std::iter::from_fn(|| socket.receive()).map(|frame| (port, frame)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // What should not come has had as long as what came.
        std::thread::sleep(Duration::from_millis(5));
        for (port, socket) in self.far.iter().enumerate() {
            caught.extend(std::iter::from_fn(|| socket.receive()).map(|frame| (port, frame)));
        }
        caught.sort();
        caught
    }

    /// A frame sent from a port comes out, unchanged, of these and no others.
    fn goes(&self, from: usize, frame: &[u8], to: &[usize]) {
        self.send(from, frame);
        let expected: Vec<_> = to.iter().map(|port| (*port, frame.to_vec())).collect();
        assert_eq!(self.caught(to.len()), expected, "{}", self.port_counters());
    }

    fn count(&self, port: usize, name: &str) -> u64 {
        let ports = self.switch.ports();
        let port = ports.iter().find(|view| view.name == format!("p{port}"));
        port.map_or(0, |port| port.counters.get(name))
    }

    /// A frame from a port is dropped, for this reason.
    fn drops(&self, from: usize, frame: &[u8], reason: &str) {
        let before = self.count(from, reason);
        self.goes(from, frame, &[]);
        assert_eq!(self.count(from, reason) - before, 1, "{reason}: {}", self.port_counters());
    }

    fn port_counters(&self) -> String {
        let ports = self.switch.ports();
        let told = ports.iter().map(|port| {
            let counts: Vec<_> = port.counters.named().filter(|(_, count)| *count > 0).collect();
            format!("{} {counts:?} {}", port.name, if port.takes_frames { "" } else { "accepts no frames" })
        });
        told.collect::<Vec<_>>().join("\n")
    }

    fn fdb(&self) -> Vec<(u8, u16, String)> {
        let fdb = self.switch.fdb().into_iter();
        fdb.map(|entry| (entry.address.mac[5], entry.address.vlan, entry.port)).collect()
    }

    /// What the program says of a frame that comes in on a port, and the frame as it is then.
    fn run(&mut self, port: usize, frame: &[u8]) -> (u32, Vec<u8>) {
        let ifindex = interface::index(&format!("p{port}")).unwrap();
        let context = testing::xdp_context(frame.len(), ifindex);
        testing::run(&self.switch.programs.on_ports(), &context, frame, 256).unwrap()
    }
}

#[test]
fn learns_source_addresses() {
    let Some(lab) = Lab::with_ports(4, settings()) else { return };
    lab.goes(0, &frame(mac(1), mac(0), "unknown"), &[1, 2, 3]);
    assert_eq!(lab.fdb(), [(0, 0, "p0".into())]);
    lab.goes(1, &frame(mac(0), mac(1), "back"), &[0]);
    lab.goes(0, &frame(mac(1), mac(0), "known"), &[1]);
    lab.goes(2, &frame(BROADCAST, mac(2), "to all"), &[0, 1, 3]);
    lab.goes(3, &frame([1, 0, 0x5e, 0, 0, 5], mac(3), "group"), &[0, 1, 2]);
    assert_eq!((lab.count(0, "flooded"), lab.count(0, "forwarded"), lab.count(0, "sent")), (1, 1, 3));
    assert_eq!((lab.count(1, "learned"), lab.count(1, "sent"), lab.count(1, "sent_bytes")), (1, 4, 240));
    // Behind the port that it comes from: hairpin is off.
    lab.goes(0, &frame(BROADCAST, mac(9), "two hosts here"), &[1, 2, 3]);
    lab.drops(0, &frame(mac(9), mac(0), "among themselves"), "drop_same_port");
}

#[test]
fn tags_are_ignored_without_vlans() {
    let Some(lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(0, &tagged(&frame(BROADCAST, mac(0), "a"), 0x6123), &[1]);
    assert_eq!(lab.fdb(), [(0, 0, "p0".into())]);
}

#[test]
fn a_moved_mac_is_relearned() {
    let Some(lab) = Lab::with_ports(3, settings()) else { return };
    lab.goes(0, &frame(BROADCAST, mac(7), "here"), &[1, 2]);
    lab.goes(1, &frame(mac(7), mac(1), "to 0"), &[0]);
    lab.goes(2, &frame(BROADCAST, mac(7), "now there"), &[0, 1]);
    lab.goes(1, &frame(mac(7), mac(1), "to 2"), &[2]);
    assert_eq!((lab.count(2, "moved"), lab.count(2, "learned")), (1, 0));
}

#[test]
fn macs_age() {
    let ageing = Duration::from_millis(300);
    let Some(mut lab) = Lab::with_ports(3, Settings { ageing, ..settings() }) else { return };
    lab.goes(0, &frame(BROADCAST, mac(7), "here"), &[1, 2]);
    lab.goes(1, &frame(mac(7), mac(1), "known"), &[0]);
    std::thread::sleep(ageing + Duration::from_millis(50));
    lab.goes(1, &frame(mac(7), mac(1), "forgotten"), &[0, 2]);
    assert_eq!(lab.fdb(), [(1, 0, "p1".into())]);
    assert_eq!(lab.switch.known().len(), 2);
    lab.switch.swept = Instant::now().checked_sub(SWEEP_EVERY.1).unwrap();
    lab.switch.maintain();
    assert_eq!(lab.switch.known().len(), 1, "swept");
}

/// Fills the table with this many MAC addresses behind `p0`, all seen now.
fn fill(lab: &Lab, count: u32) {
    let slot = lab.switch.joined[&interface::index("p0").unwrap()].slot;
    let entry = FdbEntry { slot, seen_ns: now_ns(), ..FdbEntry::default() };
    for number in 0..count {
        let [a, b, c, d] = number.to_be_bytes();
        lab.switch.programs.set_fdb_entry(Address { mac: [2, 1, a, b, c, d], vlan: 0 }, &entry).unwrap();
    }
}

#[test]
fn ageing_and_takeover_keep_all_macs_of_a_full_table() {
    for count in [100, 1_023, 1_024, 16_384] {
        let settings = || Settings { fdb_max_learned: 0, ..settings() };
        let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
        fill(&lab, count);
        assert_eq!((lab.switch.fdb().len(), lab.switch.fdb_count()), (count as usize, count as usize));
        lab.switch.sweep();
        assert_eq!(lab.switch.fdb_count(), count as usize, "none is old");
        lab.switch.keep().unwrap();
        drop(lab.switch);
        let mut taken_over = Switch::open(settings()).unwrap();
        assert_eq!(taken_over.fdb_count(), count as usize, "taken over");
        taken_over.settings.ageing = Duration::from_nanos(1);
        std::thread::sleep(Duration::from_millis(20));
        taken_over.sweep();
        assert_eq!(taken_over.known(), [], "all {count} are old");
    }
}

#[test]
fn static_macs_neither_move_nor_age() {
    let statics = vec![Static { mac: mac(7), vlan: 0, port: "p2".into(), addresses: Vec::new() }];
    let Some(lab) = Lab::with_ports(3, Settings { statics, ageing: Duration::from_millis(1), ..settings() })
    else {
        return;
    };
    lab.goes(0, &frame(BROADCAST, mac(7), "somebody says so"), &[1, 2]);
    std::thread::sleep(Duration::from_millis(20));
    lab.goes(1, &frame(mac(7), mac(1), "to 2"), &[2]);
    assert_eq!(lab.switch.fdb().iter().find(|one| one.address.mac == mac(7)).unwrap().age, None);
}

#[test]
fn counts_drops_and_punts_by_reason() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.drops(0, &frame(mac(1), BROADCAST, "from a group"), "drop_source");
    lab.drops(0, &frame(mac(1), [0; 6], "from nobody"), "drop_source");
    for last in 0..16 {
        let mut bpdu = frame([1, 0x80, 0xc2, 0, 0, last], mac(0), "link-local");
        bpdu[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert_eq!(lab.run(0, &bpdu), (XDP_PASS, bpdu));
    }
    assert_eq!(lab.count(0, "linux_link_local"), 16);
    let next = frame([1, 0x80, 0xc2, 0, 0, 0x10], mac(0), "not so");
    assert_eq!(lab.run(0, &next), (XDP_REDIRECT, next));
    assert_eq!(lab.fdb(), [(0, 0, "p0".into())], "link-local frames teach nothing");
    // To a port that is down, too narrow, or accepts no frames.
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    let change = |lab: &mut Lab, change: &dyn Fn(&mut Port)| {
        let port = lab.switch.joined.values_mut().find(|port| port.name == "p1").unwrap();
        let mut entry = port.entry;
        change(&mut entry);
        lab.switch.programs.set_port(port.slot, &entry).unwrap();
    };
    change(&mut lab, &|port| port.mtu = 45);
    lab.drops(0, &frame(mac(1), mac(0), "46 bytes"), "drop_mtu");
    change(&mut lab, &|port| port.flags = PORT_UP);
    lab.drops(0, &frame(mac(1), mac(0), "no NAPI"), "drop_far_end");
    change(&mut lab, &|port| port.flags = 0);
    lab.drops(0, &frame(mac(1), mac(0), "down"), "drop_port_down");
    let account = lab.switch.ports()[0].counters;
    assert_eq!(account.received(), account.passed() + account.linux() + account.dropped());
    assert_eq!(account.received(), 2 + 16 + 1 + 3);
}

#[test]
fn floods_are_rate_limited() {
    let Some(mut lab) = Lab::with_ports(2, Settings { flood_limit: 100, ..settings() }) else { return };
    let started = Instant::now();
    let all = frame(BROADCAST, mac(0), "storm");
    let passed = (0..1000).filter(|_| lab.run(0, &all).0 == XDP_REDIRECT).count();
    let most = BURST_EVENTS + 1 + started.elapsed().as_millis() as u64 / 10 + 1;
    assert!((BURST_EVENTS..=most).contains(&(passed as u64)), "{passed} of {most}");
    assert_eq!(lab.count(0, "drop_flood_limit") + passed as u64, 1000);
    assert_eq!(lab.run(1, &frame(BROADCAST, mac(1), "another port")).0, XDP_REDIRECT);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(lab.run(0, &all).0, XDP_REDIRECT, "five frames later");
}

/// p0, p1 in VLAN 10; p2 in 20; p3 a trunk of 10, 20 and 30 to 32; p4 a trunk of 20 with 10 untagged.
fn with_vlans() -> Settings {
    let rule = |ports, vlans| PortRule { vlans: Some(vlans), ..PortRule::new(Pattern::new(ports)) };
    let rules = vec![
        rule("p2", Vlans::Access(20)),
        rule("p3", Vlans::Trunk { tagged: vec![(10, 10), (20, 20), (30, 32)], native: None }),
        rule("p4", Vlans::Trunk { tagged: vec![(20, 20)], native: Some(10) }),
        rule("p?", Vlans::Access(10)),
    ];
    Settings { rules, ..settings() }
}

#[test]
fn keeps_vlans_apart() {
    let Some(lab) = Lab::with_ports(5, with_vlans()) else { return };
    let sent = |lab: &Lab, from: usize, frame: &[u8], expected: &[(usize, Vec<u8>)]| {
        lab.send(from, frame);
        assert_eq!(lab.caught(expected.len()), expected, "{}", lab.port_counters());
    };
    let plain = frame(BROADCAST, mac(0), "of 10");
    sent(&lab, 0, &plain, &[(1, plain.clone()), (3, tagged(&plain, 10)), (4, plain.clone())]);
    let plain = frame(BROADCAST, mac(2), "of 20");
    sent(&lab, 2, &plain, &[(3, tagged(&plain, 20)), (4, tagged(&plain, 20))]);
    // From a trunk, with the priority of the tag: it stays where a tag stays.
    let plain = frame(BROADCAST, mac(3), "of 10, trunk");
    let with_priority = tagged(&plain, 0xa000 | 10);
    sent(&lab, 3, &with_priority, &[(0, plain.clone()), (1, plain.clone()), (4, plain.clone())]);
    let plain = frame(BROADCAST, mac(3), "of 20, trunk");
    let with_priority = tagged(&plain, 0xa000 | 20);
    sent(&lab, 3, &with_priority, &[(2, plain.clone()), (4, with_priority.clone())]);
    // The same MAC address in two VLANs is two entries.
    let fdb = lab.fdb();
    assert!(fdb.contains(&(3, 10, "p3".into())) && fdb.contains(&(3, 20, "p3".into())), "{fdb:?}");
    // To one port: without tags, one put on, one taken off, one kept.
    let plain = frame(mac(0), mac(1), "10 to 10");
    sent(&lab, 1, &plain, &[(0, plain.clone())]);
    let plain = frame(mac(3), mac(0), "10 to trunk");
    sent(&lab, 0, &plain, &[(3, tagged(&plain, 10))]);
    let plain = frame(mac(0), mac(3), "trunk to 10");
    sent(&lab, 3, &tagged(&plain, 0x4000 | 10), &[(0, plain.clone())]);
    let plain = frame(BROADCAST, mac(4), "20 on the other trunk");
    sent(&lab, 4, &tagged(&plain, 20), &[(2, plain.clone()), (3, tagged(&plain, 20))]);
    let plain = frame(mac(4), mac(3), "trunk to trunk");
    sent(&lab, 3, &tagged(&plain, 0x3000 | 20), &[(4, tagged(&plain, 0x3000 | 20))]);
    // A MAC address of another VLAN is not known.
    let plain = frame(mac(2), mac(0), "10 to 20");
    sent(&lab, 0, &plain, &[(1, plain.clone()), (3, tagged(&plain, 10)), (4, plain.clone())]);
}

#[test]
fn a_port_accepts_only_frames_of_its_vlans() {
    let Some(lab) = Lab::with_ports(5, with_vlans()) else { return };
    let plain = frame(BROADCAST, mac(0), "odd");
    lab.drops(0, &tagged(&plain, 20), "drop_vlan");
    lab.drops(0, &tagged(&plain, 4095), "drop_vlan");
    lab.drops(3, &plain, "drop_vlan");
    lab.drops(3, &tagged(&plain, 11), "drop_vlan");
    lab.drops(3, &tagged(&plain, 0x2000), "drop_vlan");
    // Its own VLAN's tag, or a priority alone, is as good as none.
    for control in [10, 0x2000] {
        lab.send(0, &tagged(&plain, control));
        let tag = if control == 10 { 10 } else { 0x2000 | 10 };
        let expected = [(1, plain.clone()), (3, tagged(&plain, tag)), (4, plain.clone())];
        assert_eq!(lab.caught(3), expected, "{}", lab.port_counters());
    }
}

/// UDP over IPv4 with the sum of the pseudo-header alone where `partial` says so, and `size` bytes.
fn udp(to: [u8; 6], from: [u8; 6], size: usize, partial: bool) -> Vec<u8> {
    let length = (8 + size) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
    let header = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let mut segment = [&[0x12, 0x34, 0, 53][..], &length.to_be_bytes(), &[0, 0]].concat();
    segment.extend((0..size).map(|at| (at * 7 + 3) as u8));
    let pseudo = sum(&ip[12..20], 17 + u32::from(length));
    let field = if partial { pseudo } else { !sum(&segment, u32::from(pseudo)) };
    segment[6..8].copy_from_slice(&field.to_be_bytes());
    [&to[..], &from[..], &[8, 0], &ip, &segment].concat()
}

/// The Internet checksum of bytes and a start, not complemented.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.fold(start, |sum, word| sum + word);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn completes_partial_checksums() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    for size in [0, 1, 2, 3, 4, 5, 63, 64, 503, 504, 505, 512, 1015, 1016, 1017, 1471, 1472] {
        let whole = udp(mac(1), mac(0), size, false);
        assert_eq!(lab.run(0, &udp(mac(1), mac(0), size, true)), (XDP_REDIRECT, whole.clone()), "{size}");
        assert_eq!(lab.run(0, &whole), (XDP_REDIRECT, whole), "{size}");
    }
    assert_eq!(lab.count(0, "sums_completed"), 17);
    let whole = udp(BROADCAST, mac(0), 99, false);
    assert_eq!(lab.run(0, &udp(BROADCAST, mac(0), 99, true)), (XDP_REDIRECT, whole), "to all");
    // A fragment, and one that says more than it has, are left as they are.
    let mut fragment = udp(mac(1), mac(0), 10, true);
    fragment[20] = 0x20;
    assert_eq!(lab.run(0, &fragment), (XDP_REDIRECT, fragment));
    let mut cut = udp(mac(1), mac(0), 100, true);
    cut.truncate(100);
    assert_eq!(lab.run(0, &cut), (XDP_REDIRECT, cut));
}

/// TCP over IPv4 with two bytes of data such that the whole sum is 0, for which Linux writes 0xffff; `partial` as above.
fn tcp_of_sum_zero(partial: bool) -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 192, 0, 2, 2];
    let pseudo = sum(&addresses, 6 + 22);
    let mut segment = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0, 0, 0];
    let last = !sum(&segment, u32::from(pseudo));
    segment[20..].copy_from_slice(&last.to_be_bytes());
    assert_eq!(!sum(&segment, u32::from(pseudo)), 0);
    segment[16..18].copy_from_slice(&if partial { pseudo.to_be_bytes() } else { [0xff; 2] });
    let mut ip = vec![0x45, 0, 0, 42, 0, 1, 0, 0, 64, 6, 0, 0];
    ip.extend(addresses);
    let header = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    [&mac(1)[..], &mac(0), &[8, 0], &ip, &segment].concat()
}

#[test]
fn a_zero_tcp_checksum_is_completed() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    assert_eq!(lab.run(0, &tcp_of_sum_zero(true)), (XDP_REDIRECT, tcp_of_sum_zero(false)));
    assert_eq!(lab.count(0, "sums_completed"), 1);
}

#[test]
fn passes_frames_of_several_buffers() {
    let Some(lab) = Lab::with_ports(2, settings()) else { return };
    for end in ["p0", "f0", "p1", "f1"] {
        ip(&format!("link set {end} mtu 9000"));
    }
    let mut lab = lab;
    lab.switch.reconcile().unwrap();
    lab.goes(1, &frame(BROADCAST, mac(1), "here"), &[0]);
    let (whole, partial) = (udp(mac(1), mac(0), 8900, false), udp(mac(1), mac(0), 8900, true));
    if matches!(Features::read(), Ok(Features::Reported(_))) {
        lab.send(0, &partial);
        assert_eq!(lab.caught(1), [(1, whole)], "{}", lab.port_counters());
    } else {
        lab.drops(0, &partial, "drop_long");
    }
    lab.drops(0, &udp(BROADCAST, mac(0), 8900, false), "drop_long");
    lab.drops(0, &udp(mac(9), mac(0), 8900, false), "drop_long");
}

#[test]
fn ports_come_and_go() {
    let Some(mut lab) = Lab::with_ports(2, settings()) else { return };
    pair(2);
    lab.switch.reconcile().unwrap();
    lab.far.push(PacketSocket::open("f2"));
    lab.goes(0, &frame(BROADCAST, mac(0), "to the new one"), &[1, 2]);
    lab.goes(2, &frame(mac(0), mac(2), "from it"), &[0]);
    ip("link del p2");
    lab.switch.reconcile().unwrap();
    lab.far.pop();
    assert_eq!(lab.fdb(), [(0, 0, "p0".into())], "its MAC address went with it");
    lab.goes(0, &frame(mac(2), mac(0), "to nobody"), &[1]);
    // Another name is another thing.
    ip("link set p1 down");
    ip("link set p1 name other");
    lab.switch.reconcile().unwrap();
    assert_eq!(lab.switch.ports().len(), 1);
    assert_eq!(AttachedProgram::on(interface::index("other").unwrap(), "other"), None);
    drop(lab.switch);
    assert_eq!(AttachedProgram::on(interface::index("p0").unwrap(), "p0"), None, "the end takes it off");
}

#[test]
fn reports_why_an_interface_is_not_a_port() {
    let Some(()) = pairs(2) else { return };
    let first = Switch::open(Settings { ports: vec![Pattern::new("p0")], ..settings() }).unwrap();
    let second = Switch::open(Settings { name: "other".into(), ..settings() }).unwrap();
    assert_eq!((first.ports().len(), second.ports().len()), (1, 1));
    assert!(second.refused()["p0"].contains("another XDP program"), "{:?}", second.refused());
}

#[test]
fn linux_is_connected_by_the_switchs_interface() {
    let interface = Some("lan0".to_string());
    let Some(lab) = Lab::with_ports(2, Settings { interface: interface.clone(), ..settings() }) else {
        return;
    };
    let own = PacketSocket::open("lan0");
    lab.goes(0, &frame(BROADCAST, mac(0), "all"), &[1]);
    let until = Instant::now() + SOON;
    let got = std::iter::repeat_with(|| own.receive()).find(|got| got.is_some() || Instant::now() > until);
    assert_eq!(got.flatten(), Some(frame(BROADCAST, mac(0), "all")));
    own.send(&frame(mac(0), mac(9), "from Linux"));
    assert_eq!(lab.caught(1), [(0, frame(mac(0), mac(9), "from Linux"))], "{}", lab.port_counters());
    drop(lab);
    assert_eq!(interface::index("lan0"), None);
}

#[test]
fn is_kept_and_taken_over() {
    let Some(mut lab) = Lab::with_ports(3, settings()) else { return };
    lab.goes(0, &frame(BROADCAST, mac(0), "before"), &[1, 2]);
    lab.switch.keep().unwrap();
    let far = std::mem::take(&mut lab.far);
    drop(lab);
    far[1].send(&frame(mac(0), mac(1), "nobody is at home"));
    let until = Instant::now() + SOON;
    while far[0].receive().is_none() {
        assert!(Instant::now() < until, "it goes on");
    }
    let lab = Lab { switch: Switch::open(settings()).unwrap(), far };
    assert_eq!(lab.fdb(), [(0, 0, "p0".into()), (1, 0, "p1".into())], "what it learnt is known");
    lab.goes(2, &frame(mac(1), mac(2), "after"), &[1]);
    // A switch with other ports gives back what it has no use for.
    let Lab { mut switch, far } = lab;
    switch.keep().unwrap();
    drop(switch);
    let fewer = Switch::open(Settings { ports: vec![Pattern::new("p0")], ..settings() }).unwrap();
    assert_eq!(AttachedProgram::on(interface::index("p1").unwrap(), "p1"), None);
    let mut fewer = fewer;
    fewer.keep().unwrap();
    drop(fewer);
    assert_eq!(crate::remove_kept_but(&[]), ["p0"]);
    assert_eq!(AttachedProgram::on(interface::index("p0").unwrap(), "p0"), None);
    drop(far);
}

#[test]
fn a_link_that_cannot_be_taken_over_is_detached() {
    let Some(mut lab) = Lab::with_ports(1, settings()) else { return };
    let ifindex = interface::index("p0").unwrap();
    let path = lab.switch.joined[&ifindex].pin.clone().unwrap();
    lab.switch.left = lab.switch.pins.as_ref().unwrap().links();
    assert_eq!(lab.switch.left.len(), 1);
    // What its interface has left takes no other program.
    lab.switch.left[0].link.detach().unwrap();
    assert!(lab.switch.attach(ifindex).is_err());
    assert_eq!(lab.switch.left.len(), 1, "somebody has to take it off");
    lab.switch.detach_leftovers();
    assert!(!path.exists());
}

#[test]
fn short_frames_and_foreign_interfaces_are_harmless() {
    let Some(mut lab) = Lab::with_ports(1, settings()) else { return };
    let whole = frame(BROADCAST, mac(0), "x");
    assert_eq!(lab.run(0, &whole[..14]).0, XDP_REDIRECT);
    // Not a port: Linux has it all.
    ip("link add q type veth peer name r");
    let ifindex = interface::index("p0").unwrap();
    lab.switch.programs.remove_port(lab.switch.joined[&ifindex].slot, ifindex);
    assert_eq!(lab.run(0, &whole), (XDP_PASS, whole));
    assert_ne!(XDP_DROP, XDP_PASS);
}
