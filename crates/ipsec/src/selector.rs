//! Selectors (RFC 4301 4.4.1.1): which packets, by addresses, protocol and ports.

use bm_filter::{Action, AnyPrefix, Flat, Ports, Rule};
use bm_wire::prefix::{Address, Prefix};
use bm_wire::protocol::has_ports;

use crate::mark::Mark;

/// Which packets. `None` matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Source prefix.
    pub source: Option<AnyPrefix>,
    /// Destination prefix.
    pub destination: Option<AnyPrefix>,
    /// Protocol, or the last next header of IPv6.
    pub protocol: Option<u8>,
    pub source_ports: Option<Ports>,
    pub destination_ports: Option<Ports>,
    /// The packets' mark. With one that unmarked packets do not have, none matches here.
    pub mark: Mark,
}

/// What happens to later fragments of packets, which have no ports, where a selector has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaterFragments {
    /// They match, so that what has to be encrypted is never sent in clear because it is a fragment.
    Match,
    /// They do not.
    Differ,
}

impl Selector {
    /// Whether a packet can match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.overlaps_apart_from_ports(other)
            && ports_overlap(&self.source_ports, &other.source_ports)
            && ports_overlap(&self.destination_ports, &other.destination_ports)
    }

    /// Whether a packet whose ports are not known, such as a later fragment, can match both.
    pub(crate) fn overlaps_apart_from_ports(&self, other: &Self) -> bool {
        prefixes_overlap(self.source, other.source)
            && prefixes_overlap(self.destination, other.destination)
            && self.families_overlap(other)
            && self.protocol.zip(other.protocol).is_none_or(|(one, other)| one == other)
    }

    /// Whether source and destination are of one family, or one is missing.
    pub(crate) fn has_one_family(&self) -> bool {
        let [source, destination] = [self.source, self.destination].map(|side| side.map(|of| of.is_ipv6()));
        source.zip(destination).is_none_or(|(source, destination)| source == destination)
    }

    /// Whether it matches ports of a protocol that has ports.
    pub(crate) fn has_ports_of_a_protocol(&self) -> bool {
        let wants_ports = self.source_ports.is_some() || self.destination_ports.is_some();
        !wants_ports || self.protocol.is_some_and(has_ports)
    }

    /// The rules of `bm-filter` that match the same packets.
    pub(crate) fn flat(&self, index: u16, later: LaterFragments) -> impl Iterator<Item = Flat> + use<> {
        // The action says nothing here but whether later fragments match: see `Flat::from_rule`.
        let action = if later == LaterFragments::Match { Action::Accept } else { Action::Drop };
        let rule = Rule {
            action,
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            source_ports: self.source_ports.clone(),
            destination_ports: self.destination_ports.clone(),
            ..Rule::default()
        };
        let count = if self.mark.matches_unmarked() { usize::MAX } else { 0 };
        Flat::from_rule(&rule, index, None).take(count)
    }

    fn families_overlap(&self, other: &Self) -> bool {
        self.is_ipv6().zip(other.is_ipv6()).is_none_or(|(one, other)| one == other)
    }

    /// `None` without addresses: it matches both families.
    fn is_ipv6(&self) -> Option<bool> {
        self.source.or(self.destination).map(|prefix| prefix.is_ipv6())
    }
}

fn prefixes_overlap(one: Option<AnyPrefix>, other: Option<AnyPrefix>) -> bool {
    fn overlap<A: Address>(one: Prefix<A>, other: Prefix<A>) -> bool {
        one.covers(&other) || other.covers(&one)
    }
    match (one, other) {
        (Some(AnyPrefix::V4(one)), Some(AnyPrefix::V4(other))) => overlap(one, other),
        (Some(AnyPrefix::V6(one)), Some(AnyPrefix::V6(other))) => overlap(one, other),
        (Some(_), Some(_)) => false,
        _ => true,
    }
}

fn ports_overlap(one: &Option<Ports>, other: &Option<Ports>) -> bool {
    one.as_ref()
        .zip(other.as_ref())
        .is_none_or(|(one, other)| one.start() <= other.end() && other.start() <= one.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(source: &str, destination: &str) -> Selector {
        let prefix = |text: &str| (text != "any").then(|| text.parse().unwrap());
        Selector { source: prefix(source), destination: prefix(destination), ..Selector::default() }
    }

    #[test]
    fn overlap() {
        let any = Selector::default();
        let wide = selector("10.0.0.0/8", "any");
        let narrow = selector("10.1.0.0/16", "192.0.2.0/24");
        let other = selector("10.1.0.0/16", "198.51.100.0/24");
        let six = selector("any", "2001:db8::/32");
        for (one, two, overlaps) in [
            (&any, &six, true),
            (&wide, &narrow, true),
            (&narrow, &other, false),
            (&wide, &six, false),
            (&six, &six, true),
        ] {
            assert_eq!((one.overlaps(two), two.overlaps(one)), (overlaps, overlaps), "{one:?} {two:?}");
        }
        let tcp = |ports: Ports| Selector {
            protocol: Some(6),
            destination_ports: Some(ports),
            ..Selector::default()
        };
        assert!(tcp(1..=10).overlaps(&tcp(10..=20)) && !tcp(1..=10).overlaps(&tcp(11..=20)));
        assert!(!tcp(1..=10).overlaps(&Selector { protocol: Some(17), ..Selector::default() }));
    }

    #[test]
    fn ports_need_a_protocol_and_addresses_one_family() {
        let ports = Selector { source_ports: Some(1..=2), ..Selector::default() };
        assert!(!ports.has_ports_of_a_protocol() && Selector::default().has_ports_of_a_protocol());
        assert!(Selector { protocol: Some(17), ..ports }.has_ports_of_a_protocol());
        assert!(
            !selector("10.0.0.0/8", "2001:db8::/32").has_one_family()
                && selector("any", "::/0").has_one_family()
        );
    }
}
