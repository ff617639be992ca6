//! `[sampling]`, `[[sflow]]` and `[[ipfix]]`: which packets are sampled, and who is told.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::forms::{OwnAddress, number, seconds};

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

settings! {
    /// Samples of received packets for collectors of sFlow and IPFIX. Without any `[[sflow]]` or `[[ipfix]]` nothing is
    /// sampled.
    #[table("[sampling]", "docs/sampling.md")]
    pub struct Export {
        /// Sampling rate: one received packet in this many is sampled, at random.
        #[setting(one_in = 1024, number(1..=1 << 24), Live)]
        pub one_in: u32,
        /// Interval in seconds at which sFlow also sends the counters of ports; 0: never.
        #[setting(counters_s = 30, seconds(0..=86_400), Live)]
        pub counters: Duration,
        /// Agent address of this router in sFlow datagrams; "auto": the source address of packets to the collector.
        #[setting(agent = "auto", OwnAddress, Live)]
        pub agent: Option<IpAddr>,
        /// Each `[[sflow]]` and `[[ipfix]]`.
        pub collectors: Vec<Collector>,
    }
}

settings! {
    /// One `[[sflow]]` for each collector of sFlow. The systemd unit blocks collectors on other machines unless
    /// IPAddressAllow= names them (docs/sampling.md).
    #[table("[[sflow]]")]
    by_hand {
        /// Its address and UDP port.
        collector = "192.0.2.1:6343",
    }
}

settings! {
    /// One `[[ipfix]]` for each collector of IPFIX, for which the same holds.
    #[table("[[ipfix]]")]
    by_hand {
        /// Its address and UDP port.
        collector = "192.0.2.1:4739",
    }
}
