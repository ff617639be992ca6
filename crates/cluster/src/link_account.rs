//! Finds out how many of the frames that the other end of a link has sent were lost on the link.
//!
//! ```text
//! the peer, once a second: "my interface has sent N frames" ──► this node: M frames have arrived
//! ```
//!
//! Frames that are sent after N was read may arrive before M is read, but none of the N can arrive later, since links keep
//! the order. So N - M never exceeds the number of lost frames, and its maximum so far is that number.
//!
//! Pure.

/// How many messages it takes to find the offset between the two counters; losses meanwhile are not counted.
const FIRST: u32 = 5;

/// Frames in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAccount {
    messages: u32,
    /// The counters of the last message.
    sent: u64,
    arrived: u64,
    /// The sender's counter at the first message, and the offset between the two counters.
    sent_before: u64,
    difference: i64,
    lost: u64,
}

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkLoss {
    /// Frames that the peer has sent since the first message.
    pub sent: u64,
    /// Frames that have arrived since then.
    pub arrived: u64,
    /// Frames that will never arrive.
    pub lost: u64,
}

impl LinkAccount {
    /// Notes what the peer had sent, and what has arrived now.
    pub fn note(&mut self, sent: u64, arrived: u64) {
        if sent < self.sent || arrived < self.arrived {
            // One of the counters has started again at 0.
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
    pub fn carried(&self) -> Option<LinkLoss> {
        let arrived_before = self.sent_before as i64 - self.difference;
        (self.messages > FIRST).then(|| LinkLoss {
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
        assert_eq!(account.carried(), Some(LinkLoss { sent: 500, arrived: 503, lost: 0 }));
        // Ten are lost.
        account.note(1600, 700 - 10 + 6);
        assert_eq!(account.carried(), Some(LinkLoss { sent: 600, arrived: 595, lost: 5 }));
        account.note(1700, 800 - 10 + 1);
        assert_eq!(account.carried(), Some(LinkLoss { sent: 700, arrived: 690, lost: 10 }));
        account.note(1800, 900 - 10 + 30);
        assert_eq!(account.carried().map(|carried| carried.lost), Some(10));
        // A counter that starts again at 0.
        account.note(5, 900);
        assert_eq!(account.carried(), None);
    }
}
