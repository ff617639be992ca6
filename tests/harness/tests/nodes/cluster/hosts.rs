//! Hosts that know the code: they claim addresses of others, and addresses move between nodes.

use crate::cluster::mesh::{MOMENT, Mesh, NODES};
use bm_tests::daemon::{Daemon, eventually, mac};
use bm_tests::netns::Namespace;
use bm_tests::packet::{arp_request, neighbor_solicitation, option_link_address};
use bm_tests::sys::PacketSocket;
use bm_wire::Mac;
use bm_wire::ethernet::ethertype;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The node whose host attacks, and the one whose host is the victim.
const AT: usize = 1;
const VICTIM: usize = 2;
/// How often each lie is told.
const TIMES: usize = 20;
/// An address that moves: its prefix is on-link at two nodes.
const MOVING: &str = "10.0.50.9";

/// The routes to other nodes, without what changes by itself.
fn routes(router: &Namespace) -> Vec<String> {
    let text = router.run("ip -4 route show proto 178") + &router.run("ip -6 route show proto 178");
    let mut lines: Vec<_> = text.lines().map(|line| line.trim().to_string()).collect();
    lines.sort();
    lines
}

/// A host at `e` that says that it has an address: one ARP request, or one neighbor solicitation.
struct Liar {
    socket: PacketSocket,
    own: Mac,
    router: Mac,
    node: usize,
}

impl Liar {
    fn new(mesh: &Mesh, node: usize) -> Self {
        let host = &mesh.hosts[node];
        let router = mac(&mesh.routers[node], "ext0");
        Self { socket: host.packet_socket("e"), own: mac(host, "e"), router, node }
    }

    fn claim4(&self, address: &str) {
        let target = Ipv4Addr::new(10, 0, self.node as u8, 1);
        self.socket.send(&arp_request((self.own, address.parse().unwrap()), target)).unwrap();
    }

    fn claim6(&self, address: &str) {
        let router = format!("fd00:{}::1", self.node);
        let target: Ipv6Addr = router.parse().unwrap();
        let option = option_link_address(1, self.own);
        let packet = neighbor_solicitation(address, &router, target, &option).bytes();
        let frame = [&self.router.0[..], &self.own.0, &ethertype::IPV6.to_be_bytes(), &packet].concat();
        self.socket.send(&frame).unwrap();
    }
}

#[test]
fn no_host_takes_over_an_address_of_the_cluster() {
    for balances in [None, Some(10_000)] {
        let Some(mut mesh) = Mesh::new(if balances.is_some() { "cl-liarv" } else { "cl-liar" }) else {
            return;
        };
        mesh.balances = [balances; NODES];
        let Some(daemons) = mesh.start_all() else { return };
        mesh.until_known(&daemons);
        let expected: Vec<_> = mesh.routers.iter().map(routes).collect();
        let liar = Liar::new(&mesh, AT);
        let stolen = mesh.hosts[AT].packet_socket("e");
        let line = format!("ping -q -i 0.02 -c 150 10.0.{VICTIM}.2");
        let pinging = std::thread::scope(|scope| {
            let pinging = scope.spawn(|| mesh.hosts[0].run(&line));
            for _ in 0..TIMES {
                // Another node's host, that node's own address, other hosts, an address of nobody, one of the own prefix.
                for address in ["10.0.2.2", "10.0.2.1", "10.0.0.2", "8.8.8.8", "10.0.1.77"] {
                    liar.claim4(address);
                }
                for address in ["fd00:2::2", "fd00:2::1", "2001:db8::9", "fd00:1::77"] {
                    liar.claim6(address);
                }
                std::thread::sleep(MOMENT);
                for (n, router) in mesh.routers.iter().enumerate() {
                    assert_eq!(routes(router), expected[n], "n{n}");
                }
            }
            pinging.join().unwrap()
        });
        assert!(pinging.contains(" 150 received"), "{pinging}");
        let to_victim = |frame: &[u8]| frame[12..14] == [8, 0] && frame[30..34] == [10, 0, VICTIM as u8, 2];
        let frames = std::iter::from_fn(|| stolen.receive().unwrap());
        assert_eq!(frames.filter(|captured| to_victim(&captured.frame)).count(), 0, "at the attacker");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Two nodes at whose ports the prefix of an address is on-link.
struct Roaming<'m> {
    mesh: &'m Mesh,
    liars: [Liar; 2],
}

impl<'m> Roaming<'m> {
    const NODES: [usize; 2] = [1, 3];

    fn new(mesh: &'m Mesh) -> Self {
        for n in Self::NODES {
            mesh.routers[n].ip("route add 10.0.50.0/24 dev ext0\n");
        }
        Self { mesh, liars: Self::NODES.map(|n| Liar::new(mesh, n)) }
    }

    /// The address is at one of the two hosts, or no longer.
    fn set(&self, at: usize, is_there: bool) {
        let what = if is_there { "add" } else { "del" };
        self.mesh.hosts[Self::NODES[at]].ip(&format!("addr {what} {MOVING}/32 dev e\n"));
    }

    /// How long until packets of node 0 for the address go to one of the two nodes.
    fn until_at(&self, at: usize, what: &str) -> Duration {
        let begin = Instant::now();
        eventually(what, || {
            self.liars[at].claim4(MOVING);
            self.is_at(at)
        });
        begin.elapsed()
    }

    fn is_at(&self, at: usize) -> bool {
        let route = self.mesh.routers[0].run(&format!("ip route show {MOVING}/32"));
        route.contains(&format!("dev fab{} ", Self::NODES[at]))
    }
}

#[test]
fn an_address_moves_only_when_it_has_left() {
    let Some(mesh) = Mesh::new("cl-moves") else { return };
    let Some(daemons) = mesh.start_all() else { return };
    mesh.until_known(&daemons);
    let roaming = Roaming::new(&mesh);
    roaming.set(0, true);
    roaming.until_at(0, "n0 knows the address at n1");
    // Another host has it as well, answers every question, and says so all the time.
    roaming.set(1, true);
    for _ in 0..TIMES {
        roaming.liars[1].claim4(MOVING);
        std::thread::sleep(MOMENT);
        assert!(roaming.is_at(0), "it still answers at n1");
    }
    // To a node with a higher number and back: as soon as the first one has been asked in vain.
    let mut took = Vec::new();
    for to in [1, 0, 1, 0] {
        roaming.set(1 - to, false);
        if !took.is_empty() {
            roaming.set(to, true);
        }
        took.push(roaming.until_at(to, "the address has moved"));
    }
    // Back and forth all the time; as soon as it stays, it is found.
    for n in 0..TIMES {
        let to = 1 - n % 2;
        roaming.set(to, true);
        roaming.set(1 - to, false);
        roaming.liars[to].claim4(MOVING);
        std::thread::sleep(MOMENT);
    }
    roaming.until_at(1 - (TIMES - 1) % 2, "the address is found where it stays");
    println!("an address was found again after {took:.0?}");
    daemons.into_iter().for_each(Daemon::stop);
}
