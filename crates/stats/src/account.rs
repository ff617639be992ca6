//! The account of an app: every frame that it received is counted again where it went, so the sums must agree.

use crate::reason::Reason;
use crate::scope::Scope;
use crate::shared::{Block, Registry, StatsError};

/// Where a frame came from, or where it went if it was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Entry {
    /// Received from the wire or from another app.
    Received,
    /// Created here: an ICMP error, a fragment, an echo reply.
    Originated,
    /// Sent to the wire, or to the app that sends it there.
    Sent,
    /// Handed to Linux unchanged.
    Host,
    /// Passed to an app that has an account of its own, such as the slow path.
    Passed,
    /// Waiting here now (a gauge), for example for the MAC address of a next hop.
    Held,
    /// Consumed: it was answered by frames that were originated.
    Consumed,
    /// Bytes received from the wire; 0 for apps that get their frames from other apps.
    ReceivedBytes,
    /// Bytes sent, where they are counted.
    SentBytes,
}

impl Entry {
    /// Their names in counters, in order of the variants.
    pub const ALL: [Self; 9] = [
        Self::Received,
        Self::Originated,
        Self::Sent,
        Self::Host,
        Self::Passed,
        Self::Held,
        Self::Consumed,
        Self::ReceivedBytes,
        Self::SentBytes,
    ];

    /// Their names in counters, in order.
    pub const NAMES: [&'static str; 9] = [
        "received",
        "originated",
        "sent",
        "host",
        "passed",
        "held",
        "consumed",
        "received_bytes",
        "sent_bytes",
    ];

    /// The entry with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().position(|other| *other == name).map(|at| Self::ALL[at])
    }
}

/// Counters with one writer, for which this always holds: `received + originated = sent + host + passed + held +
/// consumed + dropped`.
#[derive(Clone, Copy)]
pub struct Account(Block);

impl Account {
    /// Opens the account of a scope: `SCOPE/received`, .., `SCOPE/drop/REASON`.
    ///
    /// # Errors
    /// As [`Registry::block`].
    pub fn open(registry: &Registry, scope: Scope<'_>) -> Result<Self, StatsError> {
        let drops: Vec<_> = Reason::ALL.iter().map(|reason| format!("drop/{}", reason.name())).collect();
        let names: Vec<_> = Entry::NAMES.into_iter().chain(drops.iter().map(String::as_str)).collect();
        registry.block(&scope.to_string(), &names).map(Self)
    }

    /// Counts `n` frames, or bytes, under `entry`.
    #[inline]
    pub fn add(&self, entry: Entry, n: usize) {
        self.0.add(entry as usize, n as u64);
    }

    /// Counts `n` frames dropped for `reason`.
    #[inline]
    pub fn drop(&self, reason: Reason, n: usize) {
        self.0.add(Entry::NAMES.len() + reason as usize, n as u64);
    }

    /// Sets how many frames are waiting here now.
    #[inline]
    pub fn set_held(&self, n: usize) {
        self.0.set(Entry::Held as usize, n as u64);
    }

    /// The value of `entry`.
    pub fn get(&self, entry: Entry) -> u64 {
        self.0.get(entry as usize)
    }

    /// How many frames were dropped for `reason`.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.0.get(Entry::NAMES.len() + reason as usize)
    }

    /// How many frames were dropped in total.
    pub fn dropped_in_all(&self) -> u64 {
        Reason::ALL.iter().map(|&reason| self.dropped(reason)).sum()
    }

    /// Frames received and originated, less all that is accounted for: 0 whenever the app is idle.
    pub fn balance(&self) -> i64 {
        use Entry::{Consumed, Held, Host, Originated, Passed, Received, Sent};
        let came = self.sum(&[Received, Originated]);
        let went = self.sum(&[Sent, Host, Passed, Held, Consumed]) + self.dropped_in_all();
        came.wrapping_sub(went) as i64
    }

    fn sum(&self, entries: &[Entry]) -> u64 {
        entries.iter().map(|&entry| self.get(entry)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balances_only_if_every_frame_is_accounted_for() {
        let registry = Registry::anonymous(128).unwrap();
        let account = Account::open(&registry, Scope::Other("app/router")).unwrap();
        account.add(Entry::Received, 10);
        account.add(Entry::Sent, 6);
        account.drop(Reason::TtlExceeded, 1);
        account.set_held(2);
        assert_eq!(account.balance(), 1);
        account.add(Entry::Host, 1);
        assert_eq!(account.balance(), 0);
        let names = registry.counters();
        assert!(names.contains(&("app/router/drop/ttl_exceeded".into(), 1)));
        assert!(names.contains(&("app/router/held".into(), 2)));
    }

    #[test]
    fn entries_have_their_names() {
        for (at, entry) in Entry::ALL.into_iter().enumerate() {
            assert_eq!((entry as usize, Entry::named(Entry::NAMES[at])), (at, Some(entry)));
        }
        assert_eq!(Entry::named("drop"), None);
    }
}
