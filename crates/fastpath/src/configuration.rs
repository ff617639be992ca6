//! What the program needs to know about interfaces, addresses and settings, and how it is laid out for the program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::filters::FilterInputs;
use crate::layout::{
    BY_FLOW, Egress, FORWARD_IPV4, FORWARD_IPV6, INGRESSES, INTERFACES, Ingress, LINUX_ONLY,
    LINUX_ONLY_FRAGMENTS_IPV6, LOCAL_BITS, LOCAL_HASH, PARTIAL_SUMS, REPORT_UNRESOLVED, VLAN_HASH_PORT,
    VLAN_HASH_TAG, VLAN_TRIES, VLANS, View, VlanEntry,
};
use bm_filter::Filters;
use bm_wire::{ReversePath, Vlan};

/// All small tables of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Interfaces, in any order.
    pub interfaces: Vec<Interface>,
    /// IPv4 addresses of this machine.
    pub local_ipv4: Vec<Ipv4Addr>,
    /// IPv4 sources that are looked up as those are: Linux may refuse them, too.
    pub doubtful: Vec<Ipv4Addr>,
    /// Whether any IPv4 source may be one of these.
    pub all_doubtful: bool,
    /// IPv6 addresses of this machine; only filters need them.
    pub local_ipv6: Vec<Ipv6Addr>,
    /// The filters. None cost nothing.
    pub filters: Option<Arc<Filters>>,
    /// Whether filters may need [`ReversePath::Feasible`]: the tables of sources are loaded, and unloaded when this
    /// is false.
    pub feasible: bool,
    /// Families, IPv4 first, whose routes only Linux knows: filters do not check the reverse path of their sources.
    pub unknown: [bool; 2],
    /// Seed of the flow hash.
    pub flow_seed: u32,
    /// One received frame in so many is sampled; 0 for none, which costs nothing.
    pub sample_one_in: u32,
    /// `fib_multipath_hash_policy` of IPv4 and IPv6; values above 2 are treated as 1.
    pub policies: [u8; 2],
}

/// The VLAN of an interface, and the port below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortVlan {
    /// Index in Linux of the port.
    pub port: u32,
    pub vlan: Vlan,
}

impl PortVlan {
    fn number(self) -> u32 {
        u32::from(self.vlan.protocol) << 16 | u32::from(self.vlan.id)
    }

    /// The slots in which the program searches for it.
    fn places(self) -> impl Iterator<Item = usize> {
        let hash = self.port.wrapping_mul(VLAN_HASH_PORT) ^ self.number().wrapping_mul(VLAN_HASH_TAG);
        let first = (hash >> (32 - VLANS.ilog2())) as usize;
        (first..first + VLAN_TRIES).map(|place| place % VLANS)
    }
}

/// An interface from which packets may be forwarded: a port, or a VLAN interface on one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The index by which next hops refer to it.
    pub index: u16,
    /// Index in Linux.
    pub ifindex: u32,
    /// Its VLAN, if its frames are tagged.
    pub vlan: Option<PortVlan>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Whether received packets may be forwarded, for IPv4 and IPv6.
    pub forward: [bool; 2],
    /// Whether it is up.
    pub up: bool,
    /// Whether packets may be sent through it by XDP: it is up, and its device (for a VLAN, the underlying port) can
    /// send frames for XDP.
    pub sends: bool,
    /// The reverse path filter of Linux: packets that fail go to Linux.
    pub reverse_path: ReversePath,
    /// The reverse path check of filters, which drop packets that fail.
    pub check: ReversePath,
    /// Whether frames are examined although no untagged frame is forwarded: for filters, or for VLANs on it.
    pub looked_at: bool,
    /// Families, IPv4 first, that are not forwarded because only Linux may handle the packets received here.
    pub linux_only: [bool; 2],
    /// IPv6 fragments are left to Linux, which reassembles them. Those of IPv4 always are.
    pub linux_only_fragments_ipv6: bool,
    /// Senders may leave checksums to their device, and none completes them, as on a veth.
    pub partial_sums: bool,
    /// Packets to a next hop without a MAC address are reported ([`crate::UnresolvedReader`]): Linux may drop them
    /// before it asks for the neighbor.
    pub report_unresolved: bool,
    /// What is not forwarded because of [`Self::linux_only`] may be forwarded by flow, once Linux has decided about the
    /// first packets.
    pub by_flow: bool,
}

impl Interface {
    /// Whether the program has anything to do with received frames.
    fn needs_program(&self) -> bool {
        self.looked_at || self.forward != [false; 2]
    }

    fn ingress(&self) -> Ingress {
        let [a, b, c, d, e, f] = self.mac;
        Ingress {
            mac: u64::from_le_bytes([0, 0, a, b, c, d, e, f]),
            ifindex: self.ifindex,
            interface: self.index,
            flags: flag(self.forward[0], FORWARD_IPV4)
                | flag(self.forward[1], FORWARD_IPV6)
                | flag(self.linux_only[0], LINUX_ONLY[0])
                | flag(self.linux_only[1], LINUX_ONLY[1])
                | flag(self.linux_only_fragments_ipv6, LINUX_ONLY_FRAGMENTS_IPV6)
                | flag(self.partial_sums, PARTIAL_SUMS)
                | flag(self.report_unresolved, REPORT_UNRESOLVED)
                | flag(self.by_flow, BY_FLOW),
            reverse_path: self.reverse_path as u8,
        }
    }

    fn egress(&self) -> Egress {
        let mtu = if self.sends { self.mtu } else { 0 };
        let (ifindex, tag) = self.vlan.map_or((self.ifindex, 0), |vlan| (vlan.port, vlan.number()));
        Egress { mac: self.mac, mtu, ifindex, tag }
    }
}

/// `flag` if it is on, and no flag otherwise.
fn flag(on: bool, flag: u8) -> u8 {
    if on { flag } else { 0 }
}

impl Configuration {
    /// As the program reads it. Interfaces that find no slot are left out, so Linux forwards for them.
    pub(crate) fn view(&self) -> Box<View> {
        let mut view = View::empty();
        view.flow_seed = u64::from(self.flow_seed);
        [view.policy_ipv4, view.policy_ipv6] = self.policies.map(|policy| match policy {
            0..=2 => u32::from(policy),
            _ => 1,
        });
        for interface in &self.interfaces {
            if let Some(egress) = view.egress.get_mut(usize::from(interface.index)) {
                *egress = interface.egress();
                if interface.up && interface.vlan.is_none() {
                    view.tc_mtus[usize::from(interface.index)] = interface.mtu;
                }
            }
            let ingress = &mut view.ingress[interface.ifindex as usize % INGRESSES];
            if interface.needs_program() && ingress.ifindex == 0 && usize::from(interface.index) < INTERFACES
            {
                *ingress = interface.ingress();
            }
        }
        for interface in self.interfaces.iter().filter(|interface| interface.needs_program()) {
            let Some(tag) = interface.vlan else { continue };
            // Without a slot the program does not know the tag, so Linux gets its frames.
            if let Some(place) = tag.places().find(|place| view.vlans[*place].port == 0) {
                view.vlans[place] =
                    VlanEntry { port: tag.port, tag: tag.number(), ifindex: interface.ifindex };
            }
        }
        if self.all_doubtful {
            view.local.fill(u64::MAX);
        }
        for address in self.local_ipv4.iter().chain(&self.doubtful) {
            let hash = u32::from(*address).wrapping_mul(LOCAL_HASH) >> (32 - LOCAL_BITS.ilog2());
            view.local[hash as usize / 64] |= 1 << (hash % 64);
        }
        view
    }

    /// Whether the same is forwarded, and the same left to Linux, as with `other`. Whether a device can send frames
    /// may differ: that is checked periodically.
    pub fn forwards_as(&self, other: &Self) -> bool {
        self.without_devices() == other.without_devices()
    }

    fn without_devices(&self) -> Self {
        let mut configuration = self.clone();
        configuration.interfaces.iter_mut().for_each(|interface| interface.sends = false);
        configuration
    }

    /// Whether anything is forwarded by flow.
    pub(crate) fn has_flows(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.by_flow)
    }

    /// Whether any interface has tagged frames.
    pub(crate) fn has_tags(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.vlan.is_some())
    }

    /// The parts that filters depend on.
    pub(crate) fn filter_inputs(&self) -> FilterInputs {
        let checked = self.interfaces.iter().filter(|interface| interface.check != ReversePath::Off);
        let checks = checked.map(|interface| (interface.index, interface.check)).collect();
        let ipv6 = self.local_ipv6.iter().copied().map(IpAddr::V6);
        let own = self.local_ipv4.iter().copied().map(IpAddr::V4).chain(ipv6).collect();
        FilterInputs { checks, own, unknown: self.unknown }
    }

    /// Interfaces that should forward but found no slot, by their index in Linux.
    pub fn without_slot(&self) -> Vec<u32> {
        let view = self.view();
        let without = self.interfaces.iter().filter(|interface| {
            let ifindex = interface.ifindex;
            let has_slot =
                interface.vlan.is_none_or(|tag| tag.places().any(|at| view.vlans[at].ifindex == ifindex))
                    && view.ingress[ifindex as usize % INGRESSES].ifindex == ifindex;
            interface.needs_program() && !has_slot
        });
        without.map(|interface| interface.ifindex).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u16, ifindex: u32) -> Interface {
        Interface {
            index,
            ifindex,
            mac: [2, 0, 0, 0, 1, 0xfe],
            mtu: 1500,
            forward: [true, false],
            up: true,
            sends: true,
            ..Interface::default()
        }
    }

    #[test]
    fn macs_have_the_byte_order_of_a_frame() {
        let frame = [2, 0, 0, 0, 1, 0xfe, 0xaa, 0xaa];
        let configuration = Configuration { interfaces: vec![interface(3, 7)], ..Configuration::default() };
        let view = configuration.view();
        assert_eq!(view.ingress[7].mac, u64::from_le_bytes(frame) << 16);
        assert_eq!((view.ingress[7].interface, view.ingress[7].flags), (3, FORWARD_IPV4));
        assert_eq!((view.egress[3].mtu, view.egress[3].ifindex), (1500, 7));
    }

    #[test]
    fn interfaces_without_a_slot_are_reported() {
        let interfaces = vec![interface(0, 7), interface(1, 7 + INGRESSES as u32), interface(1024, 9)];
        let configuration = Configuration { interfaces, ..Configuration::default() };
        assert_eq!(configuration.without_slot(), [7 + INGRESSES as u32, 9]);
        assert_eq!(configuration.view().ingress[7].ifindex, 7);
    }

    #[test]
    fn interfaces_that_cannot_send_are_not_used() {
        let down = Interface { sends: false, ..interface(5, 6) };
        let view = Configuration { interfaces: vec![down], ..Configuration::default() }.view();
        assert_eq!((view.egress[5].mtu, view.ingress[6].ifindex), (0, 6));
    }
}
