//! What workers and the slow path read: everything that control knows, published as a whole.
//!
//! Control makes a new [`Tables`] when an interface, an address, a VRF or a setting changes; that is small. Routes
//! and next hops are behind `Arc`s in it and change in place (see `bm-fib`), so a table of a million routes is never
//! copied.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bm_fib::Fib;
use bm_fib::next_hop::NextHops;
use bm_fib::sets::InterfaceSets;

use crate::compiled::Compiled;
use crate::filter::FilterSet;

/// Everything that the route of a packet depends on. Made by [`Tables::new`] and never changed.
pub struct Tables {
    /// Routing tables; 0 is the main one.
    pub vrfs: Vec<Vrf>,
    /// Logical interfaces, by the index that next hops use. An index does not change while the interface exists.
    pub interfaces: Vec<Interface>,
    /// Ports by index: which logical interfaces their frames belong to.
    pub ports: Vec<PortInterfaces>,
    /// The actions of next hops, for all VRFs. [`Gateway::interface`](bm_fib::next_hop::Gateway) is an index into
    /// [`Tables::interfaces`], and the destination of an on-link next hop (no address) gets a route of its own once
    /// its address is resolved.
    pub next_hops: Arc<NextHops>,
    /// Addresses of this machine: a packet with such a source is spoofed.
    pub local_ipv4: Vec<Ipv4Addr>,
    /// The same for IPv6.
    pub local_ipv6: Vec<Ipv6Addr>,
    /// The kernel's settings.
    pub settings: Settings,
    /// Feasible reverse paths, by routing table; empty if they are not needed.
    pub feasible: Vec<Feasible>,
    /// The filters; `None` costs nothing.
    pub filters: Option<Arc<FilterSet>>,
    /// Set while all packets go to Linux, because control has not applied a change of Linux's firewall yet.
    pub aside: Arc<AtomicBool>,
    /// Linux sends ICMP errors about packets that cannot be forwarded, since it may have to change or drop the
    /// errors.
    pub linux_tells: bool,
    /// The same once more, laid out for workers.
    pub(crate) compiled: Compiled,
}

impl Tables {
    /// Makes the tables in the form for workers, so that no worker ever has to.
    pub fn new(
        vrfs: Vec<Vrf>,
        interfaces: Vec<Interface>,
        ports: Vec<PortInterfaces>,
        next_hops: Arc<NextHops>,
        local: (Vec<Ipv4Addr>, Vec<Ipv6Addr>),
        settings: Settings,
    ) -> Self {
        let (local_ipv4, local_ipv6) = local;
        let compiled = Compiled::of(&interfaces, &ports, &local_ipv4, &settings);
        let (feasible, filters, linux_tells, aside) = (Vec::new(), None, false, Arc::default());
        Self {
            vrfs,
            interfaces,
            ports,
            next_hops,
            local_ipv4,
            local_ipv6,
            settings,
            feasible,
            filters,
            aside,
            linux_tells,
            compiled,
        }
    }

    /// Whether all packets are Linux's for now.
    #[inline(always)]
    pub(crate) fn stand_aside(&self) -> bool {
        self.aside.load(Ordering::Relaxed)
    }

    /// The same with filters ahead of everything.
    #[must_use]
    pub fn with_filters(mut self, filters: Option<Arc<FilterSet>>) -> Self {
        self.filters = filters;
        self
    }

    /// The same with feasible reverse paths.
    #[must_use]
    pub fn with_feasible(mut self, feasible: Vec<Feasible>) -> Self {
        self.feasible = feasible;
        self
    }
}

/// One routing table.
#[derive(Clone)]
pub struct Vrf {
    /// Longest-prefix match for IPv4.
    pub ipv4: Arc<dyn Fib<Address = u32>>,
    /// Longest-prefix match for IPv6.
    pub ipv6: Arc<dyn Fib<Address = u128>>,
}

/// The interfaces on which the sources of one routing table may arrive besides the best path: feasible paths (RFC
/// 3704).
#[derive(Clone)]
pub struct Feasible {
    /// For IPv4: a lookup gives the number of a set of interfaces.
    pub ipv4: (Arc<dyn Fib<Address = u32>>, Arc<InterfaceSets>),
    /// Of IPv6.
    pub ipv6: (Arc<dyn Fib<Address = u128>>, Arc<InterfaceSets>),
}

/// A logical interface: a port's own, or a VLAN of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name in Linux.
    pub name: String,
    /// Index in Linux.
    pub ifindex: u32,
    /// The port that its frames go through.
    pub port: u16,
    /// Its tag; `None` for untagged frames.
    pub vlan: Option<Vlan>,
    /// Its MAC address: the source of frames sent, the destination of frames accepted.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Whether it is up and has a carrier. Nothing is sent where it is not.
    pub up: bool,
    /// Index of its routing table in [`Tables::vrfs`].
    pub vrf: u16,
    /// `net.ipv4.conf.*.forwarding`.
    pub forward_ipv4: bool,
    /// `net.ipv6.conf.*.forwarding`.
    pub forward_ipv6: bool,
    /// Families, IPv4 first, that only Linux may handle when they arrive here; these are not forwarded.
    pub linux_only_in: [bool; 2],
    /// Families, IPv4 first, of which only Linux may handle fragments that come in here: it reassembles them.
    pub linux_only_fragments: [bool; 2],
    /// Whether only Linux may send here.
    pub linux_only_out: bool,
    /// `net.ipv4.conf.*.rp_filter`, the stronger of the interface's and `all`'s.
    pub reverse_path: ReversePath,
    /// `net.ipv4.conf.*.accept_local`, of the interface or of `all`: sources that are our own may come in.
    pub accept_local: bool,
    /// `net.ipv6.conf.*.hop_limit`, for IPv6 packets that we originate.
    pub hop_limit: u8,
    /// Its addresses, primary ones first, with their prefix lengths.
    pub ipv4: Vec<(Ipv4Addr, u8)>,
    /// Its addresses that are usable (not tentative), with their prefix lengths.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
}

/// A VLAN tag without its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vlan {
    /// 0x8100, or 0x88a8 for a service tag.
    pub protocol: u16,
    /// VLAN identifier, 0 to 4094.
    pub id: u16,
}

/// Which logical interface a port's frames belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInterfaces {
    /// That of frames without a tag.
    pub untagged: Option<u16>,
    /// Interfaces of tagged frames.
    pub tagged: Vec<(Vlan, u16)>,
}

/// Reverse path filter (RFC 3704), as `rp_filter` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReversePath {
    /// 0: sources are not checked.
    #[default]
    Off,
    /// 1: the route to the source must lead out of the interface it came in on.
    Strict,
    /// 2: there must be some route to the source.
    Loose,
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
    /// `net.ipv4.icmp_msgs_per_sec`: errors to all addresses together, a second.
    pub icmp_messages_per_second: u32,
    /// `net.ipv4.icmp_msgs_burst`: how many of them may come at once.
    pub icmp_messages_burst: u32,
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
            icmp_messages_per_second: 1000,
            icmp_messages_burst: 50,
        }
    }
}
