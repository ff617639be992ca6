//! `[filter]`: packets that are dropped although Linux would forward them.

use bm_filter::{Action, Rule};
use bm_wire::ReversePath;

use super::forms::{Choice, number, word_or_number};

pub(super) const ACTIONS: [(&str, Action); 2] = [("accept", Action::Accept), ("drop", Action::Drop)];
const FAIL: [(&str, Fail); 2] = [("closed", Fail::Closed), ("open", Fail::Open)];

settings! {
    /// Drops packets that Linux would forward. Packets for this machine always reach Linux.
    #[table("[filter]", "docs/filters.md")]
    pub struct Filter {
        /// What to do with packets that no rule matches: "accept" or "drop".
        #[setting(unmatched = "accept", Choice(&ACTIONS), Live)]
        pub unmatched: Action,
        /// What to do with fragments too small to hold the headers that rules match (RFC 1858, RFC 7112).
        #[setting(tiny_fragments = "accept", Choice(&ACTIONS), Live)]
        pub tiny_fragments: Action,
        /// Packets a second that each source may send; "off" for no limit.
        #[setting(rate_packets = "off", word_or_number(1..=10_000_000), Live)]
        pub rate_packets: Option<u32>,
        /// Packets that each source may send at once; "rate" for as many as in one second.
        #[setting(rate_burst = "rate", word_or_number(1..=10_000_000), Live)]
        pub rate_burst: Option<u32>,
        /// How many bits of an IPv4 address identify a source.
        #[setting(rate_ipv4_length = 32, number(0..=32), Live)]
        pub rate_ipv4_length: u32,
        /// How many bits of an IPv6 address identify a source.
        #[setting(rate_ipv6_length = 64, number(0..=128), Live)]
        pub rate_ipv6_length: u32,
        /// Whether a route must lead back to the source (RFC 3704): "strict", the best route, through the same interface;
        /// "feasible", any route to the prefix through the same interface, even a worse one; "loose", through any
        /// interface; "off"; or "kernel", as rp_filter says.
        #[setting(reverse_path = "kernel", Choice(&SOURCE_RULES), Live)]
        pub reverse_path: SourceRule,
        /// What happens on a port with filters that drop, while brickmoon does not handle its interface (because it is
        /// part of a bridge, was refused, or has just been created): with "closed" nftables filters there by the same
        /// rules, with "open" Linux forwards without filters and the log has an error.
        #[setting(fail = "closed", Choice(&FAIL), Live)]
        pub fail: Fail,
        /// Each `[[filter.rule]]`; the first that matches decides.
        pub rules: Vec<Rule>,
    }
}

settings! {
    /// One `[[filter.rule]]` for each rule; the first that matches a packet decides. Keys that are left out match anything.
    #[table("[[filter.rule]]")]
    by_hand {
        /// The name under which packets are counted; rules may share one.
        name = "no-telnet",
        /// "drop" or "accept".
        action = "drop",
        /// A prefix, or an address.
        source = "192.0.2.0/24",
        /// A prefix, or an address, of the same family as `source`.
        destination = "198.51.100.0/24",
        /// tcp, udp, sctp, dccp, udplite, icmp, icmpv6, gre, esp, ah, ospf, vrrp, or a number.
        protocol = "tcp",
        /// A port, or the first and the last.
        source_ports = "1024-65535",
        /// A port, or the first and the last.
        destination_ports = 23,
        /// The port that packets come in on.
        port = "eth0",
    }
}

settings! {
    /// One `[[claim]]` for each claim: packets that go to workers with their hooks and apps, although the port that they
    /// come in on takes the kernel path; all others stay in the kernel. The keys are those of a filter rule, without
    /// `action`.
    #[table("[[claim]]", "docs/hooks.md")]
    by_hand {
        name = "dns",
        protocol = "udp",
        destination_ports = 53,
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

/// Which reverse path filter applies to sources (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRule {
    /// As set by `rp_filter`; IPv6 is not checked.
    #[default]
    Kernel,
    /// This one, for both families.
    Own(ReversePath),
}

impl SourceRule {
    /// The filter in place of Linux's.
    pub fn own(self) -> ReversePath {
        match self {
            Self::Kernel => ReversePath::Off,
            Self::Own(filter) => filter,
        }
    }
}

impl std::fmt::Display for SourceRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = SOURCE_RULES.iter().find(|(_, rule)| rule == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// Names in the configuration.
pub(super) const SOURCE_RULES: [(&str, SourceRule); 5] = [
    ("kernel", SourceRule::Kernel),
    ("off", SourceRule::Own(ReversePath::Off)),
    ("strict", SourceRule::Own(ReversePath::Strict)),
    ("feasible", SourceRule::Own(ReversePath::Feasible)),
    ("loose", SourceRule::Own(ReversePath::Loose)),
];
