//! Relays: servers that forward frames between nodes that have no link to each other, as in an n-fly.
//!
//! ```text
//! node ══ up ─► [bm_relay] ─► relay ─► .. ─► relay ─► [bm_relay] ─ down ══ node
//!          ▲ one end of a pair of interfaces for each other node, whose other end is the fabric link
//! ```
//!
//! A relay is a program with a table of links, pinned in bpffs. It has no daemon and no state. A node in an n-fly has such a
//! program between its fabric links, which are virtual then, and the cables that all of them share.

use std::fmt;
use std::io;
use std::str::FromStr;

use bm_bpf::{PinnedLink, Pins};
use bm_sys::{Flag, Interfaces};
use bm_vlb::address::Node;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramMut};

use crate::error::ClusterError;
use crate::pins;

/// The object file with the program, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/relay.bpf.o"));
/// Its name, which ends in the version of the layout.
const PROGRAM: &str = "bm_relay_1";
/// Number of counters: `RELAY_COUNTERS` of `layout.h`.
const KINDS: usize = 6;
/// Instead of a node: there is none on this server.
const NO_NODE: u32 = 0x7ff;

/// The names of the counters, in the order of `layout.h`.
pub const RELAY_COUNTERS: [&str; KINDS] =
    ["packets", "control", "bytes", "other", "drop_malformed", "drop_link"];

/// An interface of a relay, written as `DEVICE` or `DEVICE=NODES`, such as `eth1=0-3,7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLink {
    pub device: String,
    /// Frames for these nodes leave by it.
    pub nodes: Vec<Node>,
}

impl FromStr for RelayLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, nodes) = text.split_once('=').unwrap_or((text, ""));
        let mut all = Vec::new();
        for part in nodes.split(',').filter(|_| !nodes.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match [first, last].map(|text| text.parse().ok().and_then(Node::new)) {
                [Some(first), Some(last)] if first <= last => {
                    all.extend((first.number()..=last.number()).filter_map(Node::new));
                }
                _ => return Err(format!("{part:?}: expected node numbers up to 2046, such as 0-3,7")),
            }
        }
        if device.is_empty() {
            return Err("expected DEVICE or DEVICE=NODES, such as eth1=0-3,7".into());
        }
        Ok(Self { device: device.into(), nodes: all })
    }
}

/// What a relay does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelaySettings {
    /// Its interfaces to other servers.
    pub links: Vec<RelayLink>,
    /// The node of the cluster on this server.
    pub own: Option<Node>,
    /// With a node: the interface for each other node, at whose other end is the fabric link to it.
    pub ends: Vec<RelayLink>,
}

impl RelaySettings {
    /// What is wrong, if anything is.
    pub fn problem(&self) -> Option<String> {
        let all: Vec<_> = self.links.iter().chain(&self.ends).collect();
        for (at, link) in all.iter().enumerate() {
            if all[..at].iter().any(|other| other.device == link.device) {
                return Some(format!("{} is named twice: name each interface once", link.device));
            }
        }
        let nodes: Vec<_> = self.links.iter().flat_map(|link| &link.nodes).collect();
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].contains(node) {
                return Some(format!("two links lead to node {}: name it at one of them", node.number()));
            }
        }
        if let Some(end) = self.ends.iter().find(|end| end.nodes.len() != 1) {
            return Some(format!("{}: the end of a fabric link is for one node: DEVICE=NODE", end.device));
        }
        let others: Vec<_> = self.ends.iter().flat_map(|end| &end.nodes).collect();
        for (at, node) in others.iter().enumerate() {
            if Some(**node) == self.own {
                return Some(format!(
                    "node {} is this one: fabric links lead to the other nodes",
                    node.number()
                ));
            }
            if others[..at].contains(node) {
                return Some(format!(
                    "two fabric links lead to node {}: name it at one of them",
                    node.number()
                ));
            }
        }
        if self.own.is_none() != self.ends.is_empty() {
            return Some("give --own and --end together or not at all".into());
        }
        self.links.is_empty().then(|| "a relay needs links: name its interfaces with --link".into())
    }
}

/// What a relay has counted of the frames from one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayCounts {
    pub device: String,
    counts: [u64; KINDS],
}

impl RelayCounts {
    /// All counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RELAY_COUNTERS.into_iter().zip(self.counts)
    }
}

/// The program before it is on interfaces, with its maps.
struct Program {
    object: Object,
    interfaces: Interfaces,
}

impl Program {
    fn load() -> Result<Self, bm_bpf::Error> {
        let failed = bm_bpf::Error::program("loading the program of a relay");
        let mut builder = ObjectBuilder::default();
        let object = builder.open_memory(OBJECT).and_then(libbpf_rs::OpenObject::load).map_err(failed)?;
        let failed = bm_bpf::Error::system("opening a socket to query interfaces");
        Ok(Self { object, interfaces: Interfaces::open().map_err(failed)? })
    }

    fn map(&self, name: &str) -> Result<MapHandle, bm_bpf::Error> {
        let map = self.object.maps().find(|map| map.name() == name).expect("the program has this map");
        MapHandle::try_from(&map).map_err(bm_bpf::Error::program("finding the maps of a relay"))
    }

    fn set(&self, map: &str, key: Node, value: u32) -> Result<(), bm_bpf::Error> {
        let (key, value) = (u32::from(key.number()).to_ne_bytes(), value.to_ne_bytes());
        let failed = bm_bpf::Error::program("setting the links of a relay");
        self.map(map)?.update(&key, &value, MapFlags::ANY).map_err(failed)
    }

    /// The indices of the interfaces; counts what comes from them.
    fn find(&self, links: &[RelayLink]) -> Result<Vec<u32>, ClusterError> {
        let counts = self.map("relay_counts")?;
        let interfaces = links.iter().map(|link| {
            let ifindex = bm_sys::interface::index(&link.device)
                .ok_or_else(|| ClusterError::Settings(format!("there is no interface {}", link.device)))?;
            let failed = bm_bpf::Error::program("adding the counters of a relay");
            bm_bpf::reset_counters(&counts, &ifindex.to_ne_bytes()).map_err(failed)?;
            if !is_veth(&self.interfaces, &link.device) {
                let failed = bm_bpf::Error::system("making an interface of a relay promiscuous");
                self.interfaces.set_flag(&link.device, Flag::Promiscuous, true).map_err(failed)?;
            }
            Ok(ifindex)
        });
        interfaces.collect()
    }

    fn fill(&self, settings: &RelaySettings) -> Result<Vec<u32>, ClusterError> {
        let (mut links, ends) = (self.find(&settings.links)?, self.find(&settings.ends)?);
        let own = settings.own.map_or(NO_NODE, |node| node.number().into());
        let failed = bm_bpf::Error::program("setting the node of a relay");
        self.map("own")?.update(&0u32.to_ne_bytes(), &own.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        for (link, ifindex) in settings.links.iter().zip(&links) {
            link.nodes.iter().try_for_each(|node| self.set("towards", *node, *ifindex))?;
        }
        for (end, ifindex) in settings.ends.iter().zip(&ends) {
            end.nodes.iter().try_for_each(|node| self.set("arrivals", *node, *ifindex))?;
        }
        links.extend(ends);
        Ok(links)
    }

    fn xdp_program(&mut self) -> ProgramMut<'_> {
        let mut programs = self.object.progs_mut();
        programs.find(|program| program.name() == PROGRAM).expect("the object has this program")
    }
}

/// Makes this server a relay, or changes one: frames pass by the old table or by the new one.
///
/// # Errors
/// If the settings contradict each other, an interface is missing, or the kernel rejects the program.
pub fn start_relay(settings: &RelaySettings) -> Result<(), ClusterError> {
    if let Some(problem) = settings.problem() {
        return Err(ClusterError::Settings(problem));
    }
    let pins = claim()?;
    let mut earlier = pins.links();
    let mut program = Program::load()?;
    for ifindex in program.fill(settings)? {
        let ours = earlier.iter().position(|pinned| pinned.ifindex == ifindex);
        match ours.map(|at| earlier.swap_remove(at)) {
            Some(mut pinned) => {
                let failed = bm_bpf::Error::program("changing the program of a relay");
                pinned.link.update_prog(&program.xdp_program()).map_err(failed)?;
            }
            None => drop(pins.pin(ifindex, &mut attach(&mut program, ifindex)?)?),
        }
    }
    earlier.into_iter().for_each(|pinned| release(&program.interfaces, pinned));
    Ok(())
}

fn attach(program: &mut Program, ifindex: u32) -> Result<Link, bm_bpf::Error> {
    let name = bm_sys::interface::name(ifindex).unwrap_or_default();
    let failed = bm_bpf::Error::attach("attaching the program of a relay", ifindex, &name);
    program.xdp_program().attach_xdp(ifindex.cast_signed()).map_err(failed)
}

/// What this server's relay has counted; empty if it is not a relay.
///
/// # Errors
/// If bpffs cannot be read.
pub fn relay_counts() -> Result<Vec<RelayCounts>, ClusterError> {
    Ok(claim()?
        .links()
        .iter()
        .filter_map(|pinned| {
            let counts = pinned.program.map("relay_counts")?;
            let counts = bm_bpf::sum_counters(&counts, &pinned.ifindex.to_ne_bytes()).ok()??;
            Some(RelayCounts { device: bm_sys::interface::name(pinned.ifindex).ok()?, counts })
        })
        .collect())
}

/// Ends this server's relay. Returns how many interfaces it had.
///
/// # Errors
/// If bpffs cannot be read.
pub fn stop_relay() -> Result<usize, ClusterError> {
    let failed = bm_bpf::Error::system("opening a socket to query interfaces");
    let interfaces = Interfaces::open().map_err(failed)?;
    let links = claim()?.links();
    let count = links.len();
    links.into_iter().for_each(|pinned| release(&interfaces, pinned));
    Ok(count)
}

/// Removes the program from an interface.
fn release(interfaces: &Interfaces, pinned: PinnedLink) {
    if let Ok(name) = bm_sys::interface::name(pinned.ifindex)
        && !is_veth(interfaces, &name)
    {
        // The interface may be gone by now.
        let _gone = interfaces.set_flag(&name, Flag::Promiscuous, false);
    }
    pinned.remove();
}

/// Whether it receives all frames anyway; others are promiscuous.
fn is_veth(interfaces: &Interfaces, name: &str) -> bool {
    matches!(interfaces.driver(name).as_deref(), Ok("veth"))
}

fn claim() -> Result<Pins, bm_bpf::Error> {
    let failed = bm_bpf::Error::system("using the relay's folder in bpffs");
    pins::claim_of_relays().map_err(io::Error::other).map_err(failed)
}

impl fmt::Display for RelayLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.number().to_string()).collect();
        write!(f, "{}={}", self.device, nodes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bm_vlb::address::{Destination, NotFabric, Port, Source, To};
    use bm_vlb::membership::Epoch;
    use bm_wire::Mac;
    use libbpf_rs::ProgramInput;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    const DROP: u32 = 1;
    const PASS: u32 = 2;
    const REDIRECT: u32 = 4;

    fn link(text: &str) -> RelayLink {
        text.parse().expect("a link")
    }

    fn node(number: u16) -> Node {
        Node::new(number).expect("small")
    }

    /// The program of a relay on node 5; `None` where BPF is not allowed.
    fn on_node_5() -> Option<Program> {
        let program =
            Program::load().inspect_err(|why| eprintln!("skipped: needs root for BPF: {why}")).ok()?;
        bm_bpf::reset_counters(&program.map("relay_counts").unwrap(), &1u32.to_ne_bytes()).unwrap();
        let own = program.map("own").unwrap();
        own.update(&0u32.to_ne_bytes(), &5u32.to_ne_bytes(), MapFlags::ANY).unwrap();
        Some(program)
    }

    /// What the program of a relay on node 5 does with a frame that the loopback has received, and what is counted.
    fn passes(program: &mut Program, to: u16, via: Option<u16>, kind: To) -> (u32, &'static str) {
        let port = Port::new(0).expect("small");
        let to = Destination { epoch: Epoch::new(9), output: node(to), port, to: kind };
        let from = Source { input: node(7), via: via.map(node), sample: None };
        passes_with(program, to.mac(), from.mac())
    }

    /// The verdict on a frame with these addresses, and what is counted.
    fn passes_with(program: &mut Program, to: Mac, from: Mac) -> (u32, &'static str) {
        let frame = [&to.0[..], &from.0, &[8, 0], &[0xff; 46]].concat();
        let counts = |program: &Program| {
            let counts: Option<[u64; KINDS]> =
                bm_bpf::sum_counters(&program.map("relay_counts").unwrap(), &1u32.to_ne_bytes()).unwrap();
            counts.unwrap()
        };
        let (before, mut out) = (counts(program), vec![0; frame.len() + 256]);
        let input =
            ProgramInput { data_in: Some(&frame), data_out: Some(&mut out), ..ProgramInput::default() };
        let verdict = program.xdp_program().test_run(input).unwrap().return_value;
        assert_eq!(out[..frame.len()], frame, "a relay changes nothing");
        let after = counts(program);
        let counted = RELAY_COUNTERS.into_iter().zip(after.iter().zip(before));
        let mut counted = counted.filter(|(name, (after, before))| *name != "bytes" && **after != *before);
        let first = counted.next().map_or("", |(name, _)| name);
        assert_eq!(counted.next(), None, "a frame counts once");
        (verdict, first)
    }

    #[test]
    fn frames_go_towards_the_intermediate_then_the_output_node() {
        let Some(mut program) = on_node_5() else { return };
        // Test runs send nothing: any interface but that of the frame will do.
        program.set("towards", node(1), 2).unwrap();
        program.set("towards", node(2), 1).unwrap();
        program.set("arrivals", node(7), 3).unwrap();
        let frame = To::Neighbor(8);
        assert_eq!(passes(&mut program, 1, None, frame), (REDIRECT, "packets"));
        assert_eq!(passes(&mut program, 3, Some(1), frame), (REDIRECT, "packets"));
        assert_eq!(passes(&mut program, 1, Some(3), frame), (DROP, "drop_link"));
        assert_eq!(passes(&mut program, 1, None, To::Control), (REDIRECT, "control"));
        assert_eq!(passes(&mut program, 5, None, frame), (REDIRECT, "packets"), "for the node here");
        assert_eq!(passes(&mut program, 1, Some(5), frame), (REDIRECT, "packets"), "over the node here");
        assert_eq!(passes(&mut program, 2, None, frame), (DROP, "drop_link"), "back where it came from");
        program.set("arrivals", node(7), 0).unwrap();
        assert_eq!(passes(&mut program, 5, None, frame), (DROP, "drop_link"));
    }

    /// The verdict and the counter, by the parsers of both addresses, where the relay knows nodes 1 to 3 by other interfaces and
    /// node 5 gets frames of nodes 6 and 7.
    fn expected(to: Mac, from: Mac) -> (u32, &'static str) {
        let (to, from) = (Destination::parse(to), Source::parse(from));
        let foreign = [to.as_ref().err(), from.as_ref().err()];
        if foreign.iter().flatten().any(|why| **why != NotFabric::Reserved) {
            return (PASS, "other");
        }
        let (Ok(to), Ok(from)) = (to, from) else { return (DROP, "drop_malformed") };
        let out = match from.via.unwrap_or(to.output).number() {
            5 => (6..8).contains(&from.input.number()),
            next => (1..4).contains(&next),
        };
        match (out, to.to) {
            (false, _) => (DROP, "drop_link"),
            (true, To::Control) => (REDIRECT, "control"),
            (true, _) => (REDIRECT, "packets"),
        }
    }

    /// Somebody on a cable who knows the format: fields of any value, and flipped bits.
    #[test]
    fn made_up_addresses_lead_nowhere_else() {
        let Some(program) = on_node_5() else { return };
        // The frames come by interface 1.
        (0..4).for_each(|to| program.set("towards", node(to), 1 + u32::from(to)).unwrap());
        (6..8).for_each(|from| program.set("arrivals", node(from), 9).unwrap());
        let kind = prop_oneof![
            any::<u16>().prop_map(To::Neighbor),
            Just(To::Resolve),
            Just(To::Host),
            Just(To::Control)
        ];
        let fields = (0..9u16, 0..9u16, 0..9u16, any::<u8>(), kind);
        let flips = proptest::collection::vec(0..96usize, 0..3);
        let program = RefCell::new(program);
        let attacked =
            TestRunner::new(Config { cases: 20_000, failure_persistence: None, ..Config::default() }).run(
                &(fields, flips),
                |((output, input, via, epoch, to), flips)| {
                    let port = Port::new(epoch & 7).expect("small");
                    let to = Destination { epoch: Epoch::new(epoch), output: node(output), port, to };
                    let via = Some(node(via)).filter(|via| via.number() < 8);
                    let mut macs = [to.mac(), Source { input: node(input), via, sample: None }.mac()];
                    flips.into_iter().for_each(|bit| macs[bit / 48].0[bit % 48 / 8] ^= 1 << (bit % 8));
                    let [to, from] = macs;
                    let passed = passes_with(&mut program.borrow_mut(), to, from);
                    prop_assert_eq!(passed, expected(to, from), "{:?} {:?}", to, from);
                    Ok(())
                },
            );
        attacked.unwrap();
    }

    #[test]
    fn reads_links() {
        assert_eq!(link("eth1=0-2,7").to_string(), "eth1=0,1,2,7");
        assert_eq!((link("down").device, link("down").nodes), ("down".into(), Vec::new()));
        for text in ["", "=1", "eth1=", "eth1=3-1", "eth1=x", "eth1=2047", "eth1=1,,2"] {
            assert_eq!(text.parse::<RelayLink>().is_ok(), text == "eth1=", "{text}");
        }
    }

    #[test]
    fn reports_what_contradicts() {
        let settings = |links: &[&str], own: Option<u16>, ends: &[&str]| RelaySettings {
            links: links.iter().map(|text| link(text)).collect(),
            own: own.and_then(Node::new),
            ends: ends.iter().map(|text| link(text)).collect(),
        };
        let problem = |links: &[&str], own, ends: &[&str]| settings(links, own, ends).problem();
        assert_eq!(problem(&["up=0-7", "down"], Some(8), &["e0=0", "e1=1"]), None);
        let said = |problem: Option<String>, part: &str| problem.is_some_and(|text| text.contains(part));
        assert!(said(problem(&[], None, &[]), "needs links"));
        assert!(said(problem(&["up=0-3", "up=4"], None, &[]), "up is named twice"));
        assert!(said(problem(&["up=0-3", "down=3"], None, &[]), "two links lead to node 3"));
        assert!(said(problem(&["up=0-3"], Some(8), &["e0=0-1"]), "e0: the end"));
        assert!(said(problem(&["up=0-3"], Some(8), &[]), "together or not at all"));
        assert!(said(problem(&["up=0-3"], Some(8), &["e8=8"]), "node 8 is this one"));
        assert!(said(problem(&["up=0-3"], Some(8), &["e0=0", "e9=0"]), "two fabric links lead to node 0"));
    }
}
