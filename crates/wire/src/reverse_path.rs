//! Reverse path filters: which routes back to its source a packet needs. The numbers are those of Linux's `rp_filter`.

/// Reverse path filter (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[repr(u8)]
pub enum ReversePath {
    /// Source addresses are not checked.
    #[default]
    Off,
    /// The route to the source must lead through the same interface.
    Strict,
    /// There must be a route to the source.
    Loose,
    /// Of `[filter]` only, since Linux has no such filter: a route to the prefix of the source, best or not, must lead through
    /// the same interface.
    #[cfg_attr(feature = "schema", schemars(skip))]
    Feasible,
}
