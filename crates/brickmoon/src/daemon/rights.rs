//! Who may ask what at the control socket.
//!
//! Without `[daemon] read_group` whoever can connect may do everything: the file's mode leaves it to root. With it everybody
//! can connect, and the kernel says who has (SO_PEERCRED, SO_PEERGROUPS): root and the daemon's own user may do everything,
//! members of the group may read, all others nothing. Each of the three has a limit of connections of its own, so that none
//! can keep out another.

use axum::Router;
use axum::http::StatusCode;
use bm_api::Error;
use tokio::net::UnixStream;

use super::server;
use crate::Failure;

/// What each kind of users is answered.
#[derive(Clone)]
pub struct Rights {
    all: Router,
    /// The group that may read, and its answers.
    reading: Option<(u32, Router)>,
    none: Router,
}

impl Rights {
    /// Whoever can connect may do everything.
    pub fn of_all(all: Router) -> Self {
        Self { all, reading: None, none: refusal("this user may not ask the daemon") }
    }

    /// Root may do everything, members of `group` what is in `reading`.
    pub fn of_group(all: Router, group: u32, reading: Router) -> Self {
        Self { reading: Some((group, reading)), ..Self::of_all(all) }
    }

    /// The kind of users that is at the other end, as a number, and its answers.
    pub fn of(&self, stream: &UnixStream) -> (usize, Router) {
        let Some((group, reading)) = &self.reading else { return (0, self.all.clone()) };
        let Ok(peer) = stream.peer_cred() else { return (2, self.none.clone()) };
        let is_member = || {
            peer.gid() == *group || bm_privilege::groups_of(stream).is_ok_and(|groups| groups.contains(group))
        };
        if peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw() {
            (0, self.all.clone())
        } else if is_member() {
            (1, reading.clone())
        } else {
            (2, self.none.clone())
        }
    }
}

/// The number of the group that may read, if there is one.
pub fn group(name: Option<&str>) -> Result<Option<u32>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let failed = |why: String| Failure::Usage(format!("[daemon] read_group = \"{name}\": {why}"));
    match bm_privilege::group(name) {
        Ok(Some(group)) => Ok(Some(group)),
        Ok(None) => Err(failed(format!("there is no such group; `groupadd {name}` makes it"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Answers that refuse everything.
fn refusal(why: &'static str) -> Router {
    Router::new().fallback(move || async move {
        let mend =
            "ask as root, or as a member of the group that [daemon] read_group names, in a new session";
        server::refused(StatusCode::FORBIDDEN, Error::new(why).mend(mend))
    })
}
