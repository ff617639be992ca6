//! `show filters`: rules and how many packets they have matched.

use serde::{Deserialize, Serialize};

/// All filter rules, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Filters {
    /// Rules by name, in the order of the configuration.
    pub filters: Vec<Filter>,
    /// Claims: rules that select packets for workers on ports of the kernel path.
    pub claims: Vec<Filter>,
    /// Action for packets that no rule matches: `accept` or `drop`.
    pub unmatched: String,
    /// Packets that no rule matched.
    pub unmatched_packets: u64,
    /// Ports for which the configuration sets a source check.
    pub sources: Vec<SourceCheck>,
}

/// Source address check of a port (RFC 3704).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceCheck {
    /// Name of the port.
    pub port: String,
    /// `strict`, `feasible`, `loose`, or `off`.
    pub check: String,
}

/// All rules with one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Filter {
    /// Name of the rules.
    pub name: String,
    /// Action of the first of them: `accept` or `drop`.
    pub action: String,
    /// Match of the first of them, such as `tcp from 192.0.2.0/24 to any port 23`.
    pub expression: String,
    /// Number of rules with this name.
    pub rules: u32,
    /// Packets that these rules have matched.
    pub packets: u64,
}
