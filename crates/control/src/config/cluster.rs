//! `[cluster]`: this node of a cluster. The types are those of `bm_cluster`.

use bm_cluster::{ExternalPort, FabricLink, Settings, StoreSettings};
use bm_vlb::quota::{Mode, Rule};

use super::Config;
use super::daemon::OFF_ON;
use super::forms::{Choice, File, number, word_or_number};

/// How workers can distribute packets for other nodes.
const BALANCING: [(&str, Mode); 3] =
    [("direct", Mode::DirectOnly), ("vlb", Mode::DirectVlb(Rule::TwoShares)), ("classic", Mode::Classic)];
/// Which neighbors of an external port other nodes learn of.
const NEIGHBORS: [(&str, bool); 2] = [("learned", true), ("static", false)];

settings! {
    /// This node of a cluster: several servers that act as one router. There is none by default.
    #[table("[cluster]", "docs/cluster.md")]
    impl Settings {
        /// The name of this node, one of the members.
        #[by_hand(name = "a")]
        name,
        /// The number of the membership, 0 to 255: the same on all nodes, one more after each change of the members.
        #[by_hand(epoch = 0)]
        epoch,
        /// A secret that all members share, readable only by the daemon's user.
        #[setting(key_file = "/etc/brickmoon/cluster.key", File, Live)]
        key_file,
        /// How workers distribute packets for other nodes: "direct", all over the link to their output node; "vlb", over it
        /// as far as a quota lasts, the rest over other nodes; "classic", all over other nodes. With "vlb" and "classic"
        /// ports need the user path.
        #[setting(balancing = "direct", Choice(&BALANCING), Live)]
        balancing,
        /// The gap after which a flow may take another way, in microseconds; "auto" follows the delays between nodes.
        #[setting(flowlet_gap_us = "auto", word_or_number(0..=10_000_000), Live)]
        flowlet_gap_us,
        /// "on": there are relays between this node and the others (`brickmoon cluster relay`), as in an n-fly; "off": each
        /// link leads straight to the other node.
        #[setting(relays = "off", Choice(&OFF_ON), Live)]
        relays,
    }
}

settings! {
    /// All members, this node among them, a table for each; the same on all nodes.
    #[table("[[cluster.member]]", "docs/cluster.md")]
    by_hand {
        name = "a",
        /// Its number, 0 to 2046.
        node = 0,
    }
}

settings! {
    /// Another member.
    #[table("[[cluster.member]]")]
    by_hand {
        name = "b",
        node = 1,
    }
}

settings! {
    /// A link from this node to each other one. Its interface has no `[[port]]`, and belongs to brickmoon. On workers, a new
    /// link restarts the workers.
    #[table("[[cluster.fabric]]", "docs/cluster.md")]
    impl FabricLink {
        #[by_hand(device = "fab1")]
        device,
        #[by_hand(peer = "b")]
        peer,
        /// Its speed in Mbit/s, on which balancing depends.
        #[setting(speed = 10_000, number(1..=1_000_000), Live)]
        speed,
    }
}

settings! {
    /// The ports of this node by which packets enter and leave the cluster. Each has a table `[[port]]` as well.
    #[table("[[cluster.port]]", "docs/cluster.md")]
    impl ExternalPort {
        #[by_hand(device = "eth0")]
        device,
        /// A number of its own, 0 to 31.
        #[by_hand(number = 0)]
        number,
        /// Its speed in Mbit/s. The quota of a node is what all its external ports receive together, twice, divided by the
        /// nodes.
        #[setting(speed = 10_000, number(1..=1_000_000), Live)]
        speed,
        /// Which neighbors of the port other nodes learn of: "learned", those that answer and those that `ip neighbor` has
        /// added as permanent; "static", only these.
        #[setting(neighbors = "learned", Choice(&NEIGHBORS), Live)]
        limits.learns,
        /// How many neighbors of the port that have answered other nodes learn of. For others, packets take the way over
        /// Linux of this node.
        #[setting(neighbors_max = 4096, number(1..=65_536), Live)]
        limits.neighbors,
        /// How many of them with the same MAC address.
        #[setting(addresses_per_mac = 64, number(1..=65_536), Live)]
        limits.addresses_per_mac,
    }
}

settings! {
    /// The members from etcd (3.4 or newer), instead of `epoch` and `[[cluster.member]]`: this node adds itself there.
    #[table("[cluster.store]", "docs/cluster.md")]
    impl StoreSettings {
        #[by_hand(etcd = ["https://192.0.2.1:2379", "https://192.0.2.2:2379"])]
        etcd,
        /// The CA certificates (PEM) that etcd's certificate is checked against; needed for https.
        #[by_hand(ca = "/etc/brickmoon/etcd-ca.pem")]
        etcd,
        /// A client certificate, if etcd requires one.
        #[by_hand(cert = "/etc/brickmoon/etcd-cert.pem")]
        etcd,
        /// The key of the client certificate.
        #[by_hand(key = "/etc/brickmoon/etcd-key.pem")]
        etcd,
        /// A user of etcd.
        #[by_hand(user = "brickmoon")]
        etcd,
        /// The file with the user's password.
        #[by_hand(password_file = "/etc/brickmoon/etcd-password")]
        etcd,
        /// The prefix of all keys in etcd; clusters with different prefixes can share an etcd.
        #[by_hand(prefix = "/brickmoon/")]
        prefix,
        /// The number of this node (0 to 255); "auto" takes the first that is free.
        #[by_hand(node = "auto")]
        node,
        /// A copy of the members, with which the daemon starts while etcd cannot be reached.
        #[setting(copy = "/var/lib/brickmoon/members", File, Live)]
        copy,
    }
}

impl Config {
    /// The interfaces of fabric links.
    pub fn fabric_devices(&self) -> Vec<String> {
        let links = self.cluster.iter().flat_map(|cluster| &cluster.links);
        links.map(|link| link.device.clone()).collect()
    }
}
