//! What of IPsec outlives workers: which sequence numbers are used, and what each SA has done.
//!
//! ```text
//! state file ◄── Record ── blocks of numbers ──► workers        SaStatus: written by workers, kept here, shown by `show sas`
//! ```
//!
//! A number is written to the state file as used before a worker gets it, so none is used twice, whatever happens to the
//! process. Workers that are started again go on with new numbers and their old counters.

mod clear_text;
mod feed;
mod kernel;
mod kernel_thread;
mod lifetimes;
mod live;
mod own_packets;
mod owners;
mod protection;
mod record;
mod shown;
mod tun_devices;
mod xfrm_thread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bm_control::config::{self, Config};
use bm_filter::TooMany;
use bm_forward::tables::PublishedTables;
use bm_forward::{
    CurrentPolicies, Decryption, Encryption, IpsecPlan, IpsecWorker, Moved, PolicySas, PuntQueue, SaNumbers,
    SaPlan, SaStatus, Wanted,
};
use bm_graph::{Network, Waker, clock_ns};
use bm_ipsec::{Action, Direction, Policies, Policy, Sa, SaId, SaList};
use bm_stats::{Account, Registry, Scope};
use bm_xfrm::{Change, Usage};

use crate::lock;
use crate::workers::apps::{DECRYPTION, ENCRYPTION};
use bm_cli::Failure;
use clear_text::ClearText;
use feed::Feed;
use kernel::Sequences;
pub use kernel_thread::KernelThread;
use lifetimes::Lifetimes;
use live::Live;
pub use own_packets::RawSockets;
use owners::Owners;
pub use protection::Protection;
use record::Record;
use shown::{direction, name_of};
pub use tun_devices::{TunDevices, TunPort};
pub use xfrm_thread::XfrmThread;

/// Numbers that are reserved together at most: enough for a second. With ESN they are as few: receivers infer the high half
/// of a number, and lose an SA whose numbers skip 2^32 (RFC 4303 A2).
const BLOCK: u64 = 1 << 23;
/// Policies are put into one tree when they have not been changed for as long.
const SETTLES_AFTER: Duration = Duration::from_secs(1);
/// Where priorities are equal, policies of the configuration come before those of programs, whose numbers have this bit.
const OF_PROGRAMS: u64 = 1 << 63;
/// Frames in a ring between two workers.
const RING: usize = 1024;
/// Why the kernel's SAs cannot be used.
const NO_IPSEC: &str =
    "[ipsec] kernel = \"on\": this kernel has no IPsec: load xfrm_user, or use xfrm_socket instead";

/// Everything about SAs that workers do not own.
#[derive(Default)]
pub struct Ipsec {
    clear_text: ClearText,
    record: Option<Record>,
    lifetimes: Option<Lifetimes>,
    config: config::Ipsec,
    known: Vec<ConfiguredSa>,
    feeds: Vec<Feed>,
    /// What programs have added.
    live: Live,
    /// Policies of the configuration and of programs, as workers have them.
    policies: Arc<Policies>,
    /// The policies, for the slow path.
    current: CurrentPolicies,
    /// When they were changed, if they are not in one tree yet.
    changed: Option<Instant>,
    lacks_policies: bool,
    /// Counts changes of the policies.
    version: u64,
    /// Names of XFRM interfaces, by their numbers.
    xfrm_interfaces: BTreeMap<u32, String>,
}

/// An SA, as long as it is configured.
struct ConfiguredSa {
    id: SaId,
    direction: Direction,
    fingerprint: u128,
    worker: usize,
    /// Whether no worker uses it, unless another SA of the policy ends.
    is_spare: bool,
    has_lifetime: bool,
    status: Arc<SaStatus>,
}

impl Ipsec {
    /// Keeps Linux from forwarding in clear, and opens the state file, if there are SAs.
    pub fn open(config: &Config) -> Result<Self, Failure> {
        let clear_text = ClearText::new(&config.daemon.socket);
        let mut new = Self { clear_text, ..Self::default() };
        config.ipsec.public_keys().into_iter().for_each(|warning| tracing::warn!("{warning}"));
        new.clear_text.follow(&config.ipsec, [].iter())?;
        new.open_record(config)?;
        if config.ipsec.kernel {
            let sequences = Sequences::open().map_err(Failure::failed)?;
            new.live.follow_kernel(sequences.ok_or_else(|| Failure::Failed(NO_IPSEC.into()))?);
        }
        Ok(new)
    }

    fn open_record(&mut self, config: &Config) -> Result<(), Failure> {
        let sends = config.ipsec.sas.iter().any(|sa| sa.direction == Direction::Out);
        if sends && self.record.is_none() {
            self.record = Some(Record::open(&config.ipsec.state_file).map_err(Failure::Failed)?);
        }
        if config.ipsec.sas.iter().any(|sa| sa.limits.are_set()) && self.lifetimes.is_none() {
            self.lifetimes = Some(Lifetimes::open(&config.ipsec.state_file).map_err(Failure::Failed)?);
        }
        Ok(())
    }

    /// SAs and policies for this number of workers. SAs that existed before go on.
    fn plan(&mut self, config: &Config, workers: usize) -> Result<IpsecPlan, Failure> {
        // Workers find SAs by SPI and destination: one of two would never be used.
        if let Some(sa) = config.ipsec.sas.iter().find(|sa| self.live.has(sa.id())) {
            let id = sa.id();
            return Err(Failure::Usage(format!(
                "[ipsec] has an SA with {id}, as a program has through xfrm_socket: delete that one, or use another SPI"
            )));
        }
        if !Policies::have_room(config.ipsec.policies.iter().chain(self.live.policies.values())) {
            return Err(Failure::Usage(
                "there are too many policies in [ipsec] and of programs together: remove some".into(),
            ));
        }
        if !config.ipsec.kernel {
            self.clear_text.follow(&config.ipsec, self.live.policies.values())?;
        }
        self.open_record(config)?;
        let now_ns = clock_ns();
        let before = std::mem::take(&mut self.known);
        self.feeds.clear();
        self.config = config.ipsec.clone();
        self.say_who_encrypts(workers);
        let (mut sas, mut owners) = (Vec::new(), Owners::new(workers));
        for sa in &config.ipsec.sas {
            let (id, direction, fingerprint) = (sa.id(), sa.direction, sa.fingerprint());
            let known = before
                .iter()
                .find(|known| (known.id, known.direction, known.fingerprint) == (id, direction, fingerprint));
            let status = known.map(|known| known.status.clone());
            let status = status.unwrap_or_else(|| Arc::new(self.status(sa, now_ns)));
            status.begin();
            let place = config.ipsec.place_of(id);
            let worker = owners.give(sa, place);
            let is_spare = direction == Direction::Out && place.is_some_and(|place| place >= workers);
            let numbers = (direction == Direction::Out).then(|| self.numbers(sa, &status)).transpose()?;
            self.known.push(ConfiguredSa {
                id,
                direction,
                fingerprint,
                worker,
                is_spare,
                has_lifetime: sa.limits.are_set(),
                status: status.clone(),
            });
            sas.push(SaPlan { sa: sa.clone(), worker, status, numbers });
        }
        sas.extend(self.live.plan(workers));
        (self.policies, self.changed) = (self.all_policies()?, None);
        self.current.set(self.policies.clone());
        self.version += 1;
        Ok(IpsecPlan {
            policies: self.policies.clone(),
            lists: config.ipsec.lists.iter().map(|list| self.members(list)).collect(),
            current: self.live.current(),
            sas,
            of_kernel: config.ipsec.kernel,
        })
    }

    /// Of an SA that is added now.
    fn status(&self, sa: &Sa, now_ns: u64) -> SaStatus {
        let lifetimes = self.lifetimes.as_ref().filter(|_| sa.limits.are_set());
        lifetimes.map_or_else(|| SaStatus::new(now_ns), |lifetimes| lifetimes.status(sa))
    }

    /// The SAs of a policy of the configuration, with what they have done.
    fn members(&self, list: &[SaId]) -> PolicySas {
        let known = list.iter().filter_map(|id| self.known.iter().find(|known| known.id == *id));
        let own: Vec<_> = known.map(|known| (known.id, known.status.clone())).collect();
        PolicySas { fallback: own.first().cloned(), own, asks: false }
    }

    /// Logs where the SAs of a policy are not as many as workers.
    fn say_who_encrypts(&self, workers: usize) {
        let several = self.config.policies.iter().filter_map(|policy| match policy.action {
            Action::OneOf(list) if policy.direction == Direction::Out => {
                Some((policy.at, self.config.lists.get(list as usize)?.len()))
            }
            _ => None,
        });
        for (line, count) in several {
            if count > workers {
                tracing::info!(
                    "[[ipsec.policy]] on line {line}: {workers} of its {count} SAs are used, one by each worker; the others only if one of these ends"
                );
            } else if count < workers {
                tracing::info!(
                    "[[ipsec.policy]] on line {line}: {count} of {workers} workers have an SA; the others hand its packets to the worker of the first one"
                );
            }
        }
    }

    /// The policies of the configuration and of programs.
    fn all_policies(&self) -> Result<Arc<Policies>, Failure> {
        let configured = (0..).zip(self.config.policies.iter());
        let of_programs = self.live.policies.iter().map(|(order, policy)| (OF_PROGRAMS | order, policy));
        let all = configured.chain(of_programs).map(|(order, policy)| (order, policy.clone()));
        let policies = Policies::with_orders(all)
            .map_err(|error| Failure::Usage(format!("too many policies in [ipsec]: {error:?}")))?;
        Ok(policies.into())
    }

    /// Carries out what programs have asked for; workers have done so afterwards.
    pub fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            bm_sys::heartbeat::beat();
            match change {
                Change::AddPolicy { order, policy, sas } => self.add_policy(order, *policy, sas),
                Change::RemovePolicy { order } => self.remove_policy(order),
                Change::RemoveAllPolicies => {
                    self.live.policies.clear();
                    self.clear_text.follow_programs(&self.config, [].iter());
                    match self.all_policies() {
                        Ok(policies) => self.publish(policies, None),
                        Err(error) => tracing::error!("cannot change the policies of workers: {error}"),
                    }
                }
                other => self.live.apply(other),
            }
        }
        self.live.forget_ended();
    }

    /// Adds a policy of a program, in place of the one with the same number.
    fn add_policy(&mut self, order: u64, policy: Policy, sas: SaList) {
        let gone = self.live.policies.insert(order, policy.clone());
        self.follow_change(gone.as_ref(), Some(&policy));
        let current = match policy.action {
            Action::Template(number, _) if policy.direction == Direction::Out => Some((number, sas)),
            _ => None,
        };
        current.iter().for_each(|(number, sas)| self.live.note_current(*number, sas.clone()));
        let number = OF_PROGRAMS | order;
        let without = gone.map(|gone| self.policies.without(gone.priority, number)).transpose();
        let with =
            without.and_then(|without| without.as_ref().unwrap_or(&self.policies).with(number, policy));
        if !self.change(with, current) && self.config.kernel {
            self.live.policies.remove(&order);
            self.lacks_policies = true;
        }
    }

    fn remove_policy(&mut self, order: u64) {
        let Some(gone) = self.live.policies.remove(&order) else { return };
        self.follow_change(Some(&gone), None);
        self.change(self.policies.without(gone.priority, OF_PROGRAMS | order), None);
    }

    /// Before workers have changed policies, so that Linux forwards nothing in clear meanwhile.
    fn follow_change(&mut self, gone: Option<&Policy>, new: Option<&Policy>) {
        let Self { clear_text, config, live, .. } = self;
        // The kernel has its own.
        if config.kernel {
            return;
        }
        clear_text.follow_change(config, gone, new, live.policies.values());
    }

    /// Gives workers policies that were changed.
    fn change(&mut self, policies: Result<Policies, TooMany>, current: Option<(u32, SaList)>) -> bool {
        match policies {
            Ok(policies) => {
                self.publish(policies.into(), current);
                true
            }
            // There was room before, unless the policies are the kernel's.
            Err(error) => {
                tracing::error!("cannot change the policies of workers: {error}");
                false
            }
        }
    }

    /// Whether the kernel had more policies than workers can have. Until the daemon starts again, all of them are Linux's.
    pub fn lacks_policies(&self) -> bool {
        self.lacks_policies
    }

    fn publish(&mut self, policies: Arc<Policies>, current: Option<(u32, SaList)>) {
        self.changed = (!policies.is_settled()).then(Instant::now);
        self.version += 1;
        self.live.set_policies(&policies, current);
        self.current.set(policies.clone());
        self.policies = policies;
    }

    /// Called often: puts policies into one tree when they have not been changed for some time.
    pub fn settle(&mut self) {
        if self.changed.is_some_and(|changed| changed.elapsed() >= SETTLES_AFTER) {
            self.change(self.policies.settled(), None);
        }
    }

    /// A number that is another one whenever policies have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The inbound policies that hold also for packets that no worker sees, in the order of their priorities.
    pub fn inbound(&self) -> Vec<Policy> {
        if self.config.kernel || self.config.left_to_linux == config::LeftToLinux::Forward {
            return Vec::new();
        }
        let all = self.config.policies.iter().chain(self.live.policies.values());
        let mut inbound: Vec<_> = all
            .filter(|policy| policy.direction == Direction::In && policy.if_id == 0)
            .filter(|policy| policy.selector.mark.matches_unmarked())
            .cloned()
            .collect();
        // At equal priorities the configuration's policies stay in front of those of programs.
        inbound.sort_by_key(|policy| policy.priority);
        inbound
    }

    /// Whether the configuration has an SA.
    pub fn is_configured(&self, id: SaId) -> bool {
        self.config.sas.iter().any(|sa| sa.id() == id)
    }

    /// Whether workers can use a policy beside the others, without the one that it replaces.
    pub fn has_room(&self, new: &Policy, gone: Option<&Policy>) -> bool {
        self.policies.has_room_for(new, gone)
    }

    /// What an SA that a program has added was used for.
    pub fn usage(&self, id: SaId) -> Usage {
        self.live.usage(id)
    }

    /// Called often where SAs are the kernel's: keeps them supplied with numbers, and tells the kernel what they were used
    /// for. SAs that are not in use are looked at only with `idle`. Returns those that are to be left to Linux, and why.
    pub fn update_kernel_sas(&mut self, idle: bool) -> Vec<(SaId, String)> {
        self.live.update_kernel_sas(idle)
    }

    /// Packets for which programs should add an SA.
    pub fn wanted(&mut self) -> Vec<Wanted> {
        self.live.wanted()
    }

    /// Inbound SAs whose packets come from another address or UDP port.
    pub fn moved(&mut self) -> Vec<Moved> {
        self.live.moved()
    }

    /// Without SAs and policies.
    fn forget(&mut self, config: &Config) -> Result<(), Failure> {
        self.clear_text.follow(&config.ipsec, [].iter())?;
        let Self { clear_text, record, lifetimes, version, .. } = std::mem::take(self);
        *self = Self { clear_text, record, lifetimes, version: version + 1, ..Self::default() };
        Ok(())
    }

    /// The numbers of an SA of the configuration. One that has used up all of its own gets none, and stops alone.
    fn numbers(&mut self, sa: &Sa, status: &Arc<SaStatus>) -> Result<SaNumbers, Failure> {
        let name = self.name_of_configured(sa.id());
        let record = self.record.as_mut().ok_or_else(|| Failure::Failed("no state file for IPsec".into()))?;
        let (feed, numbers) = Feed::begin(sa, name, status, record).map_err(Failure::Failed)?;
        self.feeds.push(feed);
        Ok(numbers)
    }

    /// Called often: looks after the kernel's policies, reserves numbers for each SA that will need them, and notes what those
    /// with a lifetime were used for.
    pub fn supervise(&mut self) {
        self.clear_text.renew();
        self.live.supply();
        if let Some(record) = &mut self.record {
            self.feeds.iter_mut().for_each(|feed| feed.supply(record));
        }
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.follow(&self.known);
        }
    }

    /// Called when workers have ended: frees the numbers that they have not used, and says what stays in the kernel.
    pub fn end(&mut self) {
        self.feeds.clear();
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.write(&self.known);
        }
        if let Some(Err(why)) = self.record.as_mut().map(Record::free_returned) {
            tracing::warn!("the next start skips sequence numbers of SAs: {why}");
        }
        self.clear_text.end();
    }
}

/// The apps of all workers, until each worker has got its own.
pub struct IpsecApps {
    plan: IpsecPlan,
    workers: Vec<IpsecWorker>,
    /// The policies, for the slow path.
    pub current: CurrentPolicies,
}

impl IpsecApps {
    /// For workers with these wakers; nothing without SAs and policies.
    pub fn new(config: &Config, ipsec: &Mutex<Ipsec>, wakers: &[Waker]) -> Result<Option<Self>, Failure> {
        if config.ipsec.is_empty() {
            lock(ipsec).forget(config)?;
            return Ok(None);
        }
        let mut ipsec = lock(ipsec);
        let plan = ipsec.plan(config, wakers.len())?;
        let (workers, controls) = IpsecWorker::all(wakers, RING);
        ipsec.live.control(controls);
        Ok(Some(Self { plan, workers, current: ipsec.current.clone() }))
    }

    /// Adds the apps of a worker to its network.
    pub fn add(
        &mut self,
        network: &mut Network,
        worker: usize,
        names: &[String],
        registry: &Registry,
        tables: &PublishedTables,
        punt_queue: PuntQueue,
    ) -> Result<(), Failure> {
        let now_ns = clock_ns();
        let Some(own) = self.workers.get_mut(worker) else { return Ok(()) };
        let plan = &mut self.plan;
        let decrypted = account(registry, DECRYPTION, worker)?;
        let decryption = Decryption::new(plan, own, names.to_vec(), tables, decrypted, now_ns);
        let decryption = decryption.map_err(Failure::failed)?;
        let encrypted = account(registry, ENCRYPTION, worker)?;
        let encryption = Encryption::new(plan, own, names.to_vec(), tables, punt_queue, encrypted, now_ns);
        let encryption = encryption.map_err(Failure::failed)?;
        network.app(DECRYPTION, Box::new(decryption)).map_err(Failure::failed)?;
        network.app(ENCRYPTION, Box::new(encryption)).map_err(Failure::failed)
    }
}

/// The account of an app of a worker.
fn account(registry: &Registry, app: &str, worker: usize) -> Result<Account, Failure> {
    Account::open(registry, Scope::Other(&format!("{app}/{worker}"))).map_err(Failure::failed)
}
