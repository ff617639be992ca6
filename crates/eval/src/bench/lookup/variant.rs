//! Which structures of DPDK are measured.

/// The kind of a peer, as a number of `peers.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `rte_lpm`.
    Lpm = 0,
    /// `rte_fib`.
    Fib = 1,
    /// `rte_fib6`.
    Fib6 = 2,
}

/// A structure of DPDK and the width of its entries. Its fastest lookup on this CPU is used.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The name of the subject, to which the form of the lookup is added.
    pub name: &'static str,
    /// The structure.
    pub kind: Kind,
    /// Bytes of an entry.
    pub entry: usize,
}

/// What is measured for IPv4, the fastest first.
pub const IPV4: &[Variant] = &[
    Variant { name: "rte_fib-2b", kind: Kind::Fib, entry: 2 },
    Variant { name: "rte_fib-4b", kind: Kind::Fib, entry: 4 },
    Variant { name: "rte_lpm", kind: Kind::Lpm, entry: 4 },
];

/// What is measured for IPv6. Entries of two bytes have no room for a full table.
pub const IPV6: &[Variant] = &[
    Variant { name: "rte_fib6-4b", kind: Kind::Fib6, entry: 4 },
    Variant { name: "rte_fib6-2b", kind: Kind::Fib6, entry: 2 },
];
