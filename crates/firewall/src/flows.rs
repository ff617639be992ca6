//! What is known about decisions that hold for a flow: one direction of a connection that is established, or packets
//! with the same addresses and ports that are not tracked.

/// Whether a part of the kernel that has decided about one packet of a flow decides the same about all later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Repeats {
    /// It does: by addresses, ports, interfaces or the connection, for instance.
    EachFlow,
    /// It may decide differently about each packet, or does something with each of them.
    #[default]
    EachPacket,
}

/// Whether nftables' counters have to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counters {
    /// They may count only the packets that Linux gets, which are the first ones of a flow.
    #[default]
    FirstPackets,
    /// They count all packets, so what counts is [`Repeats::EachPacket`].
    Exact,
}

/// What flows depend on besides the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesetFacts {
    /// Generation of the nftables ruleset that the list was made from, as in `NFT_MSG_NEWGEN`; none if it cannot be
    /// read.
    pub generation: Option<u32>,
    /// A rule that packets of a flow meet looks up routes or addresses (`fib`, `rt`, rpfilter, addrtype), so flows end
    /// when these change.
    pub looks_up_routes: bool,
    /// Rules give connections timeouts of their own (`ct timeout`, `CT --timeout`).
    pub has_timeouts: bool,
    /// Packets that are not tracked fare alike as well, except those of entries with [`Repeats::EachPacket`].
    pub untracked: bool,
}
