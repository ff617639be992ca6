//! A program's workers except for the first, which controls them: one thread each with its own state.
//!
//! The first worker sends them their configuration as bytes, lets them run while its own engine does, and pauses them
//! before it changes anything. Packets are exchanged only through rings ([`crate::ring`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use mlua::{IntoLua as _, MultiValue};

use crate::runtime::Flags;
use crate::state::{LuaError, State, WorkerContext};
use crate::world::World;

/// A request to a worker: a function of `core.workers`, with its argument.
struct Order {
    name: String,
    argument: Vec<u8>,
}

type Reply = Result<Vec<u8>, LuaError>;

struct Worker {
    orders: Option<Sender<Order>>,
    replies: Receiver<Reply>,
    flags: Flags,
    running: bool,
    thread: Option<JoinHandle<()>>,
}

/// All workers but the first, by number.
pub(crate) struct Pool {
    world: World,
    context: WorkerContext,
    workers: BTreeMap<usize, Worker>,
}

fn ended(worker: usize) -> LuaError {
    LuaError::new(format!("worker {worker} has ended"))
}

impl Pool {
    /// No workers yet; they will share `context`'s rings.
    pub fn new(world: World, context: WorkerContext) -> Self {
        Self { world, context, workers: BTreeMap::new() }
    }

    /// Makes `worker` call its function `name`, and returns the result. The worker is started if needed, and paused
    /// for the call if it runs.
    pub fn call(&mut self, worker: usize, core: Option<usize>, name: &str, argument: &[u8]) -> Reply {
        if !self.workers.contains_key(&worker) {
            let started = Worker::start(&self.world, &self.context, worker, core)?;
            self.workers.insert(worker, started);
        }
        let one = self.workers.get_mut(&worker).ok_or_else(|| ended(worker))?;
        let ran = one.running;
        one.pause(worker)?;
        let reply = one.ask(worker, name, argument);
        if ran && reply.is_ok() {
            one.run();
        }
        reply
    }

    /// Starts all of them.
    pub fn run(&mut self) {
        self.workers.values_mut().for_each(Worker::run);
    }

    /// Pauses all, and waits until they have stopped; returns the first error of any of them.
    pub fn pause(&mut self) -> Result<(), LuaError> {
        // All get the request before the first one is waited for.
        self.workers.values().for_each(|worker| worker.flags.pause.store(1, Ordering::Relaxed));
        let paused: Vec<_> = self.workers.iter_mut().map(|(&number, worker)| worker.pause(number)).collect();
        self.context.flags.trouble.store(0, Ordering::Relaxed);
        paused.into_iter().collect()
    }
}

impl Worker {
    fn start(
        world: &World,
        context: &WorkerContext,
        worker: usize,
        core: Option<usize>,
    ) -> Result<Self, LuaError> {
        let flags = Flags { trouble: context.flags.trouble.clone(), ..Flags::default() };
        let context =
            WorkerContext { worker, apart: false, flags: flags.clone(), rings: context.rings.clone() };
        let (orders, taken) = channel();
        let (answer, replies) = channel();
        let world = world.clone();
        let thread = std::thread::Builder::new().name(format!("bm-lua-{worker}")).spawn(move || {
            if let Err(error) = pin(core) {
                let why = format!("cannot pin worker {worker} to core {}: {error}", core.unwrap_or_default());
                let _gone = answer.send(Err(LuaError::new(why)));
                return;
            }
            serve(&world, &context, &taken, &answer);
        });
        let thread = Some(thread.map_err(LuaError::new)?);
        Ok(Self { orders: Some(orders), replies, flags, running: false, thread })
    }

    fn send(&self, name: &str, argument: &[u8]) {
        let order = Order { name: name.into(), argument: argument.into() };
        // A worker that has ended is found out by the missing reply.
        let _gone = self.orders.as_ref().map(|orders| orders.send(order));
    }

    fn ask(&self, worker: usize, name: &str, argument: &[u8]) -> Reply {
        self.send(name, argument);
        self.replies.recv().unwrap_or_else(|_| Err(ended(worker)))
    }

    fn run(&mut self) {
        if !self.running {
            self.flags.pause.store(0, Ordering::Relaxed);
            self.send("run", &[]);
            self.running = true;
        }
    }

    fn pause(&mut self, worker: usize) -> Result<(), LuaError> {
        if !self.running {
            return Ok(());
        }
        self.flags.pause.store(1, Ordering::Relaxed);
        self.running = false;
        self.replies.recv().unwrap_or_else(|_| Err(ended(worker))).map(drop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.flags.pause.store(1, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

/// Handles requests until the other end is closed.
fn serve(world: &World, context: &WorkerContext, orders: &Receiver<Order>, answer: &Sender<Reply>) {
    let mut state = State::of_worker(world, context);
    while let Ok(Order { name, argument }) = orders.recv() {
        let reply = match &mut state {
            Ok(state) => carry_out(state, &name, &argument),
            Err(error) => Err(error.clone()),
        };
        let reply = reply.map_err(|error| LuaError {
            message: format!("worker {}: {}", context.worker, error.message),
            traceback: error.traceback,
        });
        if reply.is_err() {
            context.flags.trouble.store(1, Ordering::Relaxed);
        }
        if answer.send(reply).is_err() {
            return;
        }
    }
}

fn carry_out(state: &State, name: &str, argument: &[u8]) -> Reply {
    let mut arguments = MultiValue::new();
    arguments.push_back(state.lua().create_string(argument)?.into_lua(state.lua())?);
    arguments.push_front(name.into_lua(state.lua())?);
    state.call("worker", arguments)?;
    state.result()
}

fn pin(core: Option<usize>) -> std::io::Result<()> {
    let Some(core) = core else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
