//! The runtime of a server, the threads that handle requests, and the metrics address.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bm_api::{Error, encode};
use bm_cli::Failure;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::connections::serve;

/// Maximum number of connections to the metrics address, which only scrapers use.
const CONNECTIONS_OF_METRICS: usize = 64;

/// Maximum number of GET and of POST requests that are handled at the same time, each on its own thread. Every thread
/// keeps a stack; further requests wait for a moment, since most are answered within a millisecond.
pub static GET_THREADS: Semaphore = Semaphore::const_new(8);
pub static POST_THREADS: Semaphore = Semaphore::const_new(4);
/// Maximum number of threads of the runtime in addition to the one that serves connections: for [`GET_THREADS`],
/// [`POST_THREADS`], the supervision of the data path, and a reserve. Without a limit tokio starts more and more threads under
/// constant load: a thread that has just answered is not idle yet when the next request comes, and none is ever idle for
/// the ten seconds after which it would end.
const THREADS: usize = 16;

/// The runtime of a server: connections are served on the calling thread, requests are handled on others.
///
/// # Errors
/// If the process has no file descriptors left.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).thread_name("bm-answer").build()
}

/// Opens the metrics address.
pub async fn listen_for_metrics(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::Failed(format!("cannot listen for metrics on {address}: {error}")))
}

/// Serves metrics until the task is dropped.
pub async fn serve_metrics(listener: TcpListener, routes: Router) {
    serve(listener, |_| (0, routes.clone()), CONNECTIONS_OF_METRICS).await;
}

/// Runs a function on another thread as soon as fewer than the limit are running.
pub async fn on_thread<T: Send + 'static>(
    threads: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // The semaphore is never closed; if it were, the answer would matter more than the limit.
    let permit = threads.acquire().await.ok();
    // The thread continues if the client goes away; it counts until it is done.
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    })
    .await
}

/// An error reply with this status.
pub fn refused(status: StatusCode, error: Error) -> Response {
    reply::<()>(status, Err(error))
}

/// A reply in JSON: what a function returned, or its error with this status.
pub fn reply<T: Serialize>(unless: StatusCode, result: Result<T, Error>) -> Response {
    let (status, body) = match result.and_then(|reply| encode(&reply)) {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (unless, encode(&error).unwrap_or_default()),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::thread::ThreadId;

    use tokio::task::JoinSet;

    #[test]
    fn many_requests_start_few_threads() {
        let runtime = runtime().unwrap();
        let threads: HashSet<ThreadId> = runtime.block_on(async {
            let mut answers = JoinSet::new();
            for n in 0..20_000 {
                let threads = if n % 3 == 0 { &POST_THREADS } else { &GET_THREADS };
                answers.spawn(on_thread(threads, || std::thread::current().id()));
            }
            answers.join_all().await.into_iter().map(Result::unwrap).collect()
        });
        assert!((1..=THREADS).contains(&threads.len()), "{} threads", threads.len());
    }
}
