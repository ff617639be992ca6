//! Both ends of connections through a router, packet by packet: every byte is under control, and no host of the lab takes
//! part. What arrives at the far end is what is answered there, so replies have the addresses and ports that NAT has
//! chosen.
//!
//! Each packet has a number of its own, as identification of IPv4 or flow label of IPv6, which NAT does not change: by it
//! a packet is recognized at the other end.

use crate::exchange::Seen;
use crate::lab::{Lab, SIDES, Side};
use crate::packet::{Ip4, Ip6, get16, pattern, put16};
use crate::{normalise, sys};
use bm_wire::checksum::{self, Pseudo};
use bm_wire::protocol::{TCP, UDP};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// How long packets may take through a router on a busy machine. They arrive or they are lost: nothing else ends this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flags of TCP (RFC 9293 3.1).
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// Maximum segment size of 1460 bytes, in a SYN.
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
const PACKET: usize = 14;

/// One end of a connection: what it sends, and to whom.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where it is.
    pub side: Side,
    /// Its own address and port.
    pub own: SocketAddr,
    /// Whom it sends to, as it knows it.
    pub peer: SocketAddr,
    /// Sequence number of its next byte of TCP.
    pub sequence: u32,
    /// The next byte of TCP that it expects.
    pub acknowledged: u32,
    /// The number of its last packet.
    id: u16,
}

impl Host {
    /// A host that has sent nothing yet. Its sequence numbers begin where its port says.
    pub fn new(side: Side, own: SocketAddr, peer: SocketAddr) -> Self {
        // Two ends of one connection, and connections beside each other, have numbers that are apart.
        let id = own.port().wrapping_mul(0x6d2b).wrapping_add(side as u16 * 0x4000);
        Self { side, own, peer, sequence: u32::from(own.port()) << 8, acknowledged: 0, id }
    }

    /// The host that a frame has reached, which answers its sender; `None` if it has no ports.
    pub fn reached(side: Side, frame: &[u8]) -> Option<Self> {
        let heard = Heard::of(frame)?;
        let mut host = Self::new(side, heard.destination, heard.source);
        host.acknowledged = heard.next_sequence();
        Some(host)
    }

    /// Gives the next packet this number, which must not be 0.
    pub fn number(&mut self, id: u16) {
        self.id = id - 1;
    }

    /// A frame with a segment of TCP. Its data, SYN and FIN count as sent.
    pub fn segment(&mut self, flags: u8, data: &[u8]) -> Vec<u8> {
        let options: &[u8] = if flags & SYN == 0 { &[] } else { &MSS };
        let [from, to] = [self.own.port(), self.peer.port()].map(u16::to_be_bytes);
        let acknowledged = if flags & ACK == 0 { 0 } else { self.acknowledged };
        // In words of four bytes, in the upper half of its byte.
        let offset = (20 + options.len() as u8) / 4 * 16;
        let mut bytes = [from, to].concat();
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(acknowledged.to_be_bytes());
        bytes.extend([offset, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes.extend(data);
        self.sequence = self.sequence.wrapping_add(length_of(flags, data.len()));
        self.frame(TCP, 16, bytes)
    }

    /// A frame with a datagram of UDP.
    pub fn datagram(&mut self, data: &[u8]) -> Vec<u8> {
        let words = [self.own.port(), self.peer.port(), (8 + data.len()) as u16, 0];
        let bytes = [&words.map(u16::to_be_bytes).concat(), data].concat();
        self.frame(UDP, 6, bytes)
    }

    fn frame(&mut self, protocol: u8, sum_at: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        self.id = self.id.wrapping_add(1).max(1);
        let sum = self.pseudo().checksum(protocol, &bytes);
        put16(&mut bytes, sum_at, if protocol == UDP { checksum::udp_field(sum) } else { sum });
        let [source, destination] = [self.own, self.peer].map(|end| end.ip().to_string());
        let packet = if self.own.is_ipv4() {
            let flags = if protocol == TCP { Ip4::DF } else { 0 };
            Ip4::new(&source, &destination, protocol, bytes).id(self.id).flags(flags).bytes()
        } else {
            Ip6::new(&source, &destination, protocol, bytes).label(self.id.into()).bytes()
        };
        self.side.to_router(&packet)
    }

    fn pseudo(&self) -> Pseudo {
        match (self.own.ip(), self.peer.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Pseudo::V4 { source: source.into(), destination: destination.into() }
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Pseudo::V6 { source: source.into(), destination: destination.into() }
            }
            _ => panic!("{self:?} has addresses of two families"),
        }
    }
}

/// By how much a segment makes sequence numbers grow.
fn length_of(flags: u8, data: usize) -> u32 {
    data as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0)
}

/// What a frame with TCP or UDP says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Address and port that it comes from.
    pub source: SocketAddr,
    /// Address and port that it goes to.
    pub destination: SocketAddr,
    /// TCP or UDP.
    pub protocol: u8,
    /// The number of the packet.
    pub id: u16,
    /// Flags of TCP.
    pub flags: u8,
    sequence: u32,
    data: usize,
}

impl Heard {
    /// Reads a frame whose packet has no options and is in one piece.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let packet = frame.get(PACKET..)?;
        let (protocol, [source, destination], upper) = match packet.first()? {
            0x45 if get16(packet, 6) & 0x3fff == 0 => {
                let address = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(IpAddr::from);
                (*packet.get(9)?, [address(12)?, address(16)?], packet.get(20..)?)
            }
            0x60..=0x6f => {
                let address =
                    |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(Ipv6Addr::from);
                (*packet.get(6)?, [address(8)?.into(), address(24)?.into()], packet.get(40..)?)
            }
            _ => return None,
        };
        let end = |address, at| SocketAddr::new(address, get16(upper, at));
        let (source, destination) = (end(source, 0), end(destination, 2));
        let read = Self { source, destination, protocol, id: id_of(frame)?, flags: 0, sequence: 0, data: 0 };
        match protocol {
            TCP => {
                let header = usize::from(*upper.get(12)? >> 4) * 4;
                let sequence = u32::from_be_bytes(*upper.get(4..)?.first_chunk()?);
                let data = upper.len().checked_sub(header)?;
                Some(Self { flags: upper[13], sequence, data, ..read })
            }
            UDP => Some(read),
            _ => None,
        }
    }

    /// The sequence number that its receiver expects next.
    pub fn next_sequence(&self) -> u32 {
        self.sequence.wrapping_add(length_of(self.flags, self.data))
    }
}

/// The number of a packet: identification of IPv4, or the end of the flow label of IPv6.
pub fn id_of(frame: &[u8]) -> Option<u16> {
    match frame.get(PACKET)? >> 4 {
        4 => Some(get16(frame, PACKET + 4)),
        6 => Some(get16(frame, PACKET + 2)),
        _ => None,
    }
}

impl Lab {
    /// Sends frames and waits until packets with their numbers have come out at `to`, or are lost. All frames that have
    /// come to any end meanwhile, in the order of their arrival.
    pub fn carry(&self, from: Side, frames: &[Vec<u8>], to: Side) -> Vec<Seen> {
        frames.iter().for_each(|frame| self.send(from, frame));
        let mut missing: Vec<u16> = frames.iter().filter_map(|frame| id_of(frame)).collect();
        let (deadline, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        while !missing.is_empty() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            sys::wait_readable(&self.sockets(), left).expect("poll works on open sockets");
            for side in SIDES {
                while let Some(captured) = self.receive(side) {
                    let frame = captured.frame;
                    if normalise::is_noise(&frame) {
                        continue;
                    }
                    let id = id_of(&frame).filter(|_| side == to);
                    if let Some(at) = missing.iter().position(|missing| Some(*missing) == id) {
                        missing.swap_remove(at);
                    }
                    seen.push(Seen { side, frame });
                }
            }
        }
        seen
    }
}

/// Frames of a list that another one lacks, the first five, one in a line.
pub fn lacking(list: &[Seen], other: &[Seen]) -> String {
    let mut text = String::new();
    for seen in list.iter().filter(|seen| !other.contains(seen)).take(5) {
        let bytes: String = seen.frame.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("\n  {:?} {bytes}", seen.side));
    }
    text
}

/// A connection of TCP or UDP whose packets all come through.
#[derive(Clone, Debug)]
pub struct Conversation {
    protocol: u8,
    /// The end that has begun it.
    pub opener: Host,
    /// The other end, with the addresses that it knows.
    pub answerer: Host,
}

/// Bytes in the first packets of a connection.
const GREETING: usize = 64;

impl Conversation {
    /// Begins a connection whose first packet comes out at `to`: the three packets of TCP, and some data in both
    /// directions. Adds what arrives to `seen`. The error says which packet does not come through.
    pub fn open(
        lab: &Lab,
        protocol: u8,
        mut opener: Host,
        to: Side,
        seen: &mut Vec<Seen>,
    ) -> Result<Self, String> {
        let first =
            if protocol == TCP { opener.segment(SYN, &[]) } else { opener.datagram(&pattern(GREETING)) };
        let arrived = lab.carry(opener.side, std::slice::from_ref(&first), to);
        let answerer = arrived.iter().find(|seen| seen.side == to && id_of(&seen.frame) == id_of(&first));
        let answerer = answerer.and_then(|seen| Host::reached(to, &seen.frame));
        seen.extend(arrived);
        let answerer =
            answerer.ok_or_else(|| format!("the first packet of {opener:?} does not come through"))?;
        let mut both = Self { protocol, opener, answerer };
        if protocol == TCP {
            let accepts = both.answerer.segment(SYN | ACK, &[]);
            both.cross(lab, false, vec![accepts], seen)?;
            both.opener.acknowledged = both.answerer.sequence;
            let confirms = both.opener.segment(ACK, &[]);
            both.cross(lab, true, vec![confirms], seen)?;
        }
        for by_opener in [false, true, false, true] {
            let frame = both.say(by_opener, GREETING);
            both.cross(lab, by_opener, vec![frame], seen)?;
        }
        Ok(both)
    }

    /// The next frame with so many bytes of data from one end, which has received all that the other one has sent.
    pub fn say(&mut self, by_opener: bool, length: usize) -> Vec<u8> {
        let protocol = self.protocol;
        let data = pattern(length);
        let sender = self.sender(by_opener);
        if protocol == TCP { sender.segment(ACK | PSH, &data) } else { sender.datagram(&data) }
    }

    /// A frame of one end that says nothing new: the next one that it says is the same as if this had not been sent.
    pub fn repeat(&self, by_opener: bool) -> Vec<u8> {
        self.clone().say(by_opener, 0)
    }

    fn sender(&mut self, by_opener: bool) -> &mut Host {
        let (sender, other) = if by_opener {
            (&mut self.opener, self.answerer.sequence)
        } else {
            (&mut self.answerer, self.opener.sequence)
        };
        sender.acknowledged = other;
        sender
    }

    /// Sends frames of one end to the other.
    pub fn cross(
        &self,
        lab: &Lab,
        by_opener: bool,
        frames: Vec<Vec<u8>>,
        seen: &mut Vec<Seen>,
    ) -> Result<(), String> {
        let (from, to) = if by_opener {
            (self.opener.side, self.answerer.side)
        } else {
            (self.answerer.side, self.opener.side)
        };
        let arrived = lab.carry(from, &frames, to);
        let came = |frame: &&Vec<u8>| arrived.iter().any(|seen| id_of(&seen.frame) == id_of(frame));
        let lost = frames.len() - frames.iter().filter(came).count();
        seen.extend(arrived);
        if lost == 0 {
            Ok(())
        } else {
            Err(format!("{lost} of {} from {from:?} to {to:?} are lost", frames.len()))
        }
    }

    /// Ends a connection of TCP from both sides; UDP has no end.
    pub fn close(&mut self, lab: &Lab, seen: &mut Vec<Seen>) -> Result<(), String> {
        if self.protocol != TCP {
            return Ok(());
        }
        for (by_opener, flags) in [(true, FIN | ACK), (false, FIN | ACK), (true, ACK)] {
            let frame = self.sender(by_opener).segment(flags, &[]);
            self.cross(lab, by_opener, vec![frame], seen)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_back_and_acknowledges() {
        for (own, peer) in
            [("192.0.2.7:5000", "10.9.9.9:80"), ("[2001:db8:1::7]:5000", "[2001:db8:a000::9]:80")]
        {
            let end = |text: &str| text.parse::<SocketAddr>().expect("an address and a port");
            let mut opener = Host::new(Side::Src, end(own), end(peer));
            let first = opener.segment(SYN, &[]);
            let heard = Heard::of(&first).expect("a segment");
            assert_eq!((heard.source, heard.destination, heard.flags), (end(own), end(peer), SYN));
            let mut answerer = Host::reached(Side::Snk, &first).expect("a host");
            assert_eq!(answerer.acknowledged, opener.sequence);
            let answer = Heard::of(&answerer.segment(SYN | ACK, &[])).expect("a segment");
            assert_eq!((answer.source, answer.destination, answer.protocol), (end(peer), end(own), TCP));
            let datagram = Heard::of(&opener.datagram(b"data")).expect("a datagram");
            assert_eq!((datagram.protocol, datagram.source), (UDP, end(own)));
            assert_ne!(datagram.id, heard.id);
        }
    }
}
