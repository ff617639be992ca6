//! `[filter]`: packets that are dropped although Linux would forward them.

use bm_filter::{Action, Rule};

/// `[filter]` and each `[[filter.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The rules; the first that matches decides.
    pub rules: Vec<Rule>,
    /// Action for packets that no rule matches.
    pub unmatched: Action,
    /// Action for fragments that are too small for the headers that rules match.
    pub tiny_fragments: Action,
    /// Maximum packets per second from each source; `None` for no limit.
    pub rate_packets: Option<u32>,
    /// Burst size in packets; `None` for the packets of one second.
    pub rate_burst: Option<u32>,
    /// Prefix length, in bits, of an IPv4 source.
    pub rate_ipv4_length: u32,
    /// Prefix length, in bits, of an IPv6 source.
    pub rate_ipv6_length: u32,
    /// Reverse path check of sources on ports without their own.
    pub reverse_path: SourceRule,
    /// What happens to packets that the daemon cannot filter.
    pub fail: Fail,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            unmatched: Action::Accept,
            tiny_fragments: Action::Accept,
            rate_packets: None,
            rate_burst: None,
            rate_ipv4_length: 32,
            rate_ipv6_length: 64,
            reverse_path: SourceRule::Kernel,
            fail: Fail::Closed,
        }
    }
}

impl Filter {
    /// Whether this drops anything: by rules, fragments or rates.
    pub fn drops(&self) -> bool {
        let Self { rules, unmatched, tiny_fragments, rate_packets, .. } = self;
        !rules.is_empty()
            || *unmatched == Action::Drop
            || *tiny_fragments == Action::Drop
            || rate_packets.is_some()
    }
}

/// What happens to packets of ports that the daemon cannot filter, because Linux gets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// nftables filters them with the same rules.
    #[default]
    Closed,
    /// Linux forwards them; log, `status` and metrics report it.
    Open,
}

/// Reverse path check of sources (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRule {
    /// As set by `rp_filter`; IPv6 is not checked.
    #[default]
    Kernel,
    /// No check.
    Off,
    /// The best route to the source must lead through the interface of arrival.
    Strict,
    /// Any route to the prefix of the source must lead through the interface of arrival.
    Feasible,
    /// There must be a route to the source.
    Loose,
}

impl std::fmt::Display for SourceRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = SOURCE_RULES.iter().find(|(_, rule)| rule == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// Names of the checks in the configuration.
pub(super) const SOURCE_RULES: [(&str, SourceRule); 5] = [
    ("kernel", SourceRule::Kernel),
    ("off", SourceRule::Off),
    ("strict", SourceRule::Strict),
    ("feasible", SourceRule::Feasible),
    ("loose", SourceRule::Loose),
];
