//! SAs and policies that programs have added: sent to running workers, and given to workers that start.
//!
//! They are not recorded: after a restart of the daemon they are gone, and the programs must add them again, with new
//! keys. So the numbers of an SA begin at 1. If the same keys are added again while the daemon runs, as charon does when an
//! end of a tunnel gets another address, numbers go on where they ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bm_forward::{Controls, NewSa, SaNumbers, SaPlan, SaStatus, Wanted};
use bm_graph::clock_ns;
use bm_ipsec::{Block, Direction, Inbound, Numbers, Outbound, Policies, Policy, Sa, SaId, Template};
use bm_link::{Consumer, Producer, channel};
use bm_xfrm::{Change, Usage};

use super::{BLOCK, kernel};
use crate::daemon::lock::lock;
use crate::daemon::random::random;

/// How long workers may take to apply a change. One that takes longer hangs and will be replaced, or is starting: workers
/// start with all SAs.
const SETTLE: Duration = Duration::from_millis(500);
/// Blocks of numbers that wait for a worker.
const BLOCKS: usize = 2;
/// Keys that are remembered after their SAs have ended.
const ENDED: usize = 4096;

/// An SA that a program has added.
pub struct LiveSa {
    pub sa: Sa,
    pub worker: usize,
    pub status: Arc<SaStatus>,
    numbers: Option<Supply>,
}

/// The sequence numbers of an outbound SA.
struct Supply {
    source: Source,
    last: u64,
    iv_mask: u64,
    blocks: Option<Producer<Block>>,
}

/// Where numbers come from.
enum Source {
    Counted(Numbers),
    /// The SA is the kernel's, which is told what is used.
    Kernel(kernel::Shared),
}

/// Numbers that were used with keys.
struct Ended {
    fingerprint: u128,
    last: u64,
    iv_mask: u64,
}

/// Everything that programs have added.
#[derive(Default)]
pub struct Live {
    pub sas: Vec<LiveSa>,
    pub policies: Vec<Policy>,
    pub templates: Vec<Template>,
    pub current: Vec<Option<SaId>>,
    /// What each SA has done.
    statuses: HashMap<SaId, Arc<SaStatus>>,
    controls: Option<Controls>,
    ended: VecDeque<Ended>,
    given: usize,
    /// Where all SAs are the kernel's: their numbers.
    sequences: Option<kernel::Shared>,
}

impl Supply {
    /// Numbers after those that were used with these keys before.
    fn new(sa: &Sa, sent: u64, before: Option<&Ended>) -> Self {
        let last = before.map_or(sent, |before| before.last.max(sent));
        let iv_mask =
            before.map_or_else(|| u64::from(random()) << 32 | u64::from(random()), |ended| ended.iv_mask);
        Self { source: Source::Counted(Numbers::after(last, sa.esn)), last, iv_mask, blocks: None }
    }

    /// Numbers of an SA of the kernel. The mask is the same in each life of the daemon, so IVs repeat as little as numbers.
    fn of_kernel(sa: &Sa, sequences: kernel::Shared) -> Self {
        Self { source: Source::Kernel(sequences), last: 0, iv_mask: sa.fingerprint() as u64, blocks: None }
    }

    fn reserve(&mut self, sa: &Sa) -> Option<Block> {
        let block = match &mut self.source {
            Source::Counted(numbers) => numbers.reserve(BLOCK).ok()?,
            Source::Kernel(sequences) => match lock(sequences).reserve(sa) {
                Ok(block) => block,
                Err(why) => {
                    tracing::warn!("SA {}: {why}", sa.id());
                    return None;
                }
            },
        };
        self.last = block.end() - 1;
        Some(block)
    }

    /// A first block, and where the next ones come from.
    fn feed(&mut self, sa: &Sa) -> Option<(Block, Consumer<Block>)> {
        let block = self.reserve(sa)?;
        let (blocks, more) = channel(BLOCKS);
        self.blocks = Some(blocks);
        Some((block, more))
    }
}

impl LiveSa {
    /// As workers get it when they start. Without numbers nothing is sent.
    fn plan(&mut self) -> SaPlan {
        let numbers = self.numbers.as_mut().and_then(|supply| {
            let (block, more) = supply.feed(&self.sa)?;
            Some(SaNumbers { block, more, iv_mask: supply.iv_mask })
        });
        SaPlan { sa: self.sa.clone(), worker: self.worker, status: self.status.clone(), numbers }
    }
}

impl Live {
    /// All SAs, for workers that start.
    pub fn plan(&mut self, workers: usize) -> Vec<SaPlan> {
        for (index, live) in self.sas.iter_mut().enumerate() {
            live.worker = index % workers.max(1);
        }
        self.sas.iter_mut().map(LiveSa::plan).collect()
    }

    /// Whether a program has added an SA.
    pub fn has(&self, id: SaId) -> bool {
        self.sas.iter().any(|live| live.sa.id() == id)
    }

    /// Sets how commands reach the workers that run now.
    pub fn control(&mut self, controls: Controls) {
        self.controls = Some(controls);
    }

    /// Carries out a change of SAs; [`Self::set_policies`] does the same for policies.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::AddSa { sa, sent, received } => self.add(*sa, sent, received),
            Change::RemoveSa(id) => self.remove(id),
            Change::Current { template, sa } => {
                if let Some(current) = self.current.get_mut(template as usize) {
                    *current = sa;
                }
                self.command(|controls| controls.set_current(template, sa, SETTLE));
            }
            Change::Policies { .. } => {}
        }
    }

    /// Sends workers all policies, with those of the configuration.
    pub fn set_policies(&mut self, policies: &Arc<Policies>) {
        let current = self.current.clone();
        self.command(|controls| controls.set_policies(policies, &current, SETTLE));
    }

    fn command(&mut self, send: impl FnOnce(&mut Controls) -> bool) -> bool {
        let Some(controls) = &mut self.controls else { return true };
        let is_done = send(controls);
        if !is_done {
            tracing::warn!(
                "a worker has not applied a change of SAs or policies yet: it is starting, or hangs"
            );
        }
        is_done
    }

    fn add(&mut self, sa: Sa, sent: u64, received: u64) {
        let now_ns = clock_ns();
        let worker = self.given % self.controls.as_ref().map_or(1, Controls::workers).max(1);
        self.given += 1;
        let status = Arc::new(SaStatus::new(now_ns));
        let fingerprint = sa.fingerprint();
        let before = self.ended.iter().find(|ended| ended.fingerprint == fingerprint);
        let mut supply = (sa.direction == Direction::Out).then(|| match &self.sequences {
            Some(sequences) => Supply::of_kernel(&sa, sequences.clone()),
            None => Supply::new(&sa, sent, before),
        });
        let new = match &mut supply {
            None => Inbound::new(&sa, now_ns).ok().map(|mut inbound| {
                if received > 0 {
                    inbound.resume(received);
                }
                NewSa::In(inbound)
            }),
            Some(supply) => supply.feed(&sa).and_then(|(block, more)| {
                let out = Outbound::new(&sa, block, supply.iv_mask, now_ns).ok()?;
                Some(NewSa::Out(out, more))
            }),
        };
        // Problems of an SA are found when its message is read.
        let Some(new) = new else { return tracing::error!("SA {}: cannot be used", sa.id()) };
        tracing::info!("SA {} added: {} {}", sa.id(), super::direction(sa.direction), sa.suite);
        self.command(|controls| controls.add(&sa, new, (worker, status.clone()), SETTLE));
        self.statuses.insert(sa.id(), status.clone());
        self.sas.push(LiveSa { sa, worker, status, numbers: supply });
    }

    fn remove(&mut self, id: SaId) {
        let Some(at) = self.sas.iter().position(|live| live.sa.id() == id) else { return };
        let LiveSa { sa, status, numbers, .. } = self.sas.remove(at);
        self.statuses.remove(&id);
        tracing::info!("SA {id} removed");
        let is_gone = self.command(|controls| controls.remove(&sa, SETTLE));
        if let Some(sequences) = &self.sequences {
            return lock(sequences).forget(id);
        }
        let Some(supply) = numbers else { return };
        // If no worker has it any more, the numbers that were not used are free.
        let used = status.read().number.saturating_sub(1);
        let last = if is_gone && used > 0 { used } else { supply.last };
        let fingerprint = sa.fingerprint();
        self.ended.retain(|ended| ended.fingerprint != fingerprint);
        self.ended.push_back(Ended { fingerprint, last, iv_mask: supply.iv_mask });
        if self.ended.len() > ENDED {
            self.ended.pop_front();
        }
    }

    /// Called often: gives SAs their next numbers.
    pub fn supply(&mut self) {
        for LiveSa { sa, numbers, .. } in &mut self.sas {
            // Those of the kernel are looked after more often.
            let Some(supply) = numbers.as_mut().filter(|supply| matches!(supply.source, Source::Counted(_)))
            else {
                continue;
            };
            if !supply.blocks.as_mut().is_some_and(|blocks| !blocks.is_closed() && blocks.has_room()) {
                continue;
            }
            let block = supply.reserve(sa);
            // There is room; and if there were not, the numbers would only be skipped.
            if let Some((blocks, block)) = supply.blocks.as_mut().zip(block) {
                drop(blocks.push(block));
            }
        }
    }

    /// All SAs are the kernel's from now on.
    pub fn follow_kernel(&mut self, sequences: kernel::Shared) {
        self.sequences = Some(sequences);
    }

    /// Called often where SAs are the kernel's; returns those that are to be left to Linux, and why. Those that are not
    /// in use are looked at only with `idle`.
    pub fn tend_kernel(&mut self, idle: bool) -> Vec<(SaId, String)> {
        let Some(sequences) = &self.sequences else { return Vec::new() };
        let mut sequences = lock(sequences);
        let mut left = Vec::new();
        for LiveSa { sa, status, numbers, .. } in &mut self.sas {
            let blocks = numbers.as_mut().and_then(|supply| supply.blocks.as_mut());
            let mut blocks = blocks.filter(|blocks| !blocks.is_closed());
            let now = status.read();
            let room = blocks.as_mut().map(|blocks| blocks.has_room());
            let done =
                kernel::Done { bytes: now.used.bytes, packets: now.used.packets, expiry: now.expiry, room };
            match sequences.tend(sa, &done, idle) {
                kernel::Tended::Nothing => {}
                kernel::Tended::Leave(why) => left.push((sa.id(), why)),
                kernel::Tended::Numbers { block, skip } => {
                    if skip {
                        status.skip_to(block.next());
                    }
                    // Without room the numbers are skipped, and the next ones come soon.
                    if let Some(blocks) = blocks {
                        drop(blocks.push(block));
                    }
                }
            }
        }
        left
    }

    /// Packets that wait for an SA.
    pub fn wanted(&mut self) -> Vec<Wanted> {
        self.controls.as_mut().map(Controls::wanted).unwrap_or_default()
    }

    /// What an SA has been used for.
    pub fn usage(&self, id: SaId) -> Usage {
        let status = self.statuses.get(&id).map(|status| status.read()).unwrap_or_default();
        Usage {
            bytes: status.used.bytes,
            packets: status.used.packets,
            number: status.number,
            failures: status.failures,
        }
    }
}
