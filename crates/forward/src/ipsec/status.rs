//! What an SA has done, as its worker writes it and others read it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bm_ipsec::{Expiry, SaUsage};

/// How long a path MTU holds that a router has told (RFC 1191 6.3).
const MTU_LASTS_S: u64 = 600;
/// An error about a packet comes before this many others are sent.
const JUST_SENT: u32 = 1 << 20;
const NS_PER_S: u64 = 1_000_000_000;

/// Shared by the worker that has the SA, which alone writes it, and by whoever shows it. It outlives the worker, so that
/// a new one goes on where the old one ended.
#[derive(Debug, Default)]
pub struct SaStatus {
    bytes: AtomicU64,
    packets: AtomicU64,
    added_ns: AtomicU64,
    first_ns: AtomicU64,
    number: AtomicU64,
    failures: AtomicU64,
    expiry: AtomicU64,
    handed: AtomicU64,
    /// Whether a lifetime or the sequence numbers have ended.
    ended: AtomicBool,
    /// The lowest sequence number that may still be sent.
    floor: AtomicU64,
    /// The path MTU that a router has told, and from bit 16 on the second in which it did; 0 if none has.
    learned_mtu: AtomicU64,
}

/// The values at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub used: SaUsage,
    /// The next sequence number to send, or the highest received.
    pub number: u64,
    /// Packets that failed.
    pub failures: u64,
    /// Packets that other workers have handed to the one that has the SA.
    pub handed: u64,
    pub expiry: Option<Expiry>,
}

impl SaStatus {
    /// For an SA that is added now.
    pub fn new(now_ns: u64) -> Self {
        Self::after(&SaUsage { added_ns: now_ns, ..SaUsage::default() }, 0)
    }

    /// For an SA that goes on after it was used this much, with this number to send next, or received last.
    pub fn after(used: &SaUsage, number: u64) -> Self {
        let status = Self::default();
        status.added_ns.store(used.added_ns, Ordering::Relaxed);
        status.write(used, number, None);
        status
    }

    /// The values.
    pub fn read(&self) -> Status {
        let expiry = [None, Some(Expiry::Soft), Some(Expiry::Hard)];
        Status {
            used: SaUsage {
                bytes: value(&self.bytes),
                packets: value(&self.packets),
                added_ns: value(&self.added_ns),
                first_ns: value(&self.first_ns),
            },
            number: value(&self.number),
            failures: value(&self.failures),
            handed: value(&self.handed),
            expiry: expiry.get(value(&self.expiry) as usize).copied().flatten(),
        }
    }

    /// Whether it cannot be used any more, so that workers use another SA of the policy if there is one.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// For workers that start: whether it has ended is found out anew, since its lifetimes may be other ones.
    pub fn begin(&self) {
        self.ended.store(false, Ordering::Release);
    }

    /// For workers that start: the next number that is sent.
    pub fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Marks it as ended; whether it was not before.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Skips the sequence numbers below this one, since another sender has used higher ones.
    pub fn skip_to(&self, number: u64) {
        self.floor.store(number, Ordering::Release);
    }

    /// The lowest sequence number that may still be sent.
    #[inline]
    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Whether a packet whose number has this low half was sent a short time ago.
    pub(super) fn has_just_sent(&self, number: u32) -> bool {
        let next = self.number.load(Ordering::Relaxed) as u32;
        next.wrapping_sub(1).wrapping_sub(number) < JUST_SENT
    }

    /// A router has told that larger packets do not arrive. It never makes an MTU greater: that it does with time.
    pub(super) fn learn_path_mtu(&self, mtu: u16, now_ns: u64) {
        if mtu <= self.path_mtu(now_ns) {
            self.learned_mtu.store((now_ns / NS_PER_S) << 16 | u64::from(mtu), Ordering::Relaxed);
        }
    }

    /// Takes over what another SA to the same address has learned.
    pub(super) fn copy_path_mtu(&self, other: &Self) {
        self.learned_mtu.store(other.learned_mtu.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The path MTU as routers have told it, 65,535 if none has.
    #[inline]
    pub fn path_mtu(&self, now_ns: u64) -> u16 {
        let learned = self.learned_mtu.load(Ordering::Relaxed);
        if learned == 0 || now_ns / NS_PER_S >= (learned >> 16) + MTU_LASTS_S {
            return u16::MAX;
        }
        learned as u16
    }

    /// Writes the values of the worker; failures are added apart.
    pub(super) fn write(&self, used: &SaUsage, number: u64, expiry: Option<Expiry>) {
        self.bytes.store(used.bytes, Ordering::Relaxed);
        self.packets.store(used.packets, Ordering::Relaxed);
        self.first_ns.store(used.first_ns, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.expiry.store(expiry.map_or(0, |expiry| expiry as u64 + 1), Ordering::Relaxed);
    }

    /// A packet came from another worker.
    pub(super) fn handed_over(&self) {
        self.handed.store(self.handed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failures.store(self.failures.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

fn value(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}
