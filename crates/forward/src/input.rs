//! Stage one: whose frame is it, which logical interface did it come in on, and what does it carry?
//!
//! ```text
//! untagged, MAC ours, IPv4 or IPv6, forwarding on --> at once     (one load of eight bytes and a type)
//! the rest: tags -> interface -> to whom -> type  --> on, Linux, or a named drop
//! ```

use bm_stats::Reason;
use bm_wire::ethernet::{Ethernet, HEADER_LEN, Network, ethertype};
use bm_wire::{Mac, ipv4, ipv6};

use crate::compiled::{Compiled, Ingress, MacKey, PortView, key_of, mac_key};
use crate::tables::Vlan;
use crate::verdict::{Refusal, Verdict};

/// What a frame carries that may be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ipv4,
    Ipv6,
}

/// A frame that may be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Logical interface.
    pub interface: u16,
    /// Where the network header begins.
    pub network: u16,
    pub kind: Kind,
}

const HOST: Refusal = Refusal::Slow(Verdict::Host);

/// Whether a frame is of the common sort: untagged IPv4 for us, to be forwarded.
#[inline(always)]
pub(crate) fn is_common_ipv4(view: &PortView, header: &[u8; HEADER_LEN]) -> bool {
    // One comparison of both says the same as two, and takes one branch.
    let (destination, kind) = destination_and_type(header);
    (destination ^ view.fast_ipv4) | u64::from(kind ^ ethertype::IPV4.to_be()) == 0
}

/// The same for IPv6.
#[inline(always)]
pub(crate) fn is_common_ipv6(view: &PortView, header: &[u8; HEADER_LEN]) -> bool {
    let (destination, kind) = destination_and_type(header);
    (destination ^ view.fast_ipv6) | u64::from(kind ^ ethertype::IPV6.to_be()) == 0
}

/// The type is as it stands there, in network order.
#[inline(always)]
fn destination_and_type(header: &[u8; HEADER_LEN]) -> (MacKey, u16) {
    let [a, b, c, d, e, f, g, h, .., high, low] = *header;
    (mac_key(&[a, b, c, d, e, f, g, h]), u16::from_ne_bytes([high, low]))
}

/// Decides on any frame of the port that `view` describes.
pub(crate) fn classify(tables: &Compiled, view: &PortView, frame: &[u8]) -> Result<Arrival, Refusal> {
    let short = |_| Refusal::Drop(Reason::EthernetShort);
    let ethernet = Ethernet::parse(frame).map_err(short)?;
    let network = ethernet.network().map_err(short)?;
    let interface = interface(view, &network).ok_or(HOST)?;
    let ingress = tables.ingress.get(usize::from(interface)).ok_or(HOST)?;
    let payload = frame.get(network.offset..).unwrap_or(&[]);
    if ethernet.destination().is_multicast() {
        return Err(to_group(network.ethertype, payload));
    }
    if !is_ours(view, ingress, ethernet.destination()) {
        return Err(Refusal::Drop(Reason::OtherHost));
    }
    let (kind, forwards) = match network.ethertype {
        ethertype::IPV4 => (Kind::Ipv4, ingress.forward_ipv4),
        ethertype::IPV6 => (Kind::Ipv6, ingress.forward_ipv6),
        _ => return Err(HOST),
    };
    let arrival = Arrival { interface, network: network.offset as u16, kind };
    // Where forwarding is off Linux may still want the packet for itself, and drops it if not.
    if forwards { Ok(arrival) } else { Err(HOST) }
}

/// The interface of a frame and where its network header begins, whoever it is for.
pub(crate) fn interface_of(view: &PortView, frame: &[u8]) -> Option<(u16, usize)> {
    let network = Ethernet::parse(frame).ok()?.network().ok()?;
    interface(view, &network).map(|interface| (interface, network.offset))
}

/// The interface that a frame's tags name. Stacked tags and unknown ones are Linux's: it may bridge them.
fn interface(view: &PortView, network: &Network) -> Option<u16> {
    match (network.outer, network.inner) {
        (None, _) => view.untagged,
        // 802.1Q 6.9.1: VLAN 0 is a tag for its priority alone.
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

/// Frames for a group are Linux's, but IP for one host in them is not forwarded (RFC 1812 5.3.4).
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
