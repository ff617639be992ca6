//! Counters of an interface: frames by what happened to them, and by drop reason.

bm_bpf::counters! {
    /// The counters of one ingress interface, summed over all CPUs.
    pub struct Counters of COUNTERS = [
        "forwarded",
        "forwarded_bytes",
        "received_bytes",
        "linux_unattended",
        "linux_inactive",
        "linux_other_mac",
        "linux_other_type",
        "linux_header",
        "linux_hops",
        "linux_local",
        "linux_unresolved",
        "linux_no_route",
        "linux_unreachable",
        "linux_prohibit",
        "linux_mtu",
        "linux_egress",
        "linux_source",
        "linux_same_interface",
        "linux_partial_sum",
        "linux_flow",
        "linux_firewall",
        "linux_no_worker",
        "claimed",
        "drop_filter",
        "drop_tiny_fragment",
        "drop_reverse_path",
        "drop_rate_limit",
        "drop_blackhole",
        "drop_filter_not_ready",
    ];
}

/// Why packets are left to Linux: the counters that begin with `linux_`, without that, and what they mean.
pub const LEFT_TO_LINUX: [(&str, &str); 19] = [
    ("unattended", "the daemon has ended or hangs, and its tables are no longer used"),
    (
        "inactive",
        "no forwarding on the interface: ip_forward or IPv6 forwarding is off, it is in a VRF, or the daemon is starting",
    ),
    ("other_mac", "not to the MAC address of the port: broadcast, multicast, other hosts"),
    ("other_type", "not IP: ARP, LLDP, unknown or stacked VLAN tags"),
    ("header", "IP options, fragments, multicast and other special addresses, or a malformed header"),
    ("hops", "TTL or hop limit expired: Linux sends the ICMP error"),
    ("local", "to this machine, or through a tunnel or an interface that is not a port"),
    ("unresolved", "the neighbor has no MAC address yet: Linux asks for it and holds the packet"),
    ("no_route", "no route to the destination: Linux sends the ICMP error"),
    ("unreachable", "unreachable route: Linux sends the ICMP error"),
    ("prohibit", "prohibit route: Linux sends the ICMP error"),
    (
        "mtu",
        "larger than the MTU: Linux fragments it, or sends the ICMP error; or in several buffers, of which XDP sees one",
    ),
    ("egress", "the outgoing interface is down, or XDP cannot send through it: `show ports` says why"),
    ("source", "source address of this machine, or one that rp_filter has to check"),
    ("same_interface", "leaves through the interface it came in on: Linux may send an ICMP redirect"),
    (
        "partial_sum",
        "checksum that the sender left or may have left to offload, as over a veth, also in a tunnel: only Linux can complete it",
    ),
    ("flow", "multipath route, for a header that only Linux can hash"),
    ("firewall", "a firewall, IPsec policy or traffic control of Linux concerns it: `status` lists them"),
    (
        "no_worker",
        "claimed for workers, but no worker has a socket on the queue, or the packet fits into no slot",
    ),
];

impl std::iter::Sum for Counters {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self(std::array::from_fn(|at| sum.0[at] + one.0[at])))
    }
}

impl Counters {
    /// Counters that are zero except for this one.
    #[must_use]
    pub fn only(kind: &str, count: u64) -> Self {
        Self(COUNTERS.map(|name| if name == kind { count } else { 0 }))
    }

    /// What was dropped on an interface before its filters were in place.
    #[must_use]
    pub fn held(frames: u64, bytes: u64) -> Self {
        [Self::only("drop_filter_not_ready", frames), Self::only("received_bytes", bytes)].into_iter().sum()
    }

    /// Only what was dropped before filters were in place.
    #[must_use]
    pub fn only_held(self) -> Self {
        Self::held(self.get("drop_filter_not_ready"), 0)
    }

    /// The difference to earlier values.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].wrapping_sub(before.0[at])))
    }

    /// Packets forwarded.
    pub fn forwarded(&self) -> u64 {
        self.0[0]
    }

    /// Bytes of the frames received, and of those forwarded, as they were sent. Like Linux's interface counters,
    /// these include the Ethernet header and exclude the frame check sequence.
    pub fn bytes(&self) -> (u64, u64) {
        (self.get("received_bytes"), self.get("forwarded_bytes"))
    }

    /// Frames handed to Linux, by cause.
    pub fn left_to_linux(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.with_prefix("linux_")
    }

    /// Frames given to workers.
    pub fn claimed(&self) -> u64 {
        self.get("claimed")
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.forwarded() + self.linux() + self.claimed() + self.dropped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_meaning() {
        let causes = COUNTERS.iter().filter_map(|name| name.strip_prefix("linux_"));
        assert_eq!(causes.collect::<Vec<_>>(), LEFT_TO_LINUX.map(|(name, _)| name));
        let header = include_str!("../bpf/layout.h");
        let verdicts = header.split("enum verdict {").nth(1).and_then(|rest| rest.split("VERDICTS").next());
        let verdicts = verdicts.expect("the enum is there").lines().map(str::trim);
        let names = verdicts.filter_map(|line| line.split_once(',')).map(|(name, _)| name);
        let expected = |name: &str| match name.split_once('_') {
            Some(("linux", cause)) => format!("PASSED_{}", cause.to_uppercase()),
            Some(("drop", "filter_not_ready")) => "DROPPED_NOT_READY".into(),
            Some(("drop", reason)) => format!("DROPPED_{}", reason.to_uppercase()),
            _ => name.to_uppercase(),
        };
        assert_eq!(names.collect::<Vec<_>>(), COUNTERS.map(expected));
    }
}
