//! The fast path: one app per worker, which takes one burst at a time through all stages.
//!
//! ```text
//! link of a port -> burst -> filter -> input -> validate -> lookup -> source -> rewrite -> output -> link of a port
//!                              '--------'---------'-----------'---------'---------'---> refused: slow path, or drop
//! ```
//!
//! Plain frames take a shorter way through the same steps (`plain`), and what it leaves takes this one.
//!
//! A stage clears the bits of the frames that it refuses and records why; nothing is moved or freed before the last
//! one. After the start there is no allocation, lock or log here, and at most one system call each time the slow path
//! sleeps.

mod arrive;
mod before_hooks;
mod family;
mod leave;
mod plain;
mod rewriting;
mod single;
mod waiting;

use std::sync::Arc;

use bm_fib::Form;
use bm_fib::published::{Published, ReaderHandle};
use bm_frame::{AnyFrame, BURST, Burst, Mask, MbufFrame, PickedFrames};
use bm_graph::{App, Io, Stage, StageHook};
use bm_stats::{Account, Entry, Reason};
use bm_wire::Family;

use crate::compiled::{Ingress, PortView};
use crate::entrance::Entrance;
use crate::filter::PortFilter;
use crate::hook::{Hooks, TableRoutes};
use crate::lookup::FamilyBatch;
use crate::output::{NO_OUTPUT, Tally};
use crate::rewrite::fast::KnownByPort;
use crate::source;
use crate::tables::{ReversePath, Tables};
use crate::verdict::{Refusal, Refused, Verdict};
use family::{FamilyBatches, RoutedFamily};
use plain::PlainPath;
use waiting::Tried;

pub(crate) use single::route_single;

/// A port as a worker's router sees it. Its index is its place in [`Tables::ports`].
pub struct RouterPort {
    /// Name of the links from and to the port's app.
    pub name: String,
    /// Closes over the frames that came in on the port through this worker.
    pub account: Account,
}

/// The router of one worker.
pub struct Router {
    ports: Vec<RouterPort>,
    /// For each input link, the index of its port.
    inputs: Vec<usize>,
    /// For each port, the output link; none has the index of [`NO_OUTPUT`].
    outputs: Vec<u16>,
    published: Arc<Published<Tables>>,
    reader: ReaderHandle,
    entrance: Entrance,
    hooks: Option<Box<Hooks>>,
    /// The worker's number, for counters that workers share.
    worker: usize,
    work: Box<Work>,
}

/// The state of the current burst.
struct Work {
    form: Form,
    /// The family that frames are first assumed to be.
    family: Family,
    /// The frames; or in `mbufs`, if only their mbufs say where their data is. All but the plain path use this one.
    burst: Burst,
    mbufs: Burst<MbufFrame>,
    refused: Refused,
    batches: FamilyBatches,
    /// Slots whose source may be an address of this machine.
    suspects: Mask,
    /// Sources, for the two checks that need them.
    sources: [u32; BURST],
    /// Interface and place of the network header of each frame that may be routed.
    arrivals: [(u16, u16); BURST],
    /// All places of the burst.
    all: Mask,
    /// Whether no frame of the burst has a tag.
    untagged: bool,
    /// Port that each accepted frame leaves through.
    port: [u16; BURST],
    /// Length of each frame that the plain path has accepted.
    lengths: [u16; BURST],
    known: KnownByPort,
    plain: PlainPath,
    /// Frames on their way to one of several ports; otherwise empty.
    leaving: Burst,
    leaving_mbufs: Burst<MbufFrame>,
}

/// Destinations that are passed to the routing table together for prefetching: about as many cache lines as can be
/// loaded at the same time.
const TOGETHER: usize = 16;

impl Router {
    /// A router over `ports`, whose links are called as they are.
    ///
    /// `reader` must be registered with the readers for which `published` and all tables in it were made.
    pub fn new(
        ports: Vec<RouterPort>,
        published: Arc<Published<Tables>>,
        reader: ReaderHandle,
        entrance: Entrance,
    ) -> Self {
        let outputs = vec![NO_OUTPUT; ports.len()];
        let (inputs, work) = (Vec::new(), Work::new(ports.len()));
        Self { ports, inputs, outputs, published, reader, entrance, hooks: None, worker: 0, work }
    }

    /// The same with a hook at its stages.
    #[must_use]
    pub fn with_hook(mut self, hook: Box<dyn StageHook>) -> Self {
        self.hooks = Some(Hooks::new(hook));
        self
    }

    /// The same as that of the worker with this number.
    #[must_use]
    pub fn of_worker(mut self, worker: usize) -> Self {
        self.worker = worker;
        self
    }

    /// The port that a link is called as, or that it is another queue of, as in `eth0:2`: no interface has a colon in its
    /// name.
    fn port_called(&self, link: &str) -> Option<usize> {
        let link = link.split(':').next().unwrap_or(link);
        self.ports.iter().position(|port| port.name == link)
    }
}

impl App for Router {
    fn takes_mbufs(&mut self) -> bool {
        self.hooks.is_none()
    }

    /// # Panics
    /// If an input names no port: its frames would never be processed.
    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        let unknown = "a link to the router is called as the port that it comes from";
        self.inputs = inputs.iter().map(|name| self.port_called(name).expect(unknown)).collect();
        let output = |port: &RouterPort| outputs.iter().position(|name| *name == port.name);
        let output = |port| output(port).and_then(|at| u16::try_from(at).ok()).unwrap_or(NO_OUTPUT);
        self.outputs = self.ports.iter().map(output).collect();
    }

    fn push(&mut self, io: &mut Io<'_>) {
        let Self { ports, inputs, outputs, published, reader, entrance, hooks, worker, work } = self;
        // Checked before the tables are read: a change in between is then noticed the next time.
        let epoch = reader.epoch();
        let tables = published.load(reader);
        // Without hooks all of them are one word that is tested once per burst and stage.
        let mut hooks = hooks.as_deref_mut().and_then(|hooks| hooks.begin(io.now_ns));
        for (input, &port) in inputs.iter().enumerate() {
            let account = &ports[port].account;
            let filter = PortFilter::of(tables, port, *worker, io.now_ns);
            let came_in = tables.compiled.ports.get(port).and_then(|view| view.untagged);
            work.known.arrive_on(port, came_in, epoch, io.now_ns);
            while io.readable(input) > 0 {
                work.refused.mask = Mask::NONE;
                let tried = if hooks.is_none() {
                    work.forward_waiting(tables, port, filter.as_ref(), io, (input, outputs))
                } else {
                    Tried::Nothing
                };
                if let Tried::All(PickedFrames { count, bytes }) = tried {
                    account.add(Entry::Received, count);
                    account.add(Entry::Sent, count);
                    account.add(Entry::SentBytes, bytes as usize);
                    continue;
                }
                let before = io.sent_bytes();
                let count = work.receive(io, input, tried.count());
                account.add(Entry::Received, count);
                // Hooks see what filters let pass.
                let mut filter = filter.as_ref();
                if hooks.is_some()
                    && let Some(filter) = filter.take()
                {
                    work.filter_before_hooks(
                        tables,
                        filter,
                        io,
                        Tally::new(port, account),
                        (entrance, outputs),
                    );
                }
                if let Some(hooks) = hooks.as_deref_mut() {
                    // Scripts read the port on which a packet arrived.
                    let frames = work.burst.places_mut().iter_mut().flatten();
                    frames.for_each(|frame| frame.meta_mut().port = port as u16);
                    let mut tally = Tally::new(port, account);
                    let routes = TableRoutes::of(tables, port);
                    hooks.ingress(&routes, &mut work.burst, io, entrance, outputs, &mut tally);
                    tally.close();
                }
                work.route(tables, port, io.now_ns, tried.left(), filter, hooks.as_deref_mut());
                let mut tally = Tally::new(port, account);
                tally.sent(tried.sent().count);
                work.leave(io, tally, entrance, outputs, hooks.as_deref_mut());
                account.add(Entry::SentBytes, (io.sent_bytes() - before + tried.sent().bytes) as usize);
            }
        }
        entrance.ring();
        reader.quiescent();
    }

    fn before_sleep(&mut self) -> bool {
        self.reader.offline();
        true
    }

    fn after_sleep(&mut self) {
        self.reader.online();
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        for (input, &port) in self.inputs.iter().enumerate() {
            let account = &self.ports[port].account;
            while let Some(frame) = io.receive(input) {
                account.add(Entry::Received, 1);
                account.drop(Reason::Stopped, 1);
                io.frames.free(frame);
            }
        }
    }
}

// Each stage is a separate function, called once per burst, so that a profile shows its cost.
impl Work {
    fn new(ports: usize) -> Box<Self> {
        Box::new(Self {
            form: Form::best(),
            family: Family::V4,
            burst: Burst::new(),
            mbufs: Burst::default(),
            refused: Refused::new(),
            batches: FamilyBatches::new(),
            suspects: Mask::NONE,
            sources: [0; BURST],
            arrivals: [(0, 0); BURST],
            all: Mask::NONE,
            untagged: true,
            port: [0; BURST],
            lengths: [0; BURST],
            known: KnownByPort::new(ports),
            plain: PlainPath::new(),
            leaving: Burst::new(),
            leaving_mbufs: Burst::default(),
        })
    }

    /// All stages up to the last: afterwards each frame is refused, or rewritten and has its port.
    ///
    /// `left` are the places of those frames that the plain path has left, if it was tried. Frames that it refused stay
    /// refused. `filter` is for frames that filters have not seen.
    fn route(
        &mut self,
        tables: &Tables,
        port: usize,
        now_ns: u64,
        left: Option<Mask>,
        filter: Option<&PortFilter<'_>>,
        mut hooks: Option<&mut Hooks>,
    ) {
        self.batches.ipv4.mask = Mask::NONE;
        self.batches.ipv6.mask = Mask::NONE;
        self.suspects = Mask::NONE;
        let Some(view) = tables.compiled.ports.get(port) else {
            return self.refuse_all(Refusal::Slow(Verdict::Host), filter);
        };
        if tables.stand_aside(now_ns) {
            return self.refuse_all(Refusal::Slow(Verdict::LinuxOnly), filter);
        }
        let has_more = |hooks: &Hooks| hooks.has(Stage::Lookup) || hooks.has(Stage::Egress);
        let mut left = match left {
            Some(left) => left,
            None if hooks.as_deref().is_some_and(has_more) => Mask::first(self.burst.len()),
            None => self.plain_path(tables, view, filter),
        };
        if left.is_empty() && self.refused.mask.is_empty() {
            return;
        }
        self.write_headers();
        if let Some(filter) = filter {
            self.filter_left(filter, &mut left);
        }
        if left.is_empty() {
            return;
        }
        match left {
            left if left == Mask::first(self.burst.len()) => self.input_and_validate(tables, view),
            left => self.input_and_validate_left(tables, view, &left),
        }
        self.route_family::<u32>(tables, port, view, hooks.as_deref_mut());
        self.route_family::<u128>(tables, port, view, hooks.as_deref_mut());
        if let Some(hooks) = hooks.filter(|hooks| hooks.has(Stage::Egress)) {
            let Self { burst, refused, port: ports, .. } = self;
            hooks.egress(&TableRoutes::of(tables, port), burst, ports, refused);
        }
    }

    /// The stages from the lookup on, for the packets of one family.
    #[inline(always)]
    fn route_family<A: RoutedFamily>(
        &mut self,
        tables: &Tables,
        port: usize,
        view: &PortView,
        hooks: Option<&mut Hooks>,
    ) {
        if A::batch(&mut self.batches).mask.is_empty() {
            return;
        }
        self.look_up::<A>(tables, view);
        if let Some(hooks) = hooks.filter(|hooks| hooks.has(Stage::Lookup)) {
            let Self { burst, batches, refused, .. } = self;
            let FamilyBatch { mask, hops, .. } = A::batch(batches);
            hooks.lookup(&TableRoutes::of(tables, port), A::VERSION, burst, mask, hops, refused);
        }
        A::check_sources(self, tables, view);
        self.rewrite::<A>(tables);
    }

    /// From here on, all frames have headers that say where their data is.
    #[inline]
    fn write_headers(&mut self) {
        if self.mbufs.is_empty() {
            return;
        }
        let count = self.mbufs.len();
        let places = self.burst.vacant_mut().iter_mut().zip(self.mbufs.places_mut());
        places.for_each(|(to, from)| *to = from.take().map(AnyFrame::into_frame));
        self.burst.occupy(count);
        self.mbufs.reset();
    }

    #[cold]
    fn refuse_all(&mut self, why: Refusal, filter: Option<&PortFilter<'_>>) {
        self.write_headers();
        let mut left = Mask::first(self.burst.len());
        if let Some(filter) = filter {
            self.filter_left(filter, &mut left);
        }
        left.iter().for_each(|place| self.refused.add(place, why));
    }

    /// Refuses what filters drop or leave to Linux.
    #[inline(never)]
    fn filter_left(&mut self, filter: &PortFilter<'_>, left: &mut Mask) {
        for place in left.iter() {
            let Some(taken) = self.burst.get(place).and_then(|frame| filter.takes(frame.data())) else {
                continue;
            };
            left.clear(place);
            self.arrivals[place] = (0, 0);
            self.refused.add(place, taken.into());
        }
    }

    #[inline(never)]
    fn look_up<A: RoutedFamily>(&mut self, tables: &Tables, view: &PortView) {
        let Self { burst, batches, arrivals, all, .. } = self;
        let batch = A::batch(batches);
        // The number of frames and their table, if all frames of the burst are of this family and of one table.
        let whole = view.vrf.filter(|_| batch.mask == *all).map(|vrf| (burst.len(), vrf));
        let vrf_at = |place: usize| ingress(tables, arrivals[place].0).map_or(0, |on| on.vrf);
        batch.look_up(whole, vrf_at, |vrf| tables.vrfs.get(usize::from(vrf)).map(A::fib));
    }

    /// Both checks of sources, for packets that would be forwarded: after hooks, which may forward what no route
    /// does.
    #[inline(always)]
    fn check_ipv4_sources(&mut self, tables: &Tables, view: &PortView) {
        if view.filters {
            self.filter_sources(tables);
        }
        if !self.suspects.is_empty() {
            self.refuse_own_sources(tables);
        }
    }

    /// Reverse path filter, for frames of those interfaces that have it enabled. Packets that are not forwarded are
    /// not checked: Linux filters its own, and the slow path filters what it sends.
    #[inline(never)]
    fn filter_sources(&mut self, tables: &Tables) {
        let next_hops = &tables.next_hops;
        let Self { batches: FamilyBatches { ipv4, .. }, refused, sources, arrivals, .. } = self;
        let mut left = Mask::NONE;
        for place in ipv4.mask.iter() {
            let filter = ingress(tables, arrivals[place].0).map(|on| on.reverse_path);
            let entry = next_hops.entry(ipv4.hops[place]);
            if filter.is_some_and(|filter| filter != ReversePath::Off)
                && (entry.is_forward() || entry.is_group())
            {
                left.set(place);
            }
        }
        // One table at a time; there is more than one only on a trunk with VLANs in several VRFs.
        while let Some(first) = left.iter().next() {
            let Some(vrf) = ingress(tables, arrivals[first].0).map(|on| on.vrf) else { break };
            let mut same = Mask::NONE;
            for place in left.iter() {
                if ingress(tables, arrivals[place].0).is_some_and(|on| on.vrf == vrf) {
                    same.set(place);
                    left.clear(place);
                }
            }
            let fib = tables.vrfs.get(usize::from(vrf)).map(|vrf| &*vrf.ipv4 as _);
            let mut failed = Mask::NONE;
            ipv4.look_up_sources(sources, same, fib, |place, hop| {
                let filter =
                    ingress(tables, arrivals[place].0).map_or(ReversePath::Off, |on| on.reverse_path);
                if let Some(why) = source::refused_path(next_hops, hop, filter, arrivals[place].0) {
                    failed.set(place);
                    refused.add(place, why);
                }
            });
            failed.iter().for_each(|place| ipv4.mask.clear(place));
        }
    }

    /// Refuses packets that would be sent on and claim to come from this machine, or seem to.
    #[cold]
    fn refuse_own_sources(&mut self, tables: &Tables) {
        let Self { batches: FamilyBatches { ipv4, .. }, refused, suspects, sources, arrivals, .. } = self;
        for place in suspects.iter() {
            let entry = tables.next_hops.entry(ipv4.hops[place]);
            if !(entry.is_forward() || entry.is_group()) || !ipv4.mask.has(place) {
                continue;
            }
            let on = ingress(tables, arrivals[place].0);
            if let Some(why) = on.and_then(|on| source::refused_ipv4(tables, on, sources[place])) {
                ipv4.mask.clear(place);
                refused.add(place, why);
            }
        }
    }
}

fn ingress(tables: &Tables, interface: u16) -> Option<&Ingress> {
    tables.compiled.ingress.get(usize::from(interface))
}
