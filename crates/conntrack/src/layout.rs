//! Numbers of messages and attributes (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`, `nfnetlink.h`).

use std::net::IpAddr;

/// Part of netfilter in the upper byte of message types (`NFNL_SUBSYS_CTNETLINK`).
const SUBSYSTEM: u16 = 1 << 8;
/// `struct nfgenmsg`, which precedes the attributes: family, version, two bytes of no meaning here.
pub(crate) const HEADER: usize = 4;

/// Messages (`IPCTNL_MSG_CT_*`).
pub mod message {
    use super::SUBSYSTEM;

    pub(crate) const NEW: u16 = SUBSYSTEM;
    pub(crate) const GET: u16 = SUBSYSTEM | 1;
    pub(crate) const DELETE: u16 = SUBSYSTEM | 2;
}

/// Attributes of a connection (`CTA_*`).
pub mod attribute {
    pub(crate) const TUPLE_ORIGINAL: u16 = 1;
    pub(crate) const TUPLE_REPLY: u16 = 2;
    pub(crate) const STATUS: u16 = 3;
    pub(crate) const PROTOCOL_INFO: u16 = 4;
    pub(crate) const HELP: u16 = 5;
    pub(crate) const TIMEOUT: u16 = 7;
    pub(crate) const MARK: u16 = 8;
    pub(crate) const ID: u16 = 12;
    pub(crate) const ZONE: u16 = 18;
}

/// Attributes of a tuple (`CTA_TUPLE_*`).
pub mod tuple {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ZONE: u16 = 3;
}

/// Attributes of the addresses of a tuple (`CTA_IP_*`).
pub mod ip {
    pub(crate) const V4_SOURCE: u16 = 1;
    pub(crate) const V4_DESTINATION: u16 = 2;
    pub(crate) const V6_SOURCE: u16 = 3;
    pub(crate) const V6_DESTINATION: u16 = 4;
}

/// Attributes of the protocol of a tuple (`CTA_PROTO_*`).
pub mod protocol {
    pub(crate) const NUMBER: u16 = 1;
    pub(crate) const SOURCE_PORT: u16 = 2;
    pub(crate) const DESTINATION_PORT: u16 = 3;
}

/// Attributes of what a protocol knows of a connection (`CTA_PROTOINFO_*`, `CTA_PROTOINFO_TCP_*`).
pub mod info {
    pub(crate) const TCP: u16 = 1;
    pub(crate) const TCP_STATE: u16 = 1;
    pub(crate) const TCP_FLAGS_ORIGINAL: u16 = 4;
    pub(crate) const TCP_FLAGS_REPLY: u16 = 5;
}

/// Flag of a direction: its packets are not compared with windows (`IP_CT_TCP_FLAG_BE_LIBERAL`).
pub(crate) const BE_LIBERAL: u8 = 8;
/// Flag of a direction: the greatest acknowledgement is known (`IP_CT_TCP_FLAG_MAXACK_SET`).
pub(crate) const MAXACK_SET: u8 = 0x20;

/// The header of a message about connections with addresses like this.
pub(crate) fn header(address: &IpAddr) -> [u8; HEADER] {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    [family as u8, 0, 0, 0]
}
