//! Stage one: who is a frame for, on which logical interface did it arrive, and what does it contain?
//!
//! ```text
//! tags -> interface -> to whom -> type --> on, Linux, or a named drop
//! ```

use bm_stats::Reason;
use bm_wire::ethernet::{Ethernet, Network, ethertype};
use bm_wire::{Family, Mac, ipv4, ipv6};

use super::fragment::is_fragment;
use crate::compiled::{Ingress, PortView, WorkerTables, key_of};
use crate::interface::Vlan;
use crate::verdict::{Refusal, Verdict};

/// A frame that may be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Logical interface.
    pub interface: u16,
    /// Where the network header begins.
    pub network: u16,
    pub family: Family,
}

const HOST: Refusal = Refusal::Slow(Verdict::Host);
const SHORT: Refusal = Refusal::Drop(Reason::EthernetShort);

/// Decides on any frame of the port that `view` describes.
pub(crate) fn classify(tables: &WorkerTables, view: &PortView, frame: &[u8]) -> Result<Arrival, Refusal> {
    let ethernet = Ethernet::parse(frame).map_err(|_| SHORT)?;
    let network = ethernet.network().map_err(|_| SHORT)?;
    let interface = interface(view, &network).ok_or(HOST)?;
    let ingress = tables.ingress.get(usize::from(interface)).ok_or(HOST)?;
    let payload = frame.get(network.offset..).unwrap_or(&[]);
    if ethernet.destination().is_multicast() {
        return Err(to_group(network.ethertype, payload));
    }
    if !is_ours(view, ingress, ethernet.destination()) {
        return Err(Refusal::Drop(Reason::OtherHost));
    }
    let (family, forwards) = match network.ethertype {
        ethertype::IPV4 => (Family::V4, ingress.forward_ipv4),
        ethertype::IPV6 => (Family::V6, ingress.forward_ipv6),
        _ => return Err(HOST),
    };
    let index = family as usize;
    if ingress.linux_only[index] || ingress.linux_only_fragments[index] && is_fragment(family, payload) {
        return Err(Refusal::Slow(Verdict::LinuxOnly));
    }
    let arrival = Arrival { interface, network: network.offset as u16, family };
    // Where forwarding is off Linux may still want the packet for itself, and drops it if not.
    if forwards { Ok(arrival) } else { Err(HOST) }
}

/// The interface of a frame and the offset of its network header, whoever it is for.
pub(crate) fn interface_of(view: &PortView, frame: &[u8]) -> Option<(u16, usize)> {
    let network = Ethernet::parse(frame).ok()?.network().ok()?;
    interface(view, &network).map(|interface| (interface, network.offset))
}

/// The interface that a frame's tags name. Stacked tags and unknown ones are Linux's: it may bridge them.
fn interface(view: &PortView, network: &Network) -> Option<u16> {
    match (network.outer, network.inner) {
        (None, _) => view.untagged,
        // 802.1Q 6.9.1: VLAN 0 is a tag only for its priority.
        (Some(tag), None) if tag.vid == 0 => view.untagged,
        (Some(tag), None) => view.interface_of(Vlan { protocol: tag.protocol, id: tag.vid }),
        (Some(_), Some(_)) => None,
    }
}

/// As Linux: a VLAN takes frames for its own MAC and for that of the interface below.
fn is_ours(view: &PortView, ingress: &Ingress, mac: Mac) -> bool {
    let key = key_of(mac.0);
    key == ingress.mac || key == view.mac
}

/// Multicast and broadcast frames go to Linux, but unicast IP in them is not forwarded (RFC 1812 5.3.4).
fn to_group(ethertype: u16, packet: &[u8]) -> Refusal {
    let for_one = match ethertype {
        ethertype::IPV4 => packet.get(16..20).is_some_and(|bytes| {
            let destination = bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
            !ipv4::is_multicast(destination) && destination != u32::MAX
        }),
        ethertype::IPV6 => {
            ipv6::Ipv6::parse_quoted(packet).is_ok_and(|ip| !ipv6::is_multicast(ip.destination()))
        }
        _ => false,
    };
    if for_one { Refusal::Slow(Verdict::LinkGroup) } else { HOST }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Interface, PortInterfaces, Settings};

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// One port with an interface of its own and VLAN 7, whose MAC differs and where IPv6 is not forwarded.
    fn tables() -> WorkerTables {
        let interface = |vlan: Option<Vlan>, mac| Interface {
            ifindex: 1,
            port: 0,
            vlan,
            mac,
            forward_ipv6: vlan.is_none(),
            ..Interface::default()
        };
        let tag = Vlan { protocol: 0x8100, id: 7 };
        let interfaces = [interface(None, OURS), interface(Some(tag), [2, 0, 0, 0, 0, 0x77])];
        let port = PortInterfaces { untagged: Some(0), tagged: vec![(tag, 1)] };
        WorkerTables::of(&interfaces, &[port], &[], &Settings::default())
    }

    fn decide(to: [u8; 6], rest: &[u8]) -> Result<Arrival, Refusal> {
        let tables = tables();
        let frame = [&to[..], &OTHER, rest].concat();
        let view = &tables.ports[0];
        classify(&tables, view, &frame)
    }

    #[test]
    fn lets_ip_for_us_through() {
        let arrival = |interface, network, family| Ok(Arrival { interface, network, family });
        assert_eq!(decide(OURS, &[8, 0, 0x45]), arrival(0, 14, Family::V4));
        assert_eq!(decide(OURS, &[0x86, 0xdd, 0x60]), arrival(0, 14, Family::V6));
        assert_eq!(decide(OURS, &[0x81, 0, 0xe0, 7, 8, 0]), arrival(1, 18, Family::V4));
        assert_eq!(decide([2, 0, 0, 0, 0, 0x77], &[0x81, 0, 0, 7, 8, 0]), arrival(1, 18, Family::V4));
        assert_eq!(decide(OURS, &[0x81, 0, 0xe0, 0, 8, 0]), arrival(0, 18, Family::V4));
    }

    #[test]
    fn leaves_the_rest_to_linux_or_drops_it() {
        let drop = |reason| Err(Refusal::Drop(reason));
        assert_eq!(decide(OTHER, &[8, 0, 0x45]), drop(Reason::OtherHost));
        assert_eq!(decide(OTHER, &[8, 6]), drop(Reason::OtherHost));
        assert_eq!(decide(OURS, &[8]), drop(Reason::EthernetShort));
        assert_eq!(decide(OURS, &[0x81, 0, 0]), drop(Reason::EthernetShort));
        for rest in [
            &[8, 6][..],
            &[0x88, 0x47],
            &[0x81, 0, 0, 8, 8, 0],
            &[0x88, 0xa8, 0, 7, 8, 0],
            &[0x81, 0, 0, 7, 0x86, 0xdd],
            &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 7, 8, 0],
        ] {
            assert_eq!(decide(OURS, rest), Err(HOST), "{rest:02x?}");
        }
    }

    #[test]
    fn knows_groups_from_hosts() {
        let ipv4 = |destination: [u8; 4]| [&[8, 0, 0x45][..], &[0; 15], &destination].concat();
        let one = Err(Refusal::Slow(Verdict::LinkGroup));
        assert_eq!(decide([0xff; 6], &ipv4([10, 0, 0, 1])), one);
        assert_eq!(decide([1, 0, 0x5e, 0, 0, 5], &ipv4([224, 0, 0, 5])), Err(HOST));
        assert_eq!(decide([0xff; 6], &ipv4([255; 4])), Err(HOST));
        assert_eq!(decide([0xff; 6], &[8, 0, 0x45]), Err(HOST));
        let ipv6 = |first: u8| [&[0x86, 0xdd, 0x60][..], &[0; 23], &[first], &[0; 15]].concat();
        assert_eq!(decide([0x33, 0x33, 0, 0, 0, 1], &ipv6(0x20)), one);
        assert_eq!(decide([0x33, 0x33, 0, 0, 0, 1], &ipv6(0xff)), Err(HOST));
    }
}
