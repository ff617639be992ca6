//! What has become of reports and flows, by reason.

use std::collections::BTreeMap;

/// Why a flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndReason {
    /// A packet with FIN or RST has passed.
    Closed,
    /// Linux has forgotten the connection.
    Connection,
    /// The mark or the state of the connection has changed, or its packets leave otherwise.
    Changed,
    /// Rules, routes, interfaces or settings have changed.
    Rules,
    /// Other flows have taken its place.
    Room,
    /// No packets came for long.
    Idle,
    /// An administrator has cleared all.
    Cleared,
}

/// Why no flow was made of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NotLearned {
    /// Rules have changed since, or their packets are not forwarded by flow.
    Rules,
    /// A rule may match about whose packets Linux decides each time.
    EachPacket,
    /// It arrived or left on an interface that is none of ours.
    Interface,
    /// The connection is not established, or not assured yet.
    State,
    /// It left otherwise than its connection says.
    Translation,
    /// A helper reads or changes the payload.
    Helper,
    /// It has a timeout that is too short, fixed or of a rule's own.
    Timeout,
    /// Not tracked, although rules decide about such packets each time.
    Untracked,
    /// The connection is gone.
    Gone,
    /// Linux has refused to keep it without seeing its packets.
    Refused,
}

impl EndReason {
    fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Connection => "connection",
            Self::Changed => "changed",
            Self::Rules => "rules",
            Self::Room => "room",
            Self::Idle => "idle",
            Self::Cleared => "cleared",
        }
    }
}

impl From<bm_flows::EndReason> for EndReason {
    fn from(why: bm_flows::EndReason) -> Self {
        match why {
            bm_flows::EndReason::Closed => Self::Closed,
            bm_flows::EndReason::Gone => Self::Connection,
            bm_flows::EndReason::Changed => Self::Changed,
        }
    }
}

impl NotLearned {
    fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::EachPacket => "each_packet",
            Self::Interface => "interface",
            Self::State => "state",
            Self::Translation => "translation",
            Self::Helper => "helper",
            Self::Timeout => "timeout",
            Self::Untracked => "untracked",
            Self::Gone => "gone",
            Self::Refused => "refused",
        }
    }
}

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub learned: u64,
    pub full: u64,
    ended: BTreeMap<EndReason, u64>,
    not_learned: BTreeMap<NotLearned, u64>,
}

impl Counts {
    pub fn end(&mut self, why: EndReason, flows: usize) {
        if flows > 0 {
            *self.ended.entry(why).or_default() += flows as u64;
        }
    }

    pub fn refuse(&mut self, why: NotLearned) {
        *self.not_learned.entry(why).or_default() += 1;
    }

    /// Flows that have ended, by the name of the reason.
    pub fn ended(&self) -> BTreeMap<String, u64> {
        self.ended.iter().map(|(why, count)| (why.name().into(), *count)).collect()
    }

    /// Reports that no flow was made of, by the name of the reason.
    pub fn not_learned(&self) -> BTreeMap<String, u64> {
        self.not_learned.iter().map(|(why, count)| (why.name().into(), *count)).collect()
    }
}
