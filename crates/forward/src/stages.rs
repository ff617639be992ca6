//! The stages: all that the router does with a packet, one packet at a time.
//!
//! ```text
//! frame -> input -> validate -> look up -> (hook) -> source -> rewrite -> port
//!            '---------'-----------'---------'----------'----> refused: slow path, or drop
//! ```
//!
//! Most packets go through [`crate::fast`], which does the same for packets of the ordinary kind. What it leaves comes
//! here, and so do all packets where a hook decides behind the lookup. A refused frame is unchanged.

mod facts;
mod fragment;
pub(crate) mod hop_by_hop;
pub(crate) mod input;
pub(crate) mod rewrite;
pub(crate) mod source;
pub(crate) mod validate;

use bm_fib::NextHop;
use bm_frame::{BURST, Frame, Mask};
use bm_graph::Stage;
use bm_wire::Family;

pub(crate) use facts::Facts;
pub(crate) use fragment::NextHeaders;

use crate::burst::{InputPort, RoutedBurst};
use crate::compiled::Ingress;
use crate::hook::{Hooks, TableRoutes};
use crate::tables::Tables;
use crate::verdict::Refusal;
use input::Arrival;
use validate::Packet;

/// How far ahead of the frame that is processed frames are prefetched.
const AHEAD: usize = 8;

/// A packet that may be routed.
#[derive(Clone, Copy)]
enum IpPacket {
    V4(Packet<u32>),
    V6(Packet<u128>),
}

/// A packet between validation and rewriting.
#[derive(Clone, Copy)]
struct RoutedPacket {
    arrival: Arrival,
    packet: IpPacket,
    next_hop: NextHop,
}

/// The packets of a burst between the lookup and what comes after it.
pub(crate) struct Stages {
    packets: Box<[Option<RoutedPacket>; BURST]>,
    /// The places of packets of either family.
    ipv4: Mask,
    ipv6: Mask,
}

impl Stages {
    pub fn new() -> Self {
        Self { packets: Box::new([None; BURST]), ipv4: Mask::NONE, ipv6: Mask::NONE }
    }

    /// Routes the frames at these places: afterwards each is refused, or rewritten and has its port.
    #[inline(never)]
    pub fn route(
        &mut self,
        from: &InputPort<'_>,
        places: &Mask,
        burst: &mut RoutedBurst,
        hooks: Option<&mut Hooks>,
    ) {
        self.look_up_all(from, places, burst);
        let mut hooks = hooks.filter(|hooks| hooks.has(Stage::Lookup));
        if let Some(hooks) = hooks.as_deref_mut() {
            self.run_hook(from, burst, hooks);
        }
        for place in self.ipv4.or(&self.ipv6).iter() {
            let (Some(packet), Some(frame)) = (&self.packets[place], burst.frames.get_mut(place)) else {
                continue;
            };
            match send(from.tables, packet, frame) {
                Ok(port) => burst.ports[place] = port,
                Err(why) => {
                    let chosen = hooks.as_ref().is_some_and(|hooks| hooks.chose(place));
                    burst.refuse(place, why, chosen.then_some(packet.next_hop));
                }
            }
        }
    }

    fn look_up_all(&mut self, from: &InputPort<'_>, places: &Mask, burst: &mut RoutedBurst) {
        (self.ipv4, self.ipv6) = (Mask::NONE, Mask::NONE);
        let RoutedBurst { frames, refused, .. } = burst;
        for place in places.iter() {
            if let Some(later) = frames.get(place + AHEAD) {
                later.prefetch();
            }
            let Some(frame) = frames.get(place) else { continue };
            match look_up(from, frame.data()) {
                Ok(packet) => {
                    match packet.packet {
                        IpPacket::V4(_) => self.ipv4.set(place),
                        IpPacket::V6(_) => self.ipv6.set(place),
                    }
                    self.packets[place] = Some(packet);
                }
                Err(why) => refused.add(place, why),
            }
        }
    }

    /// Shows the hook the packets of each family, with their next hops.
    #[cold]
    fn run_hook(&mut self, from: &InputPort<'_>, burst: &mut RoutedBurst, hooks: &mut Hooks) {
        let routes = TableRoutes::of(from.tables, from.number);
        let mut next_hops =
            std::array::from_fn(|place| self.packets[place].map_or(NextHop::NONE, |packet| packet.next_hop));
        for (family, mask) in [(Family::V4, &mut self.ipv4), (Family::V6, &mut self.ipv6)] {
            if !mask.is_empty() {
                let RoutedBurst { frames, refused, .. } = burst;
                hooks.lookup(&routes, family, frames, mask, &mut next_hops, refused);
            }
        }
        for (packet, next_hop) in self.packets.iter_mut().zip(next_hops) {
            if let Some(packet) = packet {
                packet.next_hop = next_hop;
            }
        }
    }
}

/// Routes one frame: the port through which it leaves, or why it is refused.
pub(crate) fn route_one(from: &InputPort<'_>, frame: &mut Frame) -> Result<u16, Refusal> {
    let packet = look_up(from, frame.data())?;
    send(from.tables, &packet, frame)
}

/// The stages up to the lookup.
fn look_up(from: &InputPort<'_>, frame: &[u8]) -> Result<RoutedPacket, Refusal> {
    let InputPort { tables, view, .. } = *from;
    let arrival = input::classify(&tables.compiled, view, frame)?;
    let bytes = frame.get(usize::from(arrival.network)..).unwrap_or(&[]);
    let packet = match arrival.family {
        Family::V4 => IpPacket::V4(validate::ipv4(bytes)?),
        Family::V6 => IpPacket::V6(validate::ipv6(bytes)?),
    };
    let vrf = ingress(tables, &arrival).and_then(|on| tables.vrfs.get(usize::from(on.vrf)));
    let next_hop = match (vrf, &packet) {
        (None, _) => NextHop::NONE,
        (Some(vrf), IpPacket::V4(packet)) => vrf.ipv4.lookup(packet.destination),
        (Some(vrf), IpPacket::V6(packet)) => vrf.ipv6.lookup(packet.destination),
    };
    Ok(RoutedPacket { arrival, packet, next_hop })
}

/// The stages from the lookup on: after hooks, which may forward what no route does.
fn send(tables: &Tables, routed: &RoutedPacket, frame: &mut Frame) -> Result<u16, Refusal> {
    let RoutedPacket { arrival, packet, next_hop } = routed;
    match packet {
        IpPacket::V4(packet) => {
            let entry = tables.next_hops.entry(*next_hop);
            if entry.is_forward() || entry.is_group() {
                check_source(tables, arrival, packet.source)?;
            }
            rewrite::rewrite::<u32>(tables, *next_hop, packet.facts, arrival, frame)
        }
        IpPacket::V6(packet) => rewrite::rewrite::<u128>(tables, *next_hop, packet.facts, arrival, frame),
    }
}

/// Packets that are not forwarded are not checked: Linux filters its own, and the slow path filters what it sends.
fn check_source(tables: &Tables, arrival: &Arrival, source: u32) -> Result<(), Refusal> {
    match ingress(tables, arrival).and_then(|on| source::refused(tables, on, arrival.interface, source)) {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

fn ingress<'a>(tables: &'a Tables, arrival: &Arrival) -> Option<&'a Ingress> {
    tables.compiled.ingress.get(usize::from(arrival.interface))
}
