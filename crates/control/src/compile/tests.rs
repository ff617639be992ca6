//! Tests the compiler with hand-made mirrors, and against the oracle on random histories.

mod cases;
mod flows;
mod history;
mod ipsec;
mod oracle;
mod plain;
mod shown;
mod sources;

use super::*;
use bm_fib::NextHop;
use bm_fib::Structure;
use bm_fib::memory::OutOfMemory;
use bm_firewall::{Feature, LinuxOnly, Match, Repeats, Traffic};
use bm_netlink::{
    Address, Hop, HopFlags, Kind, Link, Message, Neighbor, RouteBody, RouteEvent, RouteKind, RouteMessage,
    Via, neighbor,
};
use bm_wire::prefix::Prefix;
use oracle::{Answer, Oracle};
use plain::Plain;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A mirror, the tables compiled from it, and a reader.
pub struct World {
    pub mirror: Mirror,
    pub ports: Vec<Option<u32>>,
    /// Links on which only Linux may send.
    pub linux_only: BTreeSet<u32>,
    pub compiler: Compiler,
    pub readers: Readers,
    pub last: Report,
}

pub const UP: u32 = 0x1_0041;
pub const NO_CARRIER: u32 = 0x1;

pub fn link(ifindex: u32, flags: u32) -> Link {
    Link {
        ifindex,
        name: format!("eth{ifindex}").into(),
        hardware: 1,
        mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
        mtu: 1500,
        flags,
        oper_state: 6,
        ..Link::default()
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, last]
}

pub fn unicast(via: Via) -> RouteBody {
    RouteBody { protocol: 4, via, ..RouteBody::default() }
}

pub fn of_kind(kind: RouteKind) -> RouteBody {
    RouteBody { kind, protocol: 4, ..RouteBody::default() }
}

/// Memory that is not available for some tables.
#[derive(Default)]
pub struct Scarce(pub std::sync::Mutex<Vec<Part>>);

impl Scarce {
    pub fn refuse(&self, parts: &[Part]) {
        *self.0.lock().unwrap() = parts.into();
    }
}

impl Memory for Scarce {
    fn source(&self, part: Part) -> Result<bm_fib::Source, OutOfMemory> {
        let refused = self.0.lock().unwrap().contains(&part);
        if refused { Err(OutOfMemory { bytes: 0 }) } else { Ok(bm_fib::Source::anonymous()) }
    }
}

impl World {
    /// Two ports, eth1 and eth2, both up.
    pub fn new() -> Self {
        Self::with_room(Options { next_hops: 1024, group_buckets: 1 << 16, ..Options::default() })
    }

    pub fn with_room(options: Options) -> Self {
        Self::in_memory(options, Arc::new(Anonymous))
    }

    pub fn in_memory(mut options: Options, memory: Arc<dyn Memory>) -> Self {
        // Reverse paths are kept, so that every history checks them as well.
        options.choices.feasible = true;
        let readers = Readers::new();
        let ipv4 = Structure::new::<Plain<u32>>("plain", "a list");
        let ipv6 = Structure::new::<Plain<u128>>("plain", "a list");
        let compiler = Compiler::new_in(&readers, Options { ipv4, ipv6, ..options }, memory).unwrap();
        let ports = vec![Some(1), Some(2)];
        let (mirror, linux_only) = (Mirror::default(), BTreeSet::new());
        let mut world = Self { mirror, ports, linux_only, compiler, readers, last: Report::default() };
        world.compiler.set_ports(world.ports.clone());
        world.tell(Message::Link(link(1, UP)));
        world.tell(Message::Link(link(2, UP)));
        world.mirror.take_changes();
        world.compile_all(&[Change::Everything]);
        world
    }

    pub fn tell(&mut self, message: Message) -> &mut Self {
        self.mirror.apply(message);
        self
    }

    /// Sets the packets that only Linux may handle.
    pub fn only_linux(&mut self, traffic: impl IntoIterator<Item = Traffic>) -> &mut Self {
        let entry = |traffic| LinuxOnly {
            feature: Feature::Nftables,
            traffic,
            repeats: Repeats::EachPacket,
            why: "a rule".into(),
        };
        let list: Vec<_> = traffic.into_iter().map(entry).collect();
        self.compiler.set_linux_only(&list);
        self
    }

    pub fn compile(&mut self) -> &mut Self {
        let changes = self.mirror.take_changes();
        self.compile_all(&changes);
        self
    }

    fn compile_all(&mut self, changes: &[Change]) {
        self.last = self.compiler.apply(&self.mirror, changes).unwrap();
    }

    pub fn route(&mut self, event: RouteEvent, table: u32, prefix: &str, body: RouteBody) -> &mut Self {
        let message = match prefix.parse::<Prefix<u32>>() {
            Ok(prefix) => Message::Route4(RouteMessage { event, table, prefix, body, lifetime: 0 }),
            Err(_) => {
                let prefix = prefix.parse().unwrap();
                Message::Route6(RouteMessage { event, table, prefix, body, lifetime: 0 })
            }
        };
        self.tell(message)
    }

    pub fn add(&mut self, prefix: &str, body: RouteBody) -> &mut Self {
        self.route(RouteEvent::Added, 254, prefix, body)
    }

    pub fn delete(&mut self, prefix: &str, body: RouteBody) -> &mut Self {
        self.route(RouteEvent::Deleted, 254, prefix, body)
    }

    pub fn neighbor(&mut self, ifindex: u32, address: &str, state: u16, mac: Option<[u8; 6]>) -> &mut Self {
        let address = ip(address);
        self.tell(Message::Neighbor(Neighbor { ifindex, address, state, mac, router: false }))
    }

    /// What workers do with a packet of the VRF with this index.
    pub fn answer(&self, vrf: usize, address: IpAddr) -> (Answer, u32) {
        let reader = self.readers.register();
        let tables = self.compiler.published().load(&reader);
        let ifindex_of = |index: u16| tables.interfaces[usize::from(index)].ifindex;
        match address {
            IpAddr::V4(address) => {
                oracle::compiled(&*tables.vrfs[vrf].ipv4, &tables.next_hops, address.into(), ifindex_of)
            }
            IpAddr::V6(address) => {
                oracle::compiled(&*tables.vrfs[vrf].ipv6, &tables.next_hops, address.into(), ifindex_of)
            }
        }
    }

    pub fn to(&self, address: &str) -> Answer {
        self.answer(0, ip(address)).0
    }

    /// The number of the next hop, which changes if routes were touched.
    pub fn hop(&self, address: &str) -> NextHop {
        let reader = self.readers.register();
        let tables = self.compiler.published().load(&reader);
        match ip(address) {
            IpAddr::V4(address) => tables.vrfs[0].ipv4.lookup(address.into()),
            IpAddr::V6(address) => tables.vrfs[0].ipv6.lookup(address.into()),
        }
    }

    /// Checks that the compiler finds no differences and counts correctly.
    pub fn is_sound(&mut self) -> Result<(), String> {
        let comparison = self.compiler.verify(&self.mirror);
        let wrong = comparison.differences.iter().find(|(area, _)| *area == bm_api::Area::Compiled);
        match wrong {
            Some((_, sentence)) => Err(sentence.clone()),
            None => self.users_are_counted(),
        }
    }

    /// Checks that every target has as many users as it counts.
    pub fn users_are_counted(&self) -> Result<(), String> {
        let compiler = &self.compiler;
        let mut users: BTreeMap<Target, u32> = BTreeMap::new();
        let mut count = |target: Target| *users.entry(target).or_default() += 1;
        FixedTarget::ALL.into_iter().for_each(|fixed| count(fixed.target()));
        compiler
            .ipv4
            .shared
            .fib_infos
            .targets()
            .chain(compiler.ipv6.shared.fib_infos.targets())
            .for_each(&mut count);
        for table in compiler.ipv4.vrfs.values() {
            table.neighbor_targets().for_each(&mut count);
        }
        for table in compiler.ipv6.vrfs.values() {
            table.neighbor_targets().for_each(&mut count);
        }
        for (_, entry) in compiler.targets.iter() {
            if let targets::State::Members(members) = &entry.state {
                members.iter().for_each(|member| count(member.target));
            }
        }
        let counted: BTreeMap<_, _> = compiler.targets.iter().map(|(at, entry)| (at, entry.users)).collect();
        if counted == users { Ok(()) } else { Err(format!("{counted:?} should be {users:?}")) }
    }

    /// Compares all VRFs with the oracle at these addresses.
    pub fn agree(&self, addresses: &[IpAddr]) -> Result<(), String> {
        let oracle = Oracle {
            mirror: &self.mirror,
            ports: &self.ports,
            linux_only: &self.linux_only,
            own_gateways: &self.compiler.interfaces().own_gateways,
        };
        for (index, vrf) in oracle.vrfs().into_iter().enumerate() {
            for address in addresses {
                let (wanted, mtu) = match *address {
                    IpAddr::V4(address) => oracle.answer(self.mirror.ipv4(), vrf, u32::from(address)),
                    IpAddr::V6(address) => oracle.answer(self.mirror.ipv6(), vrf, u128::from(address)),
                };
                let (got, got_mtu) = self.answer(index, *address);
                let sent = matches!(wanted, Answer::Forward { .. } | Answer::Resolve(..));
                if !oracle::same(&wanted, &got) || sent && mtu != got_mtu {
                    return Err(format!(
                        "{address} in VRF {vrf:?}: Linux {wanted:?} mtu {mtu}, compiled {got:?} mtu {got_mtu}"
                    ));
                }
            }
        }
        Ok(())
    }
}
