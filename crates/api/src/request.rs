//! Requests: paths, their parameters and their replies.
//!
//! `GET` only reads; `POST` acts. Every path starts with the version. The constant of a request has the types of its
//! parameters and of its reply, which whoever asks and whoever answers is held to. [`REQUESTS`] lists all of them: the
//! daemon's tests and the OpenAPI document (`cargo xtask openapi`) are made from it.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::codec::is_false;
use crate::{
    Apps, Cleared, ClearedFlows, Cluster, Collectors, Drops, Explanation, Filters, FlowQuery, Flows, Hooks,
    IpsecPolicies, Links, Macs, Neighbors, NextHops, Ports, Reloaded, Routes, Sas, Status, Stopping,
    Switches, Verify, Workers,
};

/// Default path of the control socket.
pub const SOCKET: &str = "/run/brickmoon/api.sock";
/// Version of the API, the first part of every path.
pub const VERSION: &str = "v1";
/// `GET`, followed by the name of a node and a path: what that node of the cluster answers to a `GET` of that path.
pub const NODES: &str = "/v1/nodes/";

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Only reads.
    Get,
    /// Acts.
    Post,
}

/// A request with parameters of type `Q`, whose reply is an `R`.
#[derive(Debug)]
pub struct Request<Q, R> {
    pub method: Method,
    pub path: &'static str,
    types: PhantomData<fn(Q) -> R>,
}

impl<Q, R> Clone for Request<Q, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q, R> Copy for Request<Q, R> {}

/// A request in the list of all, with what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    pub method: Method,
    pub path: &'static str,
    /// What the reply is, or what the request does; in Markdown, with the line breaks of the comment below.
    pub description: &'static str,
}

/// The schemas of a request. Not in [`Endpoint`], whose list the daemon uses: it would then contain all schemas.
#[cfg(feature = "schema")]
#[derive(Clone, Copy, Debug)]
pub struct Types {
    /// Its parameters, as an object.
    pub parameters: SchemaOf,
    /// Body of the reply.
    pub reply: SchemaOf,
}

/// The schema of a type.
#[cfg(feature = "schema")]
pub type SchemaOf = fn(&mut schemars::SchemaGenerator) -> schemars::Schema;

/// Defines a constant for each request, [`REQUESTS`] and [`TYPES`]: no path can be missing there.
macro_rules! requests {
    ($($(#[doc = $line:literal])+ $name:ident: $method:ident $path:literal, $query:ty => $reply:ty;)+) => {
        $($(#[doc = $line])+ pub const $name: Request<$query, $reply> =
            Request { method: Method::$method, path: $path, types: PhantomData };)+

        /// All requests but those to other nodes ([`NODES`]).
        pub const REQUESTS: &[Endpoint] = &[$(Endpoint {
            method: Method::$method,
            path: $path,
            description: concat!($($line, "\n"),+),
        }),+];

        /// The types of [`REQUESTS`], in the same order.
        #[cfg(feature = "schema")]
        pub const TYPES: &[Types] = &[$(Types {
            parameters: |generator| generator.subschema_for::<$query>(),
            reply: |generator| generator.subschema_for::<$reply>(),
        }),+];
    };
}

requests! {
    /// State of the daemon.
    STATUS: Get "/v1/status", NoParameters => Status;
    /// Ports and their interfaces, with counters and rates.
    PORTS: Get "/v1/ports", NoParameters => Ports;
    /// Routes as the fast path uses them.
    ROUTES: Get "/v1/routes", RouteQuery => Routes;
    /// What becomes of a packet, and why. Nothing is sent or counted.
    EXPLAIN: Get "/v1/explain", ExplainQuery => Explanation;
    /// Neighbors on ports.
    NEIGHBORS: Get "/v1/neighbors", NoParameters => Neighbors;
    /// Next hops and next-hop groups.
    NEXT_HOPS: Get "/v1/nexthops", NoParameters => NextHops;
    /// Apps and their packet accounts.
    APPS: Get "/v1/apps", NoParameters => Apps;
    /// Links between apps.
    LINKS: Get "/v1/links", NoParameters => Links;
    /// Workers.
    WORKERS: Get "/v1/workers", NoParameters => Workers;
    /// Drops by reason.
    DROPS: Get "/v1/drops", NoParameters => Drops;
    /// Lua hooks with their counters and last errors.
    HOOKS: Get "/v1/hooks", NoParameters => Hooks;
    /// Filter rules and how many packets they have matched.
    FILTERS: Get "/v1/filters", NoParameters => Filters;
    /// Flows of connections that Linux has accepted, with their translation of addresses.
    FLOWS: Get "/v1/flows", FlowQuery => Flows;
    /// Forgets all flows. Linux forwards the next packets of each, from which flows are learned again.
    CLEAR_FLOWS: Post "/v1/flows/clear", NoParameters => ClearedFlows;
    /// IPsec security associations.
    SAS: Get "/v1/sas", NoParameters => Sas;
    /// IPsec policies.
    POLICIES: Get "/v1/policies", NoParameters => IpsecPolicies;
    /// Collectors of sFlow and IPFIX, with what was sent to each.
    COLLECTORS: Get "/v1/collectors", NoParameters => Collectors;
    /// Switches, their ports and accounts.
    SWITCHES: Get "/v1/switches", NoParameters => Switches;
    /// MAC addresses that switches have learned.
    MACS: Get "/v1/macs", NoParameters => Macs;
    /// This node of a cluster, its links and their accounts.
    CLUSTER: Get "/v1/cluster", NoParameters => Cluster;
    /// Makes other nodes of the cluster send nothing over this one any more.
    DRAIN: Post "/v1/cluster/drain", NoParameters => Cluster;
    /// Makes other nodes of the cluster send packets over this one again.
    JOIN: Post "/v1/cluster/join", NoParameters => Cluster;
    /// Removes a node from the members in etcd.
    REMOVE: Post "/v1/cluster/remove", MemberQuery => Cluster;
    /// What the counters were when they were cleared last.
    CLEARED: Get "/v1/cleared", NoParameters => Cleared;
    /// Makes `show ports` and `show drops` count from now on. The counters stay as they are.
    CLEAR: Post "/v1/clear", ClearQuery => Cleared;
    /// Compares all tables with the kernel's. Takes seconds with a full table.
    VERIFY: Post "/v1/verify", NoParameters => Verify;
    /// Reads the configuration file again.
    RELOAD: Post "/v1/reload", NoParameters => Reloaded;
    /// Ends the daemon. Linux forwards from then on.
    STOP: Post "/v1/stop", StopQuery => Stopping;
    /// Metrics in the OpenMetrics text format.
    METRICS: Get "/v1/metrics", NoParameters => String;
}

/// A request without parameters; others than its own are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoParameters {}

/// Maximum number of flows in one reply.
pub const FLOWS_MAX: usize = 10_000;
/// Maximum number of routes in one reply.
pub const ROUTES_MAX: usize = 10_000;

/// Selects routes by all given parameters; without any, all routes of the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Only routes after this prefix: `next` of the previous reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of routes; 10,000 if absent, and at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A packet: the frame itself, or the fields from which one is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExplainQuery {
    /// The whole frame in hexadecimal, without its check sequence. Needs `port`, and no other field.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MemberQuery {
    /// The node to remove.
    pub name: String,
}

/// Parameters of the request that clears counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ClearQuery {
    /// Whether displays show all counts again.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(!skip_serializing_if))]
    pub undo: bool,
}

/// Parameters of the stop request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StopQuery {
    /// Whether the kernel path keeps forwarding with its last tables for its grace time.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(!skip_serializing_if))]
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_the_version_and_is_there_once() {
        let prefix = format!("/{VERSION}/");
        assert!(REQUESTS.iter().all(|request| request.path.starts_with(&prefix)));
        let paths: std::collections::BTreeSet<_> = REQUESTS.iter().map(|request| request.path).collect();
        assert_eq!(paths.len(), REQUESTS.len());
    }
}
