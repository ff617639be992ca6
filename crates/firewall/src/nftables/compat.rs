//! What matches and targets of `iptables-nft` mean for flows, by their names and what they are given
//! (`linux/netfilter/xt_*.h`).

use super::plain::{ASSURED, tcp_flags};
use super::step::{States, Step};
use super::verdict::Verdict;

/// Matches that have the same result for all packets of a flow.
const SAME: [&str; 11] = [
    "cluster",
    "connlabel",
    "connmark",
    "devgroup",
    "helper",
    "ipv6header",
    "iprange",
    "mark",
    "multiport",
    "pkttype",
    "udp",
];
/// Matches that look up routes or addresses.
const ROUTES: [&str; 3] = ["addrtype", "realm", "rpfilter"];
/// Matches of packets that are not plain: other protocols, headers between IPv6 and TCP or UDP.
const NOT_PLAIN: [&str; 12] =
    ["ah", "dccp", "dst", "esp", "frag", "hbh", "icmp", "icmp6", "mh", "rt", "sctp", "udplite"];
/// Matches of fields that differ from packet to packet.
const VARYING: [&str; 18] = [
    "bpf",
    "cgroup",
    "connbytes",
    "cpu",
    "dscp",
    "ecn",
    "eui64",
    "hl",
    "length",
    "mac",
    "policy",
    "socket",
    "string",
    "tcpmss",
    "time",
    "tos",
    "ttl",
    "u32",
];
/// Targets that do the same to all packets of a flow.
const SAME_TARGETS: [&str; 10] =
    ["ACCEPT", "CT", "DNAT", "MARK", "MASQUERADE", "NETMAP", "NOTRACK", "REDIRECT", "RETURN", "SNAT"];

/// Adds what a match means.
pub(super) fn add_match(name: &str, info: &[u8], steps: &mut Vec<Step>) {
    let step = match name {
        "comment" => return,
        "tcp" => tcp(info),
        "state" => state(info),
        "conntrack" => conntrack(info),
        name if SAME.contains(&name) => Step::SOME,
        name if NOT_PLAIN.contains(&name) => Step::NONE,
        name if VARYING.contains(&name) => Step::Varies,
        name if ROUTES.contains(&name) => {
            steps.push(Step::Routes);
            Step::SOME
        }
        _ => Step::EachPacket,
    };
    steps.push(step);
}

/// Adds what a target means.
pub(super) fn add_target(name: &str, revision: u32, info: &[u8], steps: &mut Vec<Step>) {
    match name {
        "LOG" | "NFLOG" => steps.push(Step::Logs),
        "REJECT" | "DROP" => steps.push(Step::Verdict(Verdict::Drop)),
        "CONNMARK" if !keeps_mark(revision, info) => steps.push(Step::EachPacket),
        "CONNMARK" => steps.push(Step::Acts),
        "CT" | "NOTRACK" => steps.extend([Step::Acts, Step::Retracks]),
        name if SAME_TARGETS.contains(&name) => steps.extend([Step::Acts, Step::SOME]),
        _ => steps.push(Step::EachPacket),
    }
}

/// Whether a target gives connections a timeout policy: the name of one, from revision 1 on.
pub(super) fn sets_timeout(name: &str, revision: u32, info: &[u8]) -> bool {
    // Flags, zone, two masks of events, the name of a helper.
    const POLICY: usize = 28;
    name == "CT" && revision > 0 && info.get(POLICY).is_none_or(|&first| first != 0)
}

fn word(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
}

fn half(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?))
}

/// Ports, an option, a mask of flags, the flags, what is inverted.
fn tcp(info: &[u8]) -> Step {
    const INVERTED_FLAGS: u8 = 4;
    match info.get(8..12) {
        Some(&[0, mask, flags, inverted]) => tcp_flags(mask, flags, inverted & INVERTED_FLAGS == 0),
        _ => Step::Varies,
    }
}

/// Bits of states: those of `ct state`, and one for untracked.
fn state(info: &[u8]) -> Step {
    const UNTRACKED: u32 = 1 << 6;
    word(info, 0).map_or(Step::Varies, |mask| Step::within(states(mask, UNTRACKED)))
}

fn states(mask: u32, untracked: u32) -> States {
    let tracked = States::those(|state| mask & state != 0).without(States::UNTRACKED);
    if mask & untracked != 0 { tracked.or(States::UNTRACKED) } else { tracked }
}

/// Eight addresses, two times, the protocol, four ports; then what is compared, what is inverted, and masks of
/// states and of status bits, which were shorter in revision 1.
fn conntrack(info: &[u8]) -> Step {
    const STATE: u16 = 1;
    const STATUS: u16 = 1 << 6;
    const EXPIRES: u16 = 1 << 7;
    const ALIAS: u16 = 1 << 13;
    /// Pseudo-states: the connection is translated.
    const TRANSLATED: u32 = 1 << 6 | 1 << 7;
    const UNTRACKED: u32 = 1 << 8;
    let (Some(compared), Some(inverted), Some(mask), Some(status)) =
        (half(info, 146), half(info, 148), half(info, 150), half(info, 152))
    else {
        return Step::Varies;
    };
    if compared & EXPIRES != 0 || compared & STATUS != 0 && u32::from(status) & ASSURED != 0 {
        return Step::Varies;
    }
    // Without a connection there is nothing to compare but its state.
    let (mut some, mut all) = (States::TRACKED, States::TRACKED);
    if compared & STATE != 0 {
        all = states(u32::from(mask), UNTRACKED);
        some = if u32::from(mask) & TRANSLATED == 0 { all } else { all.or(States::TRACKED) };
        if inverted & STATE != 0 {
            (some, all) = (States::ALL.without(all), States::ALL.without(some));
        }
    }
    if compared & !STATE & !ALIAS != 0 {
        all = States::NONE;
    }
    Step::Passes { some, all }
}

/// Whether a mark of a connection that CONNMARK has set stays when it does so again. Three words, and what it does;
/// since revision 2, a direction and a number of bits are ahead of that.
fn keeps_mark(revision: u32, info: &[u8]) -> bool {
    const SET: u8 = 0;
    const SAVE: u8 = 1;
    const RESTORE: u8 = 2;
    let (bits, mode) = match (revision, info.get(12..15)) {
        (1, Some(&[mode, ..])) => (0, mode),
        (2, Some(&[_, bits, mode])) => (bits, mode),
        _ => return false,
    };
    let (Some(mark), Some(mask), Some(packets)) = (word(info, 0), word(info, 4), word(info, 8)) else {
        return false;
    };
    let shifts = bits != 0;
    match mode {
        SET => !shifts && mark & !mask == 0,
        SAVE => !shifts && packets & !mask == 0,
        mode => mode == RESTORE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conntrack_info(compared: u16, inverted: u16, states: u16, status: u16) -> Vec<u8> {
        let numbers = [compared, inverted, states, status];
        [vec![0; 146], numbers.into_iter().flat_map(u16::to_ne_bytes).collect(), vec![0; 14]].concat()
    }

    fn match_of(name: &str, info: &[u8]) -> Step {
        let mut steps = Vec::new();
        add_match(name, info, &mut steps);
        steps.remove(0)
    }

    #[test]
    fn conntrack_narrows_to_states() {
        let step = |compared, inverted, states, status| {
            match_of("conntrack", &conntrack_info(compared, inverted, states, status))
        };
        let established = States::ESTABLISHED;
        assert_eq!(step(1, 0, 2, 0), Step::within(established));
        assert_eq!(step(1 | 1 << 13, 0, 2, 0), Step::within(established));
        assert_eq!(step(1, 1, 2, 0), Step::within(States::ALL.without(established)));
        assert_eq!(step(1, 0, 1 << 8, 0), Step::within(States::UNTRACKED));
        let translated = Step::Passes { some: States::TRACKED, all: States::NONE };
        assert_eq!(step(1, 0, 1 << 7, 0), translated);
        assert_eq!(step(1 << 6, 0, 0, 1 << 5), translated);
        assert_eq!(step(1 << 6, 0, 0, 1 << 2), Step::Varies, "a connection becomes assured later");
        assert_eq!(step(1 << 7, 0, 0, 0), Step::Varies);
        assert_eq!(step(1 | 1 << 12, 0, 2, 0), Step::Passes { some: established, all: States::NONE });
        assert_eq!(match_of("conntrack", &[0; 100]), Step::Varies);
    }

    #[test]
    fn flags_of_tcp_that_plain_packets_have_not() {
        let tcp = |mask, flags, inverted| {
            let info = [&[0; 9][..], &[mask, flags, inverted]].concat();
            match_of("tcp", &info)
        };
        assert_eq!(tcp(0, 0, 0), Step::SOME);
        assert_eq!(tcp(0x06, 0x02, 0), Step::NONE, "SYN,RST SYN");
        assert_eq!(tcp(0x06, 0x02, 4), Step::SOME);
        assert_eq!(tcp(0x3f, 0x10, 0), Step::Varies, "ALL ACK: PSH may be set or not");
        assert_eq!(tcp(0x3f, 0, 0), Step::NONE, "ALL NONE");
    }

    #[test]
    fn marks_that_stay() {
        let connmark = |mark: u32, mask: u32, packets: u32, mode| {
            let words = [mark, mask, packets].into_iter().flat_map(u32::to_ne_bytes);
            let words: Vec<u8> = words.collect();
            let kept = [[mode, 0, 0, 0], [0, 0, mode, 0]].map(|rest| [&words[..], &rest].concat());
            assert_eq!(keeps_mark(1, &kept[0]), keeps_mark(2, &kept[1]));
            keeps_mark(2, &kept[1])
        };
        assert!(connmark(5, u32::MAX, 0, 0));
        assert!(!connmark(1, 0, 0, 0), "--xor-mark 1");
        assert!(connmark(0, u32::MAX, u32::MAX, 1));
        assert!(connmark(0, u32::MAX, u32::MAX, 2));
        assert!(!keeps_mark(2, &[]));
    }

    #[test]
    fn timeouts_of_ct() {
        let mut info = vec![0; 72];
        assert!(!sets_timeout("CT", 2, &info));
        info[28] = b'x';
        assert!(sets_timeout("CT", 2, &info));
        assert!(!sets_timeout("CT", 0, &info[..40]));
    }
}
