//! Settings that the kernel keeps under `/proc/sys` and never announces.
//!
//! They are few and cheap to read, so the driver reads them again now and then. A setting that this
//! kernel does not have keeps the value that Linux would begin with.

use std::fmt;
use std::path::Path;

macro_rules! sysctls {
    ($($(#[$doc:meta])* $field:ident: $path:literal = $default:literal,)*) => {
        /// Settings of this network namespace, as the kernel's documentation names them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Sysctls { $($(#[$doc])* pub $field: u32,)* }

        impl Default for Sysctls {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Sysctls {
            /// Reads them all for the network namespace of the calling thread.
            pub fn read() -> Self {
                Self::read_below(Path::new("/proc/sys/net"))
            }

            fn read_below(root: &Path) -> Self {
                Self { $($field: read_one(&root.join($path)).unwrap_or($default),)* }
            }
        }

        impl fmt::Display for Sysctls {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{} = {}", $path, self.$field)?;)*
                Ok(())
            }
        }
    };
}

sysctls! {
    /// What IPv4 flows are told apart by: 0 addresses, 1 ports too, 2 inner headers, 3 chosen fields.
    ipv4_multipath_hash_policy: "ipv4/fib_multipath_hash_policy" = 0,
    /// The chosen fields, as bits.
    ipv4_multipath_hash_fields: "ipv4/fib_multipath_hash_fields" = 7,
    /// Whether a hop whose neighbour is known not to answer is passed over.
    ipv4_multipath_use_neigh: "ipv4/fib_multipath_use_neigh" = 0,
    /// TTL of the machine's own packets.
    ip_default_ttl: "ipv4/ip_default_ttl" = 64,
    /// Whether forwarded packets are held to path MTUs learnt by the machine itself.
    ip_forward_use_pmtu: "ipv4/ip_forward_use_pmtu" = 0,
    /// Least time between two errors to one destination, in milliseconds.
    icmp_ratelimit: "ipv4/icmp_ratelimit" = 1000,
    /// Which ICMP types that limit is for, as bits.
    icmp_ratemask: "ipv4/icmp_ratemask" = 6168,
    /// Errors a second for all destinations together.
    icmp_msgs_per_sec: "ipv4/icmp_msgs_per_sec" = 1000,
    /// How many of them at once.
    icmp_msgs_burst: "ipv4/icmp_msgs_burst" = 50,
    /// Whether an error's source is the address of the interface where the packet came in.
    icmp_errors_use_inbound_ifaddr: "ipv4/icmp_errors_use_inbound_ifaddr" = 0,
    /// Whether routes are announced again when their next-hop object changes.
    nexthop_compat_mode: "ipv4/nexthop_compat_mode" = 1,
    /// As for IPv4.
    ipv6_multipath_hash_policy: "ipv6/fib_multipath_hash_policy" = 0,
    /// As for IPv4.
    ipv6_multipath_hash_fields: "ipv6/fib_multipath_hash_fields" = 7,
    /// Least time between two ICMPv6 errors to one destination, in milliseconds.
    icmpv6_ratelimit: "ipv6/icmp/ratelimit" = 1000,
}

/// Settings of one link that neither [`crate::Netconf`] nor anything else tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSysctls {
    /// Whether packets may come in from sources that are the machine's own.
    pub accept_local: bool,
    /// Hop limit of the IPv6 packets that the machine originates there.
    pub hop_limit: u32,
}

impl LinkSysctls {
    /// Reads those of the link called `name`, for the network namespace of the calling thread.
    pub fn read(name: &str) -> Self {
        let root = Path::new("/proc/sys/net");
        let accepts = |name: &str| read_one(&root.join("ipv4/conf").join(name).join("accept_local"));
        Self {
            accept_local: [name, "all"].into_iter().any(|name| accepts(name).is_some_and(|value| value != 0)),
            hop_limit: read_one(&root.join("ipv6/conf").join(name).join("hop_limit")).unwrap_or(64),
        }
    }
}

impl Default for LinkSysctls {
    fn default() -> Self {
        Self { accept_local: false, hop_limit: 64 }
    }
}

fn read_one(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_the_value_linux_begins_with() {
        let none = Sysctls::read_below(Path::new("/nonexistent"));
        assert_eq!(none, Sysctls::default());
        assert!(none.to_string().contains("ipv4/ip_default_ttl = 64\n"));
    }
}
