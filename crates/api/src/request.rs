//! Requests: paths and their parameters.
//!
//! `GET` only reads; `POST` acts. Every path starts with the version.

use serde::{Deserialize, Serialize};

/// Default path of the control socket.
pub const SOCKET: &str = "/run/brickmoon/api.sock";
/// Version of the API, the first part of every path.
pub const VERSION: &str = "v1";

/// `GET`, [`crate::Status`]: state of the daemon.
pub const STATUS: &str = "/v1/status";
/// `GET`, [`crate::Ports`].
pub const PORTS: &str = "/v1/ports";
/// `GET`, [`crate::Routes`], parameters [`RouteQuery`].
pub const ROUTES: &str = "/v1/routes";
/// `GET`, [`crate::Explanation`], parameters [`ExplainQuery`].
pub const EXPLAIN: &str = "/v1/explain";
/// `GET`, [`crate::Neighbors`].
pub const NEIGHBORS: &str = "/v1/neighbors";
/// `GET`, [`crate::NextHops`].
pub const NEXT_HOPS: &str = "/v1/nexthops";
/// `GET`, [`crate::Apps`].
pub const APPS: &str = "/v1/apps";
/// `GET`, [`crate::Links`]: links between apps.
pub const LINKS: &str = "/v1/links";
/// `GET`, [`crate::Workers`].
pub const WORKERS: &str = "/v1/workers";
/// `GET`, [`crate::Drops`].
pub const DROPS: &str = "/v1/drops";
/// `GET`, [`crate::Cleared`]: what the counters were when they were cleared last.
pub const CLEARED: &str = "/v1/cleared";
/// `POST`, [`crate::Cleared`], parameters [`ClearQuery`]: displays count from now on; the counters stay as they are.
pub const CLEAR: &str = "/v1/clear";
/// `GET`, [`crate::Switches`].
pub const SWITCHES: &str = "/v1/switches";
/// `GET`, [`crate::Macs`]: MAC addresses that switches have learned.
pub const MACS: &str = "/v1/macs";
/// `GET`, [`crate::Cluster`]: this node of a cluster.
pub const CLUSTER: &str = "/v1/cluster";
/// `POST`, [`crate::Cluster`]: other nodes send nothing over this one any more.
pub const DRAIN: &str = "/v1/cluster/drain";
/// `POST`, [`crate::Cluster`]: other nodes send packets over this one again.
pub const JOIN: &str = "/v1/cluster/join";
/// `POST`, [`crate::Cluster`], parameters [`MemberQuery`]: removes a member from the store of the members.
pub const REMOVE: &str = "/v1/cluster/remove";
/// `GET`, followed by the name of a node and a path: what that node of the cluster answers to a `GET` of that path.
pub const NODES: &str = "/v1/nodes/";
/// `GET`, [`crate::Filters`].
pub const FILTERS: &str = "/v1/filters";
/// `GET`, [`crate::Sas`]: IPsec security associations.
pub const SAS: &str = "/v1/sas";
/// `GET`, [`crate::IpsecPolicies`].
pub const POLICIES: &str = "/v1/policies";
/// `GET`, [`crate::Collectors`]: of sFlow and IPFIX.
pub const COLLECTORS: &str = "/v1/collectors";
/// `GET`, [`crate::Hooks`].
pub const HOOKS: &str = "/v1/hooks";
/// `POST`, [`crate::Verify`]: compares all tables with the kernel; takes seconds with a full table.
pub const VERIFY: &str = "/v1/verify";
/// `POST`, [`crate::Reloaded`]: reads the configuration file again.
pub const RELOAD: &str = "/v1/reload";
/// `POST`, [`crate::Stopping`], parameters [`StopQuery`]: ends the daemon; Linux forwards from then on.
pub const STOP: &str = "/v1/stop";
/// `GET`, metrics in the OpenMetrics text format.
pub const METRICS: &str = "/v1/metrics";

/// Maximum number of routes in one reply.
pub const ROUTES_MAX: usize = 10_000;

/// Selects routes by all given parameters; without any, all routes of the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteQuery {
    /// Only the route that packets to this IPv4 or IPv6 address take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Only this prefix and longer ones within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Name of a VRF; absent for the main table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// 4 or 6; absent for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u8>,
    /// Only routes after this prefix: [`crate::Routes::next`] of the previous reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of routes; [`ROUTES_MAX`] if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A packet: the frame itself, or the fields from which one is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainQuery {
    /// The whole frame in hexadecimal, without its check sequence. Needs `port`, and none of the fields below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// The port it arrives on, or an interface of one, such as a VLAN; absent for that of the route to `from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Only interfaces in this VRF, if there is no `port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Source; absent for an address on the link of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `udp`, `tcp`, `icmp` or a number; UDP if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Source port of TCP and UDP; 40000 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Destination port; 33434 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// TTL or hop limit; 64 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Bytes of the IP packet; 64 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u16>,
}

/// Parameters of the request that removes a member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberQuery {
    /// The node to remove.
    pub name: String,
}

/// Parameters of the request that clears counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClearQuery {
    /// Whether displays show all counts again; default `false`.
    pub undo: bool,
}

/// Parameters of the stop request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StopQuery {
    /// Whether the kernel path keeps forwarding with its last tables for its grace time; default `false`.
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_the_version() {
        let prefix = format!("/{VERSION}/");
        let all = [
            STATUS, PORTS, ROUTES, EXPLAIN, NEIGHBORS, NEXT_HOPS, APPS, LINKS, WORKERS, DROPS, CLEARED,
            CLEAR, SWITCHES, MACS, CLUSTER, FILTERS, COLLECTORS, SAS, POLICIES, HOOKS, VERIFY, RELOAD, STOP,
            METRICS,
        ];
        assert!(all.iter().all(|path| path.starts_with(&prefix)));
    }
}
