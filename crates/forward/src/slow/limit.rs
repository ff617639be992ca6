//! How many ICMP errors may be sent, as Linux limits them: to all addresses together, and to each.
//!
//! ```text
//! exempt by type? --yes--> send            (icmp_ratemask; "too big" always, or path MTU discovery fails)
//!       | no
//! all together: icmp_msgs_per_sec, icmp_msgs_burst --> to one address: icmp_ratelimit, six at once --> send
//! ```
//!
//! A refusal for one address costs the others nothing: the token of the global limit is taken last (Linux: since
//! 6.12).
//!
//! Time comes in as an argument. Tokens of an address are milliseconds, as Linux's are jiffies.

use std::collections::HashMap;
use std::net::IpAddr;

use bm_wire::Family;

use crate::tables::Settings;

/// Addresses remembered. There are more only when sources are forged, and then the global limit applies.
const PEERS_MAX: usize = 8192;
/// Errors at once to an address that had none for long (Linux: `XRLIM_BURST_FACTOR`).
const BURST: u64 = 6;
/// A route that refuses costs a second of tokens more, of which five are kept (Linux: `ip_rt_error_cost`).
const REJECT_COST_MS: u64 = 1000;
const REJECT_BURST_MS: u64 = 5 * REJECT_COST_MS;
/// An address without errors for so long is as good as unknown: it has as many tokens as may be kept.
const FORGET_MS: u64 = 60_000;
/// The shortest time between searches of a full table for addresses to forget.
const SWEEP_EVERY_MS: u64 = 1000;

/// Why an error is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// Too many to all addresses together.
    All,
    /// Too many to this address.
    Address,
}

/// A bucket of tokens that fills with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Tokens, as nanoseconds of waiting for one, so that rounding loses none.
    filled_ns: u64,
    last_ns: u64,
}

impl Bucket {
    /// A full bucket.
    pub fn full(now_ns: u64) -> Self {
        Self { filled_ns: u64::MAX, last_ns: now_ns }
    }

    /// Takes a token, of which `per_second` come and `burst` are kept; `false` if there is none.
    pub fn take(&mut self, now_ns: u64, per_second: u32, burst: u32) -> bool {
        let cost = self.offer(now_ns, per_second, burst);
        cost.inspect(|cost| self.filled_ns -= cost).is_some()
    }

    /// Refills, and returns the price of an available token; `None` if there is none.
    fn offer(&mut self, now_ns: u64, per_second: u32, burst: u32) -> Option<u64> {
        let cost = 1_000_000_000u64.checked_div(u64::from(per_second))?.max(1);
        let room = cost.saturating_mul(u64::from(burst));
        let gained = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.filled_ns = self.filled_ns.saturating_add(gained).min(room);
        (self.filled_ns >= cost).then_some(cost)
    }
}

#[derive(Clone, Copy)]
struct Peer {
    /// `None` if it had no error for long: as many as may be kept.
    tokens_ms: Option<u64>,
    last_ms: u64,
}

impl Peer {
    fn take(&mut self, now_ms: u64, cost_ms: u64, room_ms: u64) -> bool {
        let tokens_ms = match self.tokens_ms {
            None => room_ms,
            // Linux limits the sum only when time has passed: what another limit has left is not taken away here.
            Some(tokens_ms) if now_ms <= self.last_ms => tokens_ms,
            Some(tokens_ms) => (tokens_ms + now_ms - self.last_ms).min(room_ms),
        };
        self.last_ms = self.last_ms.max(now_ms);
        let left_ms = tokens_ms.checked_sub(cost_ms);
        self.tokens_ms = Some(left_ms.unwrap_or(tokens_ms));
        left_ms.is_some()
    }
}

/// An address in a routing table: two VRFs may use one address for two hosts.
pub(crate) type Target = (u16, IpAddr);

/// All limits on errors that the slow path sends.
pub(crate) struct IcmpLimits {
    all: Bucket,
    peers: HashMap<Target, Peer>,
    /// The table is not searched for addresses to forget before this time.
    sweep_at_ms: u64,
}

impl IcmpLimits {
    pub fn new() -> Self {
        Self { all: Bucket::full(0), peers: HashMap::with_capacity(PEERS_MAX), sweep_at_ms: 0 }
    }

    /// Whether an ICMP or ICMPv6 error of `kind` may go to `target`; `None` is a kind that is never limited.
    pub fn allow(
        &mut self,
        settings: &Settings,
        kind: Option<u8>,
        target: Target,
        now_ns: u64,
    ) -> Result<(), LimitReached> {
        let (mask, each_ms) = match Family::of(&target.1) {
            Family::V4 => (settings.icmp_ratemask, u64::from(settings.icmp_ratelimit_ms)),
            Family::V6 => (settings.icmp6_ratemask, u64::from(settings.icmp6_ratelimit_ms)),
        };
        if kind.is_none_or(|kind| mask.checked_shr(kind.into()).unwrap_or(0) & 1 == 0) {
            return Ok(());
        }
        let (per_second, burst) = (settings.icmp_messages_per_second, settings.icmp_messages_burst);
        let cost = self.all.offer(now_ns, per_second, burst).ok_or(LimitReached::All)?;
        let peer = self.peer(target, now_ns);
        if !peer.is_none_or(|peer| peer.take(now_ns / 1_000_000, each_ms, BURST * each_ms)) {
            return Err(LimitReached::Address);
        }
        self.all.filled_ns -= cost;
        Ok(())
    }

    /// Whether an IPv4 route that refuses may answer `target` at all; checked before the limits above.
    pub fn allow_reject(&mut self, target: Target, now_ns: u64) -> Result<(), LimitReached> {
        let taken = self
            .peer(target, now_ns)
            .is_none_or(|peer| peer.take(now_ns / 1_000_000, REJECT_COST_MS, REJECT_BURST_MS));
        if taken { Ok(()) } else { Err(LimitReached::Address) }
    }

    /// The entry of an address; `None` if there is no room for it.
    fn peer(&mut self, target: Target, now_ns: u64) -> Option<&mut Peer> {
        let now_ms = now_ns / 1_000_000;
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&target) {
            if now_ms >= self.sweep_at_ms {
                self.sweep_at_ms = now_ms + SWEEP_EVERY_MS;
                self.peers.retain(|_, peer| now_ms.saturating_sub(peer.last_ms) < FORGET_MS);
            }
            if self.peers.len() >= PEERS_MAX {
                return None;
            }
        }
        Some(self.peers.entry(target).or_insert(Peer { tokens_ms: None, last_ms: now_ms }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::icmp::kind;

    const MS: u64 = 1_000_000;

    fn target(last: u8) -> Target {
        (0, IpAddr::from([192, 0, 2, last]))
    }

    fn many() -> Settings {
        Settings { icmp_messages_per_second: 1_000_000, icmp_messages_burst: 1000, ..Settings::default() }
    }

    /// How many of `count` errors at one moment are allowed.
    fn allowed(
        limits: &mut IcmpLimits,
        settings: &Settings,
        kind: Option<u8>,
        now_ns: u64,
        count: u32,
    ) -> usize {
        (0..count).filter(|_| limits.allow(settings, kind, target(1), now_ns).is_ok()).count()
    }

    #[test]
    fn an_address_gets_six_at_once_and_then_one_a_second() {
        let (mut limits, settings) = (IcmpLimits::new(), many());
        let kind = Some(kind::TIME_EXCEEDED);
        assert_eq!(allowed(&mut limits, &settings, kind, 5000 * MS, 20), 6);
        assert_eq!(allowed(&mut limits, &settings, kind, 5999 * MS, 20), 0);
        assert_eq!(allowed(&mut limits, &settings, kind, 6000 * MS, 20), 1);
        assert_eq!(limits.allow(&settings, kind, target(2), 6000 * MS), Ok(()));
        assert_eq!(limits.allow(&settings, kind, target(1), 6000 * MS), Err(LimitReached::Address));
    }

    /// As measured on Linux 6.18: five seconds of tokens, of which each error of a route costs one, and the limit for an
    /// address what it says.
    #[test]
    fn errors_of_routes_are_limited_by_both_as_in_linux() {
        for (each_ms, sent) in [(0, 5), (10, 4), (100, 4), (1000, 2)] {
            let settings = Settings { icmp_ratelimit_ms: each_ms, ..many() };
            let mut limits = IcmpLimits::new();
            let mut allowed = |now_ns| {
                let kind = Some(kind::DESTINATION_UNREACHABLE);
                limits.allow_reject(target(1), now_ns).is_ok()
                    && limits.allow(&settings, kind, target(1), now_ns).is_ok()
            };
            let count = (0..30).filter(|round| allowed((1000 + 2 * round) * MS)).count();
            assert_eq!(count, sent, "{each_ms} ms");
        }
    }

    #[test]
    fn all_together_are_limited_too() {
        let (mut limits, settings) = (IcmpLimits::new(), Settings::default());
        let tell = |limits: &mut IcmpLimits, last, now| {
            limits.allow(&settings, Some(kind::TIME_EXCEEDED), target(last), now)
        };
        let sent = (0..200).filter(|&last| tell(&mut limits, last, 0).is_ok()).count();
        assert_eq!(sent, 50);
        assert_eq!(tell(&mut limits, 250, 0), Err(LimitReached::All));
        assert_eq!(tell(&mut limits, 250, MS), Ok(()));
    }

    #[test]
    fn one_address_does_not_starve_the_others() {
        let settings = Settings::default();
        let (v4, v6) = (Some(kind::TIME_EXCEEDED), Some(3));
        let mut limits = IcmpLimits::new();
        // More than all together may have: but for six, all are refused for the address's sake.
        let noisy = (0..1000).map(|_| limits.allow(&settings, v4, target(1), 0));
        assert_eq!(noisy.filter(|said| *said == Err(LimitReached::Address)).count(), 994);
        assert_eq!(limits.allow(&settings, v4, target(2), 0), Ok(()));
        let six = |last| (0, IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]));
        let mut limits = IcmpLimits::new();
        let noisy = (0..1000).map(|_| limits.allow(&settings, v6, six(1), 0));
        assert_eq!(noisy.filter(|said| *said == Err(LimitReached::Address)).count(), 994);
        assert_eq!(limits.allow(&settings, v6, six(2), 0), Ok(()));
    }

    #[test]
    fn a_full_table_is_searched_once_a_second() {
        let mut limits = IcmpLimits::new();
        let other = |n: u32| (1, IpAddr::from(n.to_be_bytes()));
        (0..PEERS_MAX as u32).for_each(|n| assert!(limits.peer(other(n), 0).is_some()));
        // A second before they may be forgotten; just after; and a second after the first look.
        assert!(limits.peer(target(1), 59_990 * MS).is_none());
        assert!(limits.peer(target(1), 60_010 * MS).is_none());
        assert!(limits.peer(target(1), 60_990 * MS).is_some());
    }

    #[test]
    fn some_are_never_limited() {
        let (mut limits, settings) = (IcmpLimits::new(), Settings::default());
        assert_eq!(allowed(&mut limits, &settings, None, 0, 500), 500);
        assert_eq!(allowed(&mut limits, &settings, Some(kind::ECHO_REPLY), 0, 500), 500);
        let none = Settings { icmp_ratemask: 0, ..Settings::default() };
        assert_eq!(allowed(&mut limits, &none, Some(kind::TIME_EXCEEDED), 0, 500), 500);
        let free = Settings { icmp_ratelimit_ms: 0, ..many() };
        assert_eq!(allowed(&mut limits, &free, Some(kind::TIME_EXCEEDED), 0, 500), 500);
    }

    #[test]
    fn unreachable_routes_use_two_tokens_of_one_budget() {
        // Linux: five seconds of tokens at most, one for the route and one for the message.
        let (mut limits, settings) = (IcmpLimits::new(), many());
        let kind = Some(kind::DESTINATION_UNREACHABLE);
        let sent = (0..20).filter(|_| {
            limits.allow_reject(target(1), 0).is_ok() && limits.allow(&settings, kind, target(1), 0).is_ok()
        });
        assert_eq!(sent.count(), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let mut limits = IcmpLimits::new();
        let settings = Settings { icmp_messages_burst: 1_000_000, ..many() };
        for n in 0..3 * PEERS_MAX as u32 {
            let target = (0, IpAddr::from(n.to_be_bytes()));
            let _limited = limits.allow(&settings, Some(kind::TIME_EXCEEDED), target, 0);
        }
        assert!(limits.peers.len() <= PEERS_MAX);
        // They are forgotten in time.
        assert!(limits.peer(target(1), 120_000 * MS).is_some());
        assert_eq!(limits.peers.len(), 1);
    }
}
