//! The tables defined by a lab's text: a small, simple and slow control plane.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, RwLock};

use bm_fib::next_hop::{Action, Gateway, NextHopWriter};
use bm_fib::published::Readers;
use bm_fib::rib::Rib;
use bm_fib::{Fib, NextHop};
use bm_wire::prefix::{Address, Prefix};

use crate::tables::{Interface, PortInterfaces, Settings, Tables, Vrf};

/// A plain table: the longest match of all routes, looked for.
#[derive(Default)]
pub struct Plain<A: Address>(RwLock<Rib<A>>);

impl<A: Address> Fib for Plain<A> {
    type Address = A;

    fn lookup(&self, address: A) -> NextHop {
        let rib = self.0.read().expect("no test panics while it writes");
        rib.longest_match(address).map_or(NextHop::NONE, |(_, hop)| hop)
    }
}

/// A prefix of either family.
#[derive(Clone, Copy, Debug)]
pub enum AnyPrefix {
    V4(Prefix<u32>),
    V6(Prefix<u128>),
}

impl AnyPrefix {
    /// The prefix of `length` bits that contains `address`.
    pub fn of(address: IpAddr, length: u8) -> Self {
        let fits = "a length that fits the address";
        match address {
            IpAddr::V4(address) => Self::V4(Prefix::containing(address.into(), length).expect(fits)),
            IpAddr::V6(address) => Self::V6(Prefix::containing(address.into(), length).expect(fits)),
        }
    }
}

#[derive(Clone, Default)]
struct Table {
    ipv4: Arc<Plain<u32>>,
    ipv6: Arc<Plain<u128>>,
}

/// Everything defined by the text so far.
pub struct World {
    pub interfaces: Vec<Interface>,
    tables: Vec<Table>,
    hops: NextHopWriter,
    /// Next hops through a gateway, by gateway and route MTU.
    gateways: HashMap<(Gateway, u16), NextHop>,
    neighbors: HashMap<(u16, IpAddr), [u8; 6]>,
    plain: HashMap<u8, NextHop>,
    settings: Settings,
}

impl World {
    pub fn new(settings: Settings, readers: &Readers) -> Self {
        Self {
            interfaces: Vec::new(),
            tables: vec![Table::default()],
            hops: NextHopWriter::with_room(4096, 16, readers).expect("memory for next hops"),
            gateways: HashMap::new(),
            neighbors: HashMap::new(),
            plain: HashMap::new(),
            settings,
        }
    }

    pub fn ports(&self) -> usize {
        self.interfaces.iter().map(|interface| usize::from(interface.port) + 1).max().unwrap_or(0)
    }

    pub fn interface(&self, name: &str) -> u16 {
        let found = self.interfaces.iter().position(|interface| interface.name == name);
        found.unwrap_or_else(|| panic!("no interface is called {name:?}")) as u16
    }

    pub fn ifindex_of(&self, name: &str) -> u32 {
        self.interfaces[usize::from(self.interface(name))].ifindex
    }

    pub fn name_of(&self, ifindex: u32) -> String {
        let found = self.interfaces.iter().find(|interface| interface.ifindex == ifindex);
        found.map_or_else(|| ifindex.to_string(), |interface| interface.name.clone())
    }

    fn table(&mut self, vrf: u16) -> &Table {
        let vrf = usize::from(vrf);
        if self.tables.len() <= vrf {
            self.tables.resize_with(vrf + 1, Table::default);
        }
        &self.tables[vrf]
    }

    /// Adds an interface, or changes an existing one; with the routes that Linux creates for its addresses.
    pub fn add_interface(&mut self, mut interface: Interface) {
        let known = self.interfaces.iter().position(|known| known.name == interface.name);
        let index = known.unwrap_or(self.interfaces.len());
        interface.ifindex = index as u32 + 101;
        let Interface { vrf, ipv4, ipv6, .. } = interface.clone();
        self.interfaces.splice(index..self.interfaces.len().min(index + 1), [interface]);
        let index = index as u16;
        let host = self.plain_hop(0, Action::Host);
        for (address, length) in ipv4 {
            let subnet = Prefix::<u32>::containing(address.into(), length).expect("a length of IPv4");
            if length < 31 {
                let on_link = self.gateway_hop(index, None, 0);
                self.set(vrf, AnyPrefix::V4(subnet), Some(on_link));
                self.set(vrf, AnyPrefix::V4(Prefix::host(subnet.last())), Some(host));
            }
            self.set(vrf, AnyPrefix::of(address.into(), 32), Some(host));
        }
        for (address, length) in ipv6 {
            let on_link = self.gateway_hop(index, None, 0);
            self.set(vrf, AnyPrefix::of(address.into(), length), Some(on_link));
            self.set(vrf, AnyPrefix::of(address.into(), 128), Some(host));
        }
    }

    pub fn set(&mut self, vrf: u16, prefix: AnyPrefix, hop: Option<NextHop>) {
        fn set<A: Address>(rib: &RwLock<Rib<A>>, prefix: Prefix<A>, hop: Option<NextHop>) {
            let mut rib = rib.write().expect("no test panics while it writes");
            match hop {
                Some(hop) => rib.insert(prefix, hop),
                None => rib.remove(prefix),
            };
        }
        let table = self.table(vrf);
        match prefix {
            AnyPrefix::V4(prefix) => set(&table.ipv4.0, prefix, hop),
            AnyPrefix::V6(prefix) => set(&table.ipv6.0, prefix, hop),
        }
    }

    /// The next hop for an action without a gateway, created once for each `kind`.
    pub fn plain_hop(&mut self, kind: u8, action: Action) -> NextHop {
        let hops = &mut self.hops;
        let add = || hops.add(action, Gateway::default(), 0).expect("room for next hops");
        *self.plain.entry(kind).or_insert_with(add)
    }

    /// The next hop for a neighbor, or for the link itself.
    pub fn gateway_hop(&mut self, interface: u16, address: Option<IpAddr>, mtu: u16) -> NextHop {
        let gateway = Gateway { address, interface: u32::from(interface) };
        let mac = address.and_then(|address| self.neighbors.get(&(interface, address)));
        // An IPsec interface has no neighbors.
        let of = &self.interfaces[usize::from(interface)];
        let mac = if of.if_id == 0 { mac } else { Some(&of.mac) };
        let action = mac.map_or(Action::Resolve, |&mac| Action::Forward { mac, interface });
        let hops = &mut self.hops;
        let add = || hops.add(action, gateway, mtu).expect("room for next hops");
        *self.gateways.entry((gateway, mtu)).or_insert_with(add)
    }

    /// A group of next hops, each with its weight.
    pub fn group(&mut self, members: &[(NextHop, u32)]) -> NextHop {
        self.hops.add_group(members).expect("room for a group")
    }

    /// Sets or removes a neighbor's MAC address.
    pub fn set_neighbor(&mut self, interface: u16, address: IpAddr, mac: Option<[u8; 6]>) {
        let vrf = self.interfaces[usize::from(interface)].vrf;
        let own = AnyPrefix::of(address, if address.is_ipv4() { 32 } else { 128 });
        match mac {
            Some(mac) => {
                self.neighbors.insert((interface, address), mac);
                let hop = self.gateway_hop(interface, Some(address), 0);
                self.set(vrf, own, Some(hop));
            }
            None => {
                self.neighbors.remove(&(interface, address));
                self.set(vrf, own, None);
            }
        }
        let action = mac.map_or(Action::Resolve, |mac| Action::Forward { mac, interface });
        let through = Gateway { address: Some(address), interface: u32::from(interface) };
        for ((gateway, _), &hop) in &self.gateways {
            if *gateway == through {
                self.hops.set(hop, action).expect("the next hop is in use");
            }
        }
    }

    pub fn take_used(&mut self, address: IpAddr) -> bool {
        let through = self.gateways.iter().filter(|((gateway, _), _)| gateway.address == Some(address));
        let hops: Vec<_> = through.map(|(_, &hop)| hop).collect();
        // Each is checked, so that none stays marked.
        hops.into_iter().filter(|&hop| self.hops.take_used(hop)).count() > 0
    }

    pub fn tables(&self) -> Tables {
        let mut ports = vec![PortInterfaces::default(); self.ports()];
        for (index, interface) in self.interfaces.iter().enumerate() {
            let port = &mut ports[usize::from(interface.port)];
            match interface.vlan {
                None => port.untagged = Some(index as u16),
                Some(tag) => port.tagged.push((tag, index as u16)),
            }
        }
        let ipv4: Vec<Ipv4Addr> =
            self.interfaces.iter().flat_map(|interface| &interface.ipv4).map(|local| local.0).collect();
        let ipv6: Vec<Ipv6Addr> =
            self.interfaces.iter().flat_map(|interface| &interface.ipv6).map(|local| local.0).collect();
        let vrfs = self.tables.iter().map(|table| Vrf { ipv4: table.ipv4.clone(), ipv6: table.ipv6.clone() });
        Tables::new(
            vrfs.collect(),
            self.interfaces.clone(),
            ports,
            self.hops.table().clone(),
            (ipv4, ipv6),
            self.settings.clone(),
        )
    }
}
