//! Random settings of Linux's firewall, IPsec policies and traffic control, and packets to try them with.
//!
//! Everything depends on one seed: the same seed gives the same rulesets and packets. `BM_SEED` sets it,
//! `BM_RULESETS` makes a run longer.

mod elements;
mod iptables;
mod nftables;
mod pieces;
mod tc;
mod tracking;
mod xfrm;

use crate::packet::{Ip4, Ip6};
use bm_wire::checksum::Pseudo;
use std::net::{IpAddr, Ipv6Addr};

pub use elements::elements;
pub use iptables::{LEGACY_FLUSH, iptables};
pub use nftables::nftables;
pub use pieces::Cut;
pub use tc::tc;
pub use tracking::tracking;
pub use xfrm::xfrm;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Without ports.
const GRE: u8 = 47;
const PORTS: [u16; 5] = [22, 53, 80, 1024, 40000];
const PROTOCOLS: [u8; 3] = [TCP, UDP, GRE];

/// xorshift: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// By `BM_SEED`, or by the clock; prints which.
    pub fn of_this_run() -> Self {
        let now = || crate::sys::wall_clock().as_nanos() as u64;
        let seed = number("BM_SEED").unwrap_or_else(now);
        println!("BM_SEED={seed}");
        Self::from_seed(seed)
    }

    /// The seed is mixed (the finalizer of splitmix64): xorshift begins badly with few bits, and cannot begin with 0.
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ state >> 31).max(1))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// True once out of `count`, on average.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// An item of a list.
    pub fn choice<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// How many rulesets a run has: `BM_RULESETS`, or the test's default.
pub fn count(default: usize) -> usize {
    number("BM_RULESETS").map_or(default, |count| count as usize)
}

/// The number in a variable of the environment.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The addresses and interfaces for rules and packets: a router that packets cross.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// The interface that they come in on.
    pub input: &'static str,
    /// The interfaces through which they leave.
    pub outputs: &'static [&'static str],
    /// IPv4 addresses that they come from.
    pub sources4: &'static [&'static str],
    /// The addresses to which they go.
    pub targets4: &'static [&'static str],
    /// The same of IPv6.
    pub sources6: &'static [&'static str],
    /// The same of IPv6.
    pub targets6: &'static [&'static str],
}

impl Net {
    fn output(&self, random: &mut Random) -> &'static str {
        random.choice(self.outputs)
    }

    fn any_interface(&self, random: &mut Random) -> &'static str {
        if random.one_in(2) { self.input } else { self.output(random) }
    }

    /// A prefix of an address that packets come from, or go to.
    fn prefix(&self, random: &mut Random, four: bool, source: bool) -> String {
        let list = match (four, source) {
            (true, true) => self.sources4,
            (true, false) => self.targets4,
            (false, true) => self.sources6,
            (false, false) => self.targets6,
        };
        let length = if four {
            random.choice(&[8u32, 9, 15, 16, 24, 25, 32])
        } else {
            random.choice(&[32, 47, 48, 61, 128])
        };
        format!("{}/{length}", masked(parse(random.choice(list)), length))
    }
}

fn parse(address: &str) -> IpAddr {
    address.parse().unwrap_or_else(|_| panic!("{address} is no address"))
}

/// An address without the bits after a prefix.
fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

/// The shape of a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Without options.
    Plain,
    /// With options in IPv4, or destination options in IPv6.
    Options,
    /// The last fragment of a packet: without visible ports.
    Fragment,
    /// Without options, and sent in fragments.
    Pieces(Cut),
}

/// Offset of fragments, in units of eight bytes.
const OFFSET: u16 = 100;

/// A packet that may match.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// TCP, UDP or GRE.
    pub protocol: u8,
    /// Source and destination port, where the protocol has ports.
    pub ports: (u16, u16),
    /// The shape of its header.
    pub shape: Shape,
    /// Distinguishes it from all others.
    pub id: u32,
}

/// Bytes from a probe's id to its end.
const TAIL: usize = 8;

impl Probe {
    /// One in three is IPv6.
    pub fn random(net: &Net, random: &mut Random, id: u32) -> Self {
        let (sources, targets) =
            if random.one_in(3) { (net.sources6, net.targets6) } else { (net.sources4, net.targets4) };
        let (source, destination) = (parse(random.choice(sources)), parse(random.choice(targets)));
        let ports = (random.choice(&PORTS), random.choice(&PORTS));
        let shapes =
            [Shape::Plain, Shape::Plain, Shape::Plain, Shape::Plain, Shape::Options, Shape::Fragment];
        Self {
            source,
            destination,
            protocol: random.choice(&PROTOCOLS),
            ports,
            shape: random.choice(&shapes),
            id,
        }
    }

    /// From the IP header on, with checksums that are right.
    pub fn bytes(&self, ttl: u8) -> Vec<u8> {
        let [source, destination] = [self.source, self.destination].map(|address| address.to_string());
        match (self.source, self.shape) {
            (IpAddr::V4(_), shape) => {
                let packet = Ip4::new(&source, &destination, self.protocol, self.payload()).ttl(ttl);
                match shape {
                    Shape::Plain | Shape::Pieces(_) => packet,
                    Shape::Options => packet.options(&[1, 1, 1, 0]),
                    Shape::Fragment => packet.flags(OFFSET).id(self.id as u16),
                }
                .bytes()
            }
            (IpAddr::V6(_), shape) => {
                let packet = Ip6::new(&source, &destination, self.protocol, self.payload()).hop_limit(ttl);
                match shape {
                    Shape::Plain | Shape::Pieces(_) => packet,
                    // PadN.
                    Shape::Options => packet.extension(60, &[0, 1, 4, 0, 0, 0, 0]),
                    Shape::Fragment => packet.fragment(OFFSET << 3, false, self.id),
                }
                .bytes()
            }
        }
    }

    /// Everything that is sent for it, in order: one packet, or its fragments.
    pub fn packets(&self, ttl: u8) -> Vec<Vec<u8>> {
        match self.shape {
            Shape::Pieces(cut) => self.pieces(cut, ttl),
            _ => vec![self.bytes(ttl)],
        }
    }

    fn payload(&self) -> Vec<u8> {
        let tail = [self.id.to_be_bytes(), [0; 4]].concat();
        if self.shape == Shape::Fragment {
            return [&[0x5a; 8], &tail[..]].concat();
        }
        let (from, to) = self.ports;
        let (mut payload, sum_at) = match self.protocol {
            TCP => {
                let words = [from, to, 0, 1, 0, 0, 0x5002, 0xffff, 0, 0];
                ([&words.map(u16::to_be_bytes).concat(), &tail[..]].concat(), 16)
            }
            UDP => {
                let words = [from, to, (8 + tail.len()) as u16, 0];
                ([&words.map(u16::to_be_bytes).concat(), &tail[..]].concat(), 6)
            }
            _ => return [&[0, 0, 0x65, 0x58], &tail[..]].concat(),
        };
        let sum = self.pseudo().checksum(self.protocol, &payload);
        crate::packet::put16(&mut payload, sum_at, bm_wire::checksum::udp_field(sum));
        payload
    }

    fn pseudo(&self) -> Pseudo {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Pseudo::V4 { source: source.into(), destination: destination.into() }
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Pseudo::V6 { source: source.into(), destination: destination.into() }
            }
            _ => panic!("{self:?} has addresses of two families"),
        }
    }

    /// The answer of the host that gets a packet: TCP or UDP without options and in one piece, with addresses and ports
    /// swapped. None for other packets.
    pub fn answer_to(packet: &[u8]) -> Option<Self> {
        let address = |at: usize, length: usize| {
            let bytes = packet.get(at..at + length)?;
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        };
        let (protocol, source, destination, upper) = match (packet.first()?, packet.get(6..8)?) {
            (0x45, [flags, 0]) if flags & 0x3f == 0 => {
                (*packet.get(9)?, address(12, 4)?, address(16, 4)?, packet.get(20..)?)
            }
            (0x60..=0x6f, _) => (*packet.get(6)?, address(8, 16)?, address(24, 16)?, packet.get(40..)?),
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes(*upper.get(at..)?.first_chunk()?));
        (protocol == TCP || protocol == UDP).then_some(())?;
        Some(Self {
            source: destination,
            destination: source,
            protocol,
            ports: (port(2)?, port(0)?),
            shape: Shape::Plain,
            id: Self::id_of(packet)?,
        })
    }

    /// The id of the probe that a packet is.
    pub fn id_of(packet: &[u8]) -> Option<u32> {
        let at = packet.len().checked_sub(TAIL)?;
        packet.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
    }
}
