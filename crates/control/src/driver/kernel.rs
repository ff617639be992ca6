//! The kernel path beside the workers: the same tables, and the same interfaces told its way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_fastpath::{Counters, Grace, Interface, Kernel, ReversePath, Situation};
use bm_fib::memory::{OutOfMemory, Part, Source};
use bm_fib::published::Readers;
use bm_forward::tables;
use bm_netlink::{Kind, Mirror};

use crate::compile::{Compiler, Memory};

/// How often the program is told that somebody keeps its tables, and devices are asked whether they take
/// frames now.
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
}

fn lock(kernel: &Shared) -> MutexGuard<'_, Kernel> {
    // What a panicking thread left is still what there is.
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What there is to go by.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub compiler: &'a Compiler,
    pub mirror: &'a Mirror,
    /// Ports that take packets.
    pub active: &'a BTreeSet<u16>,
}

/// What control does for the kernel path.
pub(super) struct KernelPath {
    kernel: Shared,
    grace: Grace,
    beat_at: Instant,
    told: Option<Situation>,
    without_place: Vec<u32>,
}

impl KernelPath {
    pub fn new(kernel: Shared, readers: &Readers) -> Result<Self, Error> {
        let grace = Grace::start(readers).map_err(Error::new)?;
        Ok(Self { kernel, grace, beat_at: Instant::now(), told: None, without_place: Vec::new() })
    }

    /// Takes over what the compiler has made, for those ports that are active.
    pub fn follow(&mut self, now: Now<'_>) -> Result<(), Error> {
        let situation = self.situation(now);
        lock(&self.kernel).publish(&situation).map_err(Error::new)?;
        self.told = Some(situation);
        self.complain();
        Ok(())
    }

    /// Something was taken out of the tables: its memory is free after a grace.
    pub fn ask_grace(&self) {
        self.grace.ask();
    }

    /// Keeps the program at work, and looks at devices again: a far end may take frames by now.
    pub fn beat(&mut self, now: Now<'_>) -> Result<(), Error> {
        if self.beat_at > Instant::now() {
            return Ok(());
        }
        self.beat_at = Instant::now() + BEAT;
        lock(&self.kernel).beat().map_err(Error::new)?;
        if self.told.as_ref() != Some(&self.situation(now)) {
            self.follow(now)?;
        }
        Ok(())
    }

    /// What became of the frames of an interface of ours.
    pub fn counters(&self, interface: u16) -> Counters {
        lock(&self.kernel).counters(interface).unwrap_or_default()
    }

    fn situation(&self, now: Now<'_>) -> Situation {
        let Now { compiler, mirror, active } = now;
        let kernel = lock(&self.kernel);
        let linux_only = compiler.linux_only();
        let list = compiler.interfaces().list.iter().enumerate();
        let interface = |(index, own): (usize, &tables::Interface)| {
            let receives = active.contains(&own.port) && own.vlan.is_none() && own.vrf == 0 && own.up;
            Interface {
                index: index as u16,
                ifindex: own.ifindex,
                mac: own.mac,
                mtu: own.mtu,
                forward: [
                    receives && own.forward_ipv4 && !linux_only[0],
                    receives && own.forward_ipv6 && !linux_only[1],
                ],
                sends: own.up && own.vlan.is_none() && kernel.sends_through(own.ifindex),
                reverse_path: match own.reverse_path {
                    tables::ReversePath::Off => ReversePath::Off,
                    tables::ReversePath::Strict => ReversePath::Strict,
                    tables::ReversePath::Loose => ReversePath::Loose,
                },
                accept_local: own.accept_local,
                partial_sums: mirror.link(own.ifindex).is_some_and(|link| link.kind == Kind::Veth),
            }
        };
        let settings = compiler.settings();
        Situation {
            interfaces: list.map(interface).collect(),
            local_ipv4: compiler.local().0.to_vec(),
            flow_seed: settings.hash_seed,
            policies: [settings.hash_policy_ipv4, settings.hash_policy_ipv6],
        }
    }

    /// Says once which interfaces find no place in the program's tables.
    fn complain(&mut self) {
        let without = self.told.as_ref().map(Situation::without_place).unwrap_or_default();
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
