//! `brickmoon explain`: what becomes of one packet, and why.

use crate::{Mac, Route, Vlan};
use serde::{Deserialize, Serialize};

/// What becomes of a packet. Nothing was sent, counted or changed to find out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Explanation {
    /// The frame as it arrives, in hexadecimal.
    pub frame: String,
    /// The port it arrives on.
    pub port: String,
    /// The interface in Linux.
    pub interface: String,
    /// The path of packets that arrive there: `kernel` or `user`.
    pub path: String,
    /// What was decided about it, in order.
    pub steps: Vec<Step>,
    /// The route; absent if none was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    pub fate: Fate,
    /// Why it is dropped or left to Linux: a name of `show drops`, or a cause of `show ports`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The frames that leave: the packet, its fragments, or an ICMP error about it. For a packet that Linux gets, or that goes
    /// by its flow, none.
    pub sent: Vec<SentFrame>,
}

/// A decision about a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// `packet`, `filters`, `claim`, `linux`, `route`, `next hop`, `neighbor`, `mtu`, `ipsec`, `hooks`, `apps`, `flow`, `icmp`,
    /// `result`.
    pub step: String,
    pub text: String,
}

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Sent, possibly in fragments.
    Sent,
    /// Encrypted, and sent to the peer of an SA.
    Encrypted,
    /// Decrypted; what comes out is routed anew.
    Decrypted,
    /// Left or given to Linux, which decides what becomes of it.
    #[default]
    Linux,
    /// It waits for a neighbor, and is sent once that has answered.
    Held,
    /// Dropped, possibly with an ICMP error.
    Dropped,
}

/// A frame that leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SentFrame {
    /// Name of the port that it leaves through.
    pub port: String,
    /// Destination MAC.
    pub to: Mac,
    /// Source MAC.
    pub from: Mac,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// All of it, in hexadecimal.
    pub frame: String,
}
