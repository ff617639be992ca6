//! A running engine of the bench, with the accounts of its ports and its router.

use std::sync::Arc;

use bm_forward::SlowPath;
use bm_graph::Engine;
use bm_stats::{Account, Entry};

use super::loop_port::Sample;

/// A running engine, and what is needed to check it.
pub(super) struct RunningEngine {
    pub engine: Engine,
    pub sample: Arc<Sample>,
    /// Accounts that must have sent all of their frames.
    pub accounts: Vec<(String, Account)>,
    /// Held, so that the router's queue to it stays open.
    pub _slow: Option<SlowPath>,
}

impl RunningEngine {
    /// Frames that the ports have sent so far.
    pub fn sent(&self) -> u64 {
        let ports = self.accounts.iter().filter(|(name, _)| name.starts_with("port/"));
        ports.map(|(_, account)| account.get(Entry::Sent)).sum()
    }

    /// Frames that the router has received so far.
    pub fn received(&self) -> u64 {
        self.routed(Entry::Received)
    }

    /// Frames that the router has forwarded so far.
    #[cfg(test)]
    pub fn forwarded(&self) -> u64 {
        self.routed(Entry::Sent)
    }

    fn routed(&self, entry: Entry) -> u64 {
        let router = self.accounts.iter().filter(|(name, _)| name.starts_with("router/"));
        router.map(|(_, account)| account.get(entry)).sum()
    }

    /// Checks that every frame that an account received was sent; otherwise names the counters that differ.
    pub fn check_accounts(&self) -> Result<(), String> {
        self.check(|account| account.get(Entry::Sent))
    }

    /// Checks that every frame that an account received was sent, went to the slow path or was dropped.
    pub fn check_closed(&self) -> Result<(), String> {
        self.check(|account| account.get(Entry::Sent) + account.get(Entry::Passed) + account.dropped_in_all())
    }

    fn check(&self, left: impl Fn(&Account) -> u64) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (name, account) in &self.accounts {
            let (received, sent) = (account.get(Entry::Received), account.get(Entry::Sent));
            let (passed, dropped) = (account.get(Entry::Passed), account.dropped_in_all());
            if received != left(account) {
                wrong.push(format!(
                    "{name}: received {received}, sent {sent}, slow path {passed}, dropped {dropped}"
                ));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.engine.stop();
    }
}
