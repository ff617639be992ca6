//! `[sampling]`, `[[sflow]]` and `[[ipfix]]`: which packets are sampled, and who is told.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A format of datagrams for collectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExportFormat {
    Sflow,
    Ipfix,
}

impl ExportFormat {
    /// The name in the configuration, in `show collectors` and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sflow => "sflow",
            Self::Ipfix => "ipfix",
        }
    }
}

/// An `[[sflow]]` or `[[ipfix]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collector {
    pub format: ExportFormat,
    /// Where it listens for UDP.
    pub address: SocketAddr,
    /// Line of the file.
    pub line: usize,
}

/// What is sampled, and who is told. Without collectors nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// One received packet in so many is sampled.
    pub one_in: u32,
    /// How often the counters of ports are sent by sFlow; zero for never.
    pub counters: Duration,
    /// The address of this router in sFlow datagrams; `None` for the one from which it sends to the collector.
    pub agent: Option<IpAddr>,
    pub collectors: Vec<Collector>,
}

impl Default for Export {
    fn default() -> Self {
        Self { one_in: 1024, counters: Duration::from_secs(30), agent: None, collectors: Vec::new() }
    }
}
