//! What became of the frames that the other end of a link has sent: arrived here, or lost on the link.
//!
//! ```text
//! the peer, once a second: "my interface has sent N frames" ──► here: M have arrived since the link is counted
//! ```
//!
//! Frames that are sent after N was read may have arrived before M is read, but none of the N can arrive later: links keep
//! the order. So N - M is never more than what was lost, and the largest such difference so far is.
//!
//! Pure.

/// What both counters differ by is found out by the first so many messages; losses meanwhile are not seen.
const FIRST: u32 = 5;

/// Frames in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAccount {
    messages: u32,
    /// The counters of the last message.
    sent: u64,
    arrived: u64,
    /// The counter of the sender at the first message, and what both differ by.
    sent_before: u64,
    difference: i64,
    lost: u64,
}

/// What is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Frames that the peer has sent since the link is counted.
    pub sent: u64,
    /// Those of them, and later ones, that have arrived.
    pub arrived: u64,
    /// Those that never will.
    pub lost: u64,
}

impl LinkAccount {
    /// Notes what the peer had sent, and what has arrived now.
    pub fn note(&mut self, sent: u64, arrived: u64) {
        if sent < self.sent || arrived < self.arrived {
            // One of the counters has begun anew.
            *self = Self::default();
        }
        let difference = sent as i64 - arrived as i64;
        if self.messages == 0 {
            (self.sent_before, self.difference) = (sent, difference);
        }
        self.messages = self.messages.saturating_add(1);
        (self.sent, self.arrived) = (sent, arrived);
        if self.messages <= FIRST {
            self.difference = self.difference.max(difference);
        } else {
            self.lost = self.lost.max(difference.saturating_sub(self.difference).max(0) as u64);
        }
    }

    /// `None` before there were enough messages.
    pub fn carried(&self) -> Option<Carried> {
        let arrived_before = self.sent_before as i64 - self.difference;
        (self.messages > FIRST).then(|| Carried {
            sent: self.sent - self.sent_before,
            arrived: (self.arrived as i64 - arrived_before).max(0) as u64,
            lost: self.lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_under_way_are_not_lost() {
        let mut account = LinkAccount::default();
        // Counters that began at different times; up to 7 frames arrive between the two readings.
        for (at, later) in [3, 7, 1, 5, 2].into_iter().enumerate() {
            let sent = 1000 + 100 * at as u64;
            account.note(sent, sent - 900 + later);
            assert_eq!(account.carried(), None);
        }
        account.note(1500, 600 + 4);
        assert_eq!(account.carried(), Some(Carried { sent: 500, arrived: 503, lost: 0 }));
        // Ten are lost.
        account.note(1600, 700 - 10 + 6);
        assert_eq!(account.carried(), Some(Carried { sent: 600, arrived: 595, lost: 5 }));
        account.note(1700, 800 - 10 + 1);
        assert_eq!(account.carried(), Some(Carried { sent: 700, arrived: 690, lost: 10 }));
        account.note(1800, 900 - 10 + 30);
        assert_eq!(account.carried().map(|carried| carried.lost), Some(10));
        // A counter that begins anew.
        account.note(5, 900);
        assert_eq!(account.carried(), None);
    }
}
