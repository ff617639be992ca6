//! The control thread: compiles and publishes the kernel's tables, and keeps them up to date.
//!
//! ```text
//! kernel ─► Watch ─► changes ─► Compiler ─► tables           (workers load them)
//!                            └► Steering                     (what ports leave to Linux)
//! firewall, IPsec policies, traffic control ─► Follower, a thread of its own ─► what is left to Linux
//! slow path ─► NeighborRequests ─┐
//! marks of use ───────┴─► "use this neighbor" ─► kernel     (resolves, confirms)
//! Handle::routes, verify, ... ─► a request, handled between two changes
//! ```
//!
//! One thread owns the mirror and the compiler, so they need no locks. It never waits for a worker, and no thread on the
//! packet path waits for it: [`NeighborRequests`] queues requests, and drops those that do not fit, since the slow path repeats
//! them.

mod budget;
mod control;
mod follower;
mod kernel;
mod known;
mod last_snapshot;
mod leases;
mod linux_only;
mod neighbor_requests;
mod neighbors;
mod ports;
mod tally;
mod uppers;
mod watchdog;

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bm_api::request::{ExplainQuery, RouteQuery};
use bm_api::{Area, Error, Explanation, Neighbors, NextHops, Routes, Status, Verify};
use bm_fastpath::{AttachChoice, Attachment, Counters, Kernel};
use bm_fib::published::{Published, Readers};
use bm_firewall::LinuxOnly;
use bm_forward::tables::Tables;
use bm_graph::{URGENT, Waker, set_nice};
use bm_port::Steering;
use bm_sys::Mutex;

use crate::compile;
use crate::config::Config;
use control::{Control, VerifyRequest};
pub use known::{ControlPortState, ControlState};
use leases::{Leases, Reason};
pub use neighbor_requests::NeighborRequests;
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
    kernel: Option<kernel::Shared>,
}

/// The control thread; ends on drop.
pub struct ControlThread {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    follower: Option<follower::Follower>,
    /// Dropped last.
    _watchdog: Watchdog,
}

impl ControlThread {
    /// Loads the kernel's tables, compiles them for `ports`, publishes them, and keeps them up to date.
    ///
    /// Returns when the tables are complete, which takes seconds with a million routes. Ports take no packets before
    /// [`Handle::set_active`]. With `kernel`, which must be attached to the ports' interfaces, the kernel path forwards,
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
        let kernel = kernel.map(|kernel| kernel::KernelPath::new(kernel, readers)).transpose()?;
        let published = compiler.published().clone();
        let watch = follower::open(&config.daemon.socket)?;
        let linux_only = watch.list().to_vec();
        let (tell, told) = mpsc::channel();
        let (config, wake, worker_leases) = (config.clone(), waker.clone(), leases.clone());
        let run = move || match Control::open(&config, compiler, ports, kernel, linux_only, worker_leases) {
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
        };
        let thread =
            std::thread::Builder::new().name(watchdog::CONTROL.into()).spawn(run).map_err(Error::new)?;
        let handle = Handle { requests, waker, published, follower: None, leases, health, kernel: shared };
        let mut thread = Self { handle, thread: Some(thread), follower: None, _watchdog: watchdog };
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
    fn ask<T: Send + 'static>(
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

    /// Makes ports take packets, or leave all of them to Linux.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn set_active(&self, active: bool) -> Result<(), Error> {
        self.ask(move |control| control.set_active(active))
    }

    /// Makes the kernel path keep forwarding with its last tables after the control thread has ended.
    ///
    /// # Errors
    /// If the control thread has ended, there is no kernel path, or its program is not pinned.
    pub fn keep(&self) -> Result<(), Error> {
        self.ask(Control::keep)?
    }

    /// Passes descriptors to the process at the other end of `stream`, which runs [`crate::watcher::run`] to watch the
    /// kernel path's tables after this process has ended.
    ///
    /// # Errors
    /// If the control thread has ended, or the other process does not answer.
    pub fn watch_over(&self, stream: UnixStream) -> Result<(), Error> {
        self.ask(move |control| control.watch_over(stream))?
    }

    /// Unpins the kernel path, so that it ends with the daemon.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn unpin(&self) -> Result<(), Error> {
        self.ask(Control::unpin)
    }

    /// Replaces the ports and the configuration. Ports of the kernel path forward at once if they were activated by
    /// [`Self::set_active`]; ports of workers take no packets before another call of it.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_ports(&self, ports: Vec<ControlPort>, config: &Config) -> Result<(), Error> {
        let config = config.clone();
        self.ask(move |control| control.set_ports(ports, &config))?
    }

    /// Sets the interface of a port, by its index, or removes it.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_port(
        &self,
        port: usize,
        ifindex: Option<u32>,
        steering: Box<dyn Steering>,
    ) -> Result<(), Error> {
        self.ask(move |control| control.set_port(port, ifindex, steering))?
    }

    /// Removes the interfaces of all ports of workers, whose packets Linux then gets, before the workers end. The kernel
    /// path keeps forwarding.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn release_worker_ports(&self) -> Result<(), Error> {
        self.ask(Control::release_worker_ports)?
    }

    /// The interfaces with these names; `None` for those that do not exist.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn links(&self, names: &[String]) -> Result<Vec<Option<LinkNow>>, Error> {
        let names = names.to_vec();
        self.ask(move |control| names.iter().map(|name| control.link_now(name)).collect())
    }

    /// Whether the control thread hangs: requests fail, but may succeed later.
    pub fn hangs(&self) -> bool {
        self.health.control_hangs().is_some()
    }

    /// Calls `tell` after each change of interfaces. It must not block.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn on_links(&self, tell: impl Fn() + Send + 'static) -> Result<(), Error> {
        self.ask(move |control| control.on_links(Box::new(tell)))
    }

    /// Attaches the kernel path to an interface, unless it is already attached.
    ///
    /// # Errors
    /// If the control thread has ended, there is no kernel path, or the interface cannot take it.
    pub fn attach(&self, interface: &str, choice: AttachChoice) -> Result<Attachment, Error> {
        let interface = interface.to_owned();
        self.ask(move |control| control.attach(&interface, choice))?
    }

    /// Detaches the kernel path from all interfaces except these.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn detach_others(&self, keep: Vec<u32>) -> Result<(), Error> {
        self.ask(move |control| control.detach_others(&keep))
    }

    /// Applies those changes of the configuration that need no restart.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn reconfigure(&self, config: &Config) -> Result<(), Error> {
        let config = config.clone();
        self.ask(move |control| control.reconfigure(&config))?
    }

    /// Leaves these packets to Linux from now on, and no others, except those that the configuration makes bypass
    /// Linux.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_linux_only(&self, list: Vec<LinuxOnly>) -> Result<(), Error> {
        let (answer, answered) = mpsc::channel();
        let request: Request = Box::new(move |control| {
            let _gone = answer.send(control.set_linux_only(list));
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

    fn step_for_firewall(&self) {
        if self.leases.add_reason(Reason::Firewall) {
            tracing::info!("leaving all packets to Linux until a change of its firewall is applied");
        }
    }

    /// The part of the status that control knows, and the state of each port.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn status(&self) -> Result<(Status, Vec<ControlPortState>), Error> {
        self.ask(|control| (control.status(), control.interfaces()))
    }

    /// Everything that metrics need, in one request, since each may have to wait on a busy machine.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn everything(&self) -> Result<ControlState, Error> {
        self.ask(|control| ControlState {
            status: control.status(),
            ports: control.interfaces(),
            kernel: control.kernel_counters(),
            filters: control.filters(),
        })
    }

    /// State of each port, and its counters in the kernel path.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn ports(&self) -> Result<(Vec<ControlPortState>, Vec<Counters>), Error> {
        self.ask(|control| (control.interfaces(), control.kernel_counters()))
    }

    /// State of each port.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn interfaces(&self) -> Result<Vec<ControlPortState>, Error> {
        self.ask(|control| control.interfaces())
    }

    /// Counters of the kernel path for each port; empty without a kernel path.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn kernel_counters(&self) -> Result<Vec<Counters>, Error> {
        self.ask(|control| control.kernel_counters())
    }

    /// Routes, as the fast path uses them.
    ///
    /// # Errors
    /// If the query is invalid, or the control thread has ended.
    pub fn routes(&self, query: &RouteQuery) -> Result<Routes, Error> {
        let query = query.clone();
        self.ask(move |control| control.routes(&query))?
    }

    /// What becomes of one packet, as far as the tables say.
    ///
    /// # Errors
    /// If the query is invalid, there is no memory, or the control thread has ended.
    pub fn explain(&self, query: &ExplainQuery) -> Result<Explanation, Error> {
        let query = query.clone();
        self.ask(move |control| control.explain(&query))?
    }

    /// Filter rules with their matches.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn filters(&self) -> Result<bm_api::Filters, Error> {
        self.ask(|control| control.filters())
    }

    /// The kernel's neighbors on our interfaces.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn neighbors(&self) -> Result<Neighbors, Error> {
        self.ask(|control| control.neighbors())
    }

    /// Next hops and groups in use.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn next_hops(&self) -> Result<NextHops, Error> {
        self.ask(|control| control.next_hops())
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
        let difference = |message| bm_api::Difference { area: Area::Firewall, message };
        verify.differences.extend(firewall.into_iter().map(difference));
        Ok(verify)
    }
}
