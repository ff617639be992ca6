//! Attributes of the kernel's messages about links, addresses, neighbors, routes, next hops and settings.

use super::Treatment::{self, Followed, LeftToLinux, WithoutEffect};

/// An attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its number in messages.
    pub number: u16,
    /// Its name in the kernel's headers, without the prefix of its messages.
    pub name: &'static str,
    /// What brickmoon does about it.
    pub treatment: Treatment,
}

/// The attributes of a kind of message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The prefix of the names.
    pub prefix: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The request that lists such objects, and the length of the fixed part of a message.
    pub listed_by: (u16, usize),
    /// By number.
    pub attributes: &'static [Attribute],
}

const fn at(number: u16, name: &'static str, treatment: Treatment) -> Attribute {
    Attribute { number, name, treatment }
}

/// All messages that the mirror reads.
pub const MESSAGES: [Message; 6] = [
    Message { prefix: "IFLA", about: "links", listed_by: (libc::RTM_GETLINK, 16), attributes: &LINK },
    Message { prefix: "IFA", about: "addresses", listed_by: (libc::RTM_GETADDR, 8), attributes: &ADDRESS },
    Message { prefix: "NDA", about: "neighbors", listed_by: (libc::RTM_GETNEIGH, 12), attributes: &NEIGHBOR },
    Message { prefix: "RTA", about: "routes", listed_by: (libc::RTM_GETROUTE, 12), attributes: &ROUTE },
    Message {
        prefix: "NHA",
        about: "next-hop objects",
        listed_by: (crate::next_hop::RTM_GETNEXTHOP, 8),
        attributes: &NEXT_HOP,
    },
    Message {
        prefix: "NETCONFA",
        about: "settings of interfaces",
        listed_by: (crate::netconf::RTM_GETNETCONF, 4),
        attributes: &NETCONF,
    },
];

const LINK: [Attribute; 69] = [
    at(1, "ADDRESS", Followed),
    at(2, "BROADCAST", WithoutEffect),
    at(3, "IFNAME", Followed),
    at(4, "MTU", Followed),
    at(5, "LINK", Followed),
    at(6, "QDISC", WithoutEffect),
    at(7, "STATS", WithoutEffect),
    at(8, "COST", WithoutEffect),
    at(9, "PRIORITY", WithoutEffect),
    at(10, "MASTER", LeftToLinux),
    at(11, "WIRELESS", WithoutEffect),
    at(12, "PROTINFO", WithoutEffect),
    at(13, "TXQLEN", WithoutEffect),
    at(14, "MAP", WithoutEffect),
    at(15, "WEIGHT", WithoutEffect),
    at(16, "OPERSTATE", Followed),
    at(17, "LINKMODE", WithoutEffect),
    at(18, "LINKINFO", Followed),
    at(19, "NET_NS_PID", WithoutEffect),
    at(20, "IFALIAS", WithoutEffect),
    at(21, "NUM_VF", WithoutEffect),
    at(22, "VFINFO_LIST", WithoutEffect),
    at(23, "STATS64", WithoutEffect),
    at(24, "VF_PORTS", WithoutEffect),
    at(25, "PORT_SELF", WithoutEffect),
    at(26, "AF_SPEC", WithoutEffect),
    at(27, "GROUP", WithoutEffect),
    at(28, "NET_NS_FD", WithoutEffect),
    at(29, "EXT_MASK", WithoutEffect),
    at(30, "PROMISCUITY", WithoutEffect),
    at(31, "NUM_TX_QUEUES", WithoutEffect),
    at(32, "NUM_RX_QUEUES", Followed),
    at(33, "CARRIER", WithoutEffect),
    at(34, "PHYS_PORT_ID", WithoutEffect),
    at(35, "CARRIER_CHANGES", WithoutEffect),
    at(36, "PHYS_SWITCH_ID", WithoutEffect),
    at(37, "LINK_NETNSID", Followed),
    at(38, "PHYS_PORT_NAME", WithoutEffect),
    at(39, "PROTO_DOWN", WithoutEffect),
    at(40, "GSO_MAX_SEGS", WithoutEffect),
    at(41, "GSO_MAX_SIZE", WithoutEffect),
    at(42, "PAD", WithoutEffect),
    at(43, "XDP", WithoutEffect),
    at(44, "EVENT", WithoutEffect),
    at(45, "NEW_NETNSID", WithoutEffect),
    at(46, "TARGET_NETNSID", WithoutEffect),
    at(47, "CARRIER_UP_COUNT", WithoutEffect),
    at(48, "CARRIER_DOWN_COUNT", WithoutEffect),
    at(49, "NEW_IFINDEX", WithoutEffect),
    at(50, "MIN_MTU", WithoutEffect),
    at(51, "MAX_MTU", WithoutEffect),
    at(52, "PROP_LIST", WithoutEffect),
    at(53, "ALT_IFNAME", WithoutEffect),
    at(54, "PERM_ADDRESS", WithoutEffect),
    at(55, "PROTO_DOWN_REASON", WithoutEffect),
    at(56, "PARENT_DEV_NAME", WithoutEffect),
    at(57, "PARENT_DEV_BUS_NAME", WithoutEffect),
    at(58, "GRO_MAX_SIZE", WithoutEffect),
    at(59, "TSO_MAX_SIZE", WithoutEffect),
    at(60, "TSO_MAX_SEGS", WithoutEffect),
    at(61, "ALLMULTI", WithoutEffect),
    at(62, "DEVLINK_PORT", WithoutEffect),
    at(63, "GSO_IPV4_MAX_SIZE", WithoutEffect),
    at(64, "GRO_IPV4_MAX_SIZE", WithoutEffect),
    at(65, "DPLL_PIN", WithoutEffect),
    at(66, "MAX_PACING_OFFLOAD_HORIZON", WithoutEffect),
    at(67, "NETNS_IMMUTABLE", WithoutEffect),
    at(68, "HEADROOM", WithoutEffect),
    at(69, "TAILROOM", WithoutEffect),
];

const ADDRESS: [Attribute; 11] = [
    at(1, "ADDRESS", Followed),
    at(2, "LOCAL", Followed),
    at(3, "LABEL", WithoutEffect),
    at(4, "BROADCAST", Followed),
    at(5, "ANYCAST", WithoutEffect),
    at(6, "CACHEINFO", WithoutEffect),
    at(7, "MULTICAST", WithoutEffect),
    at(8, "FLAGS", LeftToLinux),
    at(9, "RT_PRIORITY", WithoutEffect),
    at(10, "TARGET_NETNSID", WithoutEffect),
    at(11, "PROTO", WithoutEffect),
];

const NEIGHBOR: [Attribute; 17] = [
    at(1, "DST", Followed),
    at(2, "LLADDR", Followed),
    at(3, "CACHEINFO", WithoutEffect),
    at(4, "PROBES", WithoutEffect),
    at(5, "VLAN", WithoutEffect),
    at(6, "PORT", WithoutEffect),
    at(7, "VNI", WithoutEffect),
    at(8, "IFINDEX", WithoutEffect),
    at(9, "MASTER", WithoutEffect),
    at(10, "LINK_NETNSID", WithoutEffect),
    at(11, "SRC_VNI", WithoutEffect),
    at(12, "PROTOCOL", WithoutEffect),
    at(13, "NH_ID", WithoutEffect),
    at(14, "FDB_EXT_ATTRS", WithoutEffect),
    at(15, "FLAGS_EXT", WithoutEffect),
    at(16, "NDM_STATE_MASK", WithoutEffect),
    at(17, "NDM_FLAGS_MASK", WithoutEffect),
];

const ROUTE: [Attribute; 31] = [
    at(1, "DST", Followed),
    at(2, "SRC", LeftToLinux),
    at(3, "IIF", WithoutEffect),
    at(4, "OIF", Followed),
    at(5, "GATEWAY", Followed),
    at(6, "PRIORITY", Followed),
    at(7, "PREFSRC", LeftToLinux),
    at(8, "METRICS", Followed),
    at(9, "MULTIPATH", Followed),
    at(10, "PROTOINFO", WithoutEffect),
    at(11, "FLOW", WithoutEffect),
    at(12, "CACHEINFO", WithoutEffect),
    at(13, "SESSION", WithoutEffect),
    at(14, "MP_ALGO", WithoutEffect),
    at(15, "TABLE", Followed),
    at(16, "MARK", WithoutEffect),
    at(17, "MFC_STATS", WithoutEffect),
    at(18, "VIA", Followed),
    at(19, "NEWDST", LeftToLinux),
    at(20, "PREF", Followed),
    at(21, "ENCAP_TYPE", LeftToLinux),
    at(22, "ENCAP", LeftToLinux),
    at(23, "EXPIRES", WithoutEffect),
    at(24, "PAD", WithoutEffect),
    at(25, "UID", WithoutEffect),
    at(26, "TTL_PROPAGATE", WithoutEffect),
    at(27, "IP_PROTO", WithoutEffect),
    at(28, "SPORT", WithoutEffect),
    at(29, "DPORT", WithoutEffect),
    at(30, "NH_ID", Followed),
    at(31, "FLOWLABEL", WithoutEffect),
];

const NEXT_HOP: [Attribute; 17] = [
    at(1, "ID", Followed),
    at(2, "GROUP", Followed),
    at(3, "GROUP_TYPE", Followed),
    at(4, "BLACKHOLE", Followed),
    at(5, "OIF", Followed),
    at(6, "GATEWAY", Followed),
    at(7, "ENCAP_TYPE", LeftToLinux),
    at(8, "ENCAP", LeftToLinux),
    at(9, "GROUPS", WithoutEffect),
    at(10, "MASTER", WithoutEffect),
    at(11, "FDB", WithoutEffect),
    at(12, "RES_GROUP", Followed),
    at(13, "RES_BUCKET", WithoutEffect),
    at(14, "OP_FLAGS", WithoutEffect),
    at(15, "GROUP_STATS", WithoutEffect),
    at(16, "HW_STATS_ENABLE", WithoutEffect),
    at(17, "HW_STATS_USED", WithoutEffect),
];

const NETCONF: [Attribute; 9] = [
    at(1, "IFINDEX", Followed),
    at(2, "FORWARDING", Followed),
    at(3, "RP_FILTER", Followed),
    at(4, "MC_FORWARDING", WithoutEffect),
    at(5, "PROXY_NEIGH", LeftToLinux),
    at(6, "IGNORE_ROUTES_WITH_LINKDOWN", Followed),
    at(7, "INPUT", WithoutEffect),
    at(8, "BC_FORWARDING", WithoutEffect),
    at(9, "FORCE_FORWARDING", Followed),
];

/// The messages as a page of documentation has them: their attributes by treatment.
pub fn as_markdown() -> String {
    let mut text = String::from(
        "| messages about | followed | left to Linux if unusual | without effect |\n|---|---|---|---|\n",
    );
    for message in MESSAGES {
        let [followed, left, none] = [Followed, LeftToLinux, WithoutEffect].map(|treatment| {
            let names = message.attributes.iter().filter(|attribute| attribute.treatment == treatment);
            names.map(|attribute| attribute.name).collect::<Vec<_>>().join(", ")
        });
        text += &format!("| {} (`{}_`) | {followed} | {left} | {none} |\n", message.about, message.prefix);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Attributes;
    use crate::message::Messages;
    use crate::socket::{Socket, answer_end};

    /// The numbers of all attributes in this kernel's list of such objects.
    fn listed(message: &Message) -> Vec<u16> {
        let (request, header) = message.listed_by;
        let mut socket = Socket::open(1 << 20).unwrap();
        let mut numbers = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut body = vec![0; header];
            body[0] = if request == libc::RTM_GETLINK { 0 } else { family as u8 };
            let sequence = socket.ask_dump(request, &body).unwrap();
            let mut ended = false;
            while !ended {
                let count = socket.receive(true).unwrap();
                for raw in (0..count).flat_map(|index| Messages(socket.slot(index)).collect::<Vec<_>>()) {
                    let raw = raw.unwrap();
                    if raw.sequence != sequence {
                        continue;
                    }
                    ended |= answer_end("list", &raw).is_some();
                    let attributes = Attributes::after_header(raw.body, header.max(1));
                    numbers.extend(attributes.flatten().map(|(number, _)| number).filter(|_| !ended));
                }
            }
        }
        numbers
    }

    #[test]
    fn this_kernel_lists_no_attribute_that_is_missing() {
        for message in MESSAGES {
            for number in listed(&message) {
                let known = message.attributes.iter().any(|attribute| attribute.number == number);
                assert!(known, "{}: attribute {number} is new: what does it do?", message.prefix);
            }
        }
    }

    #[test]
    fn attributes_are_in_order() {
        for message in MESSAGES {
            let numbers: Vec<u16> = message.attributes.iter().map(|attribute| attribute.number).collect();
            assert!(numbers.is_sorted_by(|one, next| one < next), "{}", message.prefix);
        }
    }
}
