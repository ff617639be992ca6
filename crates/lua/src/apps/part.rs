//! The apps in Lua of one worker, as one app of the worker's network.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use bm_graph::{App, Io};
use bm_link::{Consumer, Link};
use bm_sys::Mutex;
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::loaded::{AppsState, CallFailure, Crossing};
use super::spec::AppsSpec;
use crate::hook::guard::{self, CallState};
use crate::state::LuaError;

/// An order for a worker's apps.
pub enum Order {
    /// Use this configuration.
    Become(AppsSpec),
    /// Use the configuration before the last order again, even if files have changed since.
    Revert,
}

/// The result of an order: `Some` contains why it was refused.
pub type Reply = Option<String>;
/// Why a part does nothing any more.
pub type Failure = Arc<Mutex<Option<CallFailure>>>;

/// A link outside, and the link inside to which it is joined.
struct LinkPair {
    outside: usize,
    inside: usize,
}

/// A link inside to which one or several links outside lead, and up to where Lua's reading of it has been settled.
struct Entry {
    inside: usize,
    settled: usize,
}

/// Joins those links outside that have a counterpart in Lua's network. `slow:` in front of a port's name stands for the
/// router.
fn link_pairs(crossings: &[Crossing], names: &[String], inwards: bool) -> Vec<LinkPair> {
    let pairs = names.iter().enumerate().filter_map(|(outside, name)| {
        let name = name.strip_prefix("slow:").map_or_else(|| name.clone(), |port| format!("router:{port}"));
        let mut crossings = crossings.iter();
        let crossing = crossings.find(|crossing| crossing.inwards == inwards && crossing.name == name)?;
        Some(LinkPair { outside, inside: crossing.link })
    });
    pairs.collect()
}

/// A part's connections to its set.
pub struct Ends {
    /// New configurations.
    pub orders: Consumer<Order>,
    /// Results of orders.
    pub replies: Sender<Reply>,
    /// What the supervisor sees of calls.
    pub call_state: Arc<CallState>,
    /// Where a failure is reported.
    pub failure: Failure,
    /// How many workers there are.
    pub workers: usize,
}

/// The apps in Lua of one worker.
pub struct Part {
    /// `None` once it has failed.
    loaded: Option<AppsState>,
    crossings: Vec<Crossing>,
    /// Names of the links outside, by their index in [`Io`].
    names: [Vec<String>; 2],
    ins: Vec<LinkPair>,
    entries: Vec<Entry>,
    outs: Vec<LinkPair>,
    ends: Ends,
    moved: u64,
    wakes: WakeSources,
}

impl Part {
    /// With the apps of `spec` started.
    ///
    /// # Errors
    /// What is wrong with one of the apps.
    pub fn new(mut loaded: AppsState, spec: &AppsSpec, ends: Ends) -> Result<Self, LuaError> {
        // A call state belongs to the thread that uses it first, and this is not the worker's.
        let (crossings, refused) =
            match guard::loading(|call_state| loaded.configure(call_state, spec, ends.workers)) {
                Ok(done) => done,
                Err(why) => return Err(LuaError::new(why)),
            };
        if let Some(why) = refused {
            return Err(LuaError::new(why));
        }
        let wakes = WakeSources::new(&mut loaded).map_err(LuaError::new)?;
        let (names, ins, entries, outs) = Default::default();
        Ok(Self { loaded: Some(loaded), crossings, names, ins, entries, outs, ends, moved: 0, wakes })
    }

    /// Joins links outside with links inside, by name. What the slow path sends takes the same path as what the
    /// router sends.
    fn join(&mut self) {
        let Self { crossings, names: [inputs, outputs], ins, entries, outs, .. } = self;
        *ins = link_pairs(crossings, inputs, true);
        *outs = link_pairs(crossings, outputs, false);
        let mut insides: Vec<_> = ins.iter().map(|pair| pair.inside).collect();
        insides.sort_unstable();
        insides.dedup();
        let before = std::mem::take(entries);
        for inside in insides {
            let known = before.iter().find(|entry| entry.inside == inside);
            entries.push(Entry { inside, settled: known.map_or(0, |entry| entry.settled) });
        }
    }

    /// Carries out new configurations.
    #[cold]
    fn take_orders(&mut self) {
        while let Some(order) = self.ends.orders.pop() {
            let Some(loaded) = &mut self.loaded else { return };
            // No packet depends on a half-done configuration: an error leaves the state consistent.
            self.ends.call_state.set_gentle(true);
            let configured = match &order {
                Order::Become(spec) => loaded.configure(&self.ends.call_state, spec, self.ends.workers),
                Order::Revert => loaded.revert(&self.ends.call_state),
            };
            self.ends.call_state.set_gentle(false);
            match configured {
                Ok((crossings, refused)) => {
                    self.crossings = crossings;
                    self.wakes.watch(loaded);
                    self.join();
                    // The requester may have given up waiting.
                    let _gone = self.ends.replies.send(refused);
                }
                Err(why) => {
                    let _gone = self.ends.replies.send(Some(why.to_string()));
                    self.fail(why);
                }
            }
        }
    }

    /// Ends Lua's part of the worker; packets stay on the links that lead to it.
    #[cold]
    fn fail(&mut self, why: CallFailure) {
        self.loaded = None;
        let mut failure = self.ends.failure.lock();
        failure.get_or_insert(why);
    }
}

/// Moves frames from `from` to `to` while there is room.
fn enter(io: &mut Io<'_>, joint: &LinkPair, links: &mut [Link]) {
    let to = &mut links[joint.inside];
    for _ in 0..io.readable(joint.outside).min(to.writable()) {
        let Some(frame) = io.receive(joint.outside) else { break };
        if let Err(frame) = to.transmit(frame) {
            io.frames.free(frame);
        }
    }
}

/// Moves what Lua sent to the outside while there is room.
fn leave(io: &mut Io<'_>, joint: &LinkPair, links: &mut [Link]) {
    let from = &mut links[joint.inside];
    for _ in 0..from.readable().min(io.writable(joint.outside)) {
        let Some(frame) = from.receive() else { break };
        if let Err(frame) = io.transmit(joint.outside, frame) {
            io.frames.free(frame);
        }
    }
}

impl App for Part {
    fn push(&mut self, io: &mut Io<'_>) {
        if self.ends.orders.readable() > 0 {
            self.take_orders();
        }
        let Some(loaded) = &mut self.loaded else { return };
        // All of it before any frame goes in: slots that were read a breath ago must not be searched among new
        // frames.
        for entry in &mut self.entries {
            entry.settled = loaded.links()[entry.inside].settle(entry.settled);
        }
        self.ins.iter().for_each(|joint| enter(io, joint, loaded.links()));
        if let Err(why) = loaded.breathe(&self.ends.call_state) {
            return self.fail(why);
        }
        self.outs.iter().for_each(|joint| leave(io, joint, loaded.links()));
    }

    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        self.names = [inputs.to_vec(), outputs.to_vec()];
        self.join();
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakes.all.as_fd())
    }

    fn before_sleep(&mut self) -> bool {
        let Some(loaded) = &mut self.loaded else { return true };
        let moves = loaded.moves();
        // Packets between apps of this state are work, too, though no link outside shows it.
        let quiet = std::mem::replace(&mut self.moved, moves) == moves && loaded.is_empty();
        let natives = loaded.natives().before_sleep();
        match loaded.idle(&self.ends.call_state) {
            Ok(most_us) => {
                self.wakes.within(Duration::from_micros(most_us));
                quiet && natives
            }
            Err(why) => {
                self.fail(why);
                false
            }
        }
    }

    fn after_sleep(&mut self) {
        self.wakes.clear();
        if let Some(loaded) = &mut self.loaded {
            loaded.natives().after_sleep();
        }
    }

    fn stop(&mut self, _io: &mut Io<'_>) {
        let Some(mut loaded) = self.loaded.take() else { return };
        // An app whose stop() fails is closed anyway.
        let _failed = loaded.stop(&self.ends.call_state);
    }
}

/// What wakes the worker for Lua: ports that apps have opened, and a timer.
struct WakeSources {
    all: OwnedFd,
    timer: OwnedFd,
    /// Duplicates of the watched descriptors, so that a closed one cannot be mistaken for another.
    ports: Vec<OwnedFd>,
}

impl WakeSources {
    fn new(loaded: &mut AppsState) -> std::io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&all, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let mut wakes = Self { all, timer, ports: Vec::new() };
        wakes.watch(loaded);
        Ok(wakes)
    }

    /// Watches the ports that there are now.
    fn watch(&mut self, loaded: &mut AppsState) {
        for port in self.ports.drain(..) {
            // A descriptor that its device has closed is removed automatically.
            let _gone = epoll::delete(&self.all, &port);
        }
        for fd in loaded.natives().wait_on() {
            let Ok(port) = fd.try_clone_to_owned() else { continue };
            // Without it the port is checked when the worker wakes by itself.
            let _unwatched =
                epoll::add(&self.all, &port, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            self.ports.push(port);
        }
    }

    /// Wakes the worker after `time`, or not at all if that is zero.
    fn within(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ };
        let timer = Itimerspec { it_interval: zero, it_value: value };
        // The worker wakes by itself ten times a second.
        let _late = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }

    fn clear(&self) {
        // EAGAIN means that it has not expired.
        let _none = rustix::io::read(&self.timer, &mut [0u8; 8]);
    }
}
