//! The kernel path: gives its program the same tables and interfaces as the workers.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_fastpath::{
    AttachChoice, AttachType, Attachment, ChangedAttachment, Configuration, Counters, Grace, Interface,
    Kernel, PortVlan, ReversePath, UnresolvedReader,
};
use bm_fib::memory::{OutOfMemory, Part, Source};
use bm_fib::published::Readers;
use bm_fib::structure;
use bm_forward::tables;
use bm_netlink::{Kind, Mirror};
use bm_sys::Mutex;

use super::applied::AppliedConfiguration;
use crate::compile::{Compiler, Memory, Options};
use crate::config::SourceRule;

/// How often devices are checked for whether they accept frames, and failures are tried again.
const BEAT: Duration = Duration::from_secs(1);

/// How many interfaces on top of each other are looked through: a VLAN on a bond of two VLANs, and more than anyone has.
const STACKED_MAX: u32 = 4;

/// Why an offload was turned off again.
const STRIPPED: &str = "rxvlan was turned on, which hides VLAN tags from XDP: turned off again";

/// Whether senders on an interface may leave checksums to a device that does not exist. The frames of a VLAN, bond or
/// team are those of the interfaces below.
fn may_leave_checksums(kernel: &Kernel, mirror: &Mirror, ifindex: u32, depth: u32) -> bool {
    let Some(link) = mirror.link(ifindex) else { return true };
    let below: Vec<u32> = match &link.kind {
        Kind::Vlan { .. } if link.lower_namespace.is_none() => link.lower.into_iter().collect(),
        Kind::Other(kind) if matches!(&**kind, "bond" | "team") => {
            let members = mirror.links().filter(|member| member.master == Some(ifindex));
            members.map(|member| member.ifindex).collect()
        }
        _ => Vec::new(),
    };
    if below.is_empty() || depth == 0 {
        return kernel.may_leave_checksums(ifindex);
    }
    below.into_iter().any(|below| may_leave_checksums(kernel, mirror, below, depth - 1))
}

/// Adapts the options to the kernel path, which supports two structures and has maps of limited size.
pub(super) fn limit(options: &mut Options) {
    if let Some(chunk17) = structure::IPV4.iter().find(|structure| structure.name == "chunk17") {
        options.ipv4 = *chunk17;
    }
    options.ipv6 = structure::IPV6[0];
    options.next_hops = options.next_hops.min(bm_fastpath::HOPS as u32);
    options.group_buckets = options.group_buckets.min(bm_fastpath::BUCKETS as u32);
}

/// The program with its maps. The compiler asks it for memory, the control thread for everything else.
pub(super) type SharedKernel = Arc<Mutex<Kernel>>;

/// Tables in the program's maps.
pub(super) struct InMaps(pub SharedKernel);

impl Memory for InMaps {
    fn source(&self, part: Part) -> Result<Source, OutOfMemory> {
        self.0.lock().source(part).map_err(|error| {
            tracing::error!(%error, ?part, "no memory for a table of the kernel path");
            OutOfMemory { bytes: 0 }
        })
    }

    fn interfaces(&self) -> usize {
        bm_fastpath::INTERFACES
    }
}

/// The current state to apply.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub compiler: &'a Compiler,
    pub mirror: &'a Mirror,
    /// Indexes of the ports of the kernel path.
    pub ports: &'a BTreeSet<u16>,
    /// Indexes in Linux of the interfaces that ports have, including those that cannot be used, such as parts of a
    /// bridge.
    pub taken: &'a BTreeSet<u32>,
    /// Whether the kernel path takes their packets.
    pub active: bool,
    /// Whether packets bypass settings of Linux that may drop them.
    pub bypasses: bool,
}

/// The kernel path as the control thread uses it.
pub(super) struct KernelPath {
    kernel: SharedKernel,
    grace: Grace,
    beat_at: Instant,
    /// Whether the program of an earlier daemon may still be attached.
    takes_over: bool,
    unpinned: bool,
    kept: bool,
    applied: AppliedConfiguration,
    /// Frames dropped on interfaces before their filters were in place.
    held: Vec<(u32, Counters)>,
    without_slot: Vec<u32>,
}

impl KernelPath {
    pub fn new(kernel: SharedKernel, readers: &Readers) -> Result<Self, Error> {
        let grace = Grace::start(readers).map_err(Error::new)?;
        // Until the tables are complete for the first time.
        kernel.lock().set_busy(true);
        let (beat_at, without_slot) = (Instant::now(), Vec::new());
        Ok(Self {
            kernel,
            grace,
            beat_at,
            takes_over: false,
            unpinned: false,
            kept: false,
            applied: AppliedConfiguration::default(),
            held: Vec::new(),
            without_slot,
        })
    }

    /// Reads which next hops without a MAC address packets were for. To be used on one thread.
    pub fn unresolved(&self) -> Result<UnresolvedReader, Error> {
        self.kernel.lock().unresolved().map_err(Error::new)
    }

    /// Applies the compiled state to the program. Failures are tried again with the next beat.
    pub fn follow(&mut self, now: Now<'_>) -> Result<(), Error> {
        let configuration = self.configuration(now);
        self.apply_configuration(configuration)?;
        self.release(now)
    }

    /// Lets interfaces forward that were held until their filters are in place, if the published state includes
    /// them.
    fn release(&mut self, now: Now<'_>) -> Result<(), Error> {
        let mut kernel = self.kernel.lock();
        if !self.applied.is_sure() || !kernel.holds_any() {
            return Ok(());
        }
        let released =
            kernel.release(|ifindex| now.taken.contains(&ifindex) && now.mirror.link(ifindex).is_some());
        self.held.extend(released.map_err(Error::new)?);
        Ok(())
    }

    /// The interfaces as the program knows them.
    pub fn interfaces(&self) -> &[Interface] {
        self.applied.last().map_or(&[], |configuration| &configuration.interfaces)
    }

    /// Frames dropped on interfaces before their filters were in place, since the last call.
    pub fn take_held_drops(&mut self) -> Vec<(u32, Counters)> {
        std::mem::take(&mut self.held)
    }

    fn apply_configuration(&mut self, configuration: Configuration) -> Result<(), Error> {
        let kernel = &self.kernel;
        self.applied
            .apply(configuration, |configuration| kernel.lock().publish(configuration))
            .map_err(Error::new)?;
        // Only now the program no longer uses entries that were removed from the tables.
        self.grace.ask();
        self.warn_without_slot();
        Ok(())
    }

    /// Called after entries were removed from the tables: their memory is free after a grace period. If the program
    /// still uses older tables, that waits for its next update.
    pub fn ask_grace(&self) {
        if self.applied.is_sure() {
            self.grace.ask();
        }
    }

    /// Whether it is time for [`Self::beat`].
    pub fn is_due(&self) -> bool {
        self.beat_at <= Instant::now()
    }

    /// Checks devices again, since the other end of a veth may accept frames now, and repeats what failed. The lease is
    /// renewed by the watchdog, not here.
    pub fn beat(&mut self, now: Now<'_>) -> Result<(), Error> {
        self.beat_at = Instant::now() + BEAT;
        if self.takes_over {
            self.take_over();
        }
        self.adapt();
        let configuration = self.configuration(now);
        if self.applied.needs(&configuration) {
            self.apply_configuration(configuration)?;
        }
        self.release(now)
    }

    /// Moves interfaces to tc for which that is better.
    fn adapt(&self) {
        for interface in self.kernel.lock().keep_tags() {
            tracing::warn!("{interface}: {STRIPPED}");
        }
        for ChangedAttachment { interface, reason, error } in self.kernel.lock().adapt() {
            match error {
                None => tracing::info!("{interface}: the kernel path is now attached at tc: {reason}"),
                Some(error) => {
                    tracing::warn!(%error, "{interface}: the kernel path stays attached as XDP, although {reason}");
                }
            }
        }
    }

    /// Time until the next beat.
    pub fn timeout(&self, now: Instant) -> Duration {
        self.beat_at.saturating_duration_since(now)
    }

    /// Replaces the program of an earlier daemon by ours, which must have its complete state. Failures are tried again
    /// with the next beat; until then the earlier program keeps forwarding.
    pub fn take_over(&mut self) {
        let done = match self.kernel.lock().take_over() {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "cannot replace the program of an earlier daemon; trying again");
                self.takes_over = true;
                return;
            }
        };
        self.takes_over = false;
        if self.unpinned {
            self.kernel.lock().unpin();
        }
        if done.switched > 0 || !done.removed.is_empty() {
            // The tables that it watched are no longer in use.
            crate::watcher::dismiss();
        }
        if done.switched > 0 {
            tracing::info!(interfaces = done.switched, "took over from an earlier daemon");
        }
        for interface in done.removed {
            tracing::warn!(
                interface,
                "this interface was a port of an earlier daemon and is not a port now: Linux forwards"
            );
        }
        for (path, program) in done.foreign {
            let path = path.display();
            tracing::warn!(%path, program, "ignoring a pinned program that does not belong to brickmoon");
        }
    }

    /// Descriptors of the parts of the lease, for the watching process.
    pub fn lease_parts(&self) -> io::Result<[OwnedFd; 2]> {
        self.kernel.lock().lease_parts()
    }

    /// Marks whether tables are being changed.
    pub fn set_busy(&self, busy: bool) {
        self.kernel.lock().set_busy(busy);
    }

    /// Makes the program end with the daemon, since no process would watch its tables.
    pub fn unpin(&mut self) {
        self.unpinned = true;
        self.kernel.lock().unpin();
    }

    /// Attaches the program to an interface, unless it is already attached. With `held`, packets that filters may drop
    /// do not pass until the filters are in place.
    pub fn attach(&self, interface: &str, choice: AttachChoice, held: bool) -> Result<Attachment, Error> {
        let mut kernel = self.kernel.lock();
        let attached = match held {
            true => kernel.attach_held(interface, choice),
            false => kernel.attach(interface, choice),
        };
        attached.map_err(Error::new)
    }

    /// What the program is attached to on an interface, and why if that was chosen automatically.
    pub fn attached(&self, ifindex: u32) -> Option<(AttachType, Option<String>)> {
        self.kernel.lock().attached(ifindex)
    }

    /// Detaches the program from all interfaces except these.
    pub fn detach_others(&self, keep: &[u32]) {
        self.kernel.lock().detach_others(keep);
    }

    /// Makes the program keep forwarding after the daemon has ended.
    pub fn keep(&mut self) -> Result<(), Error> {
        self.kernel.lock().keep().map_err(Error::new)?;
        self.kept = true;
        Ok(())
    }

    /// Whether the program keeps forwarding after the daemon has ended.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Counters of an interface, by its index in brickmoon.
    pub fn counters(&self, interface: u16) -> Counters {
        self.kernel.lock().counters(interface).unwrap_or_default()
    }

    /// Number of packets that the rules with this counter have matched.
    pub fn rule_count(&self, counter: u16) -> u64 {
        self.kernel.lock().rule_count(counter).unwrap_or_default()
    }

    /// Clears counters before other rules get them.
    pub fn clear_rule_counts(&self, counters: &[u16]) {
        for counter in counters {
            if let Err(error) = self.kernel.lock().clear_rule_count(*counter) {
                tracing::warn!(%error, counter, "cannot clear the counter of a rule; it includes counts of an earlier rule");
            }
        }
    }

    /// Differences between the current state, the one applied last and the maps of the program; one message each.
    pub fn differences(&self, now: Now<'_>) -> Vec<String> {
        let configuration = self.configuration(now);
        let Some(last) = self.applied.last().filter(|last| last.forwards_as(&configuration)) else {
            return vec!["the kernel path does not have the current settings".into()];
        };
        self.kernel.lock().differences(last)
    }

    fn configuration(&self, now: Now<'_>) -> Configuration {
        let compiler = now.compiler;
        let kernel = self.kernel.lock();
        let list = compiler.interfaces().list.iter().enumerate();
        let settings = compiler.settings();
        Configuration {
            interfaces: list.map(|(index, own)| interface(now, &kernel, index as u16, own)).collect(),
            local_ipv4: compiler.local().0.to_vec(),
            doubtful: match compiler.doubtful() {
                tables::DoubtfulSources::Single(addresses) => addresses.clone(),
                tables::DoubtfulSources::All => Vec::new(),
            },
            all_doubtful: *compiler.doubtful() == tables::DoubtfulSources::All,
            local_ipv6: compiler.local().1.to_vec(),
            filters: compiler.filters().cloned(),
            feasible: compiler.choices().feasible && !compiler.lacks_sources(),
            unknown: compiler.linux_only(),
            sample_one_in: compiler.choices().sample_one_in,
            flow_seed: settings.hash_seed,
            policies: [settings.hash_policy_ipv4, settings.hash_policy_ipv6],
        }
    }

    /// Logs once which interfaces do not fit into the program's tables.
    fn warn_without_slot(&mut self) {
        let without = self.applied.last().map(Configuration::without_slot).unwrap_or_default();
        if without != self.without_slot {
            for ifindex in &without {
                tracing::warn!(
                    ifindex,
                    "too many interfaces for the kernel path: Linux forwards packets of this one"
                );
            }
            self.without_slot = without;
        }
    }
}

/// Whether packets that arrive on an interface may be forwarded by flow: of all families of which any packets are.
fn goes_by_flow(compiler: &Compiler, own: &tables::Interface) -> bool {
    let (by_flow, unknown) = (compiler.by_flow(), compiler.linux_only());
    let mut families = (0..2).filter(|family| by_flow[*family] && !unknown[*family]).peekable();
    families.peek().is_some() && families.all(|family| own.by_flow[family])
}

/// One of our interfaces as the program knows it.
fn interface(now: Now<'_>, kernel: &Kernel, index: u16, own: &tables::Interface) -> Interface {
    let Now { compiler, mirror, ports, active, bypasses, .. } = now;
    let linux_only = compiler.linux_only();
    let rule = compiler.source_rule(own.port);
    // The interface for untagged frames of its port, and whether there are VLANs on it.
    let (mut device, mut has_vlans) = (None, false);
    for (_, own) in compiler.interfaces().of_port(own.port) {
        match own.vlan {
            None => device = device.or(Some(own.ifindex)),
            Some(_) => has_vlans = true,
        }
    }
    let device = device.unwrap_or(own.ifindex);
    let is_ours = ports.contains(&own.port);
    let receives = active && is_ours && own.vrf == 0 && own.up;
    Interface {
        index,
        ifindex: own.ifindex,
        mac: own.mac,
        mtu: own.mtu,
        forward: [
            receives && own.forward_ipv4 && !linux_only[0],
            receives && own.forward_ipv6 && !linux_only[1],
        ],
        vlan: own.vlan.map(|vlan| PortVlan { port: device, vlan }),
        up: own.up,
        sends: own.up && kernel.can_send_through(device),
        reverse_path: if rule == SourceRule::Kernel { own.reverse_path } else { ReversePath::Off },
        // The reverse path in a VRF is in a table that the program does not have.
        check: if own.vrf == 0 { compiler.source_check(rule) } else { ReversePath::Off },
        // Even if nothing is forwarded here: Linux does then, after the filters.
        looked_at: is_ours
            && (compiler.filters().is_some() || active && (has_vlans || own.linux_only_in != [false; 2])),
        linux_only: own.linux_only_in.map(|linux_only| linux_only && active && is_ours),
        linux_only_fragments_ipv6: own.linux_only_fragments[1],
        report_unresolved: bypasses && active && is_ours,
        by_flow: receives && goes_by_flow(compiler, own),
        partial_sums: may_leave_checksums(kernel, mirror, device, STACKED_MAX),
    }
}
