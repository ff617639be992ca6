//! The control thread: its state and its main loop.

mod answers;
mod explain;
mod flows;
mod publish;
mod steering;
mod verify;
mod watched;

pub(super) use verify::VerifyRequest;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_firewall::{LinuxOnly, RulesetFacts};
use bm_graph::Waker;
use bm_netlink::{Batch, Change, Watch};

use super::budget::Budget;
use super::flows::FlowUse;
use super::kernel::KernelPath;
use super::leases::{Leases, Reason};
use super::linux_only::{self, FirewallState, LinuxOnlyList};
use super::neighbor_requests::{KernelRequests, NeighborRequests, QueuedRequests, neighbor_requests};
use super::tally::Tally;
use super::uppers::UppersElsewhere;
use super::watchdog::SILENT_MAX;
use super::{ControlPort, ControlPortState, Request};
use crate::compile::{Choices, Compiler, IpsecDevices, IpsecFault, Report};
use crate::config::{Config, Filter};
use crate::flows::Ruleset;

/// Maximum sleep; the thread reports a heartbeat this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Time until failed changes are tried again, unless other changes come first.
const RETRY: Duration = Duration::from_secs(1);

/// Statistics of the thread.
#[derive(Default)]
struct Progress {
    changes: u64,
    first_sync: Duration,
    last_batch: Duration,
    last_batch_changes: u64,
}

/// The state of the control thread, for functions that it runs ([`Handle::ask`](super::Handle::ask)).
pub struct Control {
    pub(super) watch: Watch,
    pub(super) compiler: Compiler,
    pub(super) kernel: Option<KernelPath>,
    linux_only: LinuxOnlyList,
    /// About the rules that the list was made from.
    pub(super) facts: RulesetFacts,
    pub(super) flows: FlowUse,
    /// What the thread that learns flows was told last.
    pub(super) told_flows: Option<Ruleset>,
    leases: Leases,
    pub(super) batch: Batch,
    pub(super) ports: Vec<ControlPort>,
    /// Interfaces of fabric links. Packets leave by them; the fabric program has what comes in.
    pub(super) fabric: Vec<String>,
    /// Their indices in Linux; `None` for those that do not exist.
    pub(super) fabric_links: Vec<Option<u32>>,
    active: bool,
    /// Workers do more with packets than forward them, so they must get even those that Linux will forward.
    workers_see_all: bool,
    /// Whether IPsec policies of workers may drop what arrives in clear.
    checks_arrivals: bool,
    /// Workers are being restarted: their ports leave all packets to Linux.
    pub(super) workers_rest: bool,
    /// Counters of the kernel path for each port.
    pub(super) tally: Tally,
    /// Called after changes of interfaces.
    pub(super) on_links: Option<Box<dyn Fn() + Send>>,
    pub(super) slow_path: Option<QueuedRequests>,
    /// Next hops that packets of the kernel path wait for.
    pub(super) unresolved: Option<KernelRequests>,
    resolve_queue: usize,
    /// Limits requests for unknown neighbors.
    pub(super) budget: Budget,
    /// The last settings of the steering programs; `None` if they must be set again.
    pub(super) last_steering: Option<steering::LastSteering>,
    /// What the process knows that watches the kernel path's tables.
    told: Option<watched::WatcherProcess>,
    verifying: Vec<VerifyRequest>,
    refresh: Duration,
    refresh_at: Instant,
    /// Neighbors that were stale at that time, and their MACs.
    pub(super) stale: BTreeMap<(u32, IpAddr), Option<[u8; 6]>>,
    hash_seed: u32,
    done: Progress,
    /// What keeps links from being IPsec interfaces, as it was logged last.
    ipsec_faults: Vec<IpsecFault>,
    /// Set if changes failed: everything must be compiled again, at this time at the latest.
    retry_at: Option<Instant>,
    /// When entries that found no room are tried again, unless changes come first.
    room_at: Instant,
    ended: bool,
    /// For `explain`, once it was asked for.
    trial: Option<bm_forward::DryRun>,
    uppers: UppersElsewhere,
}

impl Control {
    pub(super) fn open(
        config: &Config,
        mut compiler: Compiler,
        ports: Vec<ControlPort>,
        kernel: Option<KernelPath>,
        firewall: FirewallState,
        flows: FlowUse,
        leases: Leases,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let watch = Watch::open(watch_options(config))
            .map_err(|error| Error::new(format_args!("cannot read the kernel's tables: {error}")))?;
        compiler.set_ports(ports.iter().map(|port| port.ifindex).collect());
        compiler.set_ipsec(IpsecDevices::of(config));
        let of_workers = ports.iter().map(|port| !port.in_kernel);
        compiler.set_worker_ports(of_workers.chain(compiler.has_ipsec().then_some(true)).collect());
        compiler.set_filters(config);
        let mut listed = LinuxOnlyList::new(config.firewall.clone(), flows.has_table());
        listed.set(firewall.list);
        compiler.set_flows(flows.has_table());
        compiler.set_linux_only(&listed.in_effect());
        let batch = Batch::open().map_err(Error::new)?;
        let unresolved = kernel.as_ref().map(KernelPath::unresolved).transpose()?.map(KernelRequests::new);
        let mut control = Self {
            watch,
            hash_seed: compiler.choices().hash_seed,
            compiler,
            kernel,
            linux_only: listed,
            facts: firewall.facts,
            flows,
            told_flows: None,
            leases,
            batch,
            ports,
            fabric: config.fabric_devices(),
            fabric_links: Vec::new(),
            active: false,
            workers_see_all: workers_see_all(config),
            checks_arrivals: config.ipsec.checks_arrivals(),
            workers_rest: false,
            tally: Tally::default(),
            on_links: None,
            slow_path: None,
            unresolved,
            resolve_queue: config.neighbors.resolve_queue as usize,
            budget: Budget::new(config.neighbors.resolve_per_second, started),
            last_steering: None,
            told: None,
            verifying: Vec::new(),
            refresh: config.neighbors.refresh,
            refresh_at: started + config.neighbors.refresh,
            stale: BTreeMap::new(),
            done: Progress::default(),
            ipsec_faults: Vec::new(),
            retry_at: None,
            room_at: started,
            ended: false,
            trial: None,
            uppers: UppersElsewhere::open(started),
        };
        // The second time it is known which interfaces are ours.
        (0..2).try_for_each(|_| control.step())?;
        log_unknown_settings();
        control.linux_only.log_changes(&[], control.watch.mirror());
        control.linux_only.log_bypassed(control.watch.mirror());
        control.log_ipsec_troubles();
        control.done.first_sync = started.elapsed();
        Ok(control)
    }

    /// Runs until [`Self::end`].
    pub(super) fn run(&mut self, requests: &Receiver<Request>, waker: &Waker) {
        let mut watched = None;
        while !self.ended {
            // Watched only once packets are forwarded with its tables: before that, other threads attach programs and
            // hold locks that this one waits for.
            if self.active && watched.is_none() {
                watched = Some(bm_sys::heartbeat::watch(SILENT_MAX));
            }
            bm_sys::heartbeat::beat();
            let was_silent = self.leases.has_reason(Reason::Control);
            if let Err(error) = self.step() {
                tracing::error!(%error, "cannot follow changes of the kernel's tables; trying again");
                std::thread::sleep(Duration::from_millis(100));
            } else if was_silent && self.is_settled() && self.leases.remove_reason(Reason::Control) {
                tracing::warn!("the tables are up to date again: forwarding packets");
            }
            while let Ok(request) = requests.try_recv() {
                request(self);
                bm_sys::heartbeat::beat();
            }
            // Requests may have changed tables as well.
            let told = self.tell_lifetime();
            self.set_busy(!told || !self.is_settled());
            let now = Instant::now();
            let own = self.watch.timeout(now).unwrap_or(SLEEP_MAX);
            let refresh = self.refresh_at.saturating_duration_since(now);
            let beat = self.kernel.as_ref().map_or(SLEEP_MAX, |kernel| kernel.timeout(now));
            if !self.ended {
                let (reports, pause) = self.unresolved.as_ref().map_or((None, None), |all| all.wakes(now));
                let events = std::iter::once(self.watch.as_fd()).chain(reports);
                waker.wait(events, own.min(refresh).min(beat).min(pause.unwrap_or(SLEEP_MAX)));
                waker.clear();
            }
        }
        if !self.kernel.as_ref().is_some_and(KernelPath::is_kept) {
            self.set_active(false);
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Receives and applies changes of the kernel, and does periodic work.
    fn step(&mut self) -> Result<(), Error> {
        // Messages that are read are gone from the socket: the watching process must know that the tables may lack them.
        self.set_busy(true);
        let now = Instant::now();
        let came = self.watch.receive(now).map_err(Error::new)?;
        self.set_busy(came || !self.is_settled());
        let ours = &self.compiler.interfaces().list;
        if let Some(uppers) = self.uppers.look(ours.iter().map(|own| own.ifindex), came) {
            self.watch.set_uppers(uppers);
        }
        let changes = self.watch.process_received(now).map_err(Error::new)?;
        if !changes.is_empty() || self.retry_at.is_some_and(|retry_at| retry_at <= Instant::now()) {
            self.apply(&changes)?;
        }
        if self.compiler.without_room() > 0 && Instant::now() >= self.room_at {
            self.try_for_room()?;
            self.room_at = Instant::now() + RETRY;
        }
        if let Some(audit) = self.watch.take_audit() {
            self.answer_verify(&audit);
        }
        self.ask_for_neighbors();
        // The program must not see incomplete tables.
        if self.retry_at.is_none()
            && !self.leases.has_reasons()
            && self.kernel.as_ref().is_some_and(KernelPath::is_due)
        {
            self.update_kernel_path(KernelPath::beat)?;
        }
        if Instant::now() >= self.refresh_at {
            self.keep_fresh();
            self.refresh_at = Instant::now() + self.refresh;
        }
        Ok(())
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), Error> {
        let started = Instant::now();
        let whole = [Change::Everything];
        let changes = if self.retry_at.is_some() { &whole } else { changes };
        let links_changed =
            changes.iter().any(|change| matches!(change, Change::Everything | Change::Link(_)));
        if links_changed {
            self.find_fabric();
        }
        let report = self.compile(changes)?;
        self.done.last_batch = started.elapsed();
        self.done.last_batch_changes = changes.len() as u64;
        self.done.changes += changes.len() as u64;
        tracing::debug!(changes = changes.len(), entries = report.entries, took = ?self.done.last_batch, "compiled");
        let addresses_changed = changes.iter().any(|change| matches!(change, Change::Addresses(_)));
        if report.published || links_changed || addresses_changed || self.steers_routes() {
            self.steer();
        }
        if links_changed {
            self.log_ipsec_troubles();
        }
        self.notify_slow_path(changes);
        self.tell_flows_of(changes);
        if let Some(tell) = self.on_links.as_ref().filter(|_| links_changed) {
            tell();
        }
        match &self.kernel {
            // Until the program is updated, it can reach entries that were removed.
            _ if report.published => self.follow()?,
            Some(kernel) => kernel.ask_grace(),
            None => {}
        }
        Ok(())
    }

    /// Compiles changes, or everything if earlier changes failed: changes are reported only once, so after a failure
    /// everything must be compared.
    pub(super) fn compile(&mut self, changes: &[Change]) -> Result<Report, Error> {
        let whole = [Change::Everything];
        let changes = if self.retry_at.is_some() { &whole } else { changes };
        self.set_busy(true);
        self.retry_at = Some(Instant::now() + RETRY);
        self.follow_known();
        let report = self.compiler.apply(self.watch.mirror(), changes).map_err(Error::new)?;
        self.retry_at = None;
        Ok(report)
    }

    /// Leaves to Linux what it alone knows how to handle, according to the mirror.
    fn follow_known(&mut self) {
        let workers_encrypt = self.compiler.has_ipsec();
        let Some(before) = self.linux_only.follow(self.watch.mirror(), workers_encrypt) else { return };
        self.compiler.set_linux_only(&self.linux_only.in_effect());
        // At the start everything is logged together.
        if !self.done.first_sync.is_zero() {
            self.linux_only.log_changes(&before, self.watch.mirror());
        }
    }

    /// Tries entries again that found no room, as long as some succeed.
    fn try_for_room(&mut self) -> Result<(), Error> {
        loop {
            let before = self.compiler.without_room();
            self.carry_out()?;
            bm_sys::heartbeat::beat();
            if self.compiler.without_room() >= before {
                return Ok(());
            }
        }
    }

    /// Makes ports take packets, or leave all of them to Linux.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
        self.workers_rest = false;
        self.steer();
        match (self.follow(), &mut self.kernel) {
            (Err(error), _) => tracing::error!(%error, "cannot update the kernel path"),
            // Only now are its tables complete.
            (Ok(()), Some(kernel)) if active => kernel.take_over(),
            (Ok(()), _) => {}
        }
    }

    /// Filter rules with their matches.
    pub fn filters(&self) -> bm_api::Filters {
        self.compiler
            .shown_filters(|counter| self.kernel.as_ref().map_or(0, |kernel| kernel.rule_count(counter)))
    }

    /// Applies those changes of the configuration that need no restart.
    ///
    /// # Errors
    /// If the new tables found no memory.
    pub fn reconfigure(&mut self, config: &Config) -> Result<(), Error> {
        self.take_settings(config);
        self.fabric = config.fabric_devices();
        self.find_fabric();
        let before = self.linux_only.in_effect();
        self.linux_only.configure(&config.firewall);
        self.enforce(&before)?;
        self.linux_only.log_bypassed(self.watch.mirror());
        Ok(())
    }

    /// Logs what keeps links from being IPsec interfaces, when that changes.
    fn log_ipsec_troubles(&mut self) {
        let now = self.compiler.ipsec_faults(self.watch.mirror());
        let new = now.iter().filter(|trouble| !self.ipsec_faults.contains(trouble));
        new.for_each(|trouble| match trouble.is_down {
            true => tracing::info!("{trouble}"),
            false => tracing::warn!("{trouble}"),
        });
        let over = self.ipsec_faults.iter().filter(|trouble| !now.contains(trouble));
        over.for_each(|trouble| tracing::info!("no longer: {trouble}"));
        self.ipsec_faults = now;
    }

    /// Takes over settings for the next compilation of tables.
    pub(super) fn take_settings(&mut self, config: &Config) {
        self.workers_see_all = workers_see_all(config);
        self.checks_arrivals = config.ipsec.checks_arrivals();
        self.compiler.set_ipsec(IpsecDevices::of(config));
        self.name_ports();
        self.compiler.set_choices(Choices::from_config(config, self.hash_seed));
        let reused = self.compiler.set_filters(config);
        if let Some(kernel) = &self.kernel {
            kernel.clear_rule_counts(&reused);
        }
        self.refresh = config.neighbors.refresh;
        self.budget.set(config.neighbors.resolve_per_second);
    }

    /// Leaves these packets to Linux from now on, and no others.
    pub(super) fn set_linux_only(&mut self, list: Vec<LinuxOnly>, facts: RulesetFacts) -> Result<(), Error> {
        self.facts = facts;
        let before = self.linux_only.in_effect();
        let differs = self.linux_only.set(list);
        if differs || self.retry_at.is_some() {
            return self.enforce(&before);
        }
        self.tell_flows();
        Ok(())
    }

    /// The entries of the list that are not bypassed.
    pub(super) fn linux_only_in_effect(&self) -> Vec<LinuxOnly> {
        self.linux_only.in_effect()
    }

    /// Applies the current list of packets that only Linux may handle; `before` is the list in effect so far.
    fn enforce(&mut self, before: &[LinuxOnly]) -> Result<(), Error> {
        let now = self.linux_only.in_effect();
        let has_rules = now.iter().any(|entry| self.compiler.needs_rules(entry));
        // Loading a program with filters takes longer than a rule may wait: first leave whole families to Linux.
        if self.compiler.filters().is_none() && has_rules {
            self.compiler.set_linux_only(&linux_only::whole_families(&now));
            self.carry_out()?;
        }
        self.compiler.set_linux_only(&now);
        self.carry_out()?;
        self.linux_only.log_changes(before, self.watch.mirror());
        Ok(())
    }

    /// Applies the settings of the compiler to workers, ports and the kernel path.
    pub(super) fn carry_out(&mut self) -> Result<(), Error> {
        self.compile(&[])?;
        self.steer();
        self.follow()
    }

    pub(super) fn neighbor_requests(&mut self, waker: Waker) -> NeighborRequests {
        let (neighbor_requests, asked) = neighbor_requests(self.resolve_queue, waker);
        self.slow_path = Some(asked);
        neighbor_requests
    }
}

fn watch_options(config: &Config) -> bm_netlink::Options {
    let compare = config.mirror.compare;
    bm_netlink::Options {
        receive_buffer: config.mirror.receive_buffer as usize,
        audit_every: (!compare.is_zero()).then_some(compare),
        ..bm_netlink::Options::default()
    }
}

/// Whether workers count, filter, encrypt or show scripts what they get.
fn workers_see_all(config: &Config) -> bool {
    config.filter != Filter::default()
        || config.filters_drop()
        || !config.hooks.is_empty()
        || !config.apps.is_empty()
        || !config.ipsec.is_empty()
}

/// Logs settings of this kernel that are newer than the list.
fn log_unknown_settings() {
    let unknown = bm_netlink::settings::unknown();
    if !unknown.is_empty() {
        let settings = unknown.join(" ");
        tracing::info!(settings, "settings in /proc/sys/net that are not known have no effect here");
    }
}

#[cfg(test)]
mod tests;
