//! A link between two workers: a ring with one producer and one consumer, each an app in its worker's network.
//!
//! ```text
//! worker 0: a.x -> ring.input   Outlet ══ channel ══> Inlet   ring.output -> b.y :worker 1
//! ```
//!
//! Frames for which the ring has no room stay on the outlet's link, so a sender that is too fast finds it full, as
//! with any link.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bm_frame::Frame;
use bm_graph::{App, Io, Waker};
use bm_link::{Asleep, Consumer, Producer, channel};
use bm_sys::Mutex;

use crate::natives::NativeApp;

/// The capacity of a ring in frames.
const CAPACITY: usize = 2048;
/// Frames brought in a breath.
const BREATH: usize = 256;

/// How the consumer is woken when it sleeps.
#[derive(Clone)]
struct ConsumerWaker {
    waker: Waker,
    asleep: Arc<Asleep>,
}

/// A ring; an end is `None` once it has been opened.
struct Ring {
    producer: Option<Producer<Frame>>,
    consumer: Option<Consumer<Frame>>,
    waker: ConsumerWaker,
}

/// The rings of a program, by the name of their link; each end can be opened once.
#[derive(Clone, Default)]
pub(crate) struct Rings(Arc<Mutex<HashMap<String, Ring>>>);

impl Rings {
    /// The end that `class` names (`ring>LINK` puts in, `ring<LINK` takes out), or `None` if it names no ring.
    pub fn open(&self, class: &str) -> Option<Result<NativeApp, String>> {
        let out = class.strip_prefix("ring>");
        let link = out.or_else(|| class.strip_prefix("ring<"))?;
        Some(self.end(link, out.is_some()).map_err(|error| format!("link {link}: {error}")))
    }

    fn end(&self, link: &str, out: bool) -> Result<NativeApp, String> {
        let mut rings = self.0.lock();
        if !rings.contains_key(link) {
            rings.insert(link.into(), Ring::new().map_err(|error| error.to_string())?);
        }
        let Ring { producer, consumer, waker } = rings.get_mut(link).ok_or("it has been removed")?;
        let waker = waker.clone();
        let taken = "its end is already in use";
        let opened = if out {
            let producer = producer.take().ok_or(taken)?;
            NativeApp { app: Box::new(Outlet { producer, waker }), pulls: false }
        } else {
            let consumer = consumer.take().ok_or(taken)?;
            NativeApp { app: Box::new(Inlet { consumer, waker }), pulls: true }
        };
        if producer.is_none() && consumer.is_none() {
            rings.remove(link);
        }
        Ok(opened)
    }
}

impl Ring {
    fn new() -> io::Result<Self> {
        let (producer, consumer) = channel(CAPACITY);
        let waker = ConsumerWaker { waker: Waker::new().map_err(io::Error::other)?, asleep: Arc::default() };
        Ok(Self { producer: Some(producer), consumer: Some(consumer), waker })
    }
}

/// Puts the frames of its input into the ring.
struct Outlet {
    producer: Producer<Frame>,
    waker: ConsumerWaker,
}

impl App for Outlet {
    fn push(&mut self, io: &mut Io<'_>) {
        let mut moved = false;
        while io.readable(0) > 0 && self.producer.has_room() {
            let Some(frame) = io.receive(0) else { break };
            match self.producer.push(frame) {
                Ok(()) => moved = true,
                // There was room, and no one else sends into it.
                Err(frame) => io.frames.free(frame),
            }
        }
        if moved && self.waker.asleep.must_wake() {
            self.waker.waker.wake();
        }
    }
}

/// Takes frames out of the ring, to its output.
struct Inlet {
    consumer: Consumer<Frame>,
    waker: ConsumerWaker,
}

impl App for Inlet {
    fn pull(&mut self, io: &mut Io<'_>) {
        for _ in 0..BREATH.min(io.writable(0)) {
            let Some(frame) = self.consumer.pop() else { break };
            if let Err(frame) = io.transmit(0, frame) {
                io.frames.free(frame);
            }
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.waker.fd())
    }

    fn before_sleep(&mut self) -> bool {
        self.waker.asleep.sleeps();
        self.consumer.readable() == 0
    }

    fn after_sleep(&mut self) {
        self.waker.asleep.wakes();
        self.waker.waker.clear();
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        while let Some(frame) = self.consumer.pop() {
            io.frames.free(frame);
        }
    }
}
