//! Converts rules of `[filter]` to nftables rules: the same packets, the same order.

use crate::config::Filter;
use bm_filter::{Action, AnyPrefix, Ports};
use bm_netlink::nft::{Family, Match, Rule, Value, Verdict};
use bm_wire::prefix::{Address, Prefix};
use std::ops::RangeInclusive;

/// The packets of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ipv4,
    /// Later fragments, which have no ports. Some kernels look for ports in them anyway.
    Ipv4Later,
    Ipv6,
    /// Later fragments of IPv6.
    Ipv6Later,
    /// IPv6 whose headers cannot be followed to the transport header.
    Unknown,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Ipv4, Self::Ipv4Later, Self::Ipv6, Self::Ipv6Later, Self::Unknown];

    fn is_ipv6(self) -> bool {
        !matches!(self, Self::Ipv4 | Self::Ipv4Later)
    }

    pub fn is_later(self) -> bool {
        matches!(self, Self::Ipv4Later | Self::Ipv6Later)
    }
}

/// Types of addresses (`RTN_*`) of packets that are not forwarded.
const LOCAL: u32 = 2;
const BROADCAST: u32 = 3;
const ANYCAST: u32 = 4;
const MULTICAST: u32 = 5;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
/// Extension headers that may follow a fragment header: hop-by-hop, routing, fragment, authentication, destination.
const EXTENSIONS: [u8; 5] = [0, 43, FRAGMENT, 51, 60];

/// Matches frames with this ethertype.
pub fn frame_is(ethertype: u16) -> Match {
    Match::Is(Value::Protocol, ethertype.to_be_bytes().into(), None)
}

/// Matches packets whose headers can be followed to the transport header.
pub fn any_of_transport() -> Match {
    Match::Within(Value::Transport, vec![0], vec![255])
}

fn is(value: Value, of: impl Into<Vec<u8>>) -> Match {
    Match::Is(value, of.into(), None)
}

fn masked(value: Value, of: impl Into<Vec<u8>>, mask: impl Into<Vec<u8>>) -> Match {
    Match::Is(value, of.into(), Some(mask.into()))
}

fn within(value: Value, range: &RangeInclusive<u16>) -> Match {
    Match::Within(value, range.start().to_be_bytes().into(), range.end().to_be_bytes().into())
}

fn rule(comment: &str, matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { comment: comment.into(), matches, verdict }
}

/// Rules that accept packets that Linux does not forward: those to this machine and its links. The bridge family cannot
/// look them up in the routing tables.
pub fn not_forwarded(family: Family, kind: Kind) -> Vec<Rule> {
    let accept = |asked| rule("not forwarded", vec![asked], Verdict::Accept);
    let (mut rules, types): (Vec<_>, &[u32]) = match kind.is_ipv6() {
        false => {
            let groups = masked(Value::Network(16, 1), [0xe0], [0xf0]);
            // Linux forwards to the rest of 240.0.0.0/4.
            let broadcast = is(Value::Network(16, 4), [0xff; 4]);
            (vec![accept(groups), accept(broadcast)], &[LOCAL, BROADCAST, MULTICAST])
        }
        true => {
            let groups = is(Value::Network(24, 1), [0xff]);
            let link_local = masked(Value::Network(24, 2), [0xfe, 0x80], [0xff, 0xc0]);
            (vec![accept(groups), accept(link_local)], &[LOCAL, ANYCAST])
        }
    };
    if family != Family::Bridge {
        rules.extend(types.iter().map(|kind| accept(is(Value::DestinationType, kind.to_ne_bytes()))));
        // Addresses of an interface in a VRF are not in the main local table.
        rules.push(accept(is(Value::DestinationTypeHere, LOCAL.to_ne_bytes())));
    }
    rules
}

/// The rules for packets that arrive on a port.
pub fn of_filter(filter: &Filter, port: &str, kind: Kind) -> Vec<Rule> {
    let mut rules = Vec::new();
    if filter.tiny_fragments == Action::Drop {
        rules.extend(match kind {
            Kind::Ipv4 => tiny4(),
            Kind::Ipv4Later => vec![tiny4_second()],
            Kind::Ipv6 => tiny6(),
            Kind::Ipv6Later | Kind::Unknown => Vec::new(),
        });
    }
    for of in filter.rules.iter().filter(|rule| rule.port.as_ref().is_none_or(|name| name == port)) {
        rules.extend(of_rule(of, kind));
    }
    let verdict = verdict(filter.unmatched);
    rules.push(rule("unmatched", Vec::new(), verdict));
    rules
}

fn verdict(action: Action) -> Verdict {
    match action {
        Action::Accept => Verdict::Accept,
        Action::Drop => Verdict::Drop,
    }
}

/// Converts a rule; `None` if no packet of the kind can match: it is for the other family, or drops by port, which later
/// fragments do not have. Later fragments match rules that accept by port.
fn of_rule(of: &bm_filter::Rule, kind: Kind) -> Option<Rule> {
    let (mut matches, ports) = matches_of(
        [of.source.as_ref(), of.destination.as_ref()],
        of.protocol,
        [of.source_ports.as_ref(), of.destination_ports.as_ref()],
        kind,
    )?;
    if kind.is_later() && !ports.is_empty() {
        return (of.action == Action::Accept).then(|| rule(&of.name, matches, Verdict::Accept));
    }
    matches.extend(ports);
    Some(rule(&of.name, matches, verdict(of.action)))
}

/// Matches addresses and protocol, and apart from them ports; each has the source first. `None` if no packet of the kind can
/// match.
pub fn matches_of(
    prefixes: [Option<&AnyPrefix>; 2],
    protocol: Option<u8>,
    ports: [Option<&Ports>; 2],
    kind: Kind,
) -> Option<(Vec<Match>, Vec<Match>)> {
    if prefixes.into_iter().flatten().any(|prefix| prefix.is_ipv6() != kind.is_ipv6()) {
        return None;
    }
    let offsets = if kind.is_ipv6() { [8, 24] } else { [12, 16] };
    let addresses = prefixes.into_iter().zip(offsets).filter_map(|(prefix, at)| address(prefix?, at));
    let mut matches: Vec<_> = addresses.collect();
    matches.extend(protocol.map(|protocol| is(Value::Transport, [protocol])));
    let ports = ports.into_iter().zip([0, 2]);
    let ports = ports.filter_map(|(ports, at)| Some(within(Value::Ports(at, 2), ports?))).collect();
    Some((matches, ports))
}

/// Matches later fragments of a family.
pub fn later_fragment(kind: Kind) -> Match {
    let (value, mask) = match kind.is_ipv6() {
        true => (Value::Fragment(2, 2), [0xff, 0xf8]),
        false => (Value::Network(6, 2), [0x1f, 0xff]),
    };
    Match::IsNot(value, vec![0, 0], Some(mask.into()))
}

/// Matches the address at an offset against a prefix; `None` if every address matches.
fn address(prefix: &AnyPrefix, at: u32) -> Option<Match> {
    match prefix {
        AnyPrefix::V4(prefix) => of_prefix(prefix, at, |address: u32| address.to_be_bytes().into()),
        AnyPrefix::V6(prefix) => of_prefix(prefix, at, |address: u128| address.to_be_bytes().into()),
    }
}

fn of_prefix<A: Address>(prefix: &Prefix<A>, at: u32, bytes: impl Fn(A) -> Vec<u8>) -> Option<Match> {
    let (first, mask) = (bytes(prefix.first()), bytes(A::mask(prefix.length())));
    let value = Value::Network(at, first.len() as u32);
    (prefix.length() > 0).then_some(Match::Is(value, first, Some(mask)))
}

fn tiny(matches: impl Into<Vec<Match>>) -> Rule {
    rule("tiny_fragments", matches.into(), Verdict::Drop)
}

fn tcp4() -> Match {
    is(Value::Network(9, 1), [TCP])
}

/// A fragment at offset 1, which would overwrite TCP's flags (RFC 3128).
fn tiny4_second() -> Rule {
    tiny([tcp4(), masked(Value::Network(6, 2), [0, 1], [0x1f, 0xff])])
}

/// First fragments with less than 16 bytes of TCP, so without its flags (RFC 1858).
fn tiny4() -> Vec<Rule> {
    let first = masked(Value::Network(6, 2), [0x20, 0], [0x3f, 0xff]);
    let rules = (5..=15).map(|words: u8| {
        let header = masked(Value::Network(0, 1), [words], [0x0f]);
        let length = within(Value::Network(2, 2), &(0..=u16::from(words) * 4 + 15));
        tiny([tcp4(), first.clone(), header, length])
    });
    rules.collect()
}

/// First fragments without the whole chain of headers (RFC 7112). A fragment header among other extension headers is
/// not followed: such a first fragment counts as one.
fn tiny6() -> Vec<Rule> {
    let first = masked(Value::Fragment(2, 2), [0, 1], [0xff, 0xf9]);
    let at_once = is(Value::Network(6, 1), [FRAGMENT]);
    let next = |protocol: u8| is(Value::Fragment(0, 1), [protocol]);
    let short = [(TCP, 20), (UDP, 8), (ICMPV6, 8)].map(|(protocol, least)| {
        // Behind the fragment header of eight bytes.
        let length = within(Value::Network(4, 2), &(0..=8 + least - 1));
        tiny([first.clone(), at_once.clone(), next(protocol), length])
    });
    let later = Match::IsNot(Value::Network(6, 1), vec![FRAGMENT], None);
    let chained = EXTENSIONS.map(|extension| tiny([first.clone(), next(extension)]));
    short.into_iter().chain([tiny([first.clone(), later])]).chain(chained).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_packets_to_240() {
        let matches: Vec<_> =
            not_forwarded(Family::Bridge, Kind::Ipv4).into_iter().map(|rule| rule.matches).collect();
        let groups = masked(Value::Network(16, 1), [0xe0], [0xf0]);
        assert_eq!(matches, [vec![groups], vec![is(Value::Network(16, 4), [0xff; 4])]]);
    }
}
