//! Hooks at the fast path's stages: what they see, and how their decisions are carried out.
//!
//! ```text
//! receive ▸ INGRESS ▸ input ▸ validate ▸ lookup ▸ LOOKUP ▸ source ▸ rewrite ▸ EGRESS ▸ output
//! ```
//!
//! Frames that a hook removes at `ingress` leave immediately, so that later stages handle a smaller burst. At later
//! stages they are refused as by a stage of the router. A punted frame goes to the slow path unchanged; after
//! rewriting that is not possible, so at `egress` it is dropped as `hook_refused`.

use bm_fib::NextHop;
use bm_frame::{BURST, Burst, Mask};
use bm_graph::{HookBurst, HookFate, HookRoom, Io, Routes, Stage, StageHook, Stages};
use bm_stats::Reason;
use bm_wire::Family;

use crate::output::Output;
use crate::tables::{Tables, Vrf};
use crate::verdict::{Refusal, RefusedFrames, Verdict};

/// The hooks of a worker's router.
pub(crate) struct Hooks {
    hook: Box<dyn StageHook>,
    stages: Stages,
    room: Box<HookRoom>,
    /// Places of the burst whose next hop is the hook's and not the table's.
    chosen: Mask,
    now_ns: u64,
}

/// A port, and the routing table of its interfaces.
pub(crate) struct TableRoutes<'a> {
    port: u16,
    vrf: Option<&'a Vrf>,
}

impl<'a> TableRoutes<'a> {
    /// The table of `port`; the main one if its interfaces have several.
    pub fn of(tables: &'a Tables, port: usize) -> Self {
        let vrf = tables.compiled.ports.get(port).and_then(|view| view.vrf).unwrap_or(0);
        Self { port: port as u16, vrf: tables.vrfs.get(usize::from(vrf)) }
    }
}

impl Routes for TableRoutes<'_> {
    fn ipv4(&self, address: u32) -> u32 {
        self.vrf.map_or(NextHop::NONE, |vrf| vrf.ipv4.lookup(address)).0
    }

    fn ipv6(&self, address: u128) -> u32 {
        self.vrf.map_or(NextHop::NONE, |vrf| vrf.ipv6.lookup(address)).0
    }
}

impl Hooks {
    pub fn new(hook: Box<dyn StageHook>) -> Box<Self> {
        Box::new(Self { hook, stages: Stages::NONE, room: HookRoom::new(), chosen: Mask::NONE, now_ns: 0 })
    }

    /// Once a breath; `None` if no stage has a hook now.
    pub fn begin(&mut self, now_ns: u64) -> Option<&mut Self> {
        self.now_ns = now_ns;
        self.stages = self.hook.begin();
        (self.stages != Stages::NONE).then_some(self)
    }

    #[inline]
    pub fn has(&self, stage: Stage) -> bool {
        self.stages.has(stage)
    }

    /// Runs the hook; returns the slots that it removed.
    fn run(
        &mut self,
        stage: Stage,
        routes: &TableRoutes<'_>,
        family: u8,
        burst: &mut Burst,
        mask: &mut Mask,
        ports: &[u16],
    ) -> Mask {
        let before = *mask;
        let frames = burst.places_mut();
        let (room, now_ns, port) = (&mut *self.room, self.now_ns, routes.port);
        self.hook.run(stage, &mut HookBurst { frames, mask, room, ports, port, family, now_ns, routes });
        // Whatever a hook sets is not the stage's.
        *mask = mask.and(&before);
        before.without(mask)
    }

    /// Runs before the first stage: frames that the hook removes are gone afterwards, and the burst has no gaps.
    pub fn ingress(
        &mut self,
        routes: &TableRoutes<'_>,
        burst: &mut Burst,
        io: &mut Io<'_>,
        output: &mut Output<'_>,
    ) {
        self.chosen = Mask::NONE;
        if !self.stages.has(Stage::Ingress) {
            return;
        }
        let mut mask = Mask::first(burst.len());
        let gone = self.run(Stage::Ingress, routes, 0, burst, &mut mask, &[]);
        if gone.is_empty() {
            return;
        }
        for place in gone.iter() {
            let Some(mut frame) = burst.take(place) else { continue };
            frame.meta_mut().chosen = 0;
            output.refuse(io, frame, self.refusal(place));
        }
        burst.compact();
    }

    /// Runs between lookup and rewriting, for the packets of one family.
    pub fn lookup(
        &mut self,
        routes: &TableRoutes<'_>,
        family: Family,
        burst: &mut Burst,
        mask: &mut Mask,
        hops: &mut [NextHop; BURST],
        refused: &mut RefusedFrames,
    ) {
        let count = burst.len();
        let numbers = self.room.next_hops.iter_mut().zip(&*hops).take(count);
        numbers.for_each(|(number, hop)| *number = hop.0);
        let version = if family == Family::V4 { 4 } else { 6 };
        let gone = self.run(Stage::Lookup, routes, version, burst, mask, &[]);
        for place in mask.iter() {
            let chosen = NextHop(self.room.next_hops[place]);
            if std::mem::replace(&mut hops[place], chosen) != chosen {
                self.chosen.set(place);
            }
        }
        gone.iter().for_each(|place| refused.add(place, self.refusal(place)));
    }

    /// Runs after rewriting, for all frames that leave.
    pub fn egress(
        &mut self,
        routes: &TableRoutes<'_>,
        burst: &mut Burst,
        ports: &[u16; BURST],
        refused: &mut RefusedFrames,
    ) {
        let mut mask = Mask::first(burst.len()).without(&refused.mask);
        let gone = self.run(Stage::Egress, routes, 0, burst, &mut mask, ports);
        for place in gone.iter() {
            match self.refusal(place) {
                Refusal::Slow(_) => refused.add(place, Refusal::Drop(Reason::HookRefused)),
                refusal => refused.add(place, refusal),
            }
        }
    }

    /// Whether the hook chose the next hop of the packet at this place.
    #[inline]
    pub fn chose(&self, place: usize) -> bool {
        self.chosen.has(place)
    }

    fn refusal(&self, place: usize) -> Refusal {
        match self.room.fates[place] {
            HookFate::Punt => Refusal::Slow(Verdict::Hook),
            HookFate::Drop => Refusal::Drop(Reason::Hook),
            HookFate::DropUnseen => Refusal::Drop(Reason::HookFailed),
            HookFate::Linux => Refusal::Slow(Verdict::Host),
            HookFate::Send(port) => Refusal::Send(port),
        }
    }

    /// Sends the frames that hooks created for this burst.
    #[inline]
    pub fn send_made(&mut self, io: &mut Io<'_>, output: &mut Output<'_>) {
        let HookRoom { made, made_ports, .. } = &mut *self.room;
        if !made.is_empty() {
            let ports = made_ports.iter();
            made.drain().zip(ports).for_each(|(frame, &port)| output.originate(io, frame, port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{FilterSet, RuleCounts};
    use crate::testing::Lab;
    use bm_filter::{Filters, Flat, Rule, Tree};
    use std::sync::Arc;

    /// Sends every packet the way of this address.
    struct Detour(u32);
    impl StageHook for Detour {
        fn begin(&mut self) -> Stages {
            Stages::NONE.with(Stage::Lookup)
        }
        fn run(&mut self, _stage: Stage, burst: &mut HookBurst<'_>) {
            let hop = burst.routes.ipv4(self.0);
            burst.mask.iter().for_each(|place| burst.room.next_hops[place] = hop);
        }
    }

    /// Has a hook on the slow path, which leaves every packet as it is.
    struct Watches;
    impl StageHook for Watches {
        fn begin(&mut self) -> Stages {
            Stages::NONE.with(Stage::Slow)
        }
        fn run(&mut self, _stage: Stage, _burst: &mut HookBurst<'_>) {}
    }

    /// The router's own network on the left, the detour on the right. No route leads to 9.0.0.0/8.
    fn lab(left: &str) -> Lab {
        let text = format!(
            "
            interface left 0 02:00:00:00:00:01 {left} 192.0.2.1/24
            interface right 1 02:00:00:00:00:02 198.51.100.1/24
            neighbor 192.0.2.9 left 02:00:00:00:01:09
            neighbor 198.51.100.7 right 02:00:00:00:02:07"
        );
        Lab::with_hooks(&text, |_| [Some(Box::new(Detour(u32::from_be_bytes([198, 51, 100, 7])))), None])
    }

    /// The frame with the checksum of its header, which has `header` bytes.
    fn sealed(mut frame: Vec<u8>, header: usize) -> Vec<u8> {
        frame[24..26].fill(0);
        let sum = bm_wire::checksum::ipv4_header(&frame[14..14 + header]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// A UDP header's worth of data from `source` to 9.9.9.9, where the table has no route.
    fn packet(source: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0];
        frame.extend([0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0]);
        frame.extend(source.into_iter().chain([9; 4]).chain([0, 53, 0, 53, 0, 8, 0, 0]));
        sealed(frame, 20)
    }

    /// Like [`packet`], with `length` bytes behind the header.
    fn long_packet(length: usize) -> Vec<u8> {
        let mut frame = packet([192, 0, 2, 9]);
        frame.resize(34 + length, 7);
        frame[16..18].copy_from_slice(&(20 + length as u16).to_be_bytes());
        sealed(frame, 20)
    }

    /// More than a burst of frames for Linux; a hook of the slow path sees those to this router, and not those that
    /// only Linux may handle.
    #[test]
    fn a_hook_of_the_slow_path_leaves_no_frame_in_the_queue() {
        let text = "
            interface left 0 02:00:00:00:00:01 192.0.2.1/24
            interface right 1 02:00:00:00:00:02 198.51.100.1/24
            neighbor 198.51.100.7 right 02:00:00:00:02:07
            route 9.0.0.0/8 via 198.51.100.7 right";
        let only_linux = packet([192, 0, 2, 9]);
        let mut to_router = only_linux.clone();
        to_router[23] = 6;
        to_router[30..34].copy_from_slice(&[192, 0, 2, 1]);
        let to_router = sealed(to_router, 20);
        // All of one kind, alternating, and all of the other.
        for period in [1, 2, u32::MAX] {
            let mut lab = Lab::with_hooks(text, |_| [None, Some(Box::new(Watches))]);
            let udp = Rule { protocol: Some(17), ..Rule::default() };
            let tree = Tree::default().with_linux_only(Flat::may_match(&udp, None).collect());
            let filters = Filters { tree: tree.unwrap(), ..Filters::default() };
            lab.filter(Arc::new(FilterSet {
                filters: Arc::new(filters),
                checks: Vec::new(),
                unknown: [false; 2],
                ports: vec![true; 2],
                counts: Arc::new(RuleCounts::new().unwrap()),
                rates: None,
            }));
            let is_only_linux = |number: u32| number % period == 1 % period;
            let mut sent: Vec<_> = (2..402)
                .map(|number| if is_only_linux(number) { only_linux.clone() } else { to_router.clone() })
                .collect();
            sent.iter().for_each(|frame| lab.send(0, frame));
            lab.run();
            let mut host = lab.take_host(0);
            host.sort();
            sent.sort();
            assert!(host == sent, "one in {period}: {} of {}", host.len(), sent.len());
        }
    }

    #[test]
    fn the_slow_path_keeps_to_the_hooks_next_hop() {
        // The table sends it back to the left.
        let mut lab = lab("");
        lab.change("route 9.0.0.0/8 via 192.0.2.9 left");
        let fragments = lab.exchange(0, &long_packet(1496)).sent;
        assert_eq!(
            fragments.iter().map(|(port, frame)| (*port, frame.len())).collect::<Vec<_>>(),
            [(1, 14 + 20 + 1480), (1, 14 + 20 + 16)]
        );
        // The next one has no hook's choice, though its frame may be one that had.
        let mut options = packet([192, 0, 2, 9]);
        options.splice(34..34, [1; 4]);
        (options[14], options[17]) = (0x46, 32);
        let options = sealed(options, 24);
        for _ in 0..100 {
            assert_eq!(lab.exchange(0, &long_packet(1496)).sent.len(), 2);
            assert_eq!(lab.exchange(0, &options).only().map(|(port, _)| port), Some(0));
        }
    }

    #[test]
    fn a_packet_waits_for_the_neighbor_that_a_hook_chose() {
        let mut lab = lab("");
        lab.change("no neighbor 198.51.100.7 right");
        lab.change("route 9.0.0.0/8 via 192.0.2.9 left\nroute 198.51.100.7/32 via 198.51.100.7 right");
        assert!(lab.exchange(0, &packet([192, 0, 2, 9])).is_silence());
        assert_eq!(lab.asked(), [("right".into(), "198.51.100.7".parse().unwrap())]);
        lab.change("neighbor 198.51.100.7 right 02:00:00:00:02:07");
        lab.pass(1000);
        assert_eq!(lab.answer().only().map(|(port, frame)| (port, frame[5])), Some((1, 7)));
    }

    #[test]
    fn on_a_link_that_a_hook_chose_the_destination_is_resolved() {
        let mut lab = lab("");
        lab.change("no neighbor 198.51.100.7 right");
        assert!(lab.exchange(0, &packet([192, 0, 2, 9])).is_silence());
        assert_eq!(lab.asked(), [("right".into(), "9.9.9.9".parse().unwrap())]);
        lab.change("neighbor 9.9.9.9 right 02:00:00:00:02:09");
        lab.pass(1000);
        assert_eq!(lab.answer().only().map(|(port, frame)| (port, frame[5])), Some((1, 9)));
    }

    #[test]
    fn what_a_hook_sends_on_passes_the_reverse_path_filter_first() {
        let mut lab = lab("strict");
        assert!(lab.exchange(0, &packet([77, 1, 1, 1])).is_silence());
        assert_eq!(lab.drops(), [(Reason::ReversePath, 1)]);
        assert_eq!(lab.exchange(0, &packet([192, 0, 2, 9])).only().map(|(port, _)| port), Some(1));
    }

    #[test]
    fn what_a_hook_sends_on_does_not_come_from_this_machine() {
        let mut lab = lab("");
        assert!(lab.exchange(0, &packet([192, 0, 2, 1])).is_silence());
        assert_eq!(lab.drops(), [(Reason::Ipv4Source, 1)]);
        assert_eq!(lab.exchange(0, &packet([77, 1, 1, 1])).only().map(|(port, _)| port), Some(1));
    }
}
