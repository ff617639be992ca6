//! The settings of a node: the members, the links to them, and the external ports.

use std::path::PathBuf;

use bm_vlb::address::{Node, Port};
use bm_vlb::membership::Epoch;
use bm_vlb::quota::Mode;

/// Settings of this node and of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of this node, one of the members.
    pub name: String,
    /// Number of the membership: the same on all nodes, changed with each change of the members.
    pub epoch: Epoch,
    /// File with the shared key.
    pub key_file: PathBuf,
    /// How workers distribute packets for other nodes.
    pub balancing: Mode,
    /// The gap after which a flow may take another way, in microseconds; `None`: as measured delays require.
    pub flowlet_gap_us: Option<u32>,
    /// Whether the links to other nodes lead over relays, which mix their frames: none are then compared with those sent.
    pub relays: bool,
    /// The members, including this node.
    pub members: Vec<Member>,
    /// Links to other nodes.
    pub links: Vec<FabricLink>,
    /// External ports of this node.
    pub ports: Vec<ExternalPort>,
    /// Where the members and the epoch come from; `None`: they are configured.
    pub store: Option<StoreSettings>,
}

/// The store from which the members come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub etcd: bm_etcd::Settings,
    /// What all keys begin with.
    pub prefix: String,
    /// The number that this node asks for; `None`: the first that is free.
    pub node: Option<Node>,
    /// File with a copy of the members, with which the daemon starts while the store cannot be reached.
    pub copy: PathBuf,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// Its number.
    pub node: Node,
}

/// A link to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricLink {
    /// Interface on this node.
    pub device: String,
    /// Name of the member at the other end.
    pub peer: String,
    /// Its speed in Mbit/s.
    pub speed: u32,
}

/// A port through which packets enter and leave the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalPort {
    /// Interface; also a port of the router.
    pub device: String,
    /// Its number on this node.
    pub number: Port,
    /// Its speed in Mbit/s.
    pub speed: u32,
    /// What is announced of its neighbors.
    pub limits: Limits,
}

impl Default for ExternalPort {
    fn default() -> Self {
        Self { device: String::new(), number: Port::default(), speed: SPEED, limits: Limits::default() }
    }
}

/// What a node announces of the neighbors of an external port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether those that have answered; if not, only permanent ones (`ip neighbor add .. nud permanent`).
    pub learns: bool,
    /// How many at most.
    pub neighbors: u32,
    /// How many addresses with one MAC at most.
    pub addresses_per_mac: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { learns: true, neighbors: 4096, addresses_per_mac: 64 }
    }
}

/// What is wrong with settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(
        "`name` in [cluster] is not the name of any [[cluster.member]]: this node must be one of the \
         members"
    )]
    NotAMember,
    #[error("two members are named {0:?}")]
    NameTwice(String),
    #[error("the members {0:?} and {1:?} have the same number {2}; numbers must be unique")]
    NumberTwice(String, String, u16),
    #[error(
        "`peer` of the fabric link {0} is {1:?}, which is not a member: add it as a [[cluster.member]], or \
         correct `peer`"
    )]
    UnknownPeer(String, String),
    #[error("`peer` of the fabric link {0} is this node itself; it must be another member")]
    OwnPeer(String),
    #[error("{0} is configured twice: an interface can be one fabric link or one external port")]
    DeviceTwice(String),
    #[error(
        "the fabric links {0} and {1} both have peer {2:?}: several links between two nodes are not \
         supported yet"
    )]
    PeerTwice(String, String, String),
    #[error(
        "there is no [[cluster.fabric]] with peer = {0:?}: nodes form a full mesh, so each needs a link to \
         every other node"
    )]
    NoLink(String),
    #[error("the external ports {0} and {1} have the same number {2}")]
    PortTwice(String, String, u8),
    #[error("there is only one [[cluster.member]]: a cluster needs at least two")]
    Alone,
    #[error(
        "`{0}` in [cluster] cannot be used with [cluster.store], from which the members and the epoch \
         come: remove one of them"
    )]
    WithStore(&'static str),
    #[error("the member {0:?} has the number {1}: with a store, numbers are below {ROOM_WITH_STORE}")]
    NumberTooLarge(String, u16),
}

/// Speed of links and ports for which none is configured, in Mbit/s.
pub const SPEED: u32 = 10_000;

/// With a store, numbers of nodes are below this: workers have room for so many.
pub const ROOM_WITH_STORE: u16 = 256;
/// Without one there is room for so many, or the next power of two.
const ROOM_MIN: usize = 16;

/// Default path of the shared key.
const KEY_FILE: &str = "/etc/brickmoon/cluster.key";
/// What keys in the store begin with by default.
pub const PREFIX: &str = "/brickmoon/";
/// Default path of the copy of the members.
pub const COPY: &str = "/var/lib/brickmoon/members";

impl Settings {
    /// A node with default settings, without members, links and ports.
    pub fn new(name: String) -> Self {
        Self {
            name,
            epoch: Epoch::default(),
            key_file: KEY_FILE.into(),
            balancing: Mode::DirectOnly,
            flowlet_gap_us: None,
            relays: false,
            members: Vec::new(),
            links: Vec::new(),
            ports: Vec::new(),
            store: None,
        }
    }

    /// What the external ports of this node receive at most, in bits per second.
    pub fn input_bps(&self) -> u64 {
        self.ports.iter().map(|port| u64::from(port.speed) * 1_000_000).sum()
    }

    /// All nodes have numbers below this.
    pub fn nodes(&self) -> usize {
        self.members.iter().map(|member| member.node.index() + 1).max().unwrap_or(0)
    }

    /// For how many nodes there is room, so that members can change.
    pub fn room(&self) -> usize {
        match self.store {
            Some(_) => ROOM_WITH_STORE.into(),
            None => self.nodes().max(ROOM_MIN).next_power_of_two(),
        }
    }

    /// Whether other settings can replace these while packets pass: nothing but the other members and the epoch may differ.
    pub fn differs_in_members_only(&self, other: &Self) -> bool {
        let members = (self.members.clone(), self.epoch);
        let same = Self { members: members.0, epoch: members.1, ..other.clone() };
        same == *self && self.own() == other.own() && other.nodes() <= self.room()
    }

    /// Whether packets take other ways than the link to their output node.
    pub fn uses_intermediates(&self) -> bool {
        self.balancing != Mode::DirectOnly
    }

    /// The number of this node; `None` if it is not a member.
    pub fn own(&self) -> Option<Node> {
        self.member(&self.name).map(|member| member.node)
    }

    /// The member of this name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Everything that is wrong with these settings on any machine.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.problems_of_members();
        problems.extend(self.problems_of_links());
        for (at, port) in self.ports.iter().enumerate() {
            if let Some(other) = self.ports[..at].iter().find(|other| other.number == port.number) {
                let (one, two) = (other.device.clone(), port.device.clone());
                problems.push(Problem::PortTwice(one, two, port.number.number()));
            }
        }
        let devices: Vec<_> = self.devices().collect();
        for (at, device) in devices.iter().enumerate() {
            if devices[..at].contains(device) {
                problems.push(Problem::DeviceTwice((*device).into()));
            }
        }
        problems
    }

    fn devices(&self) -> impl Iterator<Item = &str> {
        let links = self.links.iter().map(|link| link.device.as_str());
        links.chain(self.ports.iter().map(|port| port.device.as_str()))
    }

    fn problems_of_members(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        // As configured, members that come from a store are not known.
        if self.store.is_some() && self.members.is_empty() {
            return problems;
        }
        if self.own().is_none() {
            problems.push(Problem::NotAMember);
        } else if self.members.len() < 2 && self.store.is_none() {
            problems.push(Problem::Alone);
        }
        let room = if self.store.is_some() { ROOM_WITH_STORE } else { Node::COUNT };
        for member in self.members.iter().filter(|member| member.node.number() >= room) {
            problems.push(Problem::NumberTooLarge(member.name.clone(), member.node.number()));
        }
        for (at, member) in self.members.iter().enumerate() {
            for other in &self.members[..at] {
                if other.name == member.name {
                    problems.push(Problem::NameTwice(member.name.clone()));
                } else if other.node == member.node {
                    let (one, two) = (other.name.clone(), member.name.clone());
                    problems.push(Problem::NumberTwice(one, two, member.node.number()));
                }
            }
        }
        problems
    }

    fn problems_of_links(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (at, link) in self.links.iter().enumerate() {
            let (device, peer) = (link.device.clone(), link.peer.clone());
            if peer == self.name {
                problems.push(Problem::OwnPeer(device));
            } else if self.member(&peer).is_none() && self.store.is_none() {
                problems.push(Problem::UnknownPeer(device, peer));
            } else if let Some(other) = self.links[..at].iter().find(|other| other.peer == peer) {
                problems.push(Problem::PeerTwice(other.device.clone(), device, peer));
            }
        }
        for member in self.members.iter().filter(|member| member.name != self.name) {
            if self.store.is_none() && !self.links.iter().any(|link| link.peer == member.name) {
                problems.push(Problem::NoLink(member.name.clone()));
            }
        }
        problems
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Node `a` of three, with a link to each other one.
    pub(crate) fn settings() -> Settings {
        let member =
            |name: &str, number| Member { name: name.into(), node: Node::new(number).expect("small") };
        let link =
            |device: &str, peer: &str| FabricLink { device: device.into(), peer: peer.into(), speed: SPEED };
        Settings {
            name: "a".into(),
            epoch: Epoch::new(1),
            key_file: "/etc/brickmoon/cluster.key".into(),
            balancing: Mode::DirectOnly,
            flowlet_gap_us: None,
            relays: false,
            members: vec![member("a", 0), member("b", 1), member("c", 2)],
            links: vec![link("fab1", "b"), link("fab2", "c")],
            ports: vec![ExternalPort {
                device: "ext0".into(),
                number: Port::new(0).expect("small"),
                speed: SPEED,
                limits: Limits::default(),
            }],
            store: None,
        }
    }

    fn problems(change: impl FnOnce(&mut Settings)) -> Vec<Problem> {
        let mut settings = settings();
        change(&mut settings);
        settings.problems()
    }

    #[test]
    fn reports_each_problem() {
        assert_eq!(problems(|_| ()), []);
        assert_eq!(problems(|all| all.name = "d".into()), [Problem::NotAMember, Problem::NoLink("a".into())]);
        assert_eq!(
            problems(|all| all.members[2].node = all.members[1].node),
            [Problem::NumberTwice("b".into(), "c".into(), 1)]
        );
        let expected = [Problem::UnknownPeer("fab2".into(), "x".into()), Problem::NoLink("c".into())];
        assert_eq!(problems(|all| all.links[1].peer = "x".into()), expected);
        assert_eq!(
            problems(|all| all.links[1].peer = "a".into()),
            [Problem::OwnPeer("fab2".into()), Problem::NoLink("c".into())]
        );
        let expected =
            [Problem::PeerTwice("fab1".into(), "fab2".into(), "b".into()), Problem::NoLink("c".into())];
        assert_eq!(problems(|all| all.links[1].peer = "b".into()), expected);
        assert_eq!(
            problems(|all| all.ports[0].device = "fab1".into()),
            [Problem::DeviceTwice("fab1".into())]
        );
        assert_eq!(
            problems(|all| all.ports.push(ExternalPort { device: "ext1".into(), ..all.ports[0].clone() })),
            [Problem::PortTwice("ext0".into(), "ext1".into(), 0)]
        );
        assert_eq!(
            problems(|all| {
                all.members.truncate(1);
                all.links.clear();
            }),
            [Problem::Alone]
        );
        assert_eq!(
            problems(|all| {
                all.members.push(Member { node: Node::new(9).expect("small"), ..all.members[1].clone() })
            }),
            [Problem::NameTwice("b".into())]
        );
    }
}
