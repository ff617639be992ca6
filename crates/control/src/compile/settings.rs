//! Settings for all interfaces: those of the kernel, and the addresses of the machine.

use bm_forward::tables::Settings;
use bm_netlink::Mirror;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Settings of the configuration that are not in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The kernel's settings, overridden by the configuration.
pub(super) fn settings(mirror: &Mirror, choices: &Choices) -> Settings {
    let sysctls = mirror.sysctls();
    let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    Settings {
        hash_policy_ipv4: byte(sysctls.ipv4_multipath_hash_policy),
        hash_policy_ipv6: byte(sysctls.ipv6_multipath_hash_policy),
        hash_seed: choices.hash_seed,
        default_ttl: byte(sysctls.ip_default_ttl),
        icmp_ratelimit_ms: sysctls.icmp_ratelimit,
        icmp_ratemask: sysctls.icmp_ratemask,
        icmp_source_inbound: sysctls.icmp_errors_use_inbound_ifaddr != 0,
        icmp6_ratelimit_ms: sysctls.icmpv6_ratelimit,
        icmp_messages_per_second: choices.icmp_per_second.unwrap_or(sysctls.icmp_msgs_per_sec),
        icmp_messages_burst: sysctls.icmp_msgs_burst,
    }
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
