//! Logical interfaces, and the settings of the kernel that apply to their packets.

use std::net::{Ipv4Addr, Ipv6Addr};

pub use bm_wire::{ReversePath, Vlan};

/// A logical interface: a port's own, or a VLAN of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name in Linux.
    pub name: String,
    /// Index in Linux.
    pub ifindex: u32,
    /// The port that its frames go through.
    pub port: u16,
    /// For an IPsec interface its number, which its SAs and policies have; 0 for others. Its port is that of IPsec: what
    /// leaves is encrypted, and what arrives was decrypted.
    pub if_id: u32,
    /// Its tag; `None` for untagged frames.
    pub vlan: Option<Vlan>,
    /// Its MAC address: the source of frames sent, the destination of frames accepted.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Whether it is up and has a carrier. Nothing is sent where it is not.
    pub up: bool,
    /// Index of its routing table in [`Tables::vrfs`](crate::tables::Tables::vrfs).
    pub vrf: u16,
    /// `net.ipv4.conf.*.forwarding`.
    pub forward_ipv4: bool,
    /// `net.ipv6.conf.*.forwarding`.
    pub forward_ipv6: bool,
    /// Families, IPv4 first, that only Linux may handle when they arrive here; these are not forwarded.
    pub linux_only_in: [bool; 2],
    /// Families among [`linux_only_in`](Self::linux_only_in) of which Linux only has to decide about packets of unknown
    /// flows: the kernel path repeats what it decided about the others.
    pub by_flow: [bool; 2],
    /// Families, IPv4 first, of which only Linux may handle fragments that come in here: it reassembles them.
    pub linux_only_fragments: [bool; 2],
    /// Whether only Linux may send here.
    pub linux_only_out: bool,
    /// Whether Linux cuts what is too big to leave here: a veth may refuse a fragment, and Linux then sends none of the
    /// following ones.
    pub linux_cuts: bool,
    /// `net.ipv4.conf.*.rp_filter`, the stronger of the interface's and `all`'s.
    pub reverse_path: ReversePath,
    /// `net.ipv4.conf.*.accept_local`, of the interface or of `all`: sources that are our own may come in.
    pub accept_local: bool,
    /// Families, IPv4 first, about whose packets Linux may send a redirect if they leave where they came in: those are left
    /// to it. For IPv4 `net.ipv4.conf.*.send_redirects`, of the interface or of `all`.
    pub redirects: [bool; 2],
    /// `net.ipv6.conf.*.hop_limit`, for IPv6 packets that we originate.
    pub hop_limit: u8,
    /// Its addresses, primary ones first, with their prefix lengths.
    pub ipv4: Vec<(Ipv4Addr, u8)>,
    /// Its addresses that are usable (not tentative), with their prefix lengths.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
}

/// The MAC address of an IPsec interface: in frames within a worker it says which interface they leave by or arrive on.
pub const fn ipsec_mac(if_id: u32) -> [u8; 6] {
    let [a, b, c, d] = if_id.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// Which logical interface a port's frames belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInterfaces {
    /// The interface of frames without a tag.
    pub untagged: Option<u16>,
    /// Interfaces of tagged frames.
    pub tagged: Vec<(Vlan, u16)>,
}

/// The kernel's settings that a packet's way depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `net.ipv4.fib_multipath_hash_policy`.
    pub hash_policy_ipv4: u8,
    /// `net.ipv6.fib_multipath_hash_policy`.
    pub hash_policy_ipv6: u8,
    /// Seed of the flow hash: routers that forward to each other need different ones.
    pub hash_seed: u32,
    /// `net.ipv4.ip_default_ttl`, for packets that we originate.
    pub default_ttl: u8,
    /// `net.ipv4.icmp_ratelimit`: minimum milliseconds between two errors to one address; 0 is no limit.
    pub icmp_ratelimit_ms: u32,
    /// `net.ipv4.icmp_ratemask`: the ICMP types to which the limit applies.
    pub icmp_ratemask: u32,
    /// `net.ipv4.icmp_errors_use_inbound_ifaddr`.
    pub icmp_source_inbound: bool,
    /// `net.ipv6.icmp.ratelimit`, in milliseconds.
    pub icmp6_ratelimit_ms: u32,
    /// `net.ipv6.icmp.ratemask`: the ICMPv6 types below 32 to which the limit applies.
    pub icmp6_ratemask: u32,
    /// `net.ipv4.conf.all.accept_source_route`: Linux may forward packets with source routes.
    pub source_routes: bool,
    /// `net.ipv4.icmp_msgs_per_sec`: errors to all addresses together, a second.
    pub icmp_messages_per_second: u32,
    /// `net.ipv4.icmp_msgs_burst`: how many of them may come at once.
    pub icmp_messages_burst: u32,
}

/// IPv4 sources whose route is not unicast although they are no addresses of this machine: broadcast addresses, and
/// those that local routes cover. Only Linux knows whether it refuses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoubtfulSources {
    /// Any source may be one.
    All,
    /// Only these.
    Single(Vec<Ipv4Addr>),
}

impl Default for DoubtfulSources {
    fn default() -> Self {
        Self::Single(Vec::new())
    }
}

impl Default for Interface {
    /// Up and forwarding, with Ethernet's MTU, and without addresses.
    fn default() -> Self {
        Self {
            name: String::new(),
            ifindex: 0,
            port: 0,
            if_id: 0,
            vlan: None,
            mac: [0; 6],
            mtu: 1500,
            up: true,
            vrf: 0,
            forward_ipv4: true,
            forward_ipv6: true,
            linux_only_in: [false; 2],
            by_flow: [false; 2],
            linux_only_out: false,
            linux_cuts: false,
            linux_only_fragments: [false; 2],
            reverse_path: ReversePath::Off,
            accept_local: false,
            redirects: [false; 2],
            hop_limit: 64,
            ipv4: Vec::new(),
            ipv6: Vec::new(),
        }
    }
}

impl Default for Settings {
    /// As a fresh kernel has them.
    fn default() -> Self {
        Self {
            hash_policy_ipv4: 0,
            hash_policy_ipv6: 0,
            hash_seed: 0,
            default_ttl: 64,
            icmp_ratelimit_ms: 1000,
            icmp_ratemask: 6168,
            icmp_source_inbound: false,
            icmp6_ratelimit_ms: 1000,
            icmp6_ratemask: 0xffff_fffb,
            source_routes: false,
            icmp_messages_per_second: 1000,
            icmp_messages_burst: 50,
        }
    }
}
