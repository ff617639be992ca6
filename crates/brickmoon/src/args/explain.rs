//! Arguments of `brickmoon explain`.

use clap::Args;

use crate::query::Query;

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  brickmoon explain 192.0.2.1                           a UDP packet to this address, from a port other than its own
  brickmoon explain --from 10.1.0.2 --to 192.0.2.1 --proto tcp --dport 443
  brickmoon explain --from 10.1.0.2 --to 192.0.2.1 --in eth0.7 --ttl 1
  brickmoon explain --frame 02000000000102000000000208004500... --in eth0 --json";

/// `brickmoon explain`.
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// Destination of the packet.
    #[arg(value_name = "ADDRESS", required_unless_present_any = ["to", "frame"], conflicts_with_all = ["to", "frame"])]
    pub of: Option<String>,
    /// Source [default: an address on the link of the port].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "frame")]
    pub from: Option<String>,
    /// Destination.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "frame")]
    pub to: Option<String>,
    /// The whole frame in hexadecimal, from the destination MAC on.
    #[arg(long, value_name = "HEX", requires = "port")]
    pub frame: Option<String>,
    /// Port or interface that the packet arrives on [default: that of the route to its source, or any other than that of
    /// the route to its destination].
    #[arg(long = "in", value_name = "PORT")]
    pub port: Option<String>,
    /// Choose the port among those in this VRF.
    #[arg(long, value_name = "NAME", conflicts_with = "port")]
    pub vrf: Option<String>,
    /// Protocol: udp, tcp, icmp or a number [default: udp].
    #[arg(long = "proto", value_name = "P", conflicts_with = "frame")]
    pub protocol: Option<String>,
    /// Source port [default: 40000].
    #[arg(long, value_name = "N", conflicts_with = "frame")]
    pub sport: Option<u16>,
    /// Destination port [default: 33434].
    #[arg(long, value_name = "N", conflicts_with = "frame")]
    pub dport: Option<u16>,
    /// TTL, or hop limit [default: 64].
    #[arg(long, value_name = "N", conflicts_with = "frame")]
    pub ttl: Option<u8>,
    /// Bytes of the IP packet [default: 64].
    #[arg(long, value_name = "BYTES", conflicts_with = "frame")]
    pub length: Option<u16>,
    #[command(flatten)]
    pub query: Query,
}
