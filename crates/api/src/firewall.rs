//! Packets that only Linux may handle, and those that it would if the configuration did not bypass it.

use serde::{Deserialize, Serialize};

/// Packets that Linux's firewall, IPsec policies or traffic control may drop, change, delay or count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Firewall {
    /// What is left to Linux.
    pub linux_only: Vec<LinuxOnly>,
    /// What `[firewall]` of the configuration bypasses, a key each, whether there is anything to bypass now or not.
    pub bypassed: Vec<Bypassed>,
}

/// Packets that only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxOnly {
    /// The part of Linux: `nftables`, `iptables`, `netfilter`, `xfrm`, `shaping` or `tc filter`.
    pub feature: String,
    /// Which packets, in words.
    pub packets: String,
    /// Names of the ports that such packets come in on or leave by; no name for all ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// What the administrator has set, in the words of `nft`, `iptables`, `ip xfrm` or `tc`.
    pub why: String,
    /// The key of `[firewall]` that bypasses it.
    pub setting: String,
}

/// A key of `[firewall]` that says `bypass`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bypassed {
    /// The key.
    pub setting: String,
    /// What is bypassed now: these packets are forwarded although Linux alone would handle them in its own way.
    pub packets: Vec<LinuxOnly>,
}
