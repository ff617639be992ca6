//! The packets that follow every step: always the same destinations and shapes, one or several in each prefix that steps
//! touch, so that a difference does not depend on which step came when.
//!
//! Each packet has a source of its own, since Linux limits errors about unreachable routes by source, which no setting of
//! a namespace changes. All packets of a round carry its number.

use bm_tests::lab::Side;
use bm_tests::packet::{
    Ip4, Ip6, arp_request, echo4, echo6, ip_frame, neighbor_solicitation, option_link_address, pattern,
};
use bm_wire::Mac;

/// Ports of most UDP packets.
pub const UDP_FROM: u16 = 4000;
pub const UDP_TO: u16 = 5000;

/// Destinations of IPv4: routes of the lab, routes of steps, the router itself, on its links, broadcasts, nowhere.
const TARGETS4: &[&str] = &[
    "10.9.9.9",
    "10.1.9.9",
    "10.1.1.9",
    "10.1.1.130",
    "10.1.1.200",
    "10.2.9.9",
    "10.20.9.9",
    "10.20.1.9",
    "10.20.1.5",
    "10.20.1.130",
    "10.20.1.200",
    "10.20.1.255",
    "10.21.0.1",
    "11.0.0.1",
    "172.16.130.1",
    "192.0.2.3",
    "198.51.100.7",
    "203.0.113.4",
    "10.97.0.9",
    "10.77.1.2",
];
/// The router's own, and what it must not forward.
pub const OWN4: &[&str] = &[
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "192.0.2.255",
    "198.51.100.255",
    "127.0.0.1",
    "255.255.255.255",
];
const TARGETS6: &[&str] = &[
    "2001:db8:a000::9",
    "2001:db8:a100::9",
    "2001:db8:a101::9",
    "2001:db8:a101:1::9",
    "2001:db8:a101:1::200",
    "2001:db8:b000::9",
    "2001:db8:a020:9::9",
    "2001:db8:a020:1::9",
    "2001:db8:a020:1::5",
    "2001:db8:a020:1:8000::9",
    "2001:db8:a020:1::200",
    "2001:db9::1",
    "2001:db8:c009::9",
    "2001:db8:1::3",
    "2001:db8:2::7",
    "2001:db8:77::2",
];
const OWN6: &[&str] = &["2001:db8:1::1", "2001:db8:2::1", "fe80::1", "2001:db8:1::", "::1"];
/// Prefixes with several next hops: only small packets, since the MTU depends on the choice.
pub const MULTIPATH4: [&str; 2] = ["10.30.0.9", "10.30.1.9"];
pub const MULTIPATH6: [&str; 2] = ["2001:db8:a030::9", "2001:db8:a030:1::9"];
/// Sources with a meaning: hosts of each link, the router's own, loopback, broadcast, of the prefixes of steps.
const SOURCES4: &[&str] = &[
    "192.0.2.2",
    "192.0.2.1",
    "198.51.100.1",
    "10.20.1.5",
    "10.20.1.9",
    "172.16.129.9",
    "127.0.0.1",
    "192.0.2.255",
    "198.51.100.255",
    "0.0.0.0",
    "224.0.0.1",
    "10.97.0.5",
];
const SOURCES6: &[&str] = &[
    "2001:db8:1::2",
    "2001:db8:1::1",
    "2001:db8:a020:1::5",
    "2001:db8:c009::9",
    "::1",
    "fe80::2",
    "ff02::1",
];

/// A frame, and the end that it is sent from.
pub type Probe = (Side, Vec<u8>);

/// The number that all packets of a round carry.
pub fn token(round: u32) -> [u8; 4] {
    // A pattern that does not occur by chance.
    (0xb37e_0000 | round & 0xffff).to_be_bytes()
}

/// The sequence number of a round's SYNs. Answers acknowledge the number after it, which no other round uses.
pub fn sequence(token: [u8; 4]) -> u32 {
    0x4c00_0000 | u32::from(u16::from_be_bytes([token[2], token[3]])) << 1
}

/// Makes the packets of a round.
struct Round {
    token: [u8; 4],
    /// Of the next source.
    number: u32,
    probes: Vec<Probe>,
}

impl Round {
    fn source4(&mut self) -> String {
        self.number += 1;
        // Not in 172.16.128.0/17, to which steps add routes.
        format!("172.16.{}.{}", self.number >> 8 & 127, self.number & 255)
    }

    fn source6(&mut self) -> String {
        self.number += 1;
        format!("2001:db8:c000:{:x}::{:x}", self.number >> 16, self.number & 0xffff)
    }

    fn data(&self, length: usize) -> Vec<u8> {
        [&self.token[..], &pattern(length)].concat()
    }

    fn udp4(&mut self, to: &str, length: usize) -> Ip4 {
        let (from, data) = (self.source4(), self.data(length));
        let id = u16::from_be_bytes([self.token[2], self.token[3]]);
        Ip4::udp_ports(&from, to, UDP_FROM, UDP_TO, &data).id(id)
    }

    fn udp6(&mut self, to: &str, length: usize) -> Ip6 {
        let (from, data) = (self.source6(), self.data(length));
        Ip6::udp_ports(&from, to, UDP_FROM, UDP_TO, &data)
    }

    fn push(&mut self, side: Side, packet: &[u8]) {
        self.probes.push((side, side.to_router(packet)));
    }

    fn push4(&mut self, packet: Ip4) {
        self.push(Side::Src, &packet.bytes());
    }

    fn push6(&mut self, packet: Ip6) {
        self.push(Side::Src, &packet.bytes());
    }

    /// Every destination by a plain packet, and by one that only just has no TTL left.
    fn plain(&mut self) {
        for to in TARGETS4.iter().chain(OWN4).chain(&MULTIPATH4) {
            let packet = self.udp4(to, 16);
            self.push4(packet);
        }
        for to in TARGETS6.iter().chain(OWN6).chain(&MULTIPATH6) {
            let packet = self.udp6(to, 16);
            self.push6(packet);
        }
        for to in ["10.9.9.9", "10.2.9.9", "10.20.1.9", "192.0.2.1"] {
            let packet = self.udp4(to, 16).ttl(1);
            self.push4(packet);
        }
        for to in ["2001:db8:a000::9", "2001:db8:b000::9", "2001:db8:a020:1::9"] {
            let packet = self.udp6(to, 16).hop_limit(1);
            self.push6(packet);
        }
    }

    /// Around each MTU that a link or a route may have, with and without permission to fragment.
    fn sizes(&mut self) {
        for (to, lengths) in
            [("10.9.9.9", [1468, 1300]), ("10.2.9.9", [1268, 1400]), ("10.20.1.9", [1100, 1372])]
        {
            for length in lengths {
                for flags in [0, Ip4::DF] {
                    let packet = self.udp4(to, length).flags(flags);
                    self.push4(packet);
                }
            }
        }
        for to in ["2001:db8:a000::9", "2001:db8:b000::9", "2001:db8:a020:1::9"] {
            for length in [1220, 1300, 1448] {
                let packet = self.udp6(to, length);
                self.push6(packet);
            }
        }
    }

    /// Other protocols, options, fragments.
    fn shapes(&mut self) {
        let protocols = |random: usize| [(53, 6), (80, 6), (53, 17), (22, 17)][random];
        for index in 0..4 {
            let (port, protocol) = protocols(index);
            for to in ["10.9.9.9", "10.20.1.9", "198.51.100.1"] {
                let (from, data) = (self.source4(), self.data(8));
                let packet = if protocol == 6 {
                    Ip4::tcp_syn(&from, to, 1024, port).sequence(sequence(self.token))
                } else {
                    Ip4::udp_ports(&from, to, 53, port, &data)
                };
                let id = u16::from_be_bytes([self.token[2], self.token[3]]);
                self.push4(packet.id(id));
            }
            let (from, data) = (self.source6(), self.data(8));
            let to = "2001:db8:a020:1::9";
            let packet = if protocol == 6 {
                Ip6::tcp_syn(&from, to, 1024, port).sequence(sequence(self.token))
            } else {
                Ip6::udp_ports(&from, to, 53, port, &data)
            };
            self.push6(packet);
        }
        let (route, record) = ([131, 7, 4, 198, 51, 100, 7, 0], [7, 7, 4, 0, 0, 0, 0, 0]);
        for options in [&[1, 1, 1, 0][..], &[148, 4, 0, 0], &route, &record] {
            let packet = self.udp4("10.9.9.9", 16).options(options);
            self.push4(packet);
        }
        for tos in [0x10, 0x08, 0xb8] {
            let packet = self.udp4("10.20.1.9", 16).tos(tos);
            self.push4(packet);
        }
        for to in ["10.9.9.9", "10.20.1.9"] {
            let packet = self.udp4(to, 16).flags(100);
            self.push4(packet);
            let packet = self.udp4(to, 20).flags(Ip4::MF);
            self.push4(packet);
        }
        let packet = self.udp6("2001:db8:a000::9", 16).extension(60, &[0, 1, 4, 0, 0, 0, 0]);
        self.push6(packet);
        let packet = self.udp6("2001:db8:a000::9", 16).extension(0, &[0, 1, 4, 0, 0, 0, 0]);
        self.push6(packet);
        let packet = self.udp6("2001:db8:a020:1::9", 16).fragment(800, false, 7);
        self.push6(packet);
    }

    /// Echoes to the router, and requests for addresses that it may stand for.
    fn for_router(&mut self) {
        let rest = u32::from_be_bytes(self.token);
        for to in ["192.0.2.1", "198.51.100.1", "10.77.1.2", "10.20.1.5", "10.20.1.200"] {
            let from = self.source4();
            self.push4(echo4(&from, to, rest, 24));
        }
        for to in ["2001:db8:1::1", "2001:db8:2::1", "2001:db8:77::2", "2001:db8:a020:1::5"] {
            let from = self.source6();
            self.push6(echo6(&from, to, rest, 24));
        }
        // A host that nothing is sent to, since Linux learns from what it asks.
        let (own, host) = (Mac([2, 0, 0, 0, 0, 0xde]), "192.0.2.222".parse().expect("an address"));
        for target in ["192.0.2.1", "198.51.100.77", "10.20.1.9"] {
            self.probes.push((Side::Src, arp_request((own, host), target.parse().expect("an address"))));
        }
        for target in ["2001:db8:1::1", "2001:db8:2::77", "2001:db8:a020:1::9"] {
            let option = option_link_address(1, own);
            let packet = neighbor_solicitation(
                "2001:db8:1::222",
                target,
                target.parse().expect("an address"),
                &option,
            );
            self.push6(packet);
        }
    }

    /// Sources that Linux may refuse, and other ways through the router.
    fn ways(&mut self) {
        let data = self.data(16);
        // A new connection in each round: what Linux tracks and translates depends on the rules at its first packet.
        let port = 4000 + u16::from_be_bytes([self.token[2], self.token[3]]) % 16384;
        // Not twice to one destination: where Linux gets several packets at once, as from a card, from XDP on a veth, or from
        // workers, it looks at the source of the first of those to one destination only (`ip_route_use_hint`).
        for (host, from) in (100..).zip(SOURCES4) {
            let to = if host % 2 == 0 { format!("10.9.9.{host}") } else { format!("10.1.9.{host}") };
            self.push4(Ip4::udp_ports(from, &to, port, 5000, &data));
        }
        for from in SOURCES6 {
            self.push6(Ip6::udp_ports(from, "2001:db8:a000::9", port, 5000, &data));
        }
        for (side, from, to) in [
            (Side::Snk, "10.9.9.9", "192.0.2.3"),
            (Side::Snk, "198.51.100.7", "172.16.1.1"),
            (Side::Low, "10.2.9.9", "10.9.9.9"),
            (Side::Low, "203.0.113.4", "172.16.1.1"),
            // Out by the link that it came in on.
            (Side::Snk, "198.51.100.7", "10.9.9.9"),
            (Side::Low, "203.0.113.4", "10.2.9.9"),
        ] {
            self.push(side, &Ip4::udp_ports(from, to, port, 5000, &data).bytes());
        }
        for (side, from, to) in [
            (Side::Snk, "2001:db8:a000::9", "2001:db8:1::3"),
            (Side::Low, "2001:db8:b000::9", "2001:db8:c000::9"),
            (Side::Snk, "2001:db8:2::7", "2001:db8:a000::9"),
            (Side::Low, "2001:db8:b000::9", "2001:db8:a000::9"),
        ] {
            self.push(side, &Ip6::udp_ports(from, to, port, 5000, &data).bytes());
        }
        for mac in [
            [2, 0, 0, 0, 0, 0xaa],
            [2, 0, 0, 0, 0, 0xbb],
            [2, 0, 0, 0, 0, 0x77],
            [0xff; 6],
            [1, 0, 0x5e, 0, 0, 1],
        ] {
            let packet = self.udp4("10.9.9.9", 16).bytes();
            self.probes.push((Side::Src, ip_frame(Mac(mac), Side::Src.mac(2), &packet)));
            let packet = self.udp6("2001:db8:a000::9", 16).bytes();
            self.probes.push((Side::Src, ip_frame(Mac(mac), Side::Src.mac(2), &packet)));
        }
        // By another sender: only some macvlans take it.
        let packet = self.udp4("10.9.9.9", 16).bytes();
        self.probes.push((Side::Src, ip_frame(Side::Src.mac(1), Mac([2, 0, 0, 0, 0, 0x66]), &packet)));
    }
}

/// The packets of a stream that runs while a step is made: plain ones to each destination.
pub fn of_stream(round: u32) -> Vec<Probe> {
    let mut all = Round { token: token(round), number: round.wrapping_mul(256), probes: Vec::new() };
    all.plain();
    all.probes
}

/// All packets of a round.
pub fn of_round(round: u32) -> Vec<Probe> {
    // Sources come again after enough time for Linux to allow them errors again.
    let mut all = Round { token: token(round), number: round.wrapping_mul(256), probes: Vec::new() };
    all.plain();
    all.sizes();
    all.shapes();
    all.for_router();
    all.ways();
    all.probes
}
