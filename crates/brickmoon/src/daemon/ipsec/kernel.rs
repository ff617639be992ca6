//! Sequence numbers of the kernel's SAs that workers use, and what it is told of their use.
//!
//! ```text
//! kernel: sent 7 ──► reserve: sent 7 + MARGIN + BLOCK ──► a block of numbers ──► worker
//!                    Linux goes on above them, whatever happens to this process
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

use bm_ipsec::{Block, Expiry, Numbers, Sa, SaId};
use bm_netlink::{Error, SaKey, XfrmSas};

use super::BLOCK;

/// Numbers between those that Linux has used and those of a block.
const MARGIN: u64 = 1 << 20;
/// The longest time between reading and setting the last number: with 64-byte packets on 10 Gb/s, Linux sends 150,000.
const QUICK: Duration = Duration::from_millis(10);
const ATTEMPTS: u32 = 5;
/// Linux may send on an SA this many times...
const SENDS_MAX: u32 = 10;
/// ... in this time, before it is left to Linux.
const SENDS_WITHIN: Duration = Duration::from_secs(60);
/// How often the kernel is told what an SA was used for.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Without ESN an IKE daemon is asked for a new SA when this many numbers are used.
const SOFT_NUMBER: u64 = 3 << 30;

/// Shared by the SAs and the thread that looks after them.
pub type Shared = Arc<Mutex<Sequences>>;

/// The numbers of all outbound SAs of the kernel that workers use, and what SAs of both directions were used for.
pub struct Sequences {
    kernel: XfrmSas,
    sas: HashMap<SaId, Told>,
}

/// What the kernel was told about an SA.
struct Told {
    /// The last number that was set as sent.
    sent: u64,
    bytes: u64,
    packets: u64,
    at: Instant,
    expiry: Option<Expiry>,
    /// Packets that workers had sent or received when the SA was last looked at.
    seen: u64,
    /// How often Linux has sent on it since then.
    linux_sent: (u32, Instant),
}

/// What has become of an SA that is looked after.
pub enum Tended {
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
pub struct Done {
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
    pub fn open() -> Result<Option<Shared>, Error> {
        let kernel = XfrmSas::open()?;
        Ok(kernel.map(|kernel| Arc::new(Mutex::new(Self { kernel, sas: HashMap::new() }))))
    }

    /// Reserves numbers above all that were used.
    ///
    /// # Errors
    /// The kernel's, or that there are no more numbers.
    pub fn reserve(&mut self, sa: &Sa) -> Result<Block, String> {
        let key = key_of(sa);
        for _ in 0..ATTEMPTS {
            let started = Instant::now();
            let state = self.kernel.state(&key).map_err(|error| error.to_string())?;
            // An SA that was deleted and added again begins anew, with the keys of before perhaps.
            let used = state.sent.max(self.told(sa).sent).saturating_add(MARGIN);
            let block = Numbers::after(used, sa.esn).reserve(BLOCK).map_err(|error| error.to_string())?;
            let sent = block.end() - 1;
            self.kernel.set_sent(&key, &state, sent).map_err(|error| error.to_string())?;
            self.told(sa).sent = sent;
            // Otherwise Linux may have sent more than the margin meanwhile: these numbers are skipped.
            if started.elapsed() <= QUICK {
                return Ok(block);
            }
        }
        Err("the machine is too busy to reserve sequence numbers".into())
    }

    fn told(&mut self, sa: &Sa) -> &mut Told {
        let now = Instant::now();
        let new =
            || Told { sent: 0, bytes: 0, packets: 0, at: now, expiry: None, seen: 0, linux_sent: (0, now) };
        self.sas.entry(sa.id()).or_insert_with(new)
    }

    /// The SA is gone.
    pub fn forget(&mut self, sa: SaId) {
        self.sas.remove(&sa);
    }

    /// Called often: tells the kernel what an SA was used for, and reserves more numbers if they are needed. One that
    /// workers have not used since the last call costs nothing, unless `idle` ones are to be looked at, too.
    pub fn tend(&mut self, sa: &Sa, done: &Done, idle: bool) -> Tended {
        let key = key_of(sa);
        let told = self.told(sa);
        let has_news =
            idle || done.packets != told.seen || done.packets != told.packets || done.room == Some(true);
        told.seen = done.packets;
        if !has_news {
            return Tended::Nothing;
        }
        // One that is gone is found by its event.
        let Ok(state) = self.kernel.state(&key) else { return Tended::Nothing };
        let told = self.told(sa);
        let linux_has_sent = done.room.is_some() && state.sent != told.sent;
        let (bytes, packets) =
            (done.bytes.saturating_sub(told.bytes), done.packets.saturating_sub(told.packets));
        let is_due = told.at.elapsed() >= TELL_EVERY && packets > 0;
        if is_due {
            (told.bytes, told.packets, told.at) = (done.bytes, done.packets, Instant::now());
        }
        let is_soft = done.expiry.is_some() || !sa.esn && state.sent >= SOFT_NUMBER;
        let expiry =
            done.expiry.or(is_soft.then_some(Expiry::Soft)).filter(|expiry| told.expiry < Some(*expiry));
        if let Some(expiry) = expiry {
            told.expiry = Some(expiry);
        }
        let is_left = linux_has_sent && told.counts_linux();
        if is_due {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let added = self.kernel.add_usage(&key, &state, bytes, packets, now_s);
            log(sa, "tell the kernel what the SA was used for", added);
        }
        if let Some(expiry) = expiry {
            let expired = self.kernel.expire(&key, expiry == Expiry::Hard);
            log(sa, "tell the kernel that the SA expires", expired);
        }
        if is_left {
            let why = "this machine itself sends on it, and its packets would overtake those of workers: \
                       to use it nevertheless, exclude addresses of this machine from its policies";
            return Tended::Leave(why.into());
        }
        if !linux_has_sent && done.room != Some(true) {
            return Tended::Nothing;
        }
        match self.reserve(sa) {
            Ok(block) => Tended::Numbers { block, skip: linux_has_sent },
            // It may still use the numbers that it has.
            Err(why) if !linux_has_sent => {
                tracing::debug!("SA {}: {why}", sa.id());
                Tended::Nothing
            }
            Err(why) => Tended::Leave(why),
        }
    }
}

impl Told {
    /// Counts that Linux has sent; whether that was too often.
    fn counts_linux(&mut self) -> bool {
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
