//! Packets that only Linux may handle, and those that bypass Linux because the configuration says so.

use serde::{Deserialize, Serialize};

use crate::codec::is_false;

/// Packets that Linux's firewall, IPsec policies or traffic control may drop, change, delay or count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Firewall {
    /// Packets that are left to Linux.
    pub linux_only: Vec<LinuxOnly>,
    /// Keys of `[firewall]` that are set to `bypass`, even if there is nothing to bypass at present.
    pub bypassed: Vec<Bypassed>,
}

/// Packets that only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinuxOnly {
    /// The part of Linux: `nftables`, `iptables`, `netfilter`, `xfrm`, `shaping`, `tc filter`, `setting` or `interface`.
    pub feature: String,
    /// Which packets, in words.
    pub packets: String,
    /// Names of the ports that such packets arrive on or leave by; empty for all ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// What is configured in Linux, in the terms of `nft`, `iptables`, `ip xfrm` or `tc`.
    pub why: String,
    /// The key of `[firewall]` that bypasses it; empty if there is none.
    pub setting: String,
    /// Whether Linux only gets the first packets of each flow, and brickmoon repeats what it decided about them.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(!skip_serializing_if))]
    pub first_packets: bool,
}

/// A key of `[firewall]` that is set to `bypass`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Bypassed {
    /// The key.
    pub setting: String,
    /// Packets that are forwarded by brickmoon at present although Linux would handle them differently.
    pub packets: Vec<LinuxOnly>,
}
