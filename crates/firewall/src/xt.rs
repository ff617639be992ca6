//! Matches and targets of iptables, in the form of its legacy tables and of those that `iptables-nft` creates.

use super::condition::Condition;

/// The effect of a match besides matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Nothing.
    Plain,
    /// It changes its state with each packet, or is unknown.
    Acts,
    /// It looks at connections.
    Stateful,
}

/// Matches that only look at the packet.
const PLAIN: [&str; 29] = [
    "addrtype",
    "ah",
    "bpf",
    "cgroup",
    "comment",
    "cpu",
    "devgroup",
    "dscp",
    "ecn",
    "esp",
    "hl",
    "icmp",
    "icmp6",
    "iprange",
    "ipv6header",
    "length",
    "mac",
    "mark",
    "multiport",
    "pkttype",
    "policy",
    "realm",
    "rpfilter",
    "set",
    "tcpmss",
    "time",
    "tos",
    "ttl",
    "u32",
];
/// Matches that look at connections.
const STATEFUL: [&str; 10] = [
    "cluster",
    "connbytes",
    "connlabel",
    "connlimit",
    "connmark",
    "conntrack",
    "helper",
    "ipvs",
    "nfacct",
    "state",
];
/// Targets that concern connections, or send packets elsewhere.
const STATEFUL_TARGETS: [&str; 17] = [
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "HMARK",
    "MASQUERADE",
    "NETMAP",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "REDIRECT",
    "SAME",
    "SNAT",
    "SYNPROXY",
    "TEE",
    "TPROXY",
];

/// Other matches that do not require connection tracking.
const UNTRACKED: [&str; 19] = [
    "dccp",
    "dst",
    "eui64",
    "frag",
    "hashlimit",
    "hbh",
    "limit",
    "mh",
    "nfacct",
    "osf",
    "owner",
    "physdev",
    "quota",
    "rateest",
    "recent",
    "rt",
    "sctp",
    "statistic",
    "string",
];
/// Targets that do not require it.
const UNTRACKED_TARGETS: [&str; 32] = [
    "",
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "DNPT",
    "DSCP",
    "ECN",
    "ERROR",
    "HL",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NFQUEUE",
    "QUEUE",
    "RATEEST",
    "REJECT",
    "SECMARK",
    "SET",
    "SNPT",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TRACE",
    "TTL",
    "ULOG",
    "HMARK",
    "DROP",
    "ACCEPT",
    "RETURN",
];

/// Whether a match may require connection tracking, or the reassembly that belongs to it. An unknown one may.
pub(super) fn match_may_track(name: &str) -> bool {
    !["tcp", "udp", "udplite"].contains(&name) && !PLAIN.contains(&name) && !UNTRACKED.contains(&name)
}

/// Whether a target may need connection tracking.
pub(super) fn target_may_track(name: &str) -> bool {
    !UNTRACKED_TARGETS.contains(&name)
}

/// Adds a match to `condition`, as far as that can express it.
pub(super) fn read_match(name: &str, info: &[u8], condition: &mut Condition) -> Sort {
    match name {
        // Ports, then (for TCP) an option, a mask of flags and the flags, then what is inverted.
        "tcp" => ports(info, info.get(11), condition),
        "udp" => ports(info, info.get(8), condition),
        name if PLAIN.contains(&name) => return Sort::Plain,
        name if STATEFUL.contains(&name) => return Sort::Stateful,
        _ => return Sort::Acts,
    }
    Sort::Plain
}

/// Ranges of source and destination ports in host order.
fn ports(info: &[u8], inverted: Option<&u8>, condition: &mut Condition) {
    let number = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    let (Some(source), Some(destination), Some(inverted)) =
        (number(0).zip(number(2)), number(4).zip(number(6)), inverted)
    else {
        return;
    };
    let [source, destination] = [source, destination]
        .map(|(from, to): (u16, u16)| ((from, to) != (0, u16::MAX)).then_some(from..=to));
    if inverted & 1 == 0 {
        condition.source_ports = source.or(condition.source_ports.take());
    }
    if inverted & 2 == 0 {
        condition.destination_ports = destination.or(condition.destination_ports.take());
    }
}

/// Whether a target concerns connections.
pub(super) fn is_stateful_target(name: &str) -> bool {
    STATEFUL_TARGETS.contains(&name)
}
