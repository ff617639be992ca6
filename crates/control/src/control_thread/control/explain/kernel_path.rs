//! Why the kernel path leaves a packet to Linux that workers would handle themselves.
//!
//! The program (crates/fastpath/bpf/forward.h) decides by the same tables, but only forwards and drops: this follows its checks in
//! their order, and the names are those of its counters. A test sends packets and compares.

use bm_fastpath::Interface;
use bm_fib::next_hop::Action;
use bm_forward::{Disposition, Outcome, RouteInfo, Verdict};
use bm_stats::Reason;
use bm_wire::ethernet::{Ethernet, ethertype};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};

/// A packet as the program sees it.
pub(super) struct Input<'a> {
    pub outcome: &'a Outcome,
    pub frame: &'a [u8],
    /// What happens at the next hop, if there is a route.
    pub action: Action,
    /// The interfaces of the program, by the index that next hops use.
    pub interfaces: &'a [Interface],
    /// Whether its tables may not be used now.
    pub unattended: bool,
}

/// The cause, by the name of its counter; `None` if the program forwards or drops the packet as workers do.
pub(super) fn cause(input: &Input<'_>) -> Option<&'static str> {
    let Input { outcome, frame, .. } = *input;
    let only_linux = outcome.verdict == Some(Verdict::LinuxOnly);
    let Some(routed) = outcome.routed else {
        return Some(match () {
            () if input.unattended => "unattended",
            () if only_linux => "firewall",
            () => not_routed(input),
        });
    };
    let Some(arrived) = interface(input, routed.interface) else { return Some("inactive") };
    let ethernet = Ethernet::parse(frame).ok();
    let network = ethernet.and_then(|ethernet| ethernet.network().ok());
    let packet = network.and_then(|network| frame.get(network.offset..)).unwrap_or(&[]);
    let is_ipv6 = routed.destination.is_ipv6();
    match () {
        () if input.unattended => Some("unattended"),
        () if only_linux => Some("firewall"),
        () if !arrived.forward[usize::from(is_ipv6)] => Some("inactive"),
        () if !is_plain(packet) => Some("header"),
        () if hops_left(packet) <= 1 => Some("hops"),
        () => leave(input, &routed),
    }
}

fn interface<'a>(input: &Input<'a>, index: u16) -> Option<&'a Interface> {
    input.interfaces.iter().find(|interface| interface.index == index)
}

/// Frames that are for others, or contain something else.
fn not_routed(input: &Input<'_>) -> &'static str {
    let Ok(ethernet) = Ethernet::parse(input.frame) else { return "other_type" };
    let Some(own) = input.interfaces.iter().find(|own| own.mac == ethernet.destination().0) else {
        return "other_mac";
    };
    match ethernet.network().map(|network| network.ethertype) {
        Ok(ethertype::IPV4) if own.forward[0] => "header",
        Ok(ethertype::IPV6) if own.forward[1] => "header",
        Ok(ethertype::IPV4 | ethertype::IPV6) => "inactive",
        _ => "other_type",
    }
}

/// Whether the program understands the header.
fn is_plain(packet: &[u8]) -> bool {
    if let Ok(ip) = Ipv4::parse(packet) {
        let hosts = [ip.source(), ip.destination()].map(|address| {
            let first = address >> 24;
            first != 0 && first != 127 && first != 255 && first >> 4 != 0xe
        });
        return ip.header_len() == 20 && !ip.is_fragment() && ip.checksum_ok() && hosts == [true; 2];
    }
    Ipv6::parse(packet).is_ok_and(|ip| {
        let [source, destination] = [ip.source(), ip.destination()];
        ip.next_header() != bm_wire::protocol::HOP_BY_HOP
            && !ipv6::is_multicast(destination)
            && is_global(source)
            && is_global(destination)
    })
}

/// Whether an IPv6 address is of 2000::/3 or unique-local.
fn is_global(address: u128) -> bool {
    address >> 125 == 1 || address >> 121 == 0x7e
}

fn hops_left(packet: &[u8]) -> u8 {
    match (Ipv4::parse(packet), Ipv6::parse(packet)) {
        (Ok(ip), _) => ip.ttl(),
        (_, Ok(ip)) => ip.hop_limit(),
        _ => 0,
    }
}

/// The checks from the lookup on.
fn leave(input: &Input<'_>, routed: &RouteInfo) -> Option<&'static str> {
    if let Disposition::Dropped(Reason::Ipv4Source | Reason::ReversePath) = input.outcome.fate {
        return Some("source");
    }
    match input.action {
        Action::Forward { .. } => {}
        Action::Host => return Some("local"),
        Action::LinuxOnly => return Some("firewall"),
        Action::Resolve | Action::Group { .. } => return Some("unresolved"),
        // Dropped, as by workers.
        Action::Blackhole => return None,
        Action::Unreachable => return Some("unreachable"),
        Action::Prohibit => return Some("prohibit"),
        Action::None => return Some("no_route"),
    }
    let (out, _) = routed.neighbor?;
    match interface(input, out) {
        _ if out == routed.interface => Some("same_interface"),
        None => Some("egress"),
        Some(egress) if !egress.sends => Some("egress"),
        Some(_) if routed.length > routed.mtu => Some("mtu"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_thread::control::explain::packet::frame;
    use bm_api::request::ExplainQuery;
    use bm_fib::NextHop;
    use std::net::IpAddr;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn outcome(routed: Option<RouteInfo>, verdict: Option<Verdict>, fate: Disposition) -> Outcome {
        Outcome::new(routed, verdict, fate)
    }

    fn routed(destination: &str) -> RouteInfo {
        let destination: IpAddr = destination.parse().unwrap();
        let (route, next_hop) = (NextHop(1), NextHop(1));
        let neighbor = Some((1, destination));
        RouteInfo { interface: 0, vrf: 0, destination, length: 64, route, next_hop, neighbor, mtu: 1500 }
    }

    fn packet(destination: &str, ttl: u8) -> Vec<u8> {
        let query = ExplainQuery { ttl: Some(ttl), ..ExplainQuery::default() };
        let source = if destination.contains(':') { "2001:db8:1::2" } else { "192.0.2.2" };
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        super::super::packet::packet(&query, source, destination).unwrap()
    }

    fn interfaces() -> [Interface; 2] {
        let own = |index, sends| Interface {
            index,
            mac: OWN,
            forward: [true, index == 0],
            sends,
            ..Interface::default()
        };
        [own(0, true), own(1, true)]
    }

    fn said(outcome: &Outcome, frame: &[u8], action: Action) -> Option<&'static str> {
        cause(&Input { outcome, frame, action, interfaces: &interfaces(), unattended: false })
    }

    const FORWARD: Action = Action::Forward { mac: [2; 6], interface: 1 };

    #[test]
    fn what_is_forwarded_has_no_cause_and_all_else_that_of_its_counter() {
        let bytes = frame(OWN, OWN, None, &packet("198.51.100.2", 64));
        let sent = outcome(Some(routed("198.51.100.2")), None, Disposition::Sent);
        assert_eq!(said(&sent, &bytes, FORWARD), None);
        for (action, expected) in [
            (Action::Host, "local"),
            (Action::LinuxOnly, "firewall"),
            (Action::Resolve, "unresolved"),
            (Action::Unreachable, "unreachable"),
            (Action::Prohibit, "prohibit"),
            (Action::None, "no_route"),
        ] {
            assert_eq!(said(&sent, &bytes, action), Some(expected));
        }
        let back = RouteInfo { neighbor: Some((0, "192.0.2.9".parse().unwrap())), ..routed("198.51.100.2") };
        let back = outcome(Some(back), None, Disposition::Sent);
        assert_eq!(said(&back, &bytes, FORWARD), Some("same_interface"));
        let long = RouteInfo { length: 1501, ..routed("198.51.100.2") };
        assert_eq!(said(&outcome(Some(long), None, Disposition::Sent), &bytes, FORWARD), Some("mtu"));
        let spoofed = outcome(Some(routed("198.51.100.2")), None, Disposition::Dropped(Reason::ReversePath));
        assert_eq!(said(&spoofed, &bytes, FORWARD), Some("source"));
        let last_hop = frame(OWN, OWN, None, &packet("198.51.100.2", 1));
        assert_eq!(said(&sent, &last_hop, FORWARD), Some("hops"));
        let only = outcome(Some(routed("198.51.100.2")), Some(Verdict::LinuxOnly), Disposition::Linux);
        assert_eq!(said(&only, &bytes, FORWARD), Some("firewall"));
    }

    #[test]
    fn frames_that_are_not_routed_have_the_first_cause_that_the_program_finds() {
        let none = outcome(None, Some(Verdict::Host), Disposition::Linux);
        let packet = packet("224.0.0.5", 64);
        assert_eq!(said(&none, &frame(OWN, OWN, None, &packet), FORWARD), Some("header"));
        assert_eq!(said(&none, &frame([3; 6], OWN, None, &packet), FORWARD), Some("other_mac"));
        let arp = [&OWN[..], &OWN, &[8, 6], &packet].concat();
        assert_eq!(said(&none, &arp, FORWARD), Some("other_type"));
        let other = RouteInfo { interface: 1, neighbor: None, ..routed("2001:db8:2::2") };
        let six = frame(OWN, OWN, None, &super::tests::packet("2001:db8:2::2", 64));
        let other = outcome(Some(other), None, Disposition::Sent);
        assert_eq!(said(&other, &six, FORWARD), Some("inactive"));
    }
}
