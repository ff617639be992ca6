//! The control thread: what the kernel says, compiled, published, and kept fresh.
//!
//! ```text
//! kernel ─► Watch ─► changes ─► Compiler ─► tables           (workers load them)
//!                            └► Steering                     (what ports leave to Linux)
//! firewall, IPsec policies, traffic control ─► Follower, a thread of its own ─► what is left to Linux
//! slow path ─► Asker ─┐
//! marks of use ───────┴─► "use this neighbour" ─► kernel     (resolves, confirms)
//! Handle::routes, verify, ... ─► a request, carried out between two changes
//! ```
//!
//! One thread owns the mirror and the compiler, so nothing here is locked. It never waits for a worker,
//! and nobody on the packet path waits for it: [`Asker`] queues, and drops what a full queue cannot take,
//! since the slow path asks again.

mod aside;
mod asker;
mod budget;
mod control;
mod follower;
mod kernel;
mod known;
mod linux_only;
mod neighbours;
mod ports;
mod tally;
mod told;
mod watchdog;

use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_api::request::RouteQuery;
use bm_api::{Area, Error, Neighbors, NextHops, Routes, Status, Verify};
use bm_fastpath::{Attachment, Counters, Kernel};
use bm_fib::published::{Published, Readers};
use bm_fib::structure;
use bm_forward::tables::Tables;
use bm_graph::{URGENT, Waker, set_nice};
use bm_netlink::LinuxOnly;
use bm_port::Steering;

use crate::compile;
use crate::config::Config;
use aside::{Aside, Why};
pub use asker::Asker;
use control::{Control, Pending};
pub use known::{OfControl, OfPort};
use watchdog::{Health, Watchdog};

/// A port as control sees it.
pub struct ControlPort {
    /// Its name, by which it counts on when it has another interface.
    pub name: String,
    /// Number of its interface in Linux; none while it has no interface.
    pub ifindex: Option<u32>,
    /// What tells it which packets to leave to Linux.
    pub steering: Box<dyn Steering>,
    /// Whether the kernel path forwards what comes in there, and not workers.
    pub in_kernel: bool,
}

/// How long the kernel path forwards when nobody says any more that its tables are kept: neither a daemon that goes on
/// nor the process that watches over them. What [`Kernel::load`] is to be told.
pub const LEASE: Duration = Duration::from_millis(400);
/// How long a change of Linux's firewall waits for control before all packets are Linux's.
const FIREWALL_WAITS: Duration = Duration::from_millis(40);

/// An interface of Linux that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNow {
    /// Its number.
    pub ifindex: u32,
    /// Which appearance of it this is ([`bm_netlink::Mirror::birth`]).
    pub birth: u64,
    /// Whether its frames have Ethernet headers and it has an address of its own.
    pub ethernet: bool,
    /// Whether it is a veth, which takes frames from XDP or not as its far end happens to be now.
    pub veth: bool,
}

type Request = Box<dyn FnOnce(&mut Control) + Send>;

/// Asks the control thread; as many as wanted.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    waker: Waker,
    published: Arc<Published<Tables>>,
    audits: Option<follower::Audits>,
    aside: Aside,
    health: Health,
    kernel: Option<kernel::Shared>,
}

/// The control thread. It ends when this is dropped.
pub struct Driver {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    follower: Option<follower::Follower>,
    /// Dropped last.
    _watchdog: Watchdog,
}

impl Driver {
    /// Loads the kernel's tables, compiles them for `ports`, publishes them, and goes on doing so.
    ///
    /// Returns when the tables are whole, which takes seconds where there are a million routes. Ports take no
    /// packets before [`Handle::set_active`]. With `kernel`, which must be on the ports' interfaces, packets of
    /// the common sort are forwarded there, and the tables of the main VRF lie in its maps.
    ///
    /// # Errors
    /// What the kernel or the memory refused, as a sentence.
    pub fn start(
        config: &Config,
        hash_seed: u32,
        readers: &Readers,
        ports: Vec<ControlPort>,
        kernel: Option<Kernel>,
    ) -> Result<Self, Error> {
        let (requests, requested) = mpsc::channel();
        let waker = Waker::new().map_err(Error::new)?;
        let choices = compile::Choices {
            hash_seed,
            icmp_per_second: config.slow_path.icmp_per_second,
            feasible: config.asks_for_feasible(),
        };
        let mut options = compile::Options {
            next_hops: config.fib.next_hops,
            group_buckets: config.fib.group_buckets,
            ipv4: config.fib.ipv4,
            ipv6: config.fib.ipv6,
            choices,
        };
        let kernel = kernel.map(|kernel| Arc::new(Mutex::new(kernel)));
        let mut memory: Arc<dyn compile::Memory> = Arc::new(compile::Anonymous);
        if let Some(kernel) = &kernel {
            memory = Arc::new(kernel::InMaps(Arc::clone(kernel)));
            fit(&mut options);
        }
        let compiler = compile::Compiler::new_in(readers, options, memory).map_err(Error::new)?;
        let lease = kernel.as_ref().map(|kernel| kernel::lock(kernel).lease()).transpose();
        let aside = Aside::new(compiler.aside(), lease.map_err(Error::new)?);
        let health = Health::default();
        let watchdog = Watchdog::start(aside.clone(), health.clone())?;
        let shared = kernel.clone();
        let kernel = kernel.map(|kernel| kernel::KernelPath::new(kernel, readers)).transpose()?;
        let published = compiler.published().clone();
        let watch = follower::open()?;
        let linux_only = watch.list().to_vec();
        let (tell, told) = mpsc::channel();
        let (config, wake, steps_aside) = (config.clone(), waker.clone(), aside.clone());
        let run = move || match Control::open(&config, compiler, ports, kernel, (linux_only, steps_aside)) {
            Ok(mut control) => {
                let _gone = tell.send(Ok(()));
                if let Err(error) = set_nice(URGENT) {
                    tracing::info!(%error, "tables may follow Linux later while other processes are busy");
                }
                control.run(&requested, &wake);
            }
            Err(error) => {
                let _gone = tell.send(Err(error));
            }
        };
        let thread =
            std::thread::Builder::new().name(watchdog::CONTROL.into()).spawn(run).map_err(Error::new)?;
        let handle = Handle { requests, waker, published, audits: None, aside, health, kernel: shared };
        let mut driver = Self { handle, thread: Some(thread), follower: None, _watchdog: watchdog };
        match told.recv() {
            Ok(Ok(())) => {
                let follower = follower::Follower::start(watch, driver.handle.clone())?;
                driver.handle.audits = Some(follower.audits());
                driver.follower = Some(follower);
                Ok(driver)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(gone()),
        }
    }

    /// For asking.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It asks the control thread, which has to be there.
        drop(self.follower.take());
        let _gone = self.handle.requests.send(Box::new(Control::end));
        self.handle.waker.wake();
        if let Some(thread) = self.thread.take().filter(|thread| self.handle.ends(thread)) {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

/// Only two structures can be searched in the kernel, and its maps have room for so much.
fn fit(options: &mut compile::Options) {
    let by_name = |name| structure::IPV4.iter().find(|structure| structure.name == name);
    if let Some(chunk17) = by_name("chunk17") {
        options.ipv4 = *chunk17;
    }
    options.ipv6 = structure::IPV6[0];
    options.next_hops = options.next_hops.min(bm_fastpath::HOPS as u32);
    options.group_buckets = options.group_buckets.min(bm_fastpath::BUCKETS as u32);
}

fn gone() -> Error {
    Error::new("the control thread has ended").hint("restart the daemon and report what it logged")
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
        self.requests.send(request).map_err(|_| gone())?;
        self.waker.wake();
        self.wait(&answered)
    }

    /// The way for a slow path to ask for neighbours, in the place of an earlier one.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn asker(&self) -> Result<Asker, Error> {
        let waker = self.waker.clone();
        self.ask(move |control| control.asker(waker))
    }

    /// What workers and the slow path load.
    pub fn published(&self) -> &Arc<Published<Tables>> {
        &self.published
    }

    /// Has ports take packets, or leave all of them to Linux.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn set_active(&self, active: bool) -> Result<(), Error> {
        self.ask(move |control| control.set_active(active))
    }

    /// Has the kernel path stay at work, by its last tables, when the driver ends.
    ///
    /// # Errors
    /// If the control thread has ended, there is no kernel path, or its program is not pinned.
    pub fn keep(&self) -> Result<(), Error> {
        self.ask(Control::keep)?
    }

    /// Gives the process at the other end of `stream`, which runs [`crate::watcher::run`], what it needs to watch over
    /// the kernel path's tables when this one has ended.
    ///
    /// # Errors
    /// If the control thread has ended, or the process does not take it.
    pub fn watch_over(&self, stream: UnixStream) -> Result<(), Error> {
        self.ask(move |control| control.watch_over(&stream))?
    }

    /// Has the kernel path end with the daemon: nothing of it stays pinned.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn unpin(&self) -> Result<(), Error> {
        self.ask(Control::unpin)
    }

    /// Gives control other ports, and the configuration that they are from. Those of the kernel path forward at once
    /// if [`Self::set_active`] has been said; those of workers take no packets before it is said again.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_ports(&self, ports: Vec<ControlPort>, config: &Config) -> Result<(), Error> {
        let config = config.clone();
        self.ask(move |control| control.set_ports(ports, &config))?
    }

    /// Gives a port, by its number, another interface, or none.
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

    /// Has ports of workers leave everything to Linux, since their workers are about to end: they have no interface
    /// any more. The kernel path goes on.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn rest_workers(&self) -> Result<(), Error> {
        self.ask(Control::rest_workers)?
    }

    /// The interfaces of these names, as far as they are there.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn links(&self, names: &[String]) -> Result<Vec<Option<LinkNow>>, Error> {
        let names = names.to_vec();
        self.ask(move |control| names.iter().map(|name| control.link_now(name)).collect())
    }

    /// Whether the control thread hangs: what it is asked fails, and may do later.
    pub fn hangs(&self) -> bool {
        self.health.control_hangs().is_some()
    }

    /// Calls `tell` after each change of interfaces. It must not wait.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn on_links(&self, tell: impl Fn() + Send + 'static) -> Result<(), Error> {
        self.ask(move |control| control.on_links(Box::new(tell)))
    }

    /// Puts the kernel path on an interface, unless it is there already.
    ///
    /// # Errors
    /// If the control thread has ended, there is no kernel path, or the interface cannot have it.
    pub fn attach(&self, interface: &str) -> Result<Attachment, Error> {
        let interface = interface.to_owned();
        self.ask(move |control| control.attach(&interface))?
    }

    /// Takes the kernel path off all interfaces but these.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn detach_others(&self, keep: Vec<u32>) -> Result<(), Error> {
        self.ask(move |control| control.detach_others(&keep))
    }

    /// Carries out what changed in the configuration and can be carried out while running.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn reconfigure(&self, config: &Config) -> Result<(), Error> {
        let config = config.clone();
        self.ask(move |control| control.reconfigure(&config))?
    }

    /// Leaves these packets to Linux from now on, and no others; those that the configuration bypasses are forwarded
    /// all the same.
    ///
    /// # Errors
    /// If the control thread has ended, or the new tables found no memory.
    pub fn set_linux_only(&self, list: Vec<LinuxOnly>) -> Result<(), Error> {
        let (answer, answered) = mpsc::channel();
        let request: Request = Box::new(move |control| {
            let _gone = answer.send(control.set_linux_only(list));
        });
        self.requests.send(request).map_err(|_| gone())?;
        self.waker.wake();
        let done = match answered.recv_timeout(FIREWALL_WAITS) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.step_for_firewall();
                self.wait(&answered)
            }
            done => done.map_err(|_| gone()),
        };
        let done = done.and_then(|done| done);
        match &done {
            Ok(()) => drop(self.aside.back(Why::Firewall)),
            // By what is compiled, packets are forwarded that are forbidden.
            Err(_) => self.step_for_firewall(),
        }
        done
    }

    fn step_for_firewall(&self) {
        if self.aside.step(Why::Firewall) {
            tracing::info!("all packets are left to Linux until a change of its firewall is carried out");
        }
    }

    /// What control knows of the daemon's state and of each port; the rest is left as it is by default.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn status(&self) -> Result<(Status, Vec<OfPort>), Error> {
        self.ask(|control| (control.status(), control.interfaces()))
    }

    /// Everything that metrics tell, in one question: on a busy machine each waits for its turn.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn everything(&self) -> Result<OfControl, Error> {
        self.ask(|control| OfControl {
            status: control.status(),
            ports: control.interfaces(),
            kernel: control.kernel_counters(),
            filters: control.filters(),
        })
    }

    /// What control knows of each port, and what the kernel path did with its frames.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn ports(&self) -> Result<(Vec<OfPort>, Vec<Counters>), Error> {
        self.ask(|control| (control.interfaces(), control.kernel_counters()))
    }

    /// What control knows of each port.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn interfaces(&self) -> Result<Vec<OfPort>, Error> {
        self.ask(|control| control.interfaces())
    }

    /// For each port, what the kernel path did with its frames; nothing without a kernel path.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn kernel_counters(&self) -> Result<Vec<Counters>, Error> {
        self.ask(|control| control.kernel_counters())
    }

    /// What the fast path does with prefixes.
    ///
    /// # Errors
    /// If the question makes no sense, or the control thread has ended.
    pub fn routes(&self, query: &RouteQuery) -> Result<Routes, Error> {
        let query = query.clone();
        self.ask(move |control| control.routes(&query))?
    }

    /// What filter rules have matched.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn filters(&self) -> Result<bm_api::Filters, Error> {
        self.ask(|control| control.filters())
    }

    /// The kernel's neighbours on interfaces of ours.
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

    /// Compares the mirror with a fresh dump of the kernel's tables, and the compiled tables with the
    /// mirror. Changes go on being carried out meanwhile.
    ///
    /// # Errors
    /// If the control thread has ended.
    pub fn verify(&self) -> Result<Verify, Error> {
        // First, since what it finds is carried out, and then compared with the rest.
        let firewall = self.audits.as_ref().map(follower::Audits::ask).unwrap_or_default();
        let (answer, answered) = mpsc::channel();
        self.ask(move |control| control.request_verify(Pending::new(answer)))?;
        let mut verify = self.wait(&answered)?;
        verify.differences_total += firewall.len();
        verify.equal &= firewall.is_empty();
        let difference = |sentence| bm_api::Difference { area: Area::Firewall, sentence };
        verify.differences.extend(firewall.into_iter().map(difference));
        Ok(verify)
    }
}
