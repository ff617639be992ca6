//! What a register may contain, and the numbers by which rules name it.

/// Keys of meta.
pub(super) mod meta {
    pub const PROTOCOL: u32 = 1;
    pub(crate) const MARK: u32 = 3;
    pub const IIF: u32 = 4;
    pub const OIF: u32 = 5;
    pub const IIFNAME: u32 = 6;
    pub const OIFNAME: u32 = 7;
    pub(crate) const NFPROTO: u32 = 15;
    pub(crate) const L4PROTO: u32 = 16;
    pub(crate) const IIFKIND: u32 = 26;
    pub(crate) const OIFKIND: u32 = 27;
    pub(crate) const SDIFNAME: u32 = 34;
}
/// Comparisons.
pub(super) mod op {
    pub(crate) const EQ: u32 = 0;
    pub(crate) const NEQ: u32 = 1;
    pub(crate) const LT: u32 = 2;
    pub(crate) const LTE: u32 = 3;
    pub(crate) const GT: u32 = 4;
    pub(crate) const GTE: u32 = 5;
}
/// Bases of payload.
pub(super) const NETWORK_HEADER: u32 = 1;
pub(super) const TRANSPORT_HEADER: u32 = 2;

/// The content of a register.
#[derive(Clone, Debug)]
pub(super) enum Field {
    Meta(u32),
    Header {
        base: u32,
        offset: usize,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Of the connection, under a mask.
    Connection {
        key: u32,
        mask: u32,
        xor: u32,
    },
    /// Whether there is a header that plain packets do not have: zero.
    Absent,
    /// Something that is the same in all packets of a flow.
    Same,
    /// Likewise, but made from something that a rule may set.
    Derived,
    Unknown,
}
