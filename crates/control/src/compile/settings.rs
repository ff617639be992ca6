//! Settings for all interfaces: those of the kernel, and the addresses of the machine.

use bm_fib::Structure;
use bm_fib::next_hop::NextHopWriter;
use bm_fib::structure::{IPV4, IPV6};
use bm_forward::tables::{DoubtfulSources, Settings};
use bm_netlink::route::TABLE_LOCAL;
use bm_netlink::{Mirror, RouteBody, RouteKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::Config;

/// Capacity and choices of a [`Compiler`](super::Compiler).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of next hops.
    pub next_hops: u32,
    /// Number of buckets of all groups; a power of two.
    pub group_buckets: u32,
    /// Lookup structure for IPv4.
    pub ipv4: Structure<u32>,
    /// Lookup structure for IPv6.
    pub ipv6: Structure<u128>,
    /// Settings of the configuration that are not in the kernel.
    pub choices: Choices,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            next_hops: NextHopWriter::HOPS,
            group_buckets: 1 << NextHopWriter::BUCKETS_LOG2,
            ipv4: IPV4[0],
            ipv6: IPV6[0],
            choices: Choices::default(),
        }
    }
}

impl Options {
    /// The options that a configuration asks for; `hash_seed` is used if it has none.
    pub fn from_config(config: &Config, hash_seed: u32) -> Self {
        Self {
            next_hops: config.fib.next_hops,
            group_buckets: config.fib.group_buckets,
            ipv4: config.fib.ipv4,
            ipv6: config.fib.ipv6,
            choices: Choices::from_config(config, hash_seed),
        }
    }
}

/// Settings of the configuration that are not in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Seed of the flow hash.
    pub hash_seed: u32,
    /// Limit of ICMP errors per second; `None` for the settings of the kernel.
    pub icmp_per_second: Option<u32>,
    /// Whether to keep feasible reverse paths of sources (RFC 3704), which needs a second table per family.
    pub feasible: bool,
    /// One received frame in so many is sampled; 0 for none.
    pub sample_one_in: u32,
}

impl Choices {
    /// The choices of a configuration; `hash_seed` is used if it has none.
    pub fn from_config(config: &Config, hash_seed: u32) -> Self {
        Self {
            hash_seed: config.fib.hash_seed.unwrap_or(hash_seed),
            icmp_per_second: config.slow_path.icmp_per_second,
            feasible: config.asks_for_feasible(),
            sample_one_in: config.sample_one_in(),
        }
    }
}

/// The kernel's settings, overridden by the configuration.
pub(super) fn settings(mirror: &Mirror, choices: &Choices) -> Settings {
    let sysctls = mirror.sysctls();
    Settings {
        hash_policy_ipv4: at_most_255(sysctls.ipv4_multipath_hash_policy),
        hash_policy_ipv6: at_most_255(sysctls.ipv6_multipath_hash_policy),
        hash_seed: choices.hash_seed,
        default_ttl: at_most_255(sysctls.ip_default_ttl),
        icmp_ratelimit_ms: sysctls.icmp_ratelimit,
        icmp_ratemask: sysctls.icmp_ratemask,
        icmp_source_inbound: sysctls.icmp_errors_use_inbound_ifaddr != 0,
        icmp6_ratelimit_ms: sysctls.icmpv6_ratelimit,
        icmp6_ratemask: sysctls.icmpv6_ratemask,
        source_routes: sysctls.accept_source_route != 0,
        icmp_messages_per_second: choices.icmp_per_second.unwrap_or(sysctls.icmp_msgs_per_sec),
        icmp_messages_burst: sysctls.icmp_msgs_burst,
    }
}

fn at_most_255(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// All addresses of this machine, without duplicates.
pub(super) fn local(mirror: &Mirror) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for address in mirror.all_addresses() {
        match address.local {
            IpAddr::V4(local) => ipv4.push(local),
            IpAddr::V6(local) => ipv6.push(local),
        }
    }
    ipv4.sort_unstable();
    ipv4.dedup();
    ipv6.sort_unstable();
    ipv6.dedup();
    (ipv4, ipv6)
}

/// `RTPROT_KERNEL`: the kernel made the route for an address.
pub(super) const BY_KERNEL: u8 = 2;

/// IPv4 sources besides the machine's addresses whose route is not unicast. Linux refuses them or not, depending on
/// whether there ever was a rule or a local route of the administrator's, which nobody can ask for.
pub(super) fn doubtful(mirror: &Mirror) -> DoubtfulSources {
    // The kernel's own are in the table of local routes, or in that of a VRF.
    let mut bodies = mirror.ipv4().bodies().map(|(_, body)| body);
    if bodies.any(|body| refuses_sources(body) && body.protocol != BY_KERNEL) {
        return DoubtfulSources::All;
    }
    let mut single: Vec<Ipv4Addr> = mirror.all_addresses().filter_map(broadcast_of).collect();
    for (prefix, ids) in mirror.ipv4().table(TABLE_LOCAL).into_iter().flat_map(|table| table.iter()) {
        let is_loopback = prefix.first() >> 24 == 127;
        if is_loopback || !ids.iter().filter_map(|id| mirror.ipv4().body(*id)).any(refuses_sources) {
            continue;
        }
        if prefix.length() < 32 {
            return DoubtfulSources::All;
        }
        single.push(prefix.first().into());
    }
    single.sort_unstable();
    single.dedup();
    DoubtfulSources::Single(single)
}

/// Whether Linux may refuse packets whose source has such a route.
fn refuses_sources(body: &RouteBody) -> bool {
    !body.kind.refuses() && body.kind != RouteKind::Unicast
}

fn broadcast_of(address: &bm_netlink::Address) -> Option<Ipv4Addr> {
    match address.broadcast {
        Some(IpAddr::V4(broadcast)) => Some(broadcast),
        _ => None,
    }
}
