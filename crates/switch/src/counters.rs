//! Counters of a port: frames by what happened to them, and by drop reason.

bm_bpf::counters! {
    /// The counters of one port, summed over all CPUs.
    pub struct Counters of COUNTERS = [
        "forwarded",
        "flooded",
        "linux_link_local",
        "drop_short",
        "drop_source",
        "drop_vlan",
        "drop_same_port",
        "drop_mtu",
        "drop_port_down",
        "drop_far_end",
        "drop_flood_limit",
        "drop_long",
        "drop_headroom",
        "drop_locked",
        "drop_isolated",
        "drop_no_flood",
        "drop_source_guard",
        "drop_dhcp_guard",
        "drop_ra_guard",
        "drop_reserved",
        "received_bytes",
        "sent",
        "sent_bytes",
        "learned",
        "moved",
        "move_refused",
        "evicted",
        "table_full",
        "sums_completed",
    ];
}

/// Drop reasons, with a meaning for those who read `show drops`. In the order of the counters.
pub const REASONS: [(&str, &str); 17] = [
    ("short", "shorter than an Ethernet header"),
    ("source", "the source MAC address is multicast or zero"),
    ("vlan", "the port is not a member of the frame's VLAN"),
    ("same_port", "the destination is behind the port that the frame came from"),
    ("mtu", "longer than the port's MTU"),
    ("port_down", "the port is down"),
    (
        "far_end",
        "the port's device cannot send frames: run `ethtool -K NAME gro on` for the other end of the veth",
    ),
    ("flood_limit", "more broadcast, multicast and unknown unicast frames than the port may send"),
    (
        "long",
        "in several buffers (above about 3,500 bytes), and flooded or sent to a device that cannot take such frames",
    ),
    ("headroom", "no headroom for a VLAN tag"),
    ("locked", "the port is locked, and the source MAC address is not known to be behind it"),
    ("isolated", "both ports are isolated"),
    ("no_flood", "the destination is unknown or multicast, and no port takes floods of that kind"),
    (
        "source_guard",
        "the source is not one of the port's configured addresses, or the headers cannot be parsed to the end",
    ),
    ("dhcp_guard", "sent by a DHCP server behind a port where none is allowed"),
    ("ra_guard", "router advertisement or redirect from a port where no router is allowed"),
    ("reserved", "to a reserved group address, and of no protocol that uses these"),
];

impl Counters {
    /// Frames received: forwarded, handed to Linux and dropped.
    pub fn received(&self) -> u64 {
        self.passed() + self.linux() + self.dropped()
    }

    /// Frames forwarded, to one port or flooded.
    pub fn passed(&self) -> u64 {
        self.get("forwarded") + self.get("flooded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_has_a_meaning() {
        let names: Vec<_> = Counters::default().drops().map(|(name, _)| name).collect();
        assert_eq!(names, REASONS.map(|(name, _)| name));
        assert_eq!(Counters::default().drops().count() + 3, 20, "`RECEIVED_BYTES` follows");
        assert_eq!(COUNTERS[20], "received_bytes");
    }
}
