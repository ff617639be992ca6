//! Access rights of the clients of the control socket.
//!
//! Without `[daemon] read_group` every client that can connect may do everything; the file mode allows only root to
//! connect. With it everybody can connect, and the kernel identifies the client (SO_PEERCRED, SO_PEERGROUPS): root and the
//! daemon's own user may do everything, members of the group may read, others nothing. Each of the three kinds has its own
//! limit of connections, so that none can lock out another.

use axum::Router;
use axum::http::StatusCode;
use bm_api::Error;
use bm_cli::Failure;
use tokio::net::UnixStream;

use crate::server;

/// The routes for each kind of client.
#[derive(Clone)]
pub struct Rights {
    all: Router,
    /// The group with read access, and its routes.
    reading: Option<(u32, Router)>,
    none: Router,
}

impl Rights {
    /// Every client may do everything.
    pub fn of_all(all: Router) -> Self {
        Self { all, reading: None, none: refusal("permission denied: this user may not query the daemon") }
    }

    /// Root may do everything; members of `group` may use the routes in `reading`.
    pub fn of_group(all: Router, group: u32, reading: Router) -> Self {
        Self { reading: Some((group, reading)), ..Self::of_all(all) }
    }

    /// The kind of the client, as a number, and its routes.
    pub fn for_client(&self, stream: &UnixStream) -> (usize, Router) {
        let Some((group, reading)) = &self.reading else { return (0, self.all.clone()) };
        let Ok(peer) = stream.peer_cred() else { return (2, self.none.clone()) };
        if peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw() {
            (0, self.all.clone())
        } else if peer.gid() == *group
            || bm_privilege::groups_of(stream).is_ok_and(|groups| groups.contains(group))
        {
            (1, reading.clone())
        } else {
            (2, self.none.clone())
        }
    }
}

/// ID of the group with read access, if one is configured.
pub fn group(name: Option<&str>) -> Result<Option<u32>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let why = match bm_privilege::group(name) {
        Ok(Some(group)) => return Ok(Some(group)),
        Ok(None) => format!("no such group; `groupadd {name}` creates it"),
        Err(error) => error.to_string(),
    };
    Err(Failure::Usage(format!("[daemon] read_group = \"{name}\": {why}")))
}

/// Routes that reject every request.
fn refusal(why: &'static str) -> Router {
    Router::new().fallback(move || async move {
        let hint =
            "run this command as root, or as a member of the group in [daemon] read_group (a new membership needs a new login)";
        server::refused(StatusCode::FORBIDDEN, Error::new(why).hint(hint))
    })
}
