//! SAs and policies that programs have added: sent to running workers, and given to workers that start.
//!
//! They are not recorded: after a restart of the daemon they are gone, and the programs must add them again, with new
//! keys. So the numbers of an SA begin at 1. If the same keys are added again while the daemon runs, as charon does when an
//! end of a tunnel gets another address, numbers go on where they ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bm_forward::{Controls, Moved, NewSa, PolicySas, SaNumbers, SaPlan, SaStatus, Status, Wanted};
use bm_graph::clock_ns;
use bm_ipsec::{Block, Direction, Inbound, Numbers, Outbound, Policies, Policy, Sa, SaId, SaList, SaUsage};
use bm_link::{Consumer, Producer, channel};
use bm_xfrm::{Change, Usage};

use super::owners::Owners;
use super::{BLOCK, kernel};
use crate::lock;
use crate::random;

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
    Kernel(kernel::SharedSequences),
}

/// What is kept of an SA after its end, for one with the same key.
struct EndedSa {
    fingerprint: u128,
    direction: Direction,
    /// The last number that may have been sent, or the highest received.
    last: u64,
    iv_mask: u64,
    used: SaUsage,
}

/// Everything that programs have added.
#[derive(Default)]
pub struct Live {
    pub sas: Vec<LiveSa>,
    /// By their numbers, which decide where priorities are equal.
    pub policies: BTreeMap<u64, Policy>,
    /// By the numbers of templates.
    pub current: Vec<SaList>,
    /// What each SA has done.
    statuses: HashMap<SaId, Arc<SaStatus>>,
    controls: Option<Controls>,
    ended: VecDeque<EndedSa>,
    /// Where all SAs are the kernel's: their numbers.
    sequences: Option<kernel::SharedSequences>,
    /// SAs that could not be added.
    failed: Vec<SaId>,
}

impl Supply {
    /// Numbers after the last one that was used with these keys before.
    fn new(sa: &Sa, last: u64, before: Option<&EndedSa>) -> Self {
        let iv_mask =
            before.map_or_else(|| u64::from(random()) << 32 | u64::from(random()), |ended| ended.iv_mask);
        Self { source: Source::Counted(Numbers::after(last, sa.esn)), last, iv_mask, blocks: None }
    }

    /// Numbers of an SA of the kernel. The mask is random, since the same keys may be added again, with numbers from 1 on.
    fn of_kernel(sequences: kernel::SharedSequences) -> Self {
        let iv_mask = u64::from(random()) << 32 | u64::from(random());
        Self { source: Source::Kernel(sequences), last: 0, iv_mask, blocks: None }
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
        // What waited for a worker of before returns.
        self.blocks = None;
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
        let mut owners = Owners::new(workers);
        for live in &mut self.sas {
            live.worker = owners.give(&live.sa, None);
            live.status.begin();
        }
        let Self { sas, failed, sequences, .. } = self;
        let mut plans = Vec::new();
        for live in sas {
            let plan = live.plan();
            if live.sa.direction == Direction::Out && plan.numbers.is_none() {
                // Workers get no SA that cannot send.
                failed.extend(sequences.is_some().then(|| live.sa.id()));
            } else {
                plans.push(plan);
            }
        }
        plans
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
            Change::AddSa { sa, sent, received, used } => {
                let last = if sa.direction == Direction::Out { sent } else { received };
                self.add(*sa, last, used);
            }
            Change::RemoveSa(id) => self.remove(id),
            Change::LeaveSa(id, why) => tracing::info!("SA {id} is not used by workers: {why}"),
            Change::Current { template, sas } => {
                let members = self.members(&sas);
                self.note_current(template, sas);
                self.command(|controls| controls.set_current(template, &members, SETTLE));
            }
            Change::AddPolicy { .. } | Change::RemovePolicy { .. } | Change::RemoveAllPolicies => {}
        }
    }

    /// Notes the SAs of a template; workers are told otherwise.
    pub fn note_current(&mut self, template: u32, sas: SaList) {
        let at = template as usize;
        self.current.resize(self.current.len().max(at + 1), SaList::default());
        self.current[at] = sas;
    }

    /// The SAs of all templates, with what they have done.
    pub fn current(&self) -> Vec<PolicySas> {
        self.current.iter().map(|sas| self.members(sas)).collect()
    }

    fn members(&self, sas: &SaList) -> PolicySas {
        let member = |id: &SaId| Some((*id, self.statuses.get(id)?.clone()));
        PolicySas {
            own: sas.own.iter().filter_map(member).collect(),
            fallback: sas.fallback.as_ref().and_then(member),
            asks: sas.asks,
        }
    }

    /// Sends workers all policies, with those of the configuration, after the SAs of a template that is new in these.
    pub fn set_policies(&mut self, policies: &Arc<Policies>, current: Option<(u32, SaList)>) {
        let current = current.map(|(template, sas)| (template, self.members(&sas)));
        self.command(|controls| controls.set_policies(policies, current, SETTLE));
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

    /// Adds an SA whose numbers were sent or received up to `last`, and that was used as much before, if it was moved.
    fn add(&mut self, sa: Sa, last: u64, used: Option<SaUsage>) {
        let now_ns = clock_ns();
        let workers = self.controls.as_ref().map_or(1, Controls::workers);
        let others = self.sas.iter().map(|live| (&live.sa, live.worker));
        let worker = Owners::new(workers).with(others).give(&sa, None);
        let key = (sa.fingerprint(), sa.direction);
        let before = self.ended.iter().find(|ended| (ended.fingerprint, ended.direction) == key);
        // Packets have come and gone since the program has read how many there were.
        let last = before.map_or(last, |before| before.last.max(last));
        let used = used.map(|used| before.map_or(used, |before| most(used, before.used)));
        let used = used.unwrap_or(SaUsage { added_ns: now_ns, ..SaUsage::default() });
        let mut supply = (sa.direction == Direction::Out).then(|| match &self.sequences {
            Some(sequences) => Supply::of_kernel(sequences.clone()),
            None => Supply::new(&sa, last, before),
        });
        let new = match &mut supply {
            None => Inbound::new(&sa, now_ns).ok().map(|inbound| {
                let mut inbound = inbound.with_used(used);
                if last > 0 {
                    inbound.resume(last);
                }
                NewSa::In(inbound)
            }),
            Some(supply) => supply.feed(&sa).and_then(|(block, more)| {
                let out = Outbound::new(&sa, block, supply.iv_mask, now_ns).ok()?;
                Some(NewSa::Out(out.with_used(used), more))
            }),
        };
        let number = if supply.is_some() { last.saturating_add(1) } else { last };
        let status = Arc::new(SaStatus::after(&used, number));
        // Problems of an SA are found when its message is read.
        let Some(new) = new else {
            tracing::error!("SA {}: cannot be used", sa.id());
            self.failed.extend(self.sequences.is_some().then(|| sa.id()));
            return;
        };
        tracing::info!("SA {} added: {} {}", sa.id(), super::direction(sa.direction), sa.suite);
        self.command(|controls| controls.add(&sa, new, worker, status.clone(), SETTLE));
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
            lock(sequences).forget(id);
        }
        let (Status { number, used, .. }, iv_mask) =
            (status.read(), numbers.as_ref().map_or(0, |supply| supply.iv_mask));
        let last = match numbers {
            None => number,
            // If no worker has it any more, the numbers that were not used are free.
            Some(_) if is_gone => number.saturating_sub(1),
            Some(supply) => supply.last,
        };
        let (fingerprint, direction) = (sa.fingerprint(), sa.direction);
        self.ended.retain(|ended| (ended.fingerprint, ended.direction) != (fingerprint, direction));
        self.ended.push_back(EndedSa { fingerprint, direction, last, iv_mask, used });
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

    /// Forgets SAs of the kernel that have ended: an SA that comes again later is a new one. If it comes again at once, as
    /// where an end gets another address, it goes on.
    pub fn forget_ended(&mut self) {
        if self.sequences.is_some() {
            self.ended.clear();
        }
    }

    /// All SAs are the kernel's from now on.
    pub fn follow_kernel(&mut self, sequences: kernel::SharedSequences) {
        self.sequences = Some(sequences);
    }

    /// Called often where SAs are the kernel's; returns those that are to be left to Linux, and why. Those that are not
    /// in use are looked at only with `idle`.
    pub fn update_kernel_sas(&mut self, idle: bool) -> Vec<(SaId, String)> {
        let failed = std::mem::take(&mut self.failed).into_iter();
        let Some(sequences) = &self.sequences else { return Vec::new() };
        let mut sequences = lock(sequences);
        let mut left: Vec<_> = failed.map(|id| (id, String::from("workers could not use it"))).collect();
        for LiveSa { sa, status, numbers, .. } in &mut self.sas {
            let blocks = numbers.as_mut().and_then(|supply| supply.blocks.as_mut());
            let mut blocks = blocks.filter(|blocks| !blocks.is_closed());
            let now = status.read();
            let room = blocks.as_mut().map(|blocks| blocks.has_room());
            let usage =
                kernel::Usage { bytes: now.used.bytes, packets: now.used.packets, expiry: now.expiry, room };
            match sequences.update(sa, &usage, idle) {
                kernel::Outcome::Nothing => {}
                kernel::Outcome::Leave(why) => left.push((sa.id(), why)),
                kernel::Outcome::Numbers { block, skip } => {
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

    /// Inbound SAs whose packets come from elsewhere.
    pub fn moved(&mut self) -> Vec<Moved> {
        self.controls.as_mut().map(Controls::moved).unwrap_or_default()
    }

    /// What an SA has been used for.
    pub fn usage(&self, id: SaId) -> Usage {
        let status = self.statuses.get(&id).map(|status| status.read()).unwrap_or_default();
        Usage {
            bytes: status.used.bytes,
            packets: status.used.packets,
            number: status.number,
            failures: status.failures,
            first_ns: status.used.first_ns,
        }
    }
}

/// What an SA was used for, of two counts of which either may be older.
fn most(one: SaUsage, other: SaUsage) -> SaUsage {
    let first_ns = [one.first_ns, other.first_ns].into_iter().filter(|first| *first > 0).min();
    SaUsage {
        bytes: one.bytes.max(other.bytes),
        packets: one.packets.max(other.packets),
        added_ns: one.added_ns.min(other.added_ns),
        first_ns: first_ns.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_ipsec::{Secret, Suite};

    fn sa(direction: Direction, destination: [u8; 4]) -> Sa {
        let id = SaId { spi: 0x1001, destination: destination.into() };
        let mut sa = Sa::new(direction, id, [192, 0, 2, 1].into(), Suite::Aes128Gcm);
        sa.encryption_key = Secret::new(&[7; 20]);
        sa
    }

    fn used(packets: u64) -> SaUsage {
        SaUsage { bytes: packets * 84, packets, added_ns: 5, first_ns: 9 }
    }

    /// Adds an SA as a program does that has read its numbers and counters when there were `packets`.
    fn add(live: &mut Live, sa: &Sa, packets: u64) {
        let (sent, received) = if sa.direction == Direction::Out { (packets, 0) } else { (0, packets) };
        live.apply(Change::AddSa { sa: sa.clone().into(), sent, received, used: Some(used(packets)) });
    }

    #[test]
    fn sas_that_move_go_on_after_the_last_packet() {
        for direction in [Direction::Out, Direction::In] {
            let [here, there] = [[198, 51, 100, 1], [203, 0, 113, 7]].map(|address| sa(direction, address));
            let next = |packets: u64| if direction == Direction::Out { packets + 1 } else { packets };
            let mut live = Live::default();
            live.apply(Change::AddSa { sa: here.clone().into(), sent: 0, received: 0, used: None });
            assert_eq!(live.usage(here.id()).number, next(0));
            // Its worker handles 500 packets, the last ten after the program has read how many there were.
            live.sas[0].status = Arc::new(SaStatus::after(&used(500), next(500)));
            let iv_mask = |live: &Live| live.sas[0].numbers.as_ref().map(|supply| supply.iv_mask);
            let mask = iv_mask(&live);
            live.apply(Change::RemoveSa(here.id()));
            add(&mut live, &there, 490);
            let moved = live.usage(there.id());
            assert_eq!((moved.number, moved.packets, moved.bytes), (next(500), 500, 42_000), "{direction:?}");
            assert_eq!((moved.first_ns, iv_mask(&live)), (9, mask));
            // And back, without a packet meanwhile.
            live.apply(Change::RemoveSa(there.id()));
            add(&mut live, &here, 0);
            assert_eq!(live.usage(here.id()).number, next(500));
            // Workers that start go on, too.
            let plan = live.plan(1).remove(0);
            let first = plan.numbers.map(|numbers| numbers.block.next());
            assert!(first.is_none_or(|first| first > 500) && plan.status.read().number == next(500));
            // Without a lifetime, counters begin anew, as in Linux.
            live.apply(Change::RemoveSa(here.id()));
            live.apply(Change::AddSa { sa: here.clone().into(), sent: 0, received: 0, used: None });
            assert_eq!((live.usage(here.id()).number, live.usage(here.id()).packets), (next(500), 0));
        }
    }
}
