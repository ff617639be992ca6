//! `[[switch]]`: bridges between interfaces. The types are those of `bm_switch`.

use bm_switch::{PortRule, Settings};

use super::daemon::{OFF_ON, ON_OFF};
use super::forms::{Choice, number, seconds, word_or_number};

settings! {
    /// One `[[switch]]` for each switch: a learning bridge among interfaces, in the kernel. There is none by default.
    #[table("[[switch]]", "docs/switch.md")]
    impl Settings {
        /// Its name: 1 to 12 letters, digits, `-` or `_`.
        #[by_hand(name = "lan")]
        name,
        /// Names and patterns of interfaces: "*" stands for any characters, "?" for one.
        #[by_hand(ports = ["veth*", "tap0"])]
        ports,
        /// How long a MAC address is remembered after its last frame, in seconds; 0 means forever.
        #[setting(ageing_s = 300, seconds(0..=1_000_000), Live)]
        ageing,
        /// Frames a second from each port that may be flooded; 0 for no limit.
        #[setting(flood_limit = 10_000, number(0..=1_000_000_000), Live)]
        flood_limit,
        /// MAC addresses a second that may move to each port from others; 0 for no limit.
        #[setting(move_limit = 100, number(0..=1_000_000_000), Live)]
        move_limit,
        /// How many MAC addresses are remembered; each port can always have another 16.
        #[setting(table = 16_384, number(16..=1 << 24), Live)]
        table,
        /// How many MAC addresses can be learned at each port; 0 for as many as `table`. When a port has that many, a new
        /// one replaces an old one of the same port.
        #[setting(fdb_max_learned = 4096, number(0..=1 << 24), Live)]
        fdb_max_learned,
        /// An interface by which Linux is connected to the switch, created and removed by brickmoon.
        #[by_hand(interface = "lan0")]
        interface,
    }
}

settings! {
    /// VLANs and limits of ports: the first `[[switch.port]]` that names a port applies to it.
    #[table("[[switch.port]]", "docs/switch.md")]
    impl PortRule {
        /// A name or pattern, or a list of them.
        #[by_hand(ports = ["veth1*"])]
        ports,
        /// The VLAN of ports without tags.
        #[by_hand(access = 10)]
        vlans,
        /// In place of `flood_limit` of the switch.
        #[setting(flood_limit = "default", word_or_number(0..=1_000_000_000), Live)]
        flood_limit,
        /// In place of `move_limit` of the switch.
        #[setting(move_limit = "default", word_or_number(0..=1_000_000_000), Live)]
        move_limit,
        /// In place of `fdb_max_learned` of the switch.
        #[setting(fdb_max_learned = "default", word_or_number(0..=1 << 24), Live)]
        fdb_max_learned,
        /// This and the next five are what `bridge link set` sets for ports of Linux's bridge, with the same names and
        /// defaults.
        #[setting(learning = "on", Choice(&ON_OFF), Live)]
        flags.learning,
        #[setting(locked = "off", Choice(&OFF_ON), Live)]
        flags.locked,
        #[setting(isolated = "off", Choice(&OFF_ON), Live)]
        flags.isolated,
        #[setting(flood = "on", Choice(&ON_OFF), Live)]
        flags.flood,
        #[setting(mcast_flood = "on", Choice(&ON_OFF), Live)]
        flags.mcast_flood,
        #[setting(bcast_flood = "on", Choice(&ON_OFF), Live)]
        flags.bcast_flood,
        /// Whether packets are dropped that come from addresses other than those of the port's `[[switch.static]]`.
        #[setting(source_guard = "off", Choice(&OFF_ON), Live)]
        flags.source_guard,
        /// Whether messages of DHCP servers are dropped.
        #[setting(dhcp_guard = "off", Choice(&OFF_ON), Live)]
        flags.dhcp_guard,
        /// Whether IPv6 router advertisements and redirects are dropped.
        #[setting(ra_guard = "off", Choice(&OFF_ON), Live)]
        flags.ra_guard,
    }
}

settings! {
    /// Ports with tags.
    #[table("[[switch.port]]")]
    by_hand {
        ports = "tap0",
        /// VLAN IDs and ranges of them.
        trunk = [20, "30-39"],
        /// The VLAN of frames without a tag, if there is one.
        native = 10,
    }
}

settings! {
    /// A MAC address that neither ages nor moves.
    #[table("[[switch.static]]", "docs/switch.md")]
    by_hand {
        mac = "02:00:00:00:00:01",
        port = "veth10",
        /// A VLAN, or "untagged".
        vlan = 10,
        /// IP addresses that `source_guard` allows with this MAC address.
        addresses = ["192.0.2.10", "2001:db8::10"],
    }
}
