//! The control socket and the metrics address: HTTP over the daemon's state.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bm_api::request::{self, RouteQuery, StopQuery};
use bm_api::{Error, encode};
use serde::Serialize;
use tokio::net::{TcpListener, UnixListener};

use super::connections::serve;
use super::state::Daemon;
use crate::{Failure, client};

/// Connections to the control socket at the same time.
const CONNECTIONS_OF_API: usize = 256;
/// The same of the metrics address, where nobody but scrapers has anything to do.
const CONNECTIONS_OF_METRICS: usize = 64;

/// A socket that is removed when the daemon ends.
pub struct Socket {
    listener: UnixListener,
    removed_at_the_end: Removed,
}

impl Socket {
    /// Listens at `path`; a socket that nobody answers at is replaced.
    pub async fn listen(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::Failed(format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        if client::somebody_listens(path).await {
            let mend = "stop it with `brickmoon stop`, or choose another socket with --socket";
            return Err(Failure::Failed(format!(
                "a daemon or a program answers at {} already: {mend}",
                path.display()
            )));
        }
        // Left by a daemon that was killed. Anything else than a socket is not ours to remove.
        if std::fs::symlink_metadata(path).is_ok_and(|meta| {
            use std::os::unix::fs::FileTypeExt;
            meta.file_type().is_socket()
        }) {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let removed = Removed(path.into());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
        Ok(Self { listener, removed_at_the_end: removed })
    }

    /// Answers until the task is dropped.
    pub async fn serve(self, routes: Router) {
        let Self { listener, removed_at_the_end } = self;
        serve(listener, routes, CONNECTIONS_OF_API).await;
        drop(removed_at_the_end);
    }
}

/// A file that is removed when this is dropped: at the end, or when the start fails.
pub struct Removed(pub PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Gone already is as good.
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Listens for scrapes.
pub async fn listen_for_metrics(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::Failed(format!("metrics at {address}: {error}")))
}

/// Answers scrapes until the task is dropped.
pub async fn serve_metrics(listener: TcpListener, daemon: Arc<Daemon>) {
    let routes = Router::new().route("/metrics", get(metrics)).with_state(daemon);
    serve(listener, routes, CONNECTIONS_OF_METRICS).await;
}

/// The daemon's answers.
pub fn routes(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route(request::STATUS, get(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::status)))
        .route(
            request::PORTS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.ports()))),
        )
        .route(request::ROUTES, get(routes_of))
        .route(request::NEIGHBORS, get(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::neighbors)))
        .route(request::NEXT_HOPS, get(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::next_hops)))
        .route(
            request::APPS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.apps()))),
        )
        .route(
            request::LINKS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.links()))),
        )
        .route(
            request::WORKERS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.workers()))),
        )
        .route(
            request::DROPS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.drops()))),
        )
        .route(
            request::SWITCHES,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.switches()))),
        )
        .route(
            request::STATIONS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.stations()))),
        )
        .route(request::FILTERS, get(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::filters)))
        .route(
            request::HOOKS,
            get(|State(daemon): State<Arc<Daemon>>| answer(daemon, |daemon| Ok(daemon.hooks()))),
        )
        .route(request::VERIFY, post(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::verify)))
        .route(request::RELOAD, post(|State(daemon): State<Arc<Daemon>>| answer(daemon, Daemon::reload)))
        .route(request::STOP, post(stop))
        .route(request::METRICS, get(metrics))
        .fallback(|| async {
            let mend = format!("paths begin with /{}/; docs/api.md lists them", request::VERSION);
            not_found(Error::new("no such path").mend(mend))
        })
        .with_state(daemon)
}

async fn stop(State(daemon): State<Arc<Daemon>>, Query(query): Query<StopQuery>) -> Response {
    answer(daemon, move |daemon| daemon.stop(&query)).await
}

async fn routes_of(State(daemon): State<Arc<Daemon>>, Query(query): Query<RouteQuery>) -> Response {
    answer(daemon, move |daemon| daemon.routes(&query)).await
}

/// Answers on a thread of its own: some questions wait for control, and none may hold up another.
pub async fn answer<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    asked: Arc<D>,
    question: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || question(&asked)).await {
        Ok(result) => reply(StatusCode::BAD_REQUEST, result),
        Err(panicked) => reply::<()>(StatusCode::INTERNAL_SERVER_ERROR, Err(Error::new(panicked))),
    }
}

/// There is nothing at this path.
pub fn not_found(error: Error) -> Response {
    reply::<()>(StatusCode::NOT_FOUND, Err(error))
}

fn reply<T: Serialize>(unless: StatusCode, result: Result<T, Error>) -> Response {
    let (status, body) = match result.and_then(|reply| encode(&reply)) {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (unless, encode(&error).unwrap_or_default()),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics(State(daemon): State<Arc<Daemon>>) -> Response {
    metrics_reply(move || daemon.metrics()).await
}

/// What `render` says, as scrapers want it.
pub async fn metrics_reply(render: impl FnOnce() -> String + Send + 'static) -> Response {
    let text = tokio::task::spawn_blocking(render).await.unwrap_or_default();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
