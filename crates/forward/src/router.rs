//! The router of a worker: one burst at a time goes from the link of its port to those of other ports.
//!
//! ```text
//! link of a port --> fast path: all plain? ----------------------------------------> links of ports
//!                       '-> a burst -> (filters, hooks) -> fast path -> stages one by one -> links of ports
//!                                             '-----------------------------'---> refused: slow path, or drop
//! ```
//!
//! After the start there is no allocation, lock or log here, and at most one system call each time the slow path sleeps.

use std::sync::Arc;

use bm_fib::published::{Published, ReaderHandle};
use bm_frame::{Mask, PickedFrames};
use bm_graph::{App, Io, Stage, StageHook};
use bm_stats::{Account, Entry, Reason};

use crate::burst::{InputPort, RoutedBurst};
use crate::fast::{FastPath, LinkResult};
use crate::filter::PortFilter;
use crate::hook::{Hooks, TableRoutes};
use crate::output::{NO_OUTPUT, Output};
use crate::punt_queue::PuntQueue;
use crate::stages::Stages;
use crate::tables::Tables;

/// A port as a worker's router sees it. Its index is its place in [`Tables::ports`].
pub struct RouterPort {
    /// Name of the links from and to the port's app.
    pub name: String,
    /// Counts the frames that came in on the port through this worker, and what became of each.
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
    punt_queue: PuntQueue,
    hooks: Option<Box<Hooks>>,
    /// The worker's number, for counters that workers share.
    worker: usize,
    work: Box<BurstWork>,
}

/// Both ways through the router, and the burst that takes them.
struct BurstWork {
    fast: FastPath,
    stages: Stages,
    burst: RoutedBurst,
}

impl Router {
    /// A router with these ports; its links have the names of their ports.
    ///
    /// `reader` must be registered with the readers for which `published` and all tables in it were made.
    pub fn new(
        ports: Vec<RouterPort>,
        published: Arc<Published<Tables>>,
        reader: ReaderHandle,
        punt_queue: PuntQueue,
    ) -> Self {
        let outputs = vec![NO_OUTPUT; ports.len()];
        let work = Box::new(BurstWork {
            fast: FastPath::new(ports.len()),
            stages: Stages::new(),
            burst: RoutedBurst::new(),
        });
        Self {
            ports,
            inputs: Vec::new(),
            outputs,
            published,
            reader,
            punt_queue,
            hooks: None,
            worker: 0,
            work,
        }
    }

    /// This router, with a hook at its stages.
    #[must_use]
    pub fn with_hook(mut self, hook: Box<dyn StageHook>) -> Self {
        self.hooks = Some(Hooks::new(hook));
        self
    }

    /// This router, as that of the worker with this number.
    #[must_use]
    pub fn of_worker(mut self, worker: usize) -> Self {
        self.worker = worker;
        self
    }

    /// This router, without its fast path.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub(crate) fn with_stages_only(mut self) -> Self {
        self.work.fast.stop();
        self
    }

    /// The port whose name a link has, or of which it is another queue, as in `eth0:2`: no interface has a colon in its
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
        let unknown = "each link to the router has the name of its port";
        self.inputs = inputs.iter().map(|name| self.port_called(name).expect(unknown)).collect();
        for (port, output) in self.ports.iter().zip(&mut self.outputs) {
            let link = outputs.iter().position(|name| *name == port.name);
            *output = link.and_then(|link| u16::try_from(link).ok()).unwrap_or(NO_OUTPUT);
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        let Self { ports, inputs, outputs, published, reader, punt_queue, hooks, worker, work } = self;
        // Checked before the tables are read: a change in between is then noticed the next time.
        let epoch = reader.epoch();
        let tables = published.load(reader);
        // Without hooks all of them are one word that is tested once per burst and stage.
        let mut hooks = hooks.as_deref_mut().and_then(|hooks| hooks.begin(io.now_ns));
        for (input, &number) in inputs.iter().enumerate() {
            let account = &ports[number].account;
            let filter = PortFilter::of(tables, number, *worker, io.now_ns);
            let from = InputPort::of(tables, number, filter.as_ref(), io.now_ns);
            if let Ok(from) = &from {
                work.fast.arrive_on(from, epoch, io.now_ns);
            }
            let goes_at_once = hooks.is_none() && !filter.as_ref().is_some_and(PortFilter::limits_rates);
            while io.readable(input) > 0 {
                work.burst.refused.mask = Mask::NONE;
                let tried = match &from {
                    Ok(from) if goes_at_once => {
                        work.fast.forward_waiting(from, io, input, outputs, &mut work.burst)
                    }
                    _ => LinkResult::Untried,
                };
                if let LinkResult::AllSent(PickedFrames { count, bytes }) = tried {
                    account.add(Entry::Received, count);
                    account.add(Entry::Sent, count);
                    account.add(Entry::SentBytes, bytes as usize);
                    continue;
                }
                let before = io.sent_bytes();
                let count = work.receive(io, input, tried.count());
                account.add(Entry::Received, count);
                let mut output = Output::new(number, account, outputs, punt_queue);
                output.sent(tried.sent().count);
                let (mut from, mut filter) = (from, filter.as_ref());
                if !goes_at_once && let Some(filter) = filter.take() {
                    // Hooks see what filters let pass, and each packet counts once for a rate.
                    work.fast.filter_first(tables, filter, &mut work.burst, io, &mut output);
                    from = from.map(|from| InputPort { filter: None, ..from });
                }
                if let Some(hooks) = hooks.as_deref_mut() {
                    work.run_ingress_hook(tables, number, io, &mut output, hooks);
                }
                match &from {
                    Ok(from) => work.route(from, tried.left(), hooks.as_deref_mut()),
                    Err(why) => work.burst.refuse_all(*why, filter),
                }
                if let Some(hooks) = hooks.as_deref_mut().filter(|hooks| hooks.has(Stage::Egress)) {
                    let RoutedBurst { frames, ports, refused, .. } = &mut work.burst;
                    hooks.egress(&TableRoutes::of(tables, number), frames, ports, refused);
                }
                work.burst.leave(io, &mut output, hooks.as_deref_mut());
                output.close();
                account.add(Entry::SentBytes, (io.sent_bytes() - before + tried.sent().bytes) as usize);
            }
        }
        punt_queue.notify();
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

impl BurstWork {
    /// Receives a burst of at most so many frames. Frames that are described by their mbufs stay so, if all that they may
    /// leave through can do with that.
    #[inline(always)]
    fn receive(&mut self, io: &mut Io<'_>, input: usize, most: usize) -> usize {
        let RoutedBurst { frames, mbufs, chosen, .. } = &mut self.burst;
        *chosen = Mask::NONE;
        if io.has_mbufs(input) && io.sends_mbufs() {
            io.receive_some(input, mbufs, most)
        } else {
            io.receive_some(input, frames, most)
        }
    }

    #[cold]
    fn run_ingress_hook(
        &mut self,
        tables: &Tables,
        port: usize,
        io: &mut Io<'_>,
        output: &mut Output<'_>,
        hooks: &mut Hooks,
    ) {
        // Scripts read the port on which a packet arrived.
        let frames = self.burst.frames.places_mut().iter_mut().flatten();
        frames.for_each(|frame| frame.meta_mut().port = port as u16);
        hooks.ingress(&TableRoutes::of(tables, port), &mut self.burst.frames, io, output);
    }

    /// Afterwards each frame is refused, or rewritten and has its port. `left` are the places of those frames that the fast
    /// path has left to the stages, if it was tried.
    fn route(&mut self, from: &InputPort<'_>, left: Option<Mask>, mut hooks: Option<&mut Hooks>) {
        let Self { fast, stages, burst } = self;
        let mut left = match (left, hooks.as_deref_mut()) {
            (Some(left), _) => left,
            (None, Some(hooks)) if hooks.has(Stage::Lookup) => fast.forward_hooked(from, burst, hooks),
            (None, _) => fast.forward(from, burst),
        };
        if left.is_empty() && burst.refused.mask.is_empty() {
            return;
        }
        burst.write_headers();
        if let Some(filter) = from.filter {
            burst.filter(filter, &mut left);
        }
        if !left.is_empty() {
            stages.route(from, &left, burst, hooks);
        }
    }
}
