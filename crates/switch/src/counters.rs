//! Counters of a port: frames by what happened to them, and by drop reason.

use libbpf_rs::MapHandle;

/// How many there are: `COUNTERS` of `layout.h`.
const KINDS: usize = 29;

/// Their names, in order.
pub const COUNTERS: [&str; KINDS] = [
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

/// The counters of one port, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; KINDS]);

impl Counters {
    /// All counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.into_iter().zip(self.0)
    }

    /// A counter by its name; 0 if there is no counter of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.named().find(|(other, _)| *other == name).map_or(0, |(_, count)| count)
    }

    /// Frames received: forwarded, handed to Linux and dropped.
    pub fn received(&self) -> u64 {
        self.passed() + self.linux() + self.dropped()
    }

    /// Frames forwarded, to one port or flooded.
    pub fn passed(&self) -> u64 {
        self.0[0] + self.0[1]
    }

    /// Frames handed to Linux.
    pub fn linux(&self) -> u64 {
        self.0[2]
    }

    /// Frames dropped.
    pub fn dropped(&self) -> u64 {
        self.drops().map(|(_, frames)| frames).sum()
    }

    /// Frames dropped, by reason.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.named().filter_map(|(name, frames)| Some((name.strip_prefix("drop_")?, frames)))
    }

    /// Reads the counters of the port in a slot.
    pub(crate) fn read(map: &MapHandle, slot: u32) -> libbpf_rs::Result<Self> {
        Ok(bm_bpf::sum_counters(map, &slot.to_ne_bytes())?.map_or(Self::default(), Self))
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
