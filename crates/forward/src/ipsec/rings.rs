//! The rings between workers, and what both apps of a worker have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bm_frame::Frame;
use bm_graph::{Io, Waker};
use bm_link::{Consumer, Producer, channel};
use bm_stats::{Account, Entry, Reason};

use super::live::{Command, Commands, Control, Controls, commands};
use super::path_mtu::PathMtus;
use super::sleeper::Sleeper;

/// One worker's ends of the rings of one direction.
pub(super) struct Rings {
    /// To each other worker.
    to: Vec<Option<(Producer<Frame>, Sleeper, bool)>>,
    /// From each other worker.
    from: Vec<Consumer<Frame>>,
    /// From the daemon, which adds and removes SAs.
    pub commands: Option<Commands>,
    sleeper: Sleeper,
    /// How many SAs of any worker have ended, and how many this one knows of.
    ended: (Arc<AtomicU64>, u64),
}

/// What the two apps of a worker need.
pub struct IpsecWorker {
    pub(super) worker: usize,
    pub(super) rings: [Rings; 2],
    pub(super) path_mtus: PathMtus,
}

impl IpsecWorker {
    /// For as many workers as there are wakers, in their order; each ring holds `capacity` frames. The
    /// controls are for adding and removing SAs later.
    pub fn all(wakers: &[Waker], capacity: usize) -> (Vec<Self>, Controls) {
        let [(into, inbound), (out, outbound)] = [rings(wakers, capacity), rings(wakers, capacity)];
        let path_mtus = PathMtus::default();
        let mut workers = Vec::new();
        for (into, out) in into.into_iter().zip(out) {
            let worker = workers.len();
            workers.push(Self { worker, rings: [into, out], path_mtus: path_mtus.clone() });
        }
        (workers, Controls { inbound, outbound })
    }
}

fn rings(wakers: &[Waker], capacity: usize) -> (Vec<Rings>, Vec<Control>) {
    let sleepers: Vec<Sleeper> =
        wakers.iter().map(|waker| Sleeper { asleep: Arc::default(), waker: waker.clone() }).collect();
    let (controls, ends): (Vec<_>, Vec<_>) = sleepers.iter().map(|sleeper| commands(sleeper.clone())).unzip();
    let ended: Arc<AtomicU64> = Arc::default();
    let mut all = Vec::new();
    for (sleeper, commands) in sleepers.iter().zip(ends) {
        let (sleeper, ended) = (sleeper.clone(), (ended.clone(), 0));
        all.push(Rings { to: Vec::new(), from: Vec::new(), commands: Some(commands), sleeper, ended });
    }
    for from in 0..sleepers.len() {
        for to in 0..sleepers.len() {
            let ring = (from != to).then(|| {
                let (producer, consumer) = channel(capacity);
                all[to].from.push(consumer);
                (producer, sleepers[to].clone(), false)
            });
            all[from].to.push(ring);
        }
    }
    (all, controls)
}

impl Rings {
    /// These, for the app that uses them; what is left has none.
    pub fn take(&mut self) -> Self {
        let (to, from) = (std::mem::take(&mut self.to), std::mem::take(&mut self.from));
        let ended = self.ended.clone();
        Self { to, from, commands: self.commands.take(), sleeper: self.sleeper.clone(), ended }
    }

    /// Lets all workers know that an SA has ended, before a packet is handed to one of them for that reason.
    pub fn end_sa(&self) {
        self.ended.0.fetch_add(1, Ordering::Release);
    }

    /// Whether an SA of any worker has ended since the last call.
    #[inline]
    pub fn have_sas_ended(&mut self) -> bool {
        let (count, known) = (self.ended.0.load(Ordering::Acquire), self.ended.1);
        self.ended.1 = count;
        count != known
    }

    /// Hands a frame to another worker; returns it if its ring is full or the worker is gone.
    pub fn push(&mut self, worker: usize, frame: Frame) -> Result<(), Frame> {
        let Some(Some((ring, _, has_new))) = self.to.get_mut(worker) else { return Err(frame) };
        if ring.is_closed() {
            return Err(frame);
        }
        ring.push(frame)?;
        *has_new = true;
        Ok(())
    }

    /// Wakes the workers that have got frames since the last call, if they sleep.
    pub fn wake(&mut self) {
        for (_, sleeper, has_new) in self.to.iter_mut().flatten() {
            if std::mem::take(has_new) {
                sleeper.wake();
            }
        }
    }

    /// The next frame from another worker.
    pub fn pop(&mut self) -> Option<Frame> {
        self.from.iter_mut().find_map(Consumer::pop)
    }

    /// The next command.
    #[inline]
    pub fn command(&mut self) -> Option<Command> {
        self.commands.as_mut()?.pop()
    }

    /// A command has been carried out.
    pub fn done(&self) {
        self.commands.iter().for_each(Commands::done);
    }

    /// Announces that the worker is about to sleep; whether it may.
    pub fn before_sleep(&mut self) -> bool {
        self.sleeper.asleep.sleeps();
        self.from.iter_mut().all(|ring| ring.readable() == 0)
            && !self.commands.as_mut().is_some_and(Commands::is_waiting)
    }

    pub fn after_sleep(&self) {
        self.sleeper.asleep.wakes();
    }

    /// Frees what is left.
    pub fn stop(&mut self, io: &mut Io<'_>, account: &Account) {
        while let Some(frame) = self.pop() {
            account.add(Entry::Received, 1);
            account.drop(Reason::Stopped, 1);
            io.frames.free(frame);
        }
    }
}

/// Frees what waits at the inputs of an app that ends.
pub(super) fn stop_inputs(io: &mut Io<'_>, account: &Account) {
    for input in 0..io.inputs() {
        while let Some(frame) = io.receive(input) {
            account.add(Entry::Received, 1);
            account.drop(Reason::Stopped, 1);
            io.frames.free(frame);
        }
    }
}
