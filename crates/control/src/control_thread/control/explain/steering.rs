//! What the program on a port of workers leaves to Linux, before a worker sees it.
//!
//! It follows crates/port-xdp/bpf/steer.bpf.c, except for ESP, which the daemon looks at; the names are those of its
//! counters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_wire::ethernet::{Ethernet, ethertype};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::protocol;

/// Messages of neighbor discovery: router solicitation to redirect (RFC 4861 4).
const NEIGHBOR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// The cause, by name and in words; `None` if a worker gets the frame.
pub(super) fn cause(
    frame: &[u8],
    macs: &[[u8; 6]],
    is_local: impl Fn(IpAddr) -> bool,
    is_linuxs: impl Fn(IpAddr) -> bool,
) -> Option<(&'static str, &'static str)> {
    let Ok(ethernet) = Ethernet::parse(frame) else { return Some(("other_type", "it is too short")) };
    if ethernet.destination().is_multicast() {
        return Some(("group", "it is a multicast or broadcast frame"));
    }
    if !macs.contains(&ethernet.destination().0) {
        return Some(("other_mac", "it is not to the MAC address of the port"));
    }
    let network = ethernet.network().ok();
    let packet = network.and_then(|network| frame.get(network.offset..)).unwrap_or(&[]);
    let (local, group) = (Some(("local", "it is to this machine")), Some(("group", "it is to a group")));
    let route = Some(("route", "its route leads where only Linux can send"));
    match network.map(|network| network.ethertype) {
        Some(ethertype::IPV4) => {
            match Ipv4::parse_quoted(packet).map(|ip| Ipv4Addr::from(ip.destination())) {
                Ok(to) if to.is_multicast() || to.is_broadcast() => group,
                Ok(to) if is_linuxs(to.into()) && !is_local(to.into()) => route,
                Ok(to) if is_local(to.into()) => local,
                _ => None,
            }
        }
        Some(ethertype::IPV6) => {
            let Ok(ip) = Ipv6::parse_quoted(packet) else { return None };
            let to = ip.destination();
            let discovers = ip.next_header() == protocol::ICMPV6
                && packet.get(ipv6::HEADER_LEN).is_some_and(|kind| NEIGHBOR_DISCOVERY.contains(kind));
            match () {
                () if ipv6::is_multicast(to) => group,
                () if ipv6::is_link_local(to) || is_local(Ipv6Addr::from(to).into()) => local,
                () if discovers => Some(("neighbor", "it is neighbor discovery")),
                () if is_linuxs(Ipv6Addr::from(to).into()) => route,
                () => None,
            }
        }
        // A worker's filters may have to drop what has more tags than they read.
        Some(ethertype::VLAN | ethertype::SERVICE_VLAN) => None,
        _ => Some(("other_type", "it is not IP")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::{frame, packet};
    use super::*;
    use bm_api::request::ExplainQuery;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn said(to: [u8; 6], destination: &str, protocol: &str) -> Option<&'static str> {
        let query = ExplainQuery { protocol: Some(protocol.into()), ..ExplainQuery::default() };
        let source = if destination.contains(':') { "2001:db8:1::2" } else { "192.0.2.2" };
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        let mut packet = packet(&query, source, destination).unwrap();
        if protocol == "icmpv6" {
            packet[ipv6::HEADER_LEN] = *NEIGHBOR_DISCOVERY.start();
        }
        let is_local =
            |address: IpAddr| ["192.0.2.1", "2001:db8:1::1"].contains(&address.to_string().as_str());
        cause(&frame(to, OWN, None, &packet), &[OWN], is_local, |to| to.to_string() == "203.0.113.2")
            .map(|(name, _)| name)
    }

    #[test]
    fn only_unicast_to_others_gets_to_a_worker() {
        for (destination, expected) in [
            ("198.51.100.2", None),
            ("2001:db8:2::2", None),
            ("203.0.113.2", Some("route")),
            ("192.0.2.1", Some("local")),
            ("2001:db8:1::1", Some("local")),
            ("fe80::1", Some("local")),
            ("224.0.0.5", Some("group")),
            ("255.255.255.255", Some("group")),
            ("ff02::1", Some("group")),
        ] {
            assert_eq!(said(OWN, destination, "udp"), expected, "{destination}");
        }
        assert_eq!(said([2, 0, 0, 0, 0, 9], "198.51.100.2", "udp"), Some("other_mac"));
        assert_eq!(said([0xff; 6], "198.51.100.2", "udp"), Some("group"));
        assert_eq!(said(OWN, "2001:db8:2::2", "icmpv6"), Some("neighbor"));
        let arp = [&OWN[..], &OWN, &[8, 6], &[0; 46]].concat();
        assert_eq!(cause(&arp, &[OWN], |_| false, |_| true).map(|(name, _)| name), Some("other_type"));
    }
}
