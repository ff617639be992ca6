//! `show filters`: what rules have matched.

use serde::{Deserialize, Serialize};

/// All names of rules, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filters {
    /// The names.
    pub filters: Vec<Filter>,
    /// Claims: packets that workers get from ports of the kernel path.
    pub claims: Vec<Filter>,
    /// What becomes of packets that no rule matches: `accept` or `drop`.
    pub unmatched: String,
    /// How many those were.
    pub unmatched_packets: u64,
    /// Ports whose sources are checked, where the configuration says how.
    pub sources: Vec<SourceCheck>,
}

/// How the sources of a port's packets are checked (RFC 3704).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceCheck {
    /// The port.
    pub port: String,
    /// `strict`, `feasible`, `loose`, or `off`.
    pub check: String,
}

/// The rules of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// The name.
    pub name: String,
    /// What the first of them does: `accept` or `drop`.
    pub action: String,
    /// What the first of them asks for, such as `tcp from 192.0.2.0/24 to any port 23`.
    pub asks: String,
    /// How many have the name.
    pub rules: u32,
    /// Packets that they have matched.
    pub packets: u64,
}
