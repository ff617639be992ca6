//! The policies that apply now, for the slow path, which is no worker.

use std::sync::Arc;

use bm_ipsec::{Action, Direction, Policies, key};
use bm_sys::Mutex;

use crate::tables::Tables;

/// Shared with the daemon, which changes them.
#[derive(Clone, Default)]
pub struct CurrentPolicies(Arc<Mutex<Arc<Policies>>>);

impl CurrentPolicies {
    /// Uses these in place of all others.
    pub fn set(&self, policies: Arc<Policies>) {
        *self.0.lock() = policies;
    }

    /// Whether a packet that leaves by this interface is encrypted or dropped. Linux must not get it instead: it knows no
    /// SA, so it would drop it.
    pub(crate) fn protect_or_discard(&self, tables: &Tables, packet: &[u8], out: u16) -> bool {
        if tables.interfaces.get(usize::from(out)).is_some_and(|out| out.if_id != 0) {
            return true;
        }
        let policies = Arc::clone(&self.0.lock());
        let found = key(packet).and_then(|key| policies.find(Direction::Out, &key).map(|found| found.action));
        found.is_some_and(|action| action != Action::Bypass)
    }
}
