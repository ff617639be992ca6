//! Connections, and the packets that their ends send next: what an end has heard, it has heard from Linux alone.
//!
//! Only the opener of a connection begins it. After all connections have been forgotten, after a RST, and where its packets
//! come out otherwise than before, the other end is a new one: else Linux would find the ports taken that NAT wants, and
//! take random ones.

use bm_tests::conversation::{ACK, FIN, Heard, Host, PSH, RST, SYN, id_of};
use bm_tests::exchange::Seen;
use bm_tests::lab::{SIDES, Side};
use bm_tests::packet::{Quote, echo4, error4, error6, fragments4, get16, pattern, put16};
use bm_tests::rulesets::Random;
use bm_wire::checksum;
use bm_wire::protocol::{ICMP, TCP, UDP};
use std::net::{IpAddr, SocketAddr};

/// Where connections begin, with which addresses, and where they go to.
const WAYS: &[(Side, &str, &[&str])] = &[
    (Side::Src, "192.0.2.7", &["10.9.9.9", "10.1.1.200", "10.2.9.9", "198.51.100.7"]),
    (Side::Src, "172.16.0.9", &["10.9.9.9", "10.1.9.9", "10.2.9.9"]),
    (Side::Src, "2001:db8:1::7", &["2001:db8:a000::9", "2001:db8:a101::9", "2001:db8:b000::9"]),
    (Side::Src, "2001:db8:c000::7", &["2001:db8:a000::9", "2001:db8:b000::9"]),
    (Side::Snk, "198.51.100.7", &["198.51.100.1", "172.16.0.9", "192.0.2.5"]),
    (Side::Snk, "10.9.9.9", &["198.51.100.1", "10.2.9.9", "192.0.2.5"]),
    (Side::Snk, "2001:db8:a000::9", &["2001:db8:1::5", "2001:db8:c000::9"]),
    (Side::Low, "10.2.9.9", &["203.0.113.1", "192.0.2.5"]),
];
/// Ports of servers; the router's own addresses forward some of them.
pub const PORTS: &[u16] = &[53, 80, 443, 5353, 7000, 8080];
/// Two hosts with one port want it behind one address: NAT has two ports for them.
pub const COLLIDING: (u16, &str, u16) = (4000, "10.9.9.40", 7000);
/// Connections at one time.
const CONNECTIONS: u16 = 36;
/// Packets that one end sends at once, at most.
const BURST: usize = 4;
const PACKET: usize = 14;
/// Flag of TCP.
const URG: u8 = 0x20;

/// What has been heard of a connection of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begins,
    /// The SYN has been heard.
    Asked,
    /// The answer to it too.
    Answered,
    Established,
    /// A FIN or RST has been heard.
    Ends,
}

struct Connection {
    protocol: u8,
    opener: Host,
    answerer: Option<Host>,
    phase: Phase,
    /// The last frame that has come from each end, that of the opener second.
    last: [Option<Vec<u8>>; 2],
    /// Bytes that each end has sent since it has heard of the other one.
    unanswered: [usize; 2],
    /// Segments have been sent that no flow takes, or outside of the window: after those, Linux may take an RST otherwise
    /// (docs/flows.md).
    has_odd_segments: bool,
    /// Since an RST, or a SYN in the middle, the other end is a new one: what it answered to anything but a SYN would be
    /// outside of the window.
    must_open: bool,
}

/// A packet on its way.
pub struct Sent {
    connection: usize,
    by_opener: bool,
    id: u16,
    /// The sender's sequence number before it.
    before: u32,
    /// Its frames: a packet, or its fragments.
    pub frames: Vec<Vec<u8>>,
}

/// All connections of an epoch.
pub struct Traffic {
    connections: Vec<Connection>,
    /// Number of the last packet.
    id: u16,
    /// Whether Linux takes segments outside of the window, so that they may be sent.
    liberal: bool,
}

fn end(address: &str, port: u16) -> SocketAddr {
    (address.parse::<IpAddr>().expect("an address"), port).into()
}

impl Traffic {
    /// New connections, each with a port of its own.
    pub fn new(random: &mut Random, first_port: u16, liberal: bool) -> Self {
        let mut connections: Vec<Connection> =
            (0..CONNECTIONS).map(|number| Connection::random(random, first_port + number)).collect();
        for address in ["192.0.2.7", "172.16.0.9"] {
            let (port, to, to_port) = COLLIDING;
            connections.push(Connection::new(UDP, Side::Src, end(address, port), end(to, to_port)));
        }
        Self { connections, id: 0, liberal }
    }

    /// What hosts at one side send next.
    pub fn next(&mut self, random: &mut Random, side: Side) -> Vec<Sent> {
        let mut all = Vec::new();
        for index in 0..self.connections.len() {
            if random.one_in(3) {
                continue;
            }
            let connection = &self.connections[index];
            let at = |host: &Host| host.side == side;
            let can = [at(&connection.opener), connection.answerer.as_ref().is_some_and(at)];
            let by_opener = match can {
                [true, true] => random.one_in(2),
                [false, false] => continue,
                [opener, _] => opener,
            };
            for _ in 0..1 + random.below(BURST) {
                self.id = self.id.checked_add(1).unwrap_or(1);
                let (id, liberal) = (self.id, self.liberal);
                let connection = &mut self.connections[index];
                let before = connection.sender(by_opener).sequence;
                let frames = connection.next(random, by_opener, id, liberal);
                all.push(Sent { connection: index, by_opener, id, before, frames });
                // The packets that begin or end a connection are sent one at a time, and nothing after a RST.
                let one = connection.phase != Phase::Established || connection.answerer.is_none();
                if connection.protocol == TCP && one {
                    break;
                }
            }
        }
        all
    }

    /// Takes note of what has been heard of these packets.
    pub fn heard(&mut self, sent: &[Sent], seen: &[Seen]) {
        for packet in sent.iter().rev() {
            let came = seen.iter().find(|seen| is_of(&seen.frame, packet.id));
            let connection = &mut self.connections[packet.connection];
            let sender =
                if packet.by_opener { Some(&mut connection.opener) } else { connection.answerer.as_mut() };
            if let Some(sender) = sender.filter(|_| came.is_none()) {
                // It is sent again.
                sender.sequence = packet.before;
            }
        }
        for packet in sent {
            if let Some(seen) = seen.iter().find(|seen| is_of(&seen.frame, packet.id)) {
                self.connections[packet.connection].hear(packet.by_opener, seen);
            }
        }
    }

    /// All connections have been forgotten: their openers begin again.
    pub fn forget(&mut self, random: &mut Random) {
        for connection in &mut self.connections {
            connection.answerer = None;
            (connection.has_odd_segments, connection.must_open) = (false, false);
            (connection.last, connection.unanswered) = ([None, None], [0, 0]);
            // Some go on in the middle, as after a reboot of the router.
            let goes_on = connection.protocol == TCP && random.one_in(2);
            connection.phase = if goes_on { Phase::Established } else { Phase::Begins };
        }
    }
}

/// Whether a frame is the packet of a host with this number: with a hop less, and in one piece.
fn is_of(frame: &[u8], id: u16) -> bool {
    let hops = match frame.get(PACKET).map(|first| first >> 4) {
        Some(4) => frame.get(PACKET + 8),
        _ => frame.get(PACKET + 7),
    };
    id_of(frame) == Some(id) && hops == Some(&63)
}

/// What is sent, and whether Linux alone has forwarded it, as a line of a report; empty for what is in pieces.
pub fn line(sent: &Sent, seen: &[Seen]) -> String {
    let [frame] = &sent.frames[..] else { return String::new() };
    let packet = &frame[PACKET..];
    let (header, hops) = match packet[0] >> 4 {
        4 => (usize::from(packet[0] & 15) * 4, packet[8]),
        _ => (40, packet[7]),
    };
    let upper = &packet[header..];
    let [source, destination] = [0, 2].map(|at| get16(upper, at));
    let length = packet.len();
    let came = if seen.iter().any(|seen| is_of(&seen.frame, sent.id)) { "came" } else { "did not come" };
    let of_tcp = match packet[if header == 40 { 6 } else { 9 }] {
        TCP => {
            let [sequence, acknowledged] =
                [4, 8].map(|at| u32::from_be_bytes(*upper[at..].first_chunk().expect("a header of TCP")));
            format!(" flags {:#x} sequence {sequence} acknowledges {acknowledged}", upper[13])
        }
        _ => String::new(),
    };
    format!("#   {source} > {destination}{of_tcp}, {length} bytes, header {header}, {hops} hops: {came}\n")
}

impl Connection {
    fn new(protocol: u8, side: Side, own: SocketAddr, peer: SocketAddr) -> Self {
        let opener = Host::new(side, own, peer);
        let (last, unanswered) = ([None, None], [0, 0]);
        let phase = Phase::Begins;
        let (has_odd_segments, must_open) = (false, false);
        Self { protocol, opener, answerer: None, phase, last, unanswered, has_odd_segments, must_open }
    }

    fn random(random: &mut Random, port: u16) -> Self {
        let (side, own, peers) = random.choice(WAYS);
        let protocol = random.choice(&[TCP, TCP, TCP, UDP, UDP, ICMP]);
        let (own, peer) = (end(own, port), end(random.choice(peers), random.choice(PORTS)));
        let protocol = if protocol == ICMP && own.is_ipv6() { UDP } else { protocol };
        Self::new(protocol, side, own, peer)
    }

    fn sender(&mut self, by_opener: bool) -> &mut Host {
        match &mut self.answerer {
            Some(answerer) if !by_opener => answerer,
            _ => &mut self.opener,
        }
    }

    /// The frames of the next packet of one end.
    fn next(&mut self, random: &mut Random, by_opener: bool, id: u16, liberal: bool) -> Vec<Vec<u8>> {
        let last = self.last[usize::from(!by_opener)].clone();
        let (phase, protocol) = (self.phase, self.protocol);
        let odd =
            Odd { outside: liberal, resets: !self.has_odd_segments, only_opens: self.must_open && !liberal };
        // Half of a window, so that nothing is outside of it by accident.
        let may_fill = self.unanswered[usize::from(by_opener)] < 0x8000;
        let sender = self.sender(by_opener);
        sender.number(id);
        if let Some(last) = last.filter(|_| random.one_in(16)) {
            return vec![error(random, sender.side, &last, id)];
        }
        let frame = match protocol {
            TCP if may_fill => segment(random, sender, phase, by_opener, odd),
            TCP => sender.segment(ACK, &[]),
            UDP => sender.datagram(&pattern(random.below(1200))),
            _ => echo(sender, by_opener, id),
        };
        let own = sender.own;
        let side = sender.side;
        // An end's number behind its data is that of the next segment, unless this one is outside of the window.
        let next = sender.sequence;
        self.unanswered[usize::from(by_opener)] += frame.len();
        let heard = Heard::of(&frame);
        let flags = heard.as_ref().map_or(0, |heard| heard.flags);
        let kind = random.below(24);
        let is_odd = matches!(kind, 0 | 2) || heard.is_none_or(|heard| heard.next_sequence() != next);
        self.has_odd_segments |= protocol == TCP && (is_odd || flags & URG != 0);
        if flags == SYN || flags & RST != 0 {
            // It may end the connection in Linux: what the other end sent then would begin one of its own.
            (self.answerer, self.must_open) = (None, true);
        }
        match kind {
            // No hop is left.
            0 => vec![changed(frame, |packet| hops(packet, 1))],
            1 if protocol == UDP && own.is_ipv4() && frame.len() > PACKET + 68 => {
                // In two to four pieces; some arrive in the other order.
                let length = frame.len() / (2 + random.below(3)) / 8 * 8;
                let pieces = fragments4(&frame[PACKET..], 20 + length);
                let mut frames: Vec<_> = pieces.iter().map(|piece| side.to_router(piece)).collect();
                if random.one_in(3) {
                    frames.reverse();
                }
                frames
            }
            // No packet with options is heard here, and what follows a SYN depends on whether it was heard.
            2 if own.is_ipv4() && flags & SYN == 0 => vec![with_options(&frame)],
            _ => vec![frame],
        }
    }

    /// A packet of one end has come out of the router.
    fn hear(&mut self, by_opener: bool, seen: &Seen) {
        if self.protocol == ICMP {
            if by_opener && let Some(answerer) = echoed(seen) {
                self.answerer = Some(answerer);
                self.last[1] = Some(seen.frame.clone());
            }
            return;
        }
        let Some(heard) = Heard::of(&seen.frame).filter(|heard| heard.protocol == self.protocol) else {
            return;
        };
        if heard.flags & RST != 0 {
            self.phase = Phase::Ends;
            return;
        }
        if by_opener {
            let known = self.answerer.as_ref().is_some_and(|answerer| {
                (answerer.side, answerer.own, answerer.peer) == (seen.side, heard.destination, heard.source)
            });
            if !known && (!self.must_open || heard.flags == SYN) {
                self.answerer = Host::reached(seen.side, &seen.frame);
            }
        } else if (seen.side, heard.destination) != (self.opener.side, self.opener.own) {
            // It has been sent to somebody else.
            return;
        }
        self.last[usize::from(by_opener)] = Some(seen.frame.clone());
        self.unanswered[usize::from(!by_opener)] = 0;
        let receiver = if by_opener { self.answerer.as_mut() } else { Some(&mut self.opener) };
        if let Some(receiver) = receiver {
            receiver.acknowledged = heard.next_sequence();
        }
        self.phase = match (self.phase, heard.flags & (SYN | ACK | FIN)) {
            (_, flags) if flags & FIN != 0 => Phase::Ends,
            (_, SYN) => Phase::Asked,
            (Phase::Asked, flags) if flags == SYN | ACK => {
                self.must_open = false;
                Phase::Answered
            }
            (Phase::Answered, ACK) => Phase::Established,
            (phase, _) => phase,
        };
    }
}

/// What an end of TCP may send besides what it should.
#[derive(Clone, Copy)]
struct Odd {
    /// Segments outside of the window.
    outside: bool,
    resets: bool,
    /// Nothing but a SYN.
    only_opens: bool,
}

/// What an end of TCP sends in a phase: mostly what it should.
fn segment(random: &mut Random, sender: &mut Host, phase: Phase, by_opener: bool, odd: Odd) -> Vec<u8> {
    let unusual = random.one_in(12);
    let opens = match phase {
        Phase::Asked => false,
        _ if odd.only_opens => true,
        Phase::Begins => !unusual,
        Phase::Ends => !unusual && random.one_in(3),
        _ => false,
    };
    match (phase, by_opener) {
        // Numbers of a connection that is opened again are far behind those of the one before.
        (_, true) if opens => {
            sender.sequence = sender.sequence.wrapping_add(1 << 20);
            sender.segment(SYN, &[])
        }
        // Whatever else follows a SYN that Linux has let pass without taking it for a new connection is outside of the window.
        (Phase::Asked, true) if !unusual || !odd.outside => {
            // The same SYN again: it counts as sent already.
            sender.sequence = sender.sequence.wrapping_sub(1);
            sender.segment(SYN, &[])
        }
        (Phase::Asked, false) if unusual => sender.segment(RST | ACK, &[]),
        (Phase::Asked, false) => {
            sender.sequence = sender.sequence.wrapping_add(1 << 20);
            sender.segment(SYN | ACK, &[])
        }
        (Phase::Answered, true) if !unusual => sender.segment(ACK, &[]),
        (Phase::Ends, _) if !unusual => sender.segment(random.choice(&[ACK, FIN | ACK]), &[]),
        _ if unusual && odd.outside && random.one_in(3) => {
            let mut other = sender.clone();
            other.sequence = other.sequence.wrapping_add(random.choice(&[1 << 20, 0xf000_0000]));
            other.segment(ACK | PSH, &pattern(random.below(100)))
        }
        _ if unusual => {
            let flags = random.choice(&[FIN | ACK, FIN | ACK, RST, RST | ACK, ACK | PSH | URG, SYN]);
            let is_odd = (flags == SYN && !by_opener) || (flags & RST != 0 && !odd.resets);
            let flags = if is_odd { ACK } else { flags };
            let mut other = sender.clone();
            // A SYN in the middle does not change what is sent next.
            if flags == SYN { other.segment(flags, &[]) } else { sender.segment(flags, &[]) }
        }
        _ => sender.segment(random.choice(&[ACK, ACK | PSH]), &pattern(random.below(1200))),
    }
}

/// An echo request of the opener, or the reply to it. The identifier is the opener's port.
fn echo(sender: &Host, by_opener: bool, id: u16) -> Vec<u8> {
    let [source, destination] = [sender.own, sender.peer].map(|end| end.ip().to_string());
    let identifier = if by_opener { sender.own.port() } else { sender.peer.port() };
    let mut packet = echo4(&source, &destination, u32::from(identifier) << 16 | u32::from(id), 56).id(id);
    if !by_opener {
        packet.payload[..4].fill(0);
        let sum = checksum::checksum(&packet.payload);
        put16(&mut packet.payload, 2, sum);
    }
    sender.side.to_router(&packet.bytes())
}

/// The host that an echo request has reached, with the identifier as the port of its peer.
fn echoed(seen: &Seen) -> Option<Host> {
    let packet = seen.frame.get(PACKET..)?;
    (packet.first() == Some(&0x45) && packet.get(20) == Some(&8)).then_some(())?;
    let address = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(IpAddr::from);
    let identifier = u16::from_be_bytes(*packet.get(24..)?.first_chunk()?);
    Some(Host::new(seen.side, (address(16)?, 0).into(), (address(12)?, identifier).into()))
}

/// An ICMP error about a packet that has come to a side, from its destination or from a router before it.
fn error(random: &mut Random, side: Side, about: &[u8], id: u16) -> Vec<u8> {
    let packet = &about[PACKET..];
    let frame = if packet[0] >> 4 == 4 {
        let destination: [u8; 4] = packet[16..20].try_into().expect("four bytes");
        let from = if random.one_in(2) { IpAddr::from(destination).to_string() } else { side.v4(2) };
        let (kind, code, rest) = random.choice(&[(3, 3, 0), (3, 4, 1400), (11, 0, 0), (3, 1, 0)]);
        error4(&from, kind, code, rest, packet, Quote::Full).id(id).bytes()
    } else {
        let destination: [u8; 16] = packet[24..40].try_into().expect("16 bytes");
        let from = if random.one_in(2) { IpAddr::from(destination).to_string() } else { side.v6(2) };
        let (kind, code, rest) = random.choice(&[(1, 4, 0), (2, 0, 1400), (3, 0, 0)]);
        error6(&from, kind, code, rest, packet).label(id.into()).bytes()
    };
    side.to_router(&frame)
}

/// The frame with another packet, whose header checksum is right again.
fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let packet = &mut frame[PACKET..];
    change(packet);
    if packet[0] >> 4 == 4 {
        let header = usize::from(packet[0] & 15) * 4;
        let sum = checksum::ipv4_header(&packet[..header]);
        put16(packet, 10, sum);
    }
    frame
}

fn hops(packet: &mut [u8], left: u8) {
    let at = if packet[0] >> 4 == 4 { 8 } else { 7 };
    packet[at] = left;
}

/// The frame of an IPv4 packet without options, with four bytes of them.
fn with_options(frame: &[u8]) -> Vec<u8> {
    let mut longer = [&frame[..PACKET + 20], &[1, 1, 1, 0], &frame[PACKET + 20..]].concat();
    let length = (longer.len() - PACKET) as u16;
    longer[PACKET] = 0x46;
    put16(&mut longer[PACKET..], 2, length);
    changed(longer, |_| {})
}

/// The sides in a random order.
pub fn sides(random: &mut Random) -> [Side; 3] {
    let mut sides = SIDES;
    sides.rotate_left(random.below(3));
    sides
}
