//! What can be asked: paths, and the parameters that some take.
//!
//! `GET` reads and changes nothing; `POST` acts. The version is the first part of every path.

use serde::{Deserialize, Serialize};

/// Where the daemon listens unless it is told otherwise.
pub const SOCKET: &str = "/run/brickmoon/api.sock";
/// Version of this language, as it stands in every path.
pub const VERSION: &str = "v1";

/// `GET`, [`crate::Status`]: is it alive, ready, and how much does it hold.
pub const STATUS: &str = "/v1/status";
/// `GET`, [`crate::Ports`].
pub const PORTS: &str = "/v1/ports";
/// `GET`, [`crate::Routes`], parameters [`RouteQuery`].
pub const ROUTES: &str = "/v1/routes";
/// `GET`, [`crate::Neighbors`].
pub const NEIGHBORS: &str = "/v1/neighbors";
/// `GET`, [`crate::NextHops`].
pub const NEXT_HOPS: &str = "/v1/nexthops";
/// `GET`, [`crate::Apps`].
pub const APPS: &str = "/v1/apps";
/// `GET`, [`crate::Links`]: those between apps.
pub const LINKS: &str = "/v1/links";
/// `GET`, [`crate::Workers`].
pub const WORKERS: &str = "/v1/workers";
/// `GET`, [`crate::Drops`].
pub const DROPS: &str = "/v1/drops";
/// `GET`, [`crate::Switches`].
pub const SWITCHES: &str = "/v1/switches";
/// `GET`, [`crate::Stations`]: those that switches know.
pub const STATIONS: &str = "/v1/stations";
/// `GET`, [`crate::Filters`].
pub const FILTERS: &str = "/v1/filters";
/// `GET`, [`crate::Hooks`].
pub const HOOKS: &str = "/v1/hooks";
/// `POST`, [`crate::Verify`]: compares with the kernel now; takes seconds with a full table.
pub const VERIFY: &str = "/v1/verify";
/// `POST`, [`crate::Reloaded`]: reads the configuration file again.
pub const RELOAD: &str = "/v1/reload";
/// `POST`, [`crate::Stopping`], parameters [`StopQuery`]: ends the daemon; Linux forwards from then on.
pub const STOP: &str = "/v1/stop";
/// `GET`, text for Prometheus.
pub const METRICS: &str = "/v1/metrics";

/// Most routes in one reply, whatever was asked for.
pub const ROUTES_MAX: usize = 10_000;

/// Which routes: all parameters together; without any, all routes of the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteQuery {
    /// Only the route that a packet to this address takes, in each family's way of writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Only this prefix and those within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Name of a VRF; the main table if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// 4 or 6; both if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u8>,
    /// Only those behind this prefix: [`crate::Routes::next`] of the reply before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most so many; [`ROUTES_MAX`] if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// How the daemon ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StopQuery {
    /// The kernel path goes on by its last tables, for its grace time: `true` or `false`, which it is if absent.
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_the_version() {
        let prefix = format!("/{VERSION}/");
        let all = [
            STATUS, PORTS, ROUTES, NEIGHBORS, NEXT_HOPS, APPS, LINKS, WORKERS, DROPS, SWITCHES, STATIONS,
            FILTERS, HOOKS, VERIFY, RELOAD, STOP, METRICS,
        ];
        assert!(all.iter().all(|path| path.starts_with(&prefix)));
    }
}
