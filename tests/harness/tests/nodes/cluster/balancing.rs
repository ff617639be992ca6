//! Nodes that balance on workers: node 0, from whose host packets come, and node 3, whose external port is an AF_XDP
//! port. The others forward in the kernel.

use super::mesh::{MOMENT, Mesh, NODES, all_output, assert_closed, expect, link, parsed, total};
use bm_tests::daemon::{Daemon, eventually, mac, ping};
use bm_tests::packet::{Ip4, Ip6, ip_frame, routed};
use bm_tests::sys::PacketSocket;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// R of the nodes that balance, in Mbit/s: the quota to each other node is half of it.
const SPEED: u32 = 8;
/// How often a load below the quota is tried.
const TRIES: u32 = 10;
/// Marks the packets of these tests; their number follows.
const MARK: &[u8; 8] = b"bm-vlb0:";

pub fn balanced(test: &str) -> Option<Mesh> {
    let mut mesh = Mesh::new(test)?;
    (mesh.balances[0], mesh.balances[3]) = (Some(SPEED), Some(SPEED));
    Some(mesh)
}

/// What the balancer of a node has done.
fn did(daemon: &Daemon<'_>, name: &str) -> u64 {
    daemon.ask(&["show", "cluster"])["balanced"][name].as_u64().unwrap_or(0)
}

/// Sends packets from host 0 to host 3 and looks at what comes.
pub struct Path<'m> {
    source: PacketSocket,
    sink: PacketSocket,
    mesh: &'m Mesh,
}

#[derive(Default, Debug, Clone, Copy, PartialEq)]
struct Came {
    packets: u32,
    /// With a smaller number than one that came earlier.
    late: u32,
}

impl<'m> Path<'m> {
    pub fn new(mesh: &'m Mesh) -> Self {
        let [source, sink] = [0, 3].map(|n: usize| mesh.hosts[n].packet_socket("e"));
        Self { source, sink, mesh }
    }

    /// Sends `count` packets of `length` bytes, of `flows` flows in turn, with a pause after each.
    fn send(&self, count: u32, length: usize, flows: u16, pause: Duration) -> Came {
        self.send_noting(count, length, flows, pause).came
    }

    /// The same; returns for each packet when it was sent, and whether it came.
    pub fn send_all(&self, count: u32, length: usize, flows: u16, pause: Duration) -> Vec<(Instant, bool)> {
        let came = self.send_noting(count, length, flows, pause);
        (0..).zip(came.sent).map(|(number, sent)| (sent, came.numbers.contains(&number))).collect()
    }

    fn send_noting(&self, count: u32, length: usize, flows: u16, pause: Duration) -> Arrivals {
        let (to, from) = (mac(&self.mesh.routers[0], "ext0"), mac(&self.mesh.hosts[0], "e"));
        let mut came = Arrivals::default();
        for number in 0..count {
            let mut packet = Ip4::udp("10.0.0.2", "10.0.3.2", length).bytes();
            // The source port: another flow.
            let port = 0x4000 + (number as u16 % flows);
            packet[20..22].copy_from_slice(&port.to_be_bytes());
            packet[26..28].fill(0);
            let at = packet.len() - 12;
            packet[at..at + 8].copy_from_slice(MARK);
            packet[at + 8..].copy_from_slice(&number.to_be_bytes());
            came.sent.push(Instant::now());
            eventually("the packet is sent", || self.source.send(&ip_frame(to, from, &packet)).is_ok());
            came.take(&self.sink);
            std::thread::sleep(pause);
        }
        // The last ones are on their way.
        for _ in 0..20 {
            came.take(&self.sink);
            std::thread::sleep(MOMENT / 10);
        }
        came
    }
}

#[derive(Default)]
struct Arrivals {
    came: Came,
    next: u32,
    sent: Vec<Instant>,
    numbers: BTreeSet<u32>,
}

impl Arrivals {
    fn take(&mut self, sink: &PacketSocket) {
        while let Some(captured) = sink.receive().unwrap() {
            let Some((rest, number)) = captured.frame.split_last_chunk::<4>() else { continue };
            if !rest.ends_with(MARK) || captured.frame[14 + 8] != 63 {
                continue;
            }
            let number = u32::from_be_bytes(*number);
            self.came.packets += 1;
            self.numbers.insert(number);
            self.came.late += u32::from(number < self.next);
            self.next = self.next.max(number + 1);
        }
    }
}

#[test]
fn workers_and_the_kernel_path_forward_for_each_other() {
    let Some(mesh) = balanced("cl-workers") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    for n in [0, 3] {
        assert_ne!(daemons[n].port("ext0")["mode"], "kernel", "node {n} has its port on workers");
    }
    for (n, m) in (0..NODES).flat_map(|n| (0..NODES).map(move |m| (n, m))).filter(|(n, m)| n != m) {
        ping(&mesh.hosts[n], &format!("10.0.{m}.2"), 1400, 63);
        ping(&mesh.hosts[n], &format!("fd00:{m}::2"), 1400, 63);
    }
    // Addresses of other nodes: their Linux answers.
    ping(&mesh.hosts[0], "10.0.2.1", 56, 64);
    ping(&mesh.hosts[0], "10.0.3.1", 56, 64);
    // And Linux's own packets, from node to node.
    ping(&mesh.routers[0], "10.0.3.1", 56, 64);
    ping(&mesh.routers[2], "fd00:3::1", 56, 64);
    let before = (parsed(&daemons), all_output(&daemons));
    for (n, m) in [(0, 3), (0, 1), (1, 0), (3, 2), (2, 3)] {
        let [near, far] = [n, m].map(|n: usize| (mac(&mesh.hosts[n], "e"), mac(&mesh.routers[n], "ext0")));
        let [source, sink] = [n, m].map(|n: usize| mesh.hosts[n].packet_socket("e"));
        let (from, to) = (format!("10.0.{n}.2"), format!("10.0.{m}.2"));
        for packet in [
            Ip4::udp(&from, &to, 18).id(1).bytes(),
            Ip4::udp(&from, &to, 1472).id(2).bytes(),
            Ip6::udp(&format!("fd00:{n}::2"), &format!("fd00:{m}::2"), 1452).bytes(),
        ] {
            source.send(&ip_frame(near.1, near.0, &packet)).unwrap();
            expect(&sink, &ip_frame(far.0, far.1, &routed(&packet)), &format!("from {n} to {m}"));
        }
    }
    eventually("as many headers were parsed as packets have left", || {
        let (headers, packets) = (parsed(&daemons) - before.0, all_output(&daemons) - before.1);
        headers >= 15 && headers == packets
    });
    let node = daemons[0].ask(&["show", "cluster"]);
    assert_eq!((&node["balancing"], &node["speed"]), (&"vlb".into(), &SPEED.into()), "{node}");
    assert!(link(&node, "fab3")["sent"].as_u64().unwrap() >= 5, "{node}");
    daemons.iter().for_each(assert_closed);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn load_above_the_quota_spreads_over_intermediates() {
    let Some(mesh) = balanced("cl-spread") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let path = Path::new(&mesh);
    // Half a megabit a second at most, of a quota of four. A router that does not get a core for a while finds a burst, of
    // which a part is above the quota: then it is tried again.
    let is_all_direct = (0..TRIES).any(|_| {
        let before = ["direct", "intermediate"].map(|name| did(&daemons[0], name));
        let came = path.send(500, 86, 100, Duration::from_millis(2));
        let after = ["direct", "intermediate"].map(|name| did(&daemons[0], name));
        assert_eq!(came.packets, 500, "none is lost");
        eprintln!("below the quota: {before:?} before, {after:?} after, {} late", came.late);
        if after[1] > before[1] {
            return false;
        }
        assert!(after[0] >= before[0] + 500, "{before:?}, {after:?}");
        assert_eq!(came.late, 0, "one path keeps the order");
        true
    });
    assert!(is_all_direct, "below the quota everything is direct");
    // All that the port can receive to one output: half of it is the quota, and a quarter goes over each other node.
    let transit = || [1, 2].map(|n: usize| total(&daemons[n], "transit"));
    let (before, transit_before) = (did(&daemons[0], "direct"), transit());
    let sent = 1200;
    let came = path.send(sent, 1400, 250, Duration::from_millis(1));
    assert_eq!(came.packets, sent, "none is lost");
    let direct = did(&daemons[0], "direct") - before;
    let over: Vec<_> = transit().iter().zip(transit_before).map(|(now, before)| now - before).collect();
    eprintln!("{sent} packets: {direct} direct, over nodes 1 and 2: {over:?}, {} late", came.late);
    assert!(direct + over.iter().sum::<u64>() >= u64::from(sent));
    assert!(over.iter().all(|over| *over > u64::from(sent) / 20), "{direct} direct, {over:?}");
    assert!(direct > u64::from(sent) / 4, "{direct} direct, {over:?}");
    assert!(over[0].abs_diff(over[1]) < u64::from(sent) / 8, "{over:?}");
    daemons.iter().for_each(assert_closed);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn a_flow_keeps_its_order() {
    let Some(mesh) = balanced("cl-order") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let path = Path::new(&mesh);
    let counted = || ["sampled", "reordered"].map(|name| total(&daemons[3], name));
    let before = counted();
    let sent = 2000;
    let came = path.send(sent, 900, 1, Duration::from_micros(500));
    assert_eq!(came.packets, sent);
    eventually("all of the only flow are numbered", || counted()[0] - before[0] >= u64::from(sent));
    let [sampled, late] = std::array::from_fn(|at| counted()[at] - before[at]);
    eprintln!("{sent} packets: {} late at the host, {late} of {sampled} numbered by counters", came.late);
    // Where its path is full a flow is split, so some come late: the more, the more the sender has to catch up after it
    // waited for a core (up to 110 of 2,000). Without flowlets it is a third of them.
    assert!(came.late < sent / 8 && late < sampled / 8, "{} and {late} of {sampled}", came.late);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn a_cut_link_moves_traffic() {
    let Some(mesh) = balanced("cl-cut") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let path = Path::new(&mesh);
    let transit = || [1, 2].map(|n: usize| total(&daemons[n], "transit"));
    // Between an intermediate and the output node: the other intermediate has it all.
    mesh.routers[1].ip("link set fab3 down\n");
    std::thread::sleep(3 * MOMENT);
    let before = transit();
    let came = path.send(1000, 1400, 250, Duration::from_micros(300));
    assert_eq!((came.packets, transit()[0]), (1000, before[0]));
    assert!(transit()[1] > before[1] + 50, "{:?}", transit());
    // That between input and output node as well: everything goes over the one node that is left.
    mesh.routers[3].ip("link set fab0 down\n");
    eventually("packets take a detour", || {
        let before = transit();
        let came = path.send(50, 300, 10, Duration::from_millis(1));
        came.packets == 50 && transit()[1] >= before[1] + 50
    });
    ping(&mesh.hosts[0], "10.0.3.2", 600, 63);
    ping(&mesh.hosts[3], "fd00:0::2", 600, 63);
    // And back again.
    mesh.routers[3].ip("link set fab0 up\n");
    eventually("packets go straight again", || {
        let before = did(&daemons[0], "intermediate");
        let came = path.send(20, 100, 10, Duration::from_millis(2));
        came.packets == 20 && did(&daemons[0], "intermediate") == before
    });
    daemons.into_iter().for_each(Daemon::stop);
}
