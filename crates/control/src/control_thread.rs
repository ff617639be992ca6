//! The control thread: compiles and publishes the kernel's tables, and keeps them up to date.
//!
//! ```text
//! kernel ─► Watch ─► changes ─► Compiler ─► tables           (workers load them)
//!                            └► Steering                     (what ports leave to Linux)
//! firewall, IPsec policies, traffic control ─► Follower, a thread of its own ─► what is left to Linux
//! reports of packets, connections ─► `bm-flows`, a thread of its own ─► what is forwarded by flow
//! slow path ─► NeighborRequests ─┐
//! marks of use ───────┴─► "use this neighbor" ─► kernel     (resolves, confirms)
//! Handle::ask ────────► a function of Control, run between two changes
//! ```
//!
//! One thread owns the mirror and the compiler, so they need no locks. It never waits for a worker, and no thread on the
//! packet path waits for it: [`NeighborRequests`] queues requests, and drops those that do not fit, since the slow path repeats
//! them.

mod applied;
mod budget;
mod control;
mod flows;
mod follower;
mod kernel;

mod leases;
mod linux_only;
mod neighbor_requests;
mod neighbors;
mod ports;
mod state;
mod tally;
mod uppers;
mod watchdog;

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_api::{Area, Error, Verify};
use bm_fastpath::Kernel;
use bm_fib::published::{Published, Readers};
use bm_firewall::{Counters, LinuxOnly, RulesetFacts};
use bm_forward::tables::Tables;
use bm_graph::{URGENT, Waker, set_nice};
use bm_port::Steering;
use bm_sys::Mutex;

use crate::compile;
use crate::config::Config;
use crate::flows::FlowThread;
pub use control::Control;
use control::VerifyRequest;
use flows::FlowUse;
use leases::{Leases, Reason};
use linux_only::FirewallState;
pub use neighbor_requests::NeighborRequests;
pub use state::{ControlPortState, ControlState};
use watchdog::{Health, Watchdog};

/// A port of the control thread.
pub struct ControlPort {
    /// Name; counters with this name continue when the interface changes.
    pub name: String,
    /// Index of its interface in Linux; `None` while it has none.
    pub ifindex: Option<u32>,
    /// Sets which packets it leaves to Linux.
    pub steering: Box<dyn Steering>,
    /// Whether it is a port of the kernel path, not of workers.
    pub in_kernel: bool,
}

/// How long packets are forwarded when the lease is no longer renewed: on the kernel path neither by the daemon nor by
/// the watching process (the argument of [`Kernel::load`]), on workers by the daemon.
pub const LEASE: Duration = Duration::from_millis(400);
/// How long a change of Linux's firewall waits for control before all packets are left to Linux.
const FIREWALL_WAITS: Duration = Duration::from_millis(40);

/// An existing Linux interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNow {
    /// Index in Linux.
    pub ifindex: u32,
    /// Distinguishes it from earlier interfaces of its name ([`bm_netlink::Mirror::generation`]).
    pub generation: u64,
    /// Whether it is an Ethernet interface with a MAC.
    pub ethernet: bool,
    /// Whether it is a veth, whose other end decides whether it accepts frames from XDP.
    pub veth: bool,
}

type Request = Box<dyn FnOnce(&mut Control) + Send>;

/// Sends requests to the control thread; can be cloned.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    waker: Waker,
    published: Arc<Published<Tables>>,
    follower: Option<follower::Orders>,
    leases: Leases,
    health: Health,
    kernel: Option<kernel::SharedKernel>,
    flows: FlowUse,
}

/// The control thread; ends on drop.
pub struct ControlThread {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    follower: Option<follower::Follower>,
    /// Dropped after control, which uses it.
    _flows: Option<FlowThread>,
    /// Dropped last.
    _watchdog: Watchdog,
}

impl ControlThread {
    /// Loads the kernel's tables, compiles them for `ports`, publishes them, and keeps them up to date.
    ///
    /// Returns when the tables are complete, which takes seconds with a million routes. Ports take no packets before
    /// [`Control::set_active`]. With `kernel`, which must be attached to the ports' interfaces, the kernel path forwards,
    /// and the tables of the main VRF are in its maps.
    ///
    /// # Errors
    /// If the kernel's tables cannot be read, or there is not enough memory.
    pub fn start(
        config: &Config,
        hash_seed: u32,
        readers: &Readers,
        ports: Vec<ControlPort>,
        kernel: Option<Kernel>,
    ) -> Result<Self, Error> {
        let (requests, requested) = mpsc::channel();
        let waker = Waker::new().map_err(Error::new)?;
        let mut options = compile::Options::from_config(config, hash_seed);
        let kernel = kernel.map(|kernel| Arc::new(Mutex::new(kernel)));
        let mut memory: Arc<dyn compile::Memory> = Arc::new(compile::Anonymous);
        if let Some(kernel) = &kernel {
            memory = Arc::new(kernel::InMaps(Arc::clone(kernel)));
            kernel::limit(&mut options);
        }
        let compiler = compile::Compiler::new_in(readers, options, memory).map_err(Error::new)?;
        let lease = kernel.as_ref().map(|kernel| kernel.lock().lease()).transpose();
        let leases = Leases::new(compiler.lease(), lease.map_err(Error::new)?);
        let health = Health::default();
        let watchdog = Watchdog::start(leases.clone(), health.clone())?;
        let shared = kernel.clone();
        let (flows, flow_thread) = FlowUse::start(config, kernel.as_ref(), &leases);
        let kernel = kernel.map(|kernel| kernel::KernelPath::new(kernel, readers)).transpose()?;
        let published = compiler.published().clone();
        let watch = follower::open(&config.daemon.socket, config.firewall.counters)?;
        let firewall = FirewallState { list: watch.list().to_vec(), facts: *watch.facts() };
        let (tell, told) = mpsc::channel();
        let (config, wake, worker_leases) = (config.clone(), waker.clone(), leases.clone());
        let of_control = flows.clone();
        let thread = std::thread::Builder::new().name(watchdog::CONTROL.into()).spawn(move || {
            match Control::open(&config, compiler, ports, kernel, firewall, of_control, worker_leases) {
                Ok(mut control) => {
                    let _gone = tell.send(Ok(()));
                    if let Err(error) = set_nice(URGENT) {
                        tracing::info!(%error, "tables may follow Linux with a delay while the machine is busy");
                    }
                    control.run(&requested, &wake);
                }
                Err(error) => {
                    let _gone = tell.send(Err(error));
                }
            }
        });
        let thread = thread.map_err(Error::new)?;
        let handle =
            Handle { requests, waker, published, follower: None, leases, health, kernel: shared, flows };
        let mut thread =
            Self { handle, thread: Some(thread), follower: None, _flows: flow_thread, _watchdog: watchdog };
        match told.recv() {
            Ok(Ok(())) => {
                let follower = follower::Follower::start(watch, thread.handle.clone())?;
                thread.handle.follower = Some(follower.orders());
                thread.follower = Some(follower);
                Ok(thread)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(control_ended()),
        }
    }

    /// For requests.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        // The follower uses the control thread, so it must end first.
        drop(self.follower.take());
        let _gone = self.handle.requests.send(Box::new(Control::end));
        self.handle.waker.wake();
        if let Some(thread) = self.thread.take().filter(|thread| self.handle.ends(thread)) {
            // A panic of the thread has already been logged.
            let _panicked = thread.join();
        }
    }
}

fn control_ended() -> Error {
    Error::new("the control thread has ended").hint("restart the daemon and report this bug with its log")
}

impl Handle {
    /// Runs a function on the control thread, between two changes, and returns what it returns.
    ///
    /// # Errors
    /// If the control thread has ended, or hangs.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Control) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = mpsc::channel();
        let request: Request = Box::new(move |control| {
            let _gone = answer.send(job(control));
        });
        self.requests.send(request).map_err(|_| control_ended())?;
        self.waker.wake();
        self.wait(&answered)
    }

    /// Runs a function that may fail on the control thread, as [`Self::ask`] does.
    ///
    /// # Errors
    /// Its own, or that the control thread has ended, or hangs.
    pub fn try_ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Control) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask(job)?
    }

    /// Creates the queue for neighbor requests of a slow path; replaces an earlier one.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn neighbor_requests(&self) -> Result<NeighborRequests, Error> {
        let waker = self.waker.clone();
        self.ask(move |control| control.neighbor_requests(waker))
    }

    /// The tables that workers and the slow path load.
    pub fn published(&self) -> &Arc<Published<Tables>> {
        &self.published
    }

    /// Whether the control thread hangs: requests fail, but may succeed later.
    pub fn hangs(&self) -> bool {
        self.health.control_hangs().is_some()
    }

    /// Leaves these packets to Linux from now on, and no others, except those that the configuration makes bypass
    /// Linux. `facts` are about the rules that the list was made from.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_linux_only(&self, list: Vec<LinuxOnly>, facts: RulesetFacts) -> Result<(), Error> {
        let (answer, answered) = mpsc::channel();
        let request: Request = Box::new(move |control| {
            let _gone = answer.send(control.set_linux_only(list, facts));
        });
        self.requests.send(request).map_err(|_| control_ended())?;
        self.waker.wake();
        let done = match answered.recv_timeout(FIREWALL_WAITS) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.step_for_firewall();
                self.wait(&answered)
            }
            done => done.map_err(|_| control_ended()),
        };
        let done = done.and_then(|done| done);
        match &done {
            Ok(()) => drop(self.leases.remove_reason(Reason::Firewall)),
            // The compiled tables would forward packets that Linux forbids.
            Err(_) => self.step_for_firewall(),
        }
        done
    }

    /// Sets which IPsec policies of the kernel workers apply, by their indexes: packets that match only these are no longer
    /// left to Linux. Returns when that is in effect; `false` if it may not be.
    pub fn apply_policies(&self, indexes: BTreeSet<u32>) -> bool {
        self.follower.as_ref().is_some_and(|follower| follower.apply_policies(indexes))
    }

    /// Applies those changes of the configuration that need no restart.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn reconfigure(&self, config: &Config) -> Result<(), Error> {
        self.set_counters(config.firewall.counters)?;
        let config = config.clone();
        self.try_ask(move |control| control.reconfigure(&config))
    }

    /// Sets what counters of Linux's rules have to count. Returns when that is in effect.
    ///
    /// # Errors
    /// If it may not be.
    pub fn set_counters(&self, counters: Counters) -> Result<(), Error> {
        let applied = self.follower.as_ref().is_none_or(|follower| follower.set_counters(counters));
        match applied {
            true => Ok(()),
            false => Err(Error::new("the thread that follows Linux's firewall does not answer")),
        }
    }

    fn step_for_firewall(&self) {
        if self.leases.add_reason(Reason::Firewall) {
            tracing::info!("leaving all packets to Linux until a change of its firewall is applied");
        }
    }

    /// Compares the mirror with a fresh dump of the kernel's tables, and the compiled tables with the mirror. Changes
    /// are still applied meanwhile.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn verify(&self) -> Result<Verify, Error> {
        // First, since its findings are applied, and then compared with the rest.
        let firewall = self.follower.as_ref().map(follower::Orders::ask).unwrap_or_default();
        let (answer, answered) = mpsc::channel();
        self.ask(move |control| control.request_verify(VerifyRequest::new(answer)))?;
        let mut verify = self.wait(&answered)?;
        verify.differences_total += firewall.len();
        verify.equal &= firewall.is_empty();
        for message in firewall {
            verify.differences.push(bm_api::Difference { area: Area::Firewall, message });
        }
        Ok(verify)
    }
}
