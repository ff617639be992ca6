//! Keeps connections alive whose packets Linux does not see.

use std::time::Instant;

use bm_conntrack::Update;

use super::super::check::{TCP, UNTRACKED_IDLE};
use super::super::counts::EndReason;
use super::super::known::{ConnectionKey, KnownConnection};
use super::super::linux::{Connections, GracePeriods};
use super::{Learner, UPDATES};

/// Bytes of a connection after which Linux is told again not to compare sequence numbers with what it has seen: RST is invalid
/// 2 GiB later.
const UNSEEN_MAX: u64 = 512 << 20;

/// In so many steps all connections are looked at.
pub(in crate::flows) const STEPS: usize = 10;

impl<C: Connections, G: GracePeriods> Learner<C, G> {
    /// Looks at a share of the connections: to be called [`STEPS`] times a second. Linux gets a new timeout for those whose
    /// flows are used, and what is left of it for those that no longer are.
    pub fn refresh(&mut self, now: Instant) {
        let (mut updates, places) = (Vec::new(), self.known.places());
        // Each place comes once in a second, however few there are.
        let share = places * self.step / STEPS..places * (self.step + 1) / STEPS;
        self.step = (self.step + 1) % STEPS;
        for place in share {
            updates.extend(self.look(place, now));
            if updates.len() == UPDATES {
                self.send(&std::mem::take(&mut updates));
            }
        }
        self.send(&updates);
    }

    /// Looks whether the flows of a connection were used; returns the timeout to set.
    fn look(&mut self, place: usize, now: Instant) -> Option<Update> {
        let flows: Vec<_> = self.known.get_mut(place)?.flows().collect();
        let (mut is_used, mut bytes) = (false, 0);
        for index in flows {
            let record = self.table.get(index);
            if let Some(why) = record.ended {
                self.table.remove(index);
                self.drop_flow(index, why.into());
                continue;
            }
            let packets = record.packets;
            bytes += record.bytes;
            let Some(flow) = self.known.flow_mut(index) else { continue };
            if flow.packets != packets {
                (flow.packets, flow.used, is_used) = (packets, now, true);
            }
        }
        let connection = self.known.get_mut(place)?;
        if is_used {
            (connection.used, connection.used_since) = (now, true);
        }
        let Some(key) = connection.key else {
            if now.saturating_duration_since(connection.used) > UNTRACKED_IDLE {
                self.forget(place, EndReason::Idle);
            }
            return None;
        };
        due(connection, key, is_used, bytes, now)
    }

    fn send(&mut self, updates: &[Update]) {
        for (update, result) in updates.iter().zip(self.keep_alive(updates)) {
            let key = ConnectionKey { original: update.original, zone: update.zone };
            if let (Err(_), Some(place)) = (result, self.known.find(&key)) {
                self.forget(place, EndReason::Connection);
            }
        }
    }
}

/// The timeout to set of a connection, if any: a new one while it is used, once a quarter of the last one has passed; and
/// what is left of it when it has become idle.
fn due(
    connection: &mut KnownConnection,
    key: ConnectionKey,
    is_used: bool,
    bytes: u64,
    now: Instant,
) -> Option<Update> {
    let since_refresh = now.saturating_duration_since(connection.refreshed);
    let is_due = match is_used {
        _ if bytes - bytes.min(connection.told_bytes) > UNSEEN_MAX => true,
        true => since_refresh > connection.timeout / 4,
        false => connection.used_since,
    };
    if !is_due {
        return None;
    }
    let idle = now.saturating_duration_since(connection.used);
    let timeout = connection.timeout.saturating_sub(idle).as_secs().max(1);
    (connection.refreshed, connection.used_since, connection.told_bytes) = (now, false, bytes);
    let ConnectionKey { original, zone } = key;
    let timeout_s = Some(u32::try_from(timeout).unwrap_or(u32::MAX));
    Some(Update { original, zone, timeout_s, liberal: original.protocol == TCP, status: None })
}
