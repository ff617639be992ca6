//! The tables in the form that workers read: small, flat, and with only what the fast path needs.
//!
//! Made by control when it makes [`Tables`](crate::tables::Tables). A worker never allocates for it, and a packet
//! touches one entry of `ports`, one of `egress` and at most one bit of `local`.

use std::net::Ipv4Addr;

use bm_wire::Family;
use bm_wire::flow::Policy;

use crate::interface::{DoubtfulSources, Interface, PortInterfaces, ReversePath, Settings, Vlan};
use crate::stages::NextHeaders;

/// A MAC address as a number, with its first byte lowest above two zero bytes: reading it from a frame takes one load
/// of eight bytes and a shift.
pub(crate) type MacKey = u64;

/// A key that no address has.
pub(crate) const NO_MAC: MacKey = u64::MAX;

/// The key of the address that these bytes begin with.
#[inline(always)]
pub(crate) fn mac_key(start: &[u8; 8]) -> MacKey {
    u64::from_le_bytes(*start) << 16
}

/// The key of an address.
pub(crate) fn key_of(mac: [u8; 6]) -> MacKey {
    let [a, b, c, d, e, f] = mac;
    mac_key(&[a, b, c, d, e, f, 0, 0])
}

/// The tables as workers read them.
pub(crate) struct WorkerTables {
    pub ports: Box<[PortView]>,
    pub ingress: Box<[Ingress]>,
    pub egress: Box<[Egress]>,
    /// IPsec interfaces, by their numbers.
    pub ipsec: Box<[IpsecInterface]>,
    pub local: LocalFilter,
    pub flow_ipv4: FlowHash,
    pub flow_ipv6: FlowHash,
}

/// How flows are distinguished when a route has several next hops.
#[derive(Clone, Copy)]
pub(crate) struct FlowHash {
    pub policy: Policy,
    pub seed: u64,
}

impl FlowHash {
    /// Linux's policy 3 (fields of the administrator's choice) is not mirrored: ports come closest.
    fn of(policy: u8, seed: u32) -> Self {
        Self { policy: Policy::from_sysctl(policy).unwrap_or(Policy::Ports), seed: u64::from(seed) }
    }
}

/// What frames of a port are compared with.
pub(crate) struct PortView {
    /// The MAC address of untagged IPv4 frames that may take the fast path; no address if none may.
    pub plain_ipv4: MacKey,
    /// The MAC address of untagged IPv6 frames that may take the fast path; no address if none may.
    pub plain_ipv6: MacKey,
    /// Next headers of IPv6 packets that may not take the fast path.
    pub excluded: NextHeaders,
    /// Interface of untagged frames.
    pub untagged: Option<u16>,
    /// The routing table of that interface.
    pub untagged_vrf: Option<u16>,
    /// MAC of that interface, which frames of every VLAN may carry.
    pub mac: MacKey,
    /// The routing table of all interfaces of the port, if they share one.
    pub vrf: Option<u16>,
    /// Tags and their interfaces, sorted.
    tagged: Box<[(Vlan, u16)]>,
}

impl PortView {
    /// The interface of a tag.
    pub fn interface_of(&self, tag: Vlan) -> Option<u16> {
        let place = self.tagged.binary_search_by_key(&tag, |&(tag, _)| tag).ok()?;
        self.tagged.get(place).map(|&(_, interface)| interface)
    }
}

/// The checks for a frame that arrived on an interface.
#[derive(Clone, Copy)]
pub(crate) struct Ingress {
    pub mac: MacKey,
    pub vrf: u16,
    pub forward_ipv4: bool,
    pub forward_ipv6: bool,
    pub linux_only: [bool; 2],
    pub linux_only_fragments: [bool; 2],
    pub reverse_path: ReversePath,
    pub accept_local: bool,
    pub redirects: [bool; 2],
}

/// What a frame that leaves through an interface gets.
#[derive(Clone, Copy)]
pub(crate) struct Egress {
    pub mac: [u8; 6],
    /// 0 if the interface is down: then no packet fits, and the fast path need not check that.
    pub mtu: u16,
    pub port: u16,
    pub tag: Option<Vlan>,
}

/// How frames within a worker show that they arrive on an IPsec interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpsecInterface {
    pub if_id: u32,
    pub interface: u16,
    pub tag: Option<Vlan>,
}

impl WorkerTables {
    /// Whether Linux may send a redirect about a packet that came in on one interface and leaves by another.
    #[inline]
    pub fn may_redirect(&self, family: Family, came_in: u16, out: u16) -> bool {
        let family = usize::from(family == Family::V6);
        came_in == out && self.ingress.get(usize::from(came_in)).is_some_and(|on| on.redirects[family])
    }

    /// The IPsec interface with this number.
    #[inline]
    pub fn ipsec_interface(&self, if_id: u32) -> Option<&IpsecInterface> {
        let at = self.ipsec.binary_search_by_key(&if_id, |of| of.if_id).ok()?;
        self.ipsec.get(at)
    }

    pub fn of(
        interfaces: &[Interface],
        ports: &[PortInterfaces],
        local: &[Ipv4Addr],
        settings: &Settings,
    ) -> Self {
        Self {
            ports: ports.iter().map(|port| port_view(port, interfaces)).collect(),
            ingress: interfaces.iter().map(ingress).collect(),
            egress: interfaces.iter().map(egress).collect(),
            ipsec: ipsec(interfaces),
            local: LocalFilter::of(local),
            flow_ipv4: FlowHash::of(settings.hash_policy_ipv4, settings.hash_seed),
            flow_ipv6: FlowHash::of(settings.hash_policy_ipv6, settings.hash_seed),
        }
    }
}

fn ingress(interface: &Interface) -> Ingress {
    Ingress {
        mac: key_of(interface.mac),
        vrf: interface.vrf,
        forward_ipv4: interface.forward_ipv4,
        forward_ipv6: interface.forward_ipv6,
        linux_only: interface.linux_only_in,
        linux_only_fragments: interface.linux_only_fragments,
        reverse_path: interface.reverse_path,
        accept_local: interface.accept_local,
        // What an IPsec interface decrypts is not redirected.
        redirects: if interface.if_id == 0 { interface.redirects } else { [false; 2] },
    }
}

fn egress(interface: &Interface) -> Egress {
    let mtu = if interface.up { interface.mtu } else { 0 };
    // The MAC of an IPsec interface is enough where frames leave.
    let tag = interface.vlan.filter(|_| interface.if_id == 0);
    Egress { mac: interface.mac, mtu, port: interface.port, tag }
}

fn ipsec(interfaces: &[Interface]) -> Box<[IpsecInterface]> {
    let mut all = Vec::new();
    for (index, &Interface { if_id, vlan, .. }) in (0..).zip(interfaces) {
        if if_id != 0 {
            all.push(IpsecInterface { if_id, interface: index, tag: vlan });
        }
    }
    all.sort_unstable_by_key(|of| of.if_id);
    all.into()
}

fn port_view(port: &PortInterfaces, interfaces: &[Interface]) -> PortView {
    let untagged = port.untagged.and_then(|index| interfaces.get(usize::from(index)));
    let mac = untagged.map_or(NO_MAC, |interface| key_of(interface.mac));
    let mut tagged = Vec::new();
    let mut all: Vec<&Interface> = untagged.into_iter().collect();
    for &(tag, index) in &port.tagged {
        if let Some(interface) = interfaces.get(usize::from(index)) {
            tagged.push((tag, index));
            all.push(interface);
        }
    }
    tagged.sort_unstable_by_key(|&(tag, _)| tag);
    let vrf = all.first().map(|first| first.vrf).filter(|&vrf| all.iter().all(|other| other.vrf == vrf));
    PortView {
        plain_ipv4: if untagged.is_some_and(|interface| interface.forward_ipv4) { mac } else { NO_MAC },
        plain_ipv6: if untagged.is_some_and(|interface| interface.forward_ipv6) { mac } else { NO_MAC },
        excluded: if all.iter().any(|on| on.linux_only_fragments[1]) {
            NextHeaders::ALL
        } else {
            NextHeaders::NONE
        },
        untagged: port.untagged.filter(|_| untagged.is_some()),
        mac,
        vrf,
        untagged_vrf: untagged.map(|interface| interface.vrf),
        tagged: tagged.into(),
    }
}

/// Bits of the filter: with 100 addresses of its own, one other source in 40 needs a lookup in the exact list.
const FILTER_BITS: usize = 1 << 12;

/// Whether a source may be an address of this machine: one bit to test, rarely set for others.
pub(crate) struct LocalFilter {
    bits: [u64; FILTER_BITS / 64],
    addresses: Box<[u32]>,
}

impl LocalFilter {
    pub fn of(addresses: &[Ipv4Addr]) -> Self {
        let mut addresses: Box<[u32]> = addresses.iter().map(|&address| u32::from(address)).collect();
        addresses.sort_unstable();
        let mut bits = [0; FILTER_BITS / 64];
        for &address in &addresses {
            let (word, bit) = Self::place(address);
            bits[word] |= 1 << bit;
        }
        Self { bits, addresses }
    }

    /// Makes more sources pass for ones that may be this machine's, so that they are looked up.
    pub fn doubt(&mut self, doubtful: &DoubtfulSources) {
        match doubtful {
            DoubtfulSources::All => self.bits.fill(u64::MAX),
            DoubtfulSources::Single(addresses) => {
                for address in addresses {
                    let (word, bit) = Self::place((*address).into());
                    self.bits[word] |= 1 << bit;
                }
            }
        }
    }

    /// The factor for an address; the high bits of the product are its position among the bits.
    pub const FACTOR: u32 = 0x9e37_79b9;
    /// How many high bits.
    pub const HASH_BITS: u32 = FILTER_BITS.ilog2();

    pub fn bits(&self) -> &[u64; FILTER_BITS / 64] {
        &self.bits
    }

    /// Fibonacci hashing: adjacent addresses, as machines often have them, get distant positions.
    #[inline(always)]
    fn place(address: u32) -> (usize, u32) {
        let hash = address.wrapping_mul(Self::FACTOR) >> (32 - Self::HASH_BITS);
        ((hash >> 6) as usize, hash & 63)
    }

    /// Whether the bit of `address` is set; if not, it is not an address of this machine.
    #[inline(always)]
    pub fn may_hold(&self, address: u32) -> bool {
        let (word, bit) = Self::place(address);
        self.bits[word] >> bit & 1 == 1
    }

    /// Whether `address` is an address of this machine.
    pub fn holds(&self, address: u32) -> bool {
        self.may_hold(address) && self.addresses.binary_search(&address).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mac: u8, vlan: Option<Vlan>, vrf: u16) -> Interface {
        Interface {
            ifindex: 1,
            port: 0,
            vlan,
            mac: [2, 0, 0, 0, 0, mac],
            up: mac != 9,
            vrf,
            forward_ipv6: false,
            ..Interface::default()
        }
    }

    fn tag(id: u16) -> Vlan {
        Vlan { protocol: 0x8100, id }
    }

    #[test]
    fn finds_interfaces_by_tag_whatever_their_order() {
        let interfaces =
            [interface(1, None, 0), interface(2, Some(tag(7)), 0), interface(9, Some(tag(3)), 1)];
        let port = PortInterfaces { untagged: Some(0), tagged: vec![(tag(7), 1), (tag(3), 2), (tag(5), 99)] };
        let compiled =
            WorkerTables::of(&interfaces, &[port, PortInterfaces::default()], &[], &Settings::default());
        let view = &compiled.ports[0];
        let found = [3, 5, 7].map(|id| view.interface_of(tag(id)));
        assert_eq!(found, [Some(2), None, Some(1)]);
        assert_eq!((view.plain_ipv4, view.plain_ipv6), (key_of([2, 0, 0, 0, 0, 1]), NO_MAC));
        assert_eq!((view.vrf, compiled.egress[0].mtu, compiled.egress[2].mtu), (None, 1500, 0));
        assert_eq!((compiled.ports[1].untagged, compiled.ports[1].plain_ipv4), (None, NO_MAC));
    }

    #[test]
    fn knows_local_addresses_and_few_others() {
        let ours: Vec<Ipv4Addr> = (1..=100u8).map(|n| Ipv4Addr::new(10, 0, n, 1)).collect();
        let filter = LocalFilter::of(&ours);
        assert!(ours.iter().all(|&address| filter.holds(address.into())));
        assert!(!filter.holds(u32::from(Ipv4Addr::new(10, 0, 1, 2))));
        let mistaken = (0..100_000u32).filter(|n| filter.may_hold(n.wrapping_mul(0x0101_6f35))).count();
        assert!(mistaken < 4_000, "{mistaken}");
    }
}
