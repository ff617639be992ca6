//! The kernel path beside the workers: the same tables, and the same interfaces told its way.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_fastpath::{Attachment, Counters, Grace, Interface, Kernel, ReversePath, Situation, SourceCheck, Tag};
use bm_fib::memory::{OutOfMemory, Part, Source};
use bm_fib::published::Readers;
use bm_forward::tables;
use bm_netlink::{Kind, Mirror};

use super::told::Told;
use crate::compile::{Compiler, Memory};
use crate::config::SourceRule;

/// How often devices are asked whether they take frames now, and what failed is tried again.
const BEAT: Duration = Duration::from_secs(1);

/// The program with its maps. The compiler asks it for memory, the control thread for everything else.
pub(super) type Shared = Arc<Mutex<Kernel>>;

/// Tables in the program's maps.
pub(super) struct InMaps(pub Shared);

impl Memory for InMaps {
    fn source(&self, part: Part) -> Result<Source, OutOfMemory> {
        lock(&self.0).source(part).map_err(|error| {
            tracing::error!(%error, ?part, "the kernel path has no memory for a table");
            OutOfMemory { bytes: 0 }
        })
    }

    fn interfaces(&self) -> usize {
        bm_fastpath::INTERFACES
    }
}

pub(super) fn lock(kernel: &Shared) -> MutexGuard<'_, Kernel> {
    // What a panicking thread left is still what there is.
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What there is to go by.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub compiler: &'a Compiler,
    pub mirror: &'a Mirror,
    /// Ports of the kernel path.
    pub ports: &'a BTreeSet<u16>,
    /// The numbers in Linux of the interfaces that ports have, also of those that are no interfaces of ours, as a part
    /// of a bridge.
    pub taken: &'a BTreeSet<u32>,
    /// Whether it takes their packets.
    pub active: bool,
}

/// What control does for the kernel path.
pub(super) struct KernelPath {
    kernel: Shared,
    grace: Grace,
    beat_at: Instant,
    /// It may be that an earlier daemon's program is still at work.
    takes_over: bool,
    unpinned: bool,
    kept: bool,
    told: Told,
    /// What was dropped on interfaces before their filters were in place.
    held: Vec<(u32, Counters)>,
    without_place: Vec<u32>,
}

impl KernelPath {
    pub fn new(kernel: Shared, readers: &Readers) -> Result<Self, Error> {
        let grace = Grace::start(readers).map_err(Error::new)?;
        // Until the tables are whole for the first time.
        lock(&kernel).set_busy(true);
        let (beat_at, without_place) = (Instant::now(), Vec::new());
        Ok(Self {
            kernel,
            grace,
            beat_at,
            takes_over: false,
            unpinned: false,
            kept: false,
            told: Told::default(),
            held: Vec::new(),
            without_place,
        })
    }

    /// Takes over what the compiler has made, for those ports that are active. What fails is tried again with the
    /// next beat.
    pub fn follow(&mut self, now: Now<'_>) -> Result<(), Error> {
        let situation = self.situation(now);
        self.tell(situation)?;
        self.release(now)
    }

    /// Has interfaces forward that were held until their filters are in place, as far as what was just published has
    /// been made from what Linux says of them.
    fn release(&mut self, now: Now<'_>) -> Result<(), Error> {
        let mut kernel = lock(&self.kernel);
        if !self.told.is_sure() || !kernel.holds_any() {
            return Ok(());
        }
        let ready = |ifindex| now.taken.contains(&ifindex) && now.mirror.link(ifindex).is_some();
        self.held.extend(kernel.release(ready).map_err(Error::new)?);
        Ok(())
    }

    /// What was dropped on interfaces before their filters were in place, since this was asked last.
    pub fn take_held(&mut self) -> Vec<(u32, Counters)> {
        std::mem::take(&mut self.held)
    }

    fn tell(&mut self, situation: Situation) -> Result<(), Error> {
        let kernel = &self.kernel;
        self.told.tell(situation, |situation| lock(kernel).publish(situation)).map_err(Error::new)?;
        // Only now has the program left what was taken out of the tables.
        self.grace.ask();
        self.complain();
        Ok(())
    }

    /// Something was taken out of the tables: its memory is free after a grace. While the program goes by older
    /// tables than there are, that waits until it is told.
    pub fn ask_grace(&self) {
        if self.told.is_sure() {
            self.grace.ask();
        }
    }

    /// Whether it is time for [`Self::beat`].
    pub fn is_due(&self) -> bool {
        self.beat_at <= Instant::now()
    }

    /// Looks at devices again, since a far end may take frames by now, and tries what failed. That somebody keeps the
    /// tables is for the watchdog to say.
    pub fn beat(&mut self, now: Now<'_>) -> Result<(), Error> {
        self.beat_at = Instant::now() + BEAT;
        if self.takes_over {
            self.take_over();
        }
        let situation = self.situation(now);
        if self.told.lacks(&situation) {
            self.tell(situation)?;
        }
        self.release(now)
    }

    /// How long until the next beat.
    pub fn timeout(&self, now: Instant) -> Duration {
        self.beat_at.saturating_duration_since(now)
    }

    /// Has the program of an earlier daemon replaced by ours, which must have been told of everything. What
    /// fails is tried again with the next beat; until then the earlier program goes on.
    pub fn take_over(&mut self) {
        let done = match lock(&self.kernel).take_over() {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "an earlier daemon's program is still at work; this is tried again");
                self.takes_over = true;
                return;
            }
        };
        self.takes_over = false;
        if self.unpinned {
            lock(&self.kernel).unpin();
        }
        if done.switched > 0 || !done.removed.is_empty() {
            // What it watched over has no program any more.
            crate::watcher::dismiss();
        }
        if done.switched > 0 {
            tracing::info!(interfaces = done.switched, "took over from an earlier daemon");
        }
        for interface in done.removed {
            tracing::warn!(interface, "an earlier daemon forwarded here; it is no port now, so Linux does");
        }
        for (path, program) in done.foreign {
            let path = path.display();
            tracing::warn!(%path, program, "pinned here is a program that is not ours: it is left alone");
        }
    }

    /// What the program's leave to forward is made of.
    pub fn lease_parts(&self) -> io::Result<[OwnedFd; 2]> {
        lock(&self.kernel).lease_parts()
    }

    /// Says whether tables are being changed.
    pub fn set_busy(&self, busy: bool) {
        lock(&self.kernel).set_busy(busy);
    }

    /// Has the program end with the daemon: nobody would watch over its tables.
    pub fn unpin(&mut self) {
        self.unpinned = true;
        lock(&self.kernel).unpin();
    }

    /// Puts the program on an interface, unless it is there already. With `held` nothing that filters may forbid
    /// comes by until they are in place there.
    pub fn attach(&self, interface: &str, held: bool) -> Result<Attachment, Error> {
        let mut kernel = lock(&self.kernel);
        let attached = if held { kernel.attach_held(interface) } else { kernel.attach(interface) };
        attached.map_err(Error::new)
    }

    /// Takes the program off all interfaces but these.
    pub fn detach_others(&self, keep: &[u32]) {
        lock(&self.kernel).detach_others(keep);
    }

    /// Has the program stay at work when we end.
    pub fn keep(&mut self) -> Result<(), Error> {
        lock(&self.kernel).keep().map_err(Error::new)?;
        self.kept = true;
        Ok(())
    }

    /// Whether the program stays at work when we end.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// What became of the frames of an interface of ours.
    pub fn counters(&self, interface: u16) -> Counters {
        lock(&self.kernel).counters(interface).unwrap_or_default()
    }

    /// What the rules with this counter have matched.
    pub fn rule_count(&self, counter: u16) -> u64 {
        lock(&self.kernel).rule_count(counter).unwrap_or_default()
    }

    /// Has counters begin at zero: other rules get them.
    pub fn clear_rule_counts(&self, counters: &[u16]) {
        for counter in counters {
            if let Err(error) = lock(&self.kernel).clear_rule_count(*counter) {
                tracing::warn!(%error, counter, "a rule's counter begins with that of an earlier rule");
            }
        }
    }

    /// What the program goes by that differs from what holds now, a sentence each: by what it was told, and by what its
    /// maps hold.
    pub fn differences(&self, now: Now<'_>) -> Vec<String> {
        let situation = self.situation(now);
        let Some(told) = self.told.last().filter(|told| told.forwards_as(&situation)) else {
            return vec!["the kernel path has not been told what holds now".into()];
        };
        lock(&self.kernel).differences(told)
    }

    fn situation(&self, now: Now<'_>) -> Situation {
        let Now { compiler, mirror, ports, active, .. } = now;
        let filters = compiler.filters();
        let kernel = lock(&self.kernel);
        let linux_only = compiler.linux_only();
        let list = compiler.interfaces().list.iter().enumerate();
        // The interface of a port's untagged frames, by Linux's number, and whether others are on it.
        let below = |port: u16| {
            let of_port = || compiler.interfaces().of_port(port).map(|(_, own)| own);
            let own = of_port().find(|own| own.vlan.is_none()).map(|own| own.ifindex);
            (own, of_port().any(|own| own.vlan.is_some()))
        };
        let interface = |(index, own): (usize, &tables::Interface)| {
            let rule = compiler.source_rule(own.port);
            let (device, has_vlans) = below(own.port);
            let device = device.unwrap_or(own.ifindex);
            let is_ours = ports.contains(&own.port);
            let receives = active && is_ours && own.vrf == 0 && own.up;
            Interface {
                index: index as u16,
                ifindex: own.ifindex,
                mac: own.mac,
                mtu: own.mtu,
                forward: [
                    receives && own.forward_ipv4 && !linux_only[0],
                    receives && own.forward_ipv6 && !linux_only[1],
                ],
                vlan: own.vlan.map(|vlan| Tag { port: device, protocol: vlan.protocol, id: vlan.id }),
                sends: own.up && kernel.sends_through(device),
                reverse_path: match own.reverse_path {
                    _ if rule != SourceRule::Kernel => ReversePath::Off,
                    tables::ReversePath::Off => ReversePath::Off,
                    tables::ReversePath::Strict => ReversePath::Strict,
                    tables::ReversePath::Loose => ReversePath::Loose,
                },
                // The way back of a VRF's packets is in a table that the program does not have.
                check: if own.vrf == 0 { compiler.source_check(rule) } else { SourceCheck::None },
                // Also while nothing is forwarded here: then Linux does, and filters are ahead of it all the same.
                looked_at: is_ours
                    && (filters.is_some() || active && (has_vlans || own.linux_only_in != [false; 2])),
                linux_only: own.linux_only_in.map(|linux_only| linux_only && active && is_ours),
                linux_only_fragments_ipv6: own.linux_only_fragments[1],
                accept_local: own.accept_local,
                partial_sums: mirror.link(device).is_some_and(|link| link.kind == Kind::Veth),
            }
        };
        let settings = compiler.settings();
        Situation {
            interfaces: list.map(interface).collect(),
            local_ipv4: compiler.local().0.to_vec(),
            local_ipv6: compiler.local().1.to_vec(),
            filters: filters.cloned(),
            feasible: compiler.choices().feasible && !compiler.lacks_sources(),
            unknown: linux_only,
            flow_seed: settings.hash_seed,
            policies: [settings.hash_policy_ipv4, settings.hash_policy_ipv6],
        }
    }

    /// Says once which interfaces find no place in the program's tables.
    fn complain(&mut self) {
        let without = self.told.last().map(Situation::without_place).unwrap_or_default();
        if without != self.without_place {
            for ifindex in &without {
                tracing::warn!(
                    ifindex,
                    "the kernel path has no place for this interface: Linux forwards its packets"
                );
            }
            self.without_place = without;
        }
    }
}
