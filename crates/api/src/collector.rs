//! `show collectors`: collectors of sFlow and IPFIX, and what was sent to them.

use serde::{Deserialize, Serialize};

/// All collectors, and what is sampled for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Collectors {
    /// Sampling rate: one received packet in this many is sampled; 0 if none is.
    pub one_in: u32,
    /// Ports whose packets are sampled.
    pub ports: Vec<String>,
    /// Samples taken.
    pub samples: u64,
    /// Samples lost because the daemon did not read them in time.
    pub lost: u64,
    /// Why nothing is sampled although there are collectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    pub collectors: Vec<Collector>,
}

/// A collector. The counters start from zero when `[sampling]` or a collector changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Collector {
    /// `sflow` or `ipfix`.
    pub format: String,
    /// Address and UDP port.
    pub address: String,
    /// Samples put into datagrams.
    pub samples: u64,
    /// Samples that the format cannot describe: IPFIX describes IP packets only.
    pub unfit: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that were answered with ICMP port unreachable, and count as sent, too.
    pub refused: u64,
    /// Datagrams not sent because the buffer of the socket was full.
    pub full: u64,
    /// Datagrams not sent for another reason, such as no route to the collector.
    pub failed: u64,
}
