//! Neighbor discovery (RFC 4861): parsing with the checks of its section 7.1, and building solicitations and
//! advertisements.
//!
//! Messages that crossed a router are refused because of their hop limit, fragmented ones because of RFC 6980. Router
//! messages are checked and named, but only Linux evaluates them.

use crate::bytes::{be128, put128};
use crate::ethernet::Mac;
use crate::icmpv6::{self, Icmpv6, Sender, kind};
use crate::ipv6::{self, Ipv6};
use crate::malformed::{Malformed, NoRoom};
use crate::protocol;

/// Hop limit of all neighbor discovery messages: no router can have forwarded them.
pub const HOP_LIMIT: u8 = 255;

mod at {
    use std::ops::Range;
    /// From the message's first byte.
    pub const TARGET: Range<usize> = 8..24;
}

/// Kinds of option.
pub mod option {
    /// The sender's link-layer address.
    pub const SOURCE_MAC: u8 = 1;
    /// The target's link-layer address.
    pub const TARGET_MAC: u8 = 2;
}

/// Bytes of an option with a link-layer address.
const MAC_OPTION_LEN: usize = 8;

/// Flags of an advertisement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// R: the target is a router.
    pub router: bool,
    /// S: this answers a solicitation.
    pub solicited: bool,
    /// O: override the known address.
    pub override_known: bool,
}

impl Flags {
    const ROUTER: u32 = 1 << 31;
    const SOLICITED: u32 = 1 << 30;
    const OVERRIDE: u32 = 1 << 29;

    fn from_word(word: u32) -> Self {
        Self {
            router: word & Self::ROUTER != 0,
            solicited: word & Self::SOLICITED != 0,
            override_known: word & Self::OVERRIDE != 0,
        }
    }

    fn word(self) -> u32 {
        let flag = |set, bit| if set { bit } else { 0 };
        flag(self.router, Self::ROUTER)
            | flag(self.solicited, Self::SOLICITED)
            | flag(self.override_known, Self::OVERRIDE)
    }
}

/// A neighbor discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request for `target`.
    Solicitation {
        /// Address asked for.
        target: u128,
        /// Link-layer address of the sender.
        source_mac: Option<Mac>,
    },
    /// An announcement of `target`.
    Advertisement {
        /// The address that is announced.
        target: u128,
        /// Its link-layer address.
        target_mac: Option<Mac>,
        /// How much this counts.
        flags: Flags,
    },
    /// A router's message or a redirect: `icmpv6::kind`.
    Other(u8),
}

impl Message {
    /// Reads the message of a packet and makes all checks of RFC 4861 6.1, 7.1 and 8.1 that need no table.
    pub fn parse<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> Result<Self, Malformed> {
        let (message, options) = checked(ip)?;
        let target = || {
            let target = be128(&message[at::TARGET]);
            if ipv6::is_multicast(target) { Err(Malformed::Address) } else { Ok(target) }
        };
        let header = Icmpv6::parse(message)?;
        match header.kind() {
            kind::NEIGHBOR_SOLICITATION => {
                let (target, source_mac) = (target()?, mac(options, option::SOURCE_MAC));
                let probes = ipv6::is_unspecified(ip.source());
                // RFC 4861 7.1.1: a host without an address yet sends to the solicited-node group, without a
                // link-layer address.
                if probes && (source_mac.is_some() || !is_solicited_node(ip.destination())) {
                    return Err(Malformed::Address);
                }
                Ok(Self::Solicitation { target, source_mac })
            }
            kind::NEIGHBOR_ADVERTISEMENT => {
                let flags = Flags::from_word(header.rest());
                if flags.solicited && ipv6::is_multicast(ip.destination()) {
                    return Err(Malformed::Address);
                }
                Ok(Self::Advertisement {
                    target: target()?,
                    target_mac: mac(options, option::TARGET_MAC),
                    flags,
                })
            }
            kind => Ok(Self::Other(kind)),
        }
    }
}

/// The message and its options, after the checks that all kinds share.
fn checked<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> Result<(&[u8], &[u8]), Malformed> {
    let upper = ip.upper()?;
    if upper.protocol != protocol::ICMPV6 || upper.fragment.is_some() {
        return Err(Malformed::Kind);
    }
    let message = &ip.packet()[upper.offset..];
    let header = Icmpv6::parse(message)?;
    let options_at = match (header.kind(), header.code()) {
        (kind::ROUTER_SOLICITATION, 0) => 8,
        (kind::ROUTER_ADVERTISEMENT, 0) => 16,
        (kind::NEIGHBOR_SOLICITATION | kind::NEIGHBOR_ADVERTISEMENT, 0) => 24,
        (kind::REDIRECT, 0) => 40,
        _ => return Err(Malformed::Kind),
    };
    let options = message.get(options_at..).ok_or(Malformed::Short)?;
    match () {
        () if ip.hop_limit() != HOP_LIMIT => Err(Malformed::HopLimit),
        () if !header.checksum_ok(&ip.pseudo()) => Err(Malformed::Checksum),
        () if Options(options).any(|option| option.is_none()) => Err(Malformed::Option),
        () => Ok((message, options)),
    }
}

/// A walk over options, each a kind and its bytes; `None` once, and the end, where a length is zero or too long.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = match *self.0 {
            [] => return None,
            [_, units, ..] => usize::from(units) * 8,
            [_] => 0,
        };
        let option = self.0.get(..length).filter(|bytes| !bytes.is_empty()).map(|bytes| (bytes[0], bytes));
        self.0 = if option.is_some() { &self.0[length..] } else { &[] };
        Some(option)
    }
}

fn mac(options: &[u8], kind: u8) -> Option<Mac> {
    let mut all = Options(options).flatten();
    let (_, bytes) = all.find(|(found, bytes)| *found == kind && bytes.len() == MAC_OPTION_LEN)?;
    Some(Mac::read(&bytes[2..]))
}

/// The solicited-node multicast address of `address` (RFC 4291 2.7.1).
pub fn solicited_node(address: u128) -> u128 {
    0xff02_0000_0000_0000_0000_0001_ff00_0000 | address & 0x00ff_ffff
}

fn is_solicited_node(address: u128) -> bool {
    solicited_node(address) == address
}

/// Writes the whole packet of a solicitation for `target`; returns its length.
///
/// `destination` is `solicited_node(target)` to find it, or the target itself to see if it is still there.
pub fn solicitation(
    source: u128,
    source_mac: Mac,
    target: u128,
    destination: u128,
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let body = body(target, option::SOURCE_MAC, source_mac);
    // A probe has no address whose link-layer address could be announced (RFC 4861 4.3).
    let body = if ipv6::is_unspecified(source) { &body[..16] } else { &body[..] };
    let sender = Sender { source, hop_limit: HOP_LIMIT };
    icmpv6::emit(&sender, destination, 0, [kind::NEIGHBOR_SOLICITATION, 0], 0, body, buffer)
}

/// Writes the whole packet that announces `target` to `destination`; returns its length.
pub fn advertisement(
    source: u128,
    destination: u128,
    target: u128,
    target_mac: Mac,
    flags: Flags,
    buffer: &mut [u8],
) -> Result<usize, NoRoom> {
    let body = body(target, option::TARGET_MAC, target_mac);
    let sender = Sender { source, hop_limit: HOP_LIMIT };
    let header = [kind::NEIGHBOR_ADVERTISEMENT, 0];
    icmpv6::emit(&sender, destination, 0, header, flags.word(), &body, buffer)
}

/// Target address and one link-layer address option.
fn body(target: u128, kind: u8, mac: Mac) -> [u8; 24] {
    let mut body = [0; 24];
    put128(&mut body, target);
    body[16] = kind;
    body[17] = (MAC_OPTION_LEN / 8) as u8;
    body[18..].copy_from_slice(&mac.0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = Mac([2, 0, 0x5e, 0, 0x53, 1]);
    const HOST: u128 = 0xfe80 << 112 | 1;
    const TARGET: u128 = 0xfe80 << 112 | 0x12_3456;
    /// fe80::1 asks ff02::1:ff12:3456 who has fe80::12:3456.
    const SOLICITATION: [u8; 72] = [
        0x60, 0, 0, 0, 0, 32, 58, 255, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 2, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x12, 0x34, 0x56, 135, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 1, 1, 2, 0, 0x5e, 0, 0x53, 1,
    ];

    /// The packet after a change, its checksum made right again.
    fn parsed(change: impl Fn(&mut Vec<u8>)) -> Result<Message, Malformed> {
        let mut bytes = SOLICITATION.to_vec();
        change(&mut bytes);
        bytes[42..44].fill(0);
        let checksum = {
            let ip = Ipv6::parse(&bytes[..])?;
            ip.pseudo().checksum(protocol::ICMPV6, ip.payload())
        };
        bytes[42..44].copy_from_slice(&checksum.to_be_bytes());
        Message::parse(&Ipv6::parse(&bytes[..])?)
    }

    #[test]
    fn asks() {
        let mut buffer = [0; 80];
        assert_eq!(solicitation(HOST, OURS, TARGET, solicited_node(TARGET), &mut buffer), Ok(72));
        let ip = Ipv6::parse(&buffer[..72]).unwrap();
        let asked = Message::Solicitation { target: TARGET, source_mac: Some(OURS) };
        assert_eq!(Message::parse(&ip), Ok(asked));
        assert_eq!(parsed(|_| ()), Ok(asked));
        assert_eq!((&buffer[..42], &buffer[44..72]), (&SOLICITATION[..42], &SOLICITATION[44..]));
        assert_eq!(Mac::of_ipv6_group(ip.destination()).to_string(), "33:33:ff:12:34:56");
        // A probe for duplicates tells no address.
        assert_eq!(solicitation(0, OURS, TARGET, solicited_node(TARGET), &mut buffer), Ok(64));
        let probe = Message::Solicitation { target: TARGET, source_mac: None };
        assert_eq!(Message::parse(&Ipv6::parse(&buffer[..64]).unwrap()), Ok(probe));
    }

    #[test]
    fn answers() {
        let mut buffer = [0; 80];
        let flags = Flags { router: true, solicited: true, override_known: false };
        assert_eq!(advertisement(TARGET, HOST, TARGET, OURS, flags, &mut buffer), Ok(72));
        assert_eq!(buffer[44..48], [0xc0, 0, 0, 0]);
        let ip = Ipv6::parse(&buffer[..72]).unwrap();
        let told = Message::Advertisement { target: TARGET, target_mac: Some(OURS), flags };
        assert_eq!(Message::parse(&ip), Ok(told));
        assert_eq!(
            advertisement(TARGET, HOST, TARGET, OURS, flags, &mut buffer[..71]),
            Err(NoRoom { needed: 72, room: 71 })
        );
    }

    #[test]
    fn a_router_advertisement_is_checked_and_named() {
        let advertisement = |bytes: &mut Vec<u8>| {
            bytes[40] = kind::ROUTER_ADVERTISEMENT;
            // An MTU of 1500 in front of the source's link-layer address.
            bytes[56..64].copy_from_slice(&[5, 1, 0, 0, 0, 0, 5, 0xdc]);
        };
        assert_eq!(parsed(advertisement), Ok(Message::Other(kind::ROUTER_ADVERTISEMENT)));
        let broken = |bytes: &mut Vec<u8>| {
            advertisement(bytes);
            bytes[57] = 0;
        };
        assert_eq!(parsed(broken), Err(Malformed::Option));
    }

    #[test]
    fn each_flag_is_its_own_bit() {
        let flags = |router, solicited, override_known| Flags { router, solicited, override_known };
        let bits = [
            (flags(false, false, false), 0),
            (flags(true, false, false), 0x80),
            (flags(false, true, false), 0x40),
            (flags(false, false, true), 0x20),
        ];
        for (flags, byte) in bits {
            let mut buffer = [0; 72];
            assert_eq!(advertisement(TARGET, HOST, TARGET, OURS, flags, &mut buffer), Ok(72));
            assert_eq!(buffer[44..48], [byte, 0, 0, 0]);
            let told = Message::Advertisement { target: TARGET, target_mac: Some(OURS), flags };
            assert_eq!(Message::parse(&Ipv6::parse(&buffer[..]).unwrap()), Ok(told));
        }
    }

    #[test]
    fn rejects_what_rfc_4861_7_1_forbids() {
        assert_eq!(parsed(|bytes| bytes[7] = 254), Err(Malformed::HopLimit));
        assert_eq!(parsed(|bytes| bytes[41] = 1), Err(Malformed::Kind));
        assert_eq!(parsed(|bytes| bytes[65] = 0), Err(Malformed::Option));
        assert_eq!(parsed(|bytes| bytes[65] = 2), Err(Malformed::Option));
        assert_eq!(parsed(|bytes| bytes[48] = 0xff), Err(Malformed::Address), "target is a group");
        assert_eq!(parsed(|bytes| bytes[8..24].fill(0)), Err(Malformed::Address), "probe with an address");
        let advertised = |bytes: &mut Vec<u8>| (bytes[40], bytes[44]) = (136, 0x40);
        assert_eq!(parsed(advertised), Err(Malformed::Address), "solicited, yet to a group");
        let cut = |bytes: &mut Vec<u8>| {
            bytes.truncate(63);
            bytes[5] = 23;
        };
        assert_eq!(parsed(cut), Err(Malformed::Short));
        assert_eq!(Message::parse(&Ipv6::parse(SOLICITATION).unwrap()), Err(Malformed::Checksum));
        assert_eq!(parsed(|bytes| bytes[40] = 128), Err(Malformed::Kind));
        assert_eq!(
            parsed(|bytes| bytes[40] = 133),
            Err(Malformed::Option),
            "other kinds have their options checked"
        );
    }

    #[test]
    fn names_what_linux_reads() {
        let solicit_router = |bytes: &mut Vec<u8>| {
            bytes.truncate(48);
            (bytes[5], bytes[40]) = (8, 133);
        };
        assert_eq!(parsed(solicit_router), Ok(Message::Other(kind::ROUTER_SOLICITATION)));
        // Options that are not known are passed over, and an address may be missing.
        let unknown = Message::Solicitation { target: TARGET, source_mac: None };
        assert_eq!(parsed(|bytes| bytes[64] = 14), Ok(unknown));
    }

    #[test]
    fn refuses_fragments() {
        let mut bytes = SOLICITATION.to_vec();
        bytes[6] = 44;
        bytes.splice(40..40, [58, 0, 0, 0, 0, 0, 0, 1]);
        bytes[5] = 40;
        assert_eq!(Message::parse(&Ipv6::parse(&bytes[..]).unwrap()), Err(Malformed::Kind));
    }
}
