//! The tables of a router with two ports and static neighbors, as control would publish them.

use bm_fib::next_hop::NextHopWriter;
use bm_forward::tables::{Interface, PortInterfaces, ReversePath, Settings, Tables, Vrf};

use super::{PORTS, port_mac};

/// One table that routes between both, with this reverse path filter on each.
pub(super) fn tables(vrf: Vrf, next_hops: &NextHopWriter, reverse_path: ReversePath) -> Tables {
    of_interfaces(vrf, next_hops, |port| Interface { reverse_path, ..interface(port) })
}

/// The same with interfaces of this MTU.
pub(super) fn tables_with_mtu(vrf: Vrf, next_hops: &NextHopWriter, mtu: u16) -> Tables {
    of_interfaces(vrf, next_hops, |port| Interface { mtu, ..interface(port) })
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
