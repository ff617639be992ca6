//! `[fib]`, `[slow_path]`, `[neighbors]` and `[mirror]`: tables of the router, and their limits.

use std::time::Duration;

use bm_fib::structure::{self, Structure};

use super::forms::{Lookup, milliseconds, number, power, seconds, word_or_number};

settings! {
    /// Structures and capacity of the lookup tables.
    #[table("[fib]", "docs/lookup.md")]
    pub struct Fib {
        /// Lookup structure of the IPv4 table; docs/lookup.md says when to choose which, and `brickmoon bench lookup`
        /// measures them all.
        #[setting(ipv4 = "dir18", Lookup(structure::IPV4), Daemon)]
        pub ipv4: Structure<u32>,
        /// Lookup structure of the IPv6 table.
        #[setting(ipv6 = "range6", Lookup(structure::IPV6), Daemon)]
        pub ipv6: Structure<u128>,
        /// How many next hops and next-hop groups there can be. Routes with the same gateway share one.
        #[setting(next_hops = 65_536, number(1024..=1 << 24), Daemon)]
        pub next_hops: u32,
        /// Buckets that all multipath groups share; a group of equal members takes 256 or more.
        #[setting(group_buckets = 4_194_304, power(1 << 12..=1 << 30), Daemon)]
        pub group_buckets: u32,
        /// Seed of the hash that distributes flows over equal paths; "random" chooses one at start. Machines that forward
        /// to each other need different seeds.
        #[setting(hash_seed = "random", word_or_number(0..=0xffff_ffff), Live)]
        pub hash_seed: Option<u32>,
    }
}

settings! {
    /// Limits of the slow path, which resolves neighbors and sends ICMP errors.
    #[table("[slow_path]")]
    pub struct SlowPath {
        /// Frames that may wait between a worker and the slow path.
        #[setting(ring = 4096, power(64..=1 << 20), Workers)]
        pub ring: u32,
        /// How many packets may wait for the MAC address of one next hop; more are dropped.
        #[setting(queue_per_next_hop = 101, number(1..=65_536), Workers)]
        pub queue_per_next_hop: u32,
        /// How many packets may wait for MAC addresses of all next hops; more are dropped.
        #[setting(queue = 4096, number(1..=1 << 20), Workers)]
        pub queue: u32,
        /// How long a packet waits for a MAC address, in milliseconds; then its sender gets an ICMP error (host
        /// unreachable).
        #[setting(wait_ms = 3000, milliseconds(1..=60_000), Workers)]
        pub wait: Duration,
        /// ICMP errors a second, in all; "kernel" uses net.ipv4.icmp_msgs_per_sec.
        #[setting(icmp_per_second = "kernel", word_or_number(0..=1_000_000), Live)]
        pub icmp_per_second: Option<u32>,
    }
}

settings! {
    /// How neighbors are resolved and kept.
    #[table("[neighbors]")]
    pub struct Neighbors {
        /// How often neighbors in use are confirmed, in seconds.
        #[setting(refresh_s = 5, seconds(1..=3600), Live)]
        pub refresh: Duration,
        /// How many new neighbors a second the kernel is asked to resolve, even if somebody scans a subnet.
        #[setting(resolve_per_second = 1000, number(1..=1_000_000), Live)]
        pub resolve_per_second: u32,
        /// How many such requests may wait.
        #[setting(resolve_queue = 1024, number(1..=1 << 20), Daemon)]
        pub resolve_queue: u32,
    }
}

settings! {
    /// The copy of the kernel's tables.
    #[table("[mirror]")]
    pub struct Mirror {
        /// How often brickmoon compares its copy of the kernel's tables with the kernel, in seconds; 0 for never.
        #[setting(compare_s = 600, seconds(0..=86_400), Live)]
        pub compare: Duration,
        /// Size of the netlink receive buffer, in bytes.
        #[setting(receive_buffer = 67_108_864, number(1 << 16..=1 << 30), Daemon)]
        pub receive_buffer: u32,
    }
}
