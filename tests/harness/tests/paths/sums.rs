//! Checksums that a sender leaves to its device, which a veth does not have: in tunnels of every sort, behind extension
//! headers, and where everybody expects them. Whoever forwards the frame, its receiver gets what it gets with Linux alone.
//!
//! The kernel's mark for such a checksum comes with each frame from a packet socket, so any stack of headers can have one,
//! also without the module that would make it.

use bm_tests::PATIENCE;
use bm_tests::bridge::{self, Bridge};
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::report;
use bm_tests::subject::Subject;
use bm_tests::sys::{self, PacketSocket};
use bm_wire::checksum::{checksum, sum};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Frames of one run, and how many are under way at once.
const FRAMES: usize = 600;
const BATCH: usize = 40;
const SEED: u64 = 0x5eed_0071;
/// Bytes of `struct virtio_net_hdr`.
const MARK: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const ETHERNET: usize = 14;

/// A generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A packet as it should arrive, and as its sender gives it to the device.
#[derive(Clone)]
struct Packet {
    whole: Vec<u8>,
    given: Vec<u8>,
    /// Where the checksum that is left to the device begins, and where its field is from there.
    mark: Option<(usize, usize)>,
    name: String,
}

/// Addresses of the outermost packet, for IPv4 and IPv6: with a route through the router.
const OUTER: [(&str, &str); 2] = [("172.16.0.9", "10.0.0.9"), ("2001:db8:c000::9", "2001:db8:a000::9")];
const INNER: [(&str, &str); 2] = [("192.168.9.1", "192.168.9.2"), ("fd00::1", "fd00::2")];

fn ip(is_ipv6: bool, addresses: (&str, &str), protocol: u8, payload: usize) -> Vec<u8> {
    let (source, destination) = addresses;
    if is_ipv6 {
        let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
        header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        for address in [source, destination] {
            header.extend(address.parse::<std::net::Ipv6Addr>().expect("an address").octets());
        }
        return header;
    }
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
    for address in [source, destination] {
        header.extend(address.parse::<std::net::Ipv4Addr>().expect("an address").octets());
    }
    let right = checksum(&header);
    header[10..12].copy_from_slice(&right.to_be_bytes());
    header
}

fn pseudo(header: &[u8], protocol: u8, length: usize) -> u16 {
    match header[0] >> 4 {
        4 => Ipv4::parse_quoted(header).expect("a header").pseudo().sum(protocol, length),
        _ => Ipv6::parse_quoted(header).expect("a header").pseudo().sum(protocol, length),
    }
}

impl Packet {
    /// Bytes of an application.
    fn data(bytes: Vec<u8>) -> Self {
        Self { whole: bytes.clone(), given: bytes, mark: None, name: String::new() }
    }

    /// The packet behind more bytes.
    fn behind(self, header: &[u8], name: &str) -> Self {
        Self {
            whole: [header, &self.whole].concat(),
            given: [header, &self.given].concat(),
            mark: self.mark.map(|(start, field)| (start + header.len(), field)),
            name: format!("{name} {}", self.name),
        }
    }

    /// The packet in IP and what is between: TCP, UDP or nothing, and a tunnel's own headers.
    fn within(self, random: &mut Random, is_ipv6: bool, addresses: (&str, &str), upper: u8) -> Self {
        let leaves = random.one_in(2) || self.whole.len() < 200;
        let (mut header, field, name): (Vec<u8>, usize, _) = match upper {
            protocol::TCP => ([&random.bytes(12)[..], &[0x50, 0x18, 32, 0, 0, 0, 0, 0]].concat(), 16, "TCP"),
            protocol::UDP => (random.bytes(4), 6, "UDP"),
            _ => return self.in_ip(random, is_ipv6, addresses, upper),
        };
        let length = if upper == protocol::UDP { 8 } else { 20 } + self.whole.len();
        if upper == protocol::UDP {
            header.extend((length as u16).to_be_bytes());
            header.extend([0, 0]);
        }
        let left = pseudo(&ip(is_ipv6, addresses, upper, length), upper, length);
        let mut all = self.behind(&header, name);
        let is_tunnel = all.name.len() > name.len() + 1;
        if upper == protocol::UDP && is_tunnel && random.one_in(3) {
            all.name.insert_str(name.len(), "(0)");
            return all.in_ip(random, is_ipv6, addresses, upper);
        }
        all.whole[field..field + 2].copy_from_slice(&left.to_be_bytes());
        let right = !sum(&all.whole);
        all.whole[field..field + 2].copy_from_slice(&if right == 0 { 0xffff } else { right }.to_be_bytes());
        if leaves && all.mark.is_none() {
            all.given = all.whole.clone();
            all.given[field..field + 2].copy_from_slice(&left.to_be_bytes());
            all.mark = Some((0, field));
            all.name.insert(name.len(), '*');
        } else {
            let right = [all.whole[field], all.whole[field + 1]];
            all.given[field..field + 2].copy_from_slice(&right);
        }
        all.in_ip(random, is_ipv6, addresses, upper)
    }

    fn in_ip(self, random: &mut Random, is_ipv6: bool, addresses: (&str, &str), upper: u8) -> Self {
        let (mut all, mut upper) = (self, upper);
        if is_ipv6 && random.one_in(4) {
            all = all.behind(&[upper, 0, 1, 4, 0, 0, 0, 0], "options");
            upper = protocol::DESTINATION_OPTIONS;
        }
        let header = ip(is_ipv6, addresses, upper, all.whole.len());
        all.behind(&header, if is_ipv6 { "IPv6" } else { "IPv4" })
    }

    /// A tunnel of some sort around the packet.
    fn tunneled(self, random: &mut Random, addresses: [(&str, &str); 2]) -> Self {
        let is_ipv6 = random.one_in(2);
        let is_inner_ipv6 = self.whole[0] >> 4 == 6;
        let kind: [u8; 2] = if is_inner_ipv6 { [0x86, 0xdd] } else { [8, 0] };
        let ethernet = [&[2; 12][..], &kind].concat();
        let (head, name, upper) = match random.below(6) {
            0 => ([&[8, 0, 0, 0, 0, 0, 1, 0][..], &ethernet].concat(), "VXLAN", protocol::UDP),
            1 => {
                let words = random.below(20);
                let first = [words as u8, 0, 0x65, 0x58, 0, 0, 1, 0];
                ([&first[..], &random.bytes(4 * words), &ethernet].concat(), "GENEVE", protocol::UDP)
            }
            2 => (Vec::new(), "in", protocol::UDP),
            3 => ([&[0, 0][..], &kind].concat(), "GRE", protocol::GRE),
            4 => ([&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1][..], &ethernet].concat(), "GRE", protocol::GRE),
            _ => (Vec::new(), "in", if is_inner_ipv6 { protocol::IPV6 } else { protocol::IPV4 }),
        };
        let inside = if head.is_empty() { self } else { self.behind(&head, name) };
        inside.within(random, is_ipv6, addresses[usize::from(is_ipv6)], upper)
    }

    fn random(random: &mut Random) -> Self {
        let depth = random.below(4);
        let addresses = |level: usize| if level == depth { OUTER } else { INNER };
        let size = [random.below(30), random.below(900)][random.below(2)];
        let is_ipv6 = random.one_in(2);
        let upper = if random.one_in(2) { protocol::TCP } else { protocol::UDP };
        let data = Self::data(random.bytes(size));
        let mut packet = data.within(random, is_ipv6, addresses(0)[usize::from(is_ipv6)], upper);
        for level in 1..=depth {
            packet = packet.tunneled(random, addresses(level));
        }
        packet
    }

    /// What the sender's socket gets: the mark, then the frame.
    fn sent(&self, frame: &[u8]) -> Vec<u8> {
        let mut mark = [0; MARK];
        if let Some((start, field)) = self.mark {
            mark[0] = NEEDS_CHECKSUM;
            mark[6..8].copy_from_slice(&((ETHERNET + start) as u16).to_ne_bytes());
            mark[8..10].copy_from_slice(&(field as u16).to_ne_bytes());
        }
        [&mark[..], frame].concat()
    }
}

/// The frame that came, with the checksum that is still left to a device.
fn arrived(received: &[u8]) -> Vec<u8> {
    let (mark, frame) = received.split_at(MARK);
    let number = |at: usize| usize::from(u16::from_ne_bytes([mark[at], mark[at + 1]]));
    let (mut frame, start) = (frame.to_vec(), number(6));
    if mark[0] & NEEDS_CHECKSUM != 0 {
        let right = match !sum(&frame[start..]) {
            0 => 0xffff,
            right => right,
        };
        let field = start + number(8);
        frame[field..field + 2].copy_from_slice(&right.to_be_bytes());
    }
    frame
}

/// The packet after a hop.
fn forwarded(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match packet[0] >> 4 {
        4 => Ipv4::parse(&mut packet[..]).expect("a packet").decrement_ttl(),
        _ => Ipv6::parse(&mut packet[..]).expect("a packet").decrement_hop_limit(),
    }
    packet
}

/// Sends frames, and takes what arrives: each as expected, in any order.
fn pass(sender: &PacketSocket, receiver: &PacketSocket, frames: &[(Vec<u8>, Vec<u8>, &str)], who: &str) {
    for batch in frames.chunks(BATCH) {
        for (sent, _, name) in batch {
            sender.send(sent).unwrap_or_else(|error| panic!("{who}: sending {name}: {error}"));
        }
        let mut left: Vec<_> = batch.iter().collect();
        let until = Instant::now() + PATIENCE;
        while !left.is_empty() {
            match receiver.receive().unwrap_or_else(|error| panic!("receiving: {error}")) {
                Some(captured) => {
                    let frame = arrived(&captured.frame);
                    let same = left.iter().position(|(_, expected, _)| *expected == frame);
                    let same = same.unwrap_or_else(|| {
                        let names: Vec<_> = left.iter().map(|(_, _, name)| *name).collect();
                        panic!("{who}, seed {SEED:#x}: none of {names:?} is {frame:02x?}")
                    });
                    left.remove(same);
                }
                None => {
                    let names: Vec<_> = left.iter().map(|(_, _, name)| *name).collect();
                    assert!(Instant::now() < until, "{who}, seed {SEED:#x}: did not arrive: {names:?}");
                    let _ = sys::wait_readable(&[receiver], Duration::from_millis(100));
                }
            }
        }
    }
}

fn packets() -> Vec<Packet> {
    let mut random = Random(SEED);
    (0..FRAMES).map(|_| Packet::random(&mut random)).collect()
}

#[test]
fn receivers_get_the_checksums_that_senders_left() {
    let packets = packets();
    let inside = packets.iter().filter(|packet| packet.mark.is_some_and(|(start, _)| start > 60)).count();
    report::say(&format!("sums: {} packets, {inside} with the mark inside a tunnel", packets.len()));
    assert!(inside > FRAMES / 4);
    for subject in Subject::with_tc("sums") {
        let lab = Lab::new("sums", Ends::Silent);
        lab.set_offloads(true, true);
        let router = subject.start(&lab);
        let [sender, receiver] = [Side::Src, Side::Snk].map(|side| lab.host(side).packet_socket(side.host()));
        for socket in [&sender, &receiver] {
            socket.carry_marks().expect("Linux has PACKET_VNET_HDR");
        }
        let frames: Vec<_> = packets
            .iter()
            .map(|packet| {
                let sent = packet.sent(&Side::Src.to_router(&packet.given));
                (sent, Side::Snk.to_neighbor(2, &forwarded(&packet.whole)), &*packet.name)
            })
            .collect();
        pass(&sender, &receiver, &frames, &subject.to_string());
        router.stop();
    }
}

#[test]
fn receivers_behind_a_switch_get_them_too() {
    let Some(mut switch) = Bridge::new("sw-sums", 2) else { return };
    switch.up("[[switch]]\nname = 'lan'\nports = ['p*']\n");
    let [sender, receiver] = [0, 1].map(|number| switch.end(number));
    for socket in [&sender, &receiver] {
        socket.carry_marks().expect("Linux has PACKET_VNET_HDR");
    }
    // The first teaches the switch where the receiver is, and is flooded.
    let hello = [&[0; MARK][..], &bridge::mac(0), &bridge::mac(1), &[0x88, 0xb5], &[0; 46]].concat();
    receiver.send(&hello).expect("a frame can be sent");
    switch.until("the switch knows the receiver", |switch| !switch.macs().is_empty());
    let packets = packets();
    let frames: Vec<_> = packets
        .iter()
        .map(|packet| {
            let framed = |bytes: &[u8]| {
                let kind: [u8; 2] = if bytes[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
                [&bridge::mac(1)[..], &bridge::mac(0), &kind, bytes].concat()
            };
            (packet.sent(&framed(&packet.given)), framed(&packet.whole), &*packet.name)
        })
        .collect();
    pass(&sender, &receiver, &frames, "switch");
    let completed = switch.port("p0")["counters"]["sums_completed"].as_u64().unwrap_or(0);
    let marked = packets.iter().filter(|packet| packet.mark.is_some()).count() as u64;
    assert!(completed >= marked, "{completed} of {marked}");
    switch.stop("stop");
}

/// TCP over the kernel's own VXLAN between the hosts.
#[test]
fn tcp_over_vxlan_passes() {
    const BYTES: usize = 1 << 20;
    for subject in Subject::with_tc("vxlan") {
        for mode in ["udpcsum", "noudpcsum"] {
            let lab = Lab::new("vxlan", Ends::Hosts);
            lab.set_offloads(true, true);
            for (side, other, address) in [(Side::Src, Side::Snk, 1), (Side::Snk, Side::Src, 2)] {
                let host = lab.host(side);
                host.ip(&format!(
                    "link add vx type vxlan id 1 local {} remote {} dstport 4789 {mode}\naddr add 192.168.9.{address}/24 dev vx\nlink set vx up\n",
                    side.v4(2),
                    other.v4(2)
                ));
            }
            let router = subject.start(&lab);
            let listener = lab.snk.within(|| TcpListener::bind("192.168.9.2:0")).expect("a port of the sink");
            let to = listener.local_addr().expect("it is bound");
            let sender = lab.src.within(|| TcpStream::connect_timeout(&to, PATIENCE));
            let mut sender = sender.unwrap_or_else(|error| panic!("{subject}, {mode}: {error}"));
            let (mut receiver, _) = listener.accept().expect("the connection");
            receiver.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                receiver.read_to_end(&mut all).map(|_| all.len())
            });
            sender.write_all(&vec![0x5a; BYTES]).expect("it is sent");
            drop(sender);
            let came = reader.join().expect("the reader ends");
            assert_eq!(came.ok(), Some(BYTES), "{subject}, {mode}: {}", router.status_text());
            router.stop();
        }
    }
}
