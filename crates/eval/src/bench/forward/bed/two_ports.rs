//! The tables of a router with two ports and static neighbors, as control would publish them.

use bm_fib::next_hop::NextHopWriter;
use bm_forward::tables::{Interface, PortInterfaces, ReversePath, Settings, Tables, Vlan, Vrf};

use super::super::packet::port_mac;
use super::PORTS;

const TAG: Vlan = Vlan { protocol: 0x8100, id: 7 };

/// Interfaces and next hops of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Links {
    /// An interface for each port.
    #[default]
    Plain,
    /// Each next hop is one of a group of two.
    Multipath,
    /// What leaves has a tag.
    TagOut,
    /// Each port also has a tagged interface in another routing table.
    Vrfs,
}

impl Links {
    /// The tables with these.
    pub fn tables(self, vrf: Vrf, next_hops: &NextHopWriter, reverse_path: ReversePath) -> Tables {
        match self {
            Self::Plain | Self::Multipath => tables(vrf, next_hops, reverse_path),
            Self::TagOut => tables_with_tags(vrf, next_hops),
            Self::Vrfs => tables_with_vrfs(vrf, next_hops),
        }
    }
}

/// One table that routes between both, with this reverse path filter on each.
pub(super) fn tables(vrf: Vrf, next_hops: &NextHopWriter, reverse_path: ReversePath) -> Tables {
    of_interfaces(vrf, next_hops, |port| Interface { reverse_path, ..interface(port) })
}

/// One table that routes between both interfaces, which have this MTU.
pub(super) fn tables_with_mtu(vrf: Vrf, next_hops: &NextHopWriter, mtu: u16) -> Tables {
    of_interfaces(vrf, next_hops, |port| Interface { mtu, ..interface(port) })
}

/// Next hops are behind interfaces with a tag; packets arrive without.
fn tables_with_tags(vrf: Vrf, next_hops: &NextHopWriter) -> Tables {
    with_second_interfaces(vec![vrf], next_hops, |port| {
        [Interface { vlan: Some(TAG), ..interface(port) }, interface(port)]
    })
}

/// Each port also has an interface with a tag, in a routing table of its own.
fn tables_with_vrfs(vrf: Vrf, next_hops: &NextHopWriter) -> Tables {
    with_second_interfaces(vec![vrf.clone(), vrf], next_hops, |port| {
        [interface(port), Interface { vlan: Some(TAG), vrf: 1, ..interface(port) }]
    })
}

/// Two interfaces for each port: first the two that next hops are behind.
fn with_second_interfaces(
    vrfs: Vec<Vrf>,
    next_hops: &NextHopWriter,
    of: impl Fn(usize) -> [Interface; 2],
) -> Tables {
    let [left, right] = [of(0), of(1)];
    let interfaces: Vec<_> = left.into_iter().zip(right).flat_map(|(left, right)| [left, right]).collect();
    let ports = [0u16, 1].map(|port| {
        let (tagged, untagged): (Vec<u16>, Vec<u16>) =
            [port, port + 2].into_iter().partition(|&index| interfaces[usize::from(index)].vlan.is_some());
        let tagged = tagged.into_iter().map(|index| (TAG, index)).collect();
        PortInterfaces { untagged: untagged.first().copied(), tagged }
    });
    Tables::new(
        vrfs,
        interfaces,
        ports.into(),
        next_hops.table().clone(),
        (vec![[10, 0, 0, 254].into(), [10, 0, 1, 254].into()], Vec::new()),
        Settings::default(),
    )
}

fn of_interfaces(vrf: Vrf, next_hops: &NextHopWriter, of: impl Fn(usize) -> Interface) -> Tables {
    let ports =
        (0..PORTS.len()).map(|port| PortInterfaces { untagged: Some(port as u16), tagged: Vec::new() });
    Tables::new(
        vec![vrf],
        (0..PORTS.len()).map(of).collect(),
        ports.collect(),
        next_hops.table().clone(),
        (vec![[10, 0, 0, 254].into(), [10, 0, 1, 254].into()], Vec::new()),
        Settings::default(),
    )
}

fn interface(port: usize) -> Interface {
    Interface {
        name: PORTS[port].into(),
        ifindex: port as u32 + 1,
        port: port as u16,
        mac: port_mac(port),
        ipv4: vec![([10, 0, port as u8, 254].into(), 24)],
        ..Interface::default()
    }
}
