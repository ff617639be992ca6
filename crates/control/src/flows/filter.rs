//! Which flows must not be learned, since Linux decides about each of their packets.

use std::net::IpAddr;

use bm_fastpath::ReportedTuple;
use bm_filter::{Flat, Key, Kind, Tree};
use bm_firewall::Match;

use crate::compile::rule_of;

/// Rules that match packets about which Linux decides each time.
pub(super) struct FlowFilter {
    /// `None` if there are too many: then they may match any packet.
    rules: Option<Tree>,
}

impl FlowFilter {
    /// A filter for packets that any of these may match, whatever interface they arrive on.
    pub fn new(each_packet: &[Match]) -> Self {
        let rules = each_packet.iter().flat_map(|of| Flat::may_match(&rule_of(of), None)).collect();
        Self { rules: Tree::grow(rules).ok() }
    }

    /// Whether a rule may match packets of a flow at any point of their way: with source and destination each as they arrive
    /// or as they leave. A hook between the translations sees one of each.
    pub fn may_match(&self, protocol: u8, arrives: &ReportedTuple, leaves: &ReportedTuple) -> bool {
        let Some(rules) = &self.rules else { return true };
        [arrives, leaves].into_iter().any(|from| {
            [arrives, leaves].into_iter().any(|to| {
                let (destination, destination_port) = (to.destination, to.destination_port);
                let seen = ReportedTuple { destination, destination_port, ..*from };
                rules.find(&key(protocol, &seen)).is_some()
            })
        })
    }
}

/// A packet as rules see it.
fn key(protocol: u8, packet: &ReportedTuple) -> Key {
    let ports = u32::from(packet.source_port) << 16 | u32::from(packet.destination_port);
    if let (IpAddr::V4(source), IpAddr::V4(destination)) = (packet.source, packet.destination) {
        return Key::ipv4([source.into(), destination.into()], protocol, ports, Kind::Ports);
    }
    let mut words = [0; 8];
    for (half, address) in words.chunks_exact_mut(4).zip([packet.source, packet.destination]) {
        let bits = match address {
            IpAddr::V6(address) => u128::from(address),
            IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        };
        for (at, word) in half.iter_mut().enumerate() {
            *word = (bits >> (96 - 32 * at)) as u32;
        }
    }
    Key::ipv6(words, protocol, ports, Kind::Ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_firewall::Addresses;

    fn tuple(source: &str, source_port: u16, destination: &str, destination_port: u16) -> ReportedTuple {
        let [source, destination] = [source, destination].map(|address| address.parse().unwrap());
        ReportedTuple { source, destination, source_port, destination_port }
    }

    #[test]
    fn rules_are_compared_before_and_after_translation() {
        let arrives = tuple("10.0.0.2", 4000, "192.0.2.1", 80);
        let leaves = tuple("198.51.100.1", 60_000, "10.9.0.1", 8080);
        let matches = |of: Match| FlowFilter::new(&[of]).may_match(6, &arrives, &leaves);
        let between = |source: &str, destination: &str| {
            let addresses = Addresses::Ipv4(source.parse().ok(), destination.parse().ok());
            matches(Match { addresses, ..Match::default() })
        };
        assert!(between("10.0.0.2/32", "192.0.2.1/32"), "as it arrives");
        assert!(between("198.51.100.1/32", "10.9.0.1/32"), "as it leaves");
        assert!(between("10.0.0.2/32", "10.9.0.1/32"), "between the two translations");
        assert!(between("198.51.100.1/32", "192.0.2.1/32"));
        assert!(!between("10.0.0.3/32", "192.0.2.1/32"));
        assert!(!between("192.0.2.1/32", "10.0.0.2/32"), "the other direction");
        // A port belongs to its address.
        let to_port = |port: u16| matches(Match { destination_ports: Some(port..=port), ..Match::default() });
        assert!(to_port(80) && to_port(8080) && !to_port(4000));
        assert!(matches(Match { input: Some(7), ..Match::default() }), "on any interface");
        assert!(!matches(Match { protocol: Some(17), ..Match::default() }));
        assert!(!FlowFilter::new(&[]).may_match(6, &arrives, &leaves));
    }

    #[test]
    fn ipv6_is_compared_as_well() {
        let arrives = tuple("2001:db8::2", 4000, "2001:db8:1::1", 80);
        let of = |prefix: &str| Match {
            addresses: Addresses::Ipv6(prefix.parse().ok(), None),
            ..Match::default()
        };
        assert!(FlowFilter::new(&[of("2001:db8::/48")]).may_match(17, &arrives, &arrives));
        assert!(!FlowFilter::new(&[of("2001:db8:1::/48")]).may_match(17, &arrives, &arrives));
    }
}
