//! Sequence numbers of the kernel's SAs that workers use, and what the kernel is told about their use.
//!
//! ```text
//! kernel: sent 7 ──► reserve: sent 7 + MARGIN + BLOCK ──► a block of numbers ──► worker
//!                    Linux continues above them, whatever happens to this process
//! ```
//!
//! A worker only has numbers that the kernel takes for sent, so none is used twice. Between reading the last number and
//! setting a new one Linux may send: with the numbers of the margin, which no block has. Reading and setting must take so
//! little time that it cannot send more than that.
//!
//! If Linux has sent on an SA, because workers were restarted or the machine itself has sent, the worker skips its numbers
//! below: the peer would take them for replays. If that goes on, the SA is left to Linux.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bm_ipsec::{Block, Expiry, Numbers, ReturnedNumbers, Sa, SaId};
use bm_netlink::{Error, SaKey, SaState, XfrmSas};

use super::BLOCK;

/// Numbers between those that Linux has used and those of a block.
const MARGIN: u64 = 1 << 20;
/// The longest time between reading and setting the last number: Linux sends 150,000 packets of 64 bytes at 10 Gb/s.
const RESERVE_MAX: Duration = Duration::from_millis(10);
const ATTEMPTS: u32 = 5;
/// Linux may send on an SA this many times...
const SENDS_MAX: u32 = 10;
/// ... in this time, before it is left to Linux.
const SENDS_WITHIN: Duration = Duration::from_secs(60);
/// How often the kernel is told what an SA was used for, at most.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Without ESN an IKE daemon is asked for a new SA when this many numbers are used.
const SOFT_NUMBER: u64 = 3 << 30;

/// Shared by the SAs and the thread that looks after them.
pub type SharedSequences = Arc<Mutex<Sequences>>;

/// The numbers of all outbound SAs of the kernel that workers use, and what SAs of both directions were used for.
pub struct Sequences {
    kernel: XfrmSas,
    sas: HashMap<SaId, SaReport>,
}

/// What was reported to the kernel about an SA.
struct SaReport {
    /// The last number that was set as sent.
    sent: u64,
    /// Numbers of workers that have ended.
    returned: ReturnedNumbers,
    /// Linux has sent with numbers up to this one, which the peer has seen.
    floor: u64,
    bytes: u64,
    packets: u64,
    at: Instant,
    expiry: Option<Expiry>,
    /// Packets that workers had sent or received when the SA was last looked at.
    seen: u64,
    /// How often Linux has sent on it since then.
    linux_sent: (u32, Instant),
}

/// What is to be done about an SA after an update.
pub enum Outcome {
    Nothing,
    /// More numbers for the worker; it must not use lower ones if `skip` is set.
    Numbers {
        block: Block,
        skip: bool,
    },
    /// The SA is to be left to Linux.
    Leave(String),
}

/// What workers have done with an SA.
#[derive(Clone, Copy)]
pub struct Usage {
    pub bytes: u64,
    pub packets: u64,
    pub expiry: Option<Expiry>,
    /// Whether its worker has room for another block; `None` for inbound SAs, and while no worker has it.
    pub room: Option<bool>,
}

impl Sequences {
    /// `None` if the kernel has no IPsec.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn open() -> Result<Option<SharedSequences>, Error> {
        let kernel = XfrmSas::open()?;
        Ok(kernel.map(|kernel| Arc::new(Mutex::new(Self { kernel, sas: HashMap::new() }))))
    }

    /// Reserves numbers above all that were used; those that ended workers have left, if Linux has not sent since they were
    /// reserved.
    ///
    /// # Errors
    /// The kernel's, or that there are no more numbers.
    pub fn reserve(&mut self, sa: &Sa) -> Result<Block, String> {
        let key = key_of(sa);
        for _ in 0..ATTEMPTS {
            let started = Instant::now();
            let state = self.kernel.state(&key).map_err(|error| error.to_string())?;
            let reported = self.reported(sa);
            let returned = reported.returned.clone();
            if state.sent != reported.sent {
                reported.floor = state.sent.max(reported.sent).saturating_add(1);
            } else if let Some((first, end)) = returned.take_lowest(reported.floor) {
                let mut numbers = Numbers::after(first - 1, sa.esn).with_returned(&returned);
                return numbers.reserve(end - first).map_err(|error| error.to_string());
            }
            // An SA that was deleted and added again begins anew, with the keys of before perhaps.
            let used = state.sent.max(reported.sent).saturating_add(MARGIN);
            let mut numbers = Numbers::after(used, sa.esn).with_returned(&returned);
            let end = numbers.end_of(BLOCK).map_err(|error| error.to_string())?;
            self.kernel.set_sent(&key, &state, end - 1).map_err(|error| error.to_string())?;
            self.reported(sa).sent = end - 1;
            // Otherwise Linux may have sent more than the margin meanwhile: these numbers are skipped.
            if started.elapsed() <= RESERVE_MAX {
                return numbers.reserve(BLOCK).map_err(|error| error.to_string());
            }
        }
        Err("the machine is too busy to reserve sequence numbers".into())
    }

    fn reported(&mut self, sa: &Sa) -> &mut SaReport {
        let now = Instant::now();
        self.sas.entry(sa.id()).or_insert_with(|| SaReport {
            sent: 0,
            returned: ReturnedNumbers::default(),
            floor: 0,
            bytes: 0,
            packets: 0,
            at: now,
            expiry: None,
            seen: 0,
            linux_sent: (0, now),
        })
    }

    /// The SA is gone.
    pub fn forget(&mut self, sa: SaId) {
        self.sas.remove(&sa);
    }

    /// Called often: tells the kernel what an SA was used for, and reserves more numbers if they are needed. One that
    /// workers have not used since the last call costs nothing, unless `idle` ones are to be looked at, too.
    pub fn update(&mut self, sa: &Sa, usage: &Usage, idle: bool) -> Outcome {
        let reported = self.reported(sa);
        let has_news = idle
            || usage.packets != reported.seen
            || usage.packets != reported.packets
            || usage.room == Some(true);
        reported.seen = usage.packets;
        if !has_news {
            return Outcome::Nothing;
        }
        // One that is gone is found by its event.
        let Ok(state) = self.kernel.state(&key_of(sa)) else { return Outcome::Nothing };
        let reported = self.reported(sa);
        let linux_has_sent = usage.room.is_some() && state.sent != reported.sent;
        let is_left = linux_has_sent && reported.linux_sends_too_often();
        self.report(sa, usage, &state);
        if is_left {
            let why = "this machine itself sends on it, and its packets would overtake those of workers: \
                       to use it nevertheless, exclude addresses of this machine from its policies";
            return Outcome::Leave(why.into());
        }
        if !linux_has_sent && usage.room != Some(true) {
            return Outcome::Nothing;
        }
        match self.reserve(sa) {
            Ok(block) => Outcome::Numbers { block, skip: linux_has_sent },
            // It may still use the numbers that it has.
            Err(why) if !linux_has_sent => {
                tracing::debug!("SA {}: {why}", sa.id());
                Outcome::Nothing
            }
            Err(why) => Outcome::Leave(why),
        }
    }

    /// Tells the kernel what an SA was used for, and that it expires.
    fn report(&mut self, sa: &Sa, usage: &Usage, state: &SaState) {
        let (key, reported) = (key_of(sa), self.reported(sa));
        let bytes = usage.bytes.saturating_sub(reported.bytes);
        let packets = usage.packets.saturating_sub(reported.packets);
        let is_due = reported.at.elapsed() >= REPORT_EVERY && packets > 0;
        if is_due {
            (reported.bytes, reported.packets, reported.at) = (usage.bytes, usage.packets, Instant::now());
        }
        let is_soft = !sa.esn && state.sent >= SOFT_NUMBER;
        let expiry = usage.expiry.or(is_soft.then_some(Expiry::Soft));
        let expiry = expiry.filter(|expiry| reported.expiry < Some(*expiry));
        reported.expiry = expiry.or(reported.expiry);
        if is_due {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let added = self.kernel.add_usage(&key, state, bytes, packets, now_s);
            log(sa, "tell the kernel what the SA was used for", added);
        }
        if let Some(expiry) = expiry {
            let expired = self.kernel.expire(&key, expiry == Expiry::Hard);
            log(sa, "tell the kernel that the SA expires", expired);
        }
    }
}

impl SaReport {
    /// Counts that Linux has sent; whether that was too often.
    fn linux_sends_too_often(&mut self) -> bool {
        let (count, since) = &mut self.linux_sent;
        if since.elapsed() > SENDS_WITHIN {
            (*count, *since) = (0, Instant::now());
        }
        *count += 1;
        *count > SENDS_MAX
    }
}

fn key_of(sa: &Sa) -> SaKey {
    SaKey { spi: sa.spi, source: sa.source, destination: sa.destination }
}

fn log(sa: &Sa, what: &str, done: Result<(), Error>) {
    if let Err(error) = done {
        tracing::debug!("SA {}: cannot {what}: {error}", sa.id());
    }
}
