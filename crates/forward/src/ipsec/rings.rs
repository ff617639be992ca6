//! The rings between workers, and what both apps of a worker have in common.

use std::sync::Arc;

use bm_frame::Frame;
use bm_graph::{Io, Waker};
use bm_link::{Consumer, Producer, channel};
use bm_stats::{Account, Entry, Reason};

use super::bell::Bell;
use super::live::{Command, Commands, Control, Controls, commands};

/// One worker's ends of the rings of one direction.
pub(super) struct Rings {
    /// To each other worker.
    to: Vec<Option<(Producer<Frame>, Bell, bool)>>,
    /// From each other worker.
    from: Vec<Consumer<Frame>>,
    /// From whoever adds and removes SAs.
    pub commands: Option<Commands>,
    bell: Bell,
}

/// What the two apps of a worker need.
pub struct IpsecWorker {
    pub(super) worker: usize,
    pub(super) rings: [Rings; 2],
}

impl IpsecWorker {
    /// For as many workers as there are wakers, in their order; each ring holds `capacity` frames. Whoever has the
    /// controls can add and remove SAs later.
    pub fn all(wakers: &[Waker], capacity: usize) -> (Vec<Self>, Controls) {
        let [(into, inbound), (out, outbound)] = [rings(wakers, capacity), rings(wakers, capacity)];
        let both = into.into_iter().zip(out).enumerate();
        let workers = both.map(|(worker, (into, out))| Self { worker, rings: [into, out] }).collect();
        (workers, Controls { inbound, outbound })
    }
}

fn rings(wakers: &[Waker], capacity: usize) -> (Vec<Rings>, Vec<Control>) {
    let bell = |waker: &Waker| Bell { asleep: Arc::default(), waker: waker.clone() };
    let bells: Vec<Bell> = wakers.iter().map(bell).collect();
    let (controls, ends): (Vec<_>, Vec<_>) = bells.iter().map(|bell| commands(bell.clone())).unzip();
    let none = |(bell, commands): (&Bell, Commands)| {
        let (to, from) = (Vec::new(), Vec::new());
        Rings { to, from, commands: Some(commands), bell: bell.clone() }
    };
    let mut all: Vec<Rings> = bells.iter().zip(ends).map(none).collect();
    for from in 0..bells.len() {
        for to in 0..bells.len() {
            let ring = (from != to).then(|| {
                let (producer, consumer) = channel(capacity);
                all[to].from.push(consumer);
                (producer, bells[to].clone(), false)
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
        Self { to, from, commands: self.commands.take(), bell: self.bell.clone() }
    }

    /// Hands a frame to another worker; returns it if its ring is full or the worker is gone.
    pub fn push(&mut self, worker: usize, frame: Frame) -> Result<(), Frame> {
        let Some(Some((ring, _, unrung))) = self.to.get_mut(worker) else { return Err(frame) };
        if ring.is_closed() {
            return Err(frame);
        }
        ring.push(frame)?;
        *unrung = true;
        Ok(())
    }

    /// Wakes the workers that have got frames since the last call, if they sleep.
    pub fn ring(&mut self) {
        for (_, bell, unrung) in self.to.iter_mut().flatten() {
            if std::mem::take(unrung) {
                bell.ring();
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
        self.bell.asleep.sleeps();
        self.from.iter_mut().all(|ring| ring.readable() == 0)
            && !self.commands.as_mut().is_some_and(Commands::is_waiting)
    }

    pub fn after_sleep(&self) {
        self.bell.asleep.wakes();
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
