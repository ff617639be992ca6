//! The HTTP servers of the control socket and the metrics address: one path for each method of [`Answers`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bm_api::request::{self, RouteQuery, StopQuery};
use bm_api::{Error, encode};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use super::answers::{Answers, AnswersOfDaemon};
use super::connections::serve;
use crate::failure::Failure;

/// Maximum number of connections to the metrics address, which only scrapers use.
const CONNECTIONS_OF_METRICS: usize = 64;

/// Maximum number of GET and of POST requests that are handled at the same time, each on its own thread. Every thread
/// keeps a stack; further requests wait for a moment, since most are answered within a millisecond.
static QUESTIONS: Semaphore = Semaphore::const_new(8);
static ORDERS: Semaphore = Semaphore::const_new(4);
/// Maximum number of threads of the runtime in addition to the one that serves connections: for [`QUESTIONS`],
/// [`ORDERS`], the supervision of the data path, and a reserve. Without a limit tokio starts more and more threads under
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
pub async fn serve_metrics<A: Answers>(listener: TcpListener, asked: Arc<A>) {
    let routes = Router::new().route("/metrics", metrics()).with_state(asked);
    serve(listener, |_| (0, routes.clone()), CONNECTIONS_OF_METRICS).await;
}

/// All routes of a Lua program.
pub fn routes_of_program<A: Answers>(program: Arc<A>) -> Router {
    let orders = Router::new().route(request::STOP, post(stop::<A>));
    questions().merge(orders).fallback(no_such_path::<A>).with_state(program)
}

/// All routes of the daemon.
pub fn routes<D: AnswersOfDaemon>(daemon: Arc<D>) -> Router {
    let orders = Router::new()
        .route(request::VERIFY, post(|State(daemon): State<Arc<D>>| carry_out(daemon, D::verify)))
        .route(request::RELOAD, post(|State(daemon): State<Arc<D>>| carry_out(daemon, D::reload)))
        .route(request::STOP, post(stop::<D>));
    questions().merge(questions_of_daemon()).merge(orders).fallback(no_such_path::<D>).with_state(daemon)
}

/// The routes of the daemon for clients with read access only.
pub fn routes_of_readers<D: AnswersOfDaemon>(daemon: Arc<D>) -> Router {
    let refuse = || async {
        let error =
            Error::new("members of this group have read access only").hint("run this command as root");
        refused(StatusCode::FORBIDDEN, error)
    };
    let orders = [request::VERIFY, request::RELOAD, request::STOP];
    let questions = questions().merge(questions_of_daemon());
    let routes = orders.into_iter().fold(questions, |routes, order| routes.route(order, post(refuse)));
    routes.fallback(no_such_path::<D>).with_state(daemon)
}

/// The routes that only read, and that every process has.
fn questions<A: Answers>() -> Router<Arc<A>> {
    Router::new()
        .route(request::STATUS, question(A::status))
        .route(request::APPS, question(|asked: &A| Ok(asked.apps())))
        .route(request::LINKS, question(|asked: &A| Ok(asked.links())))
        .route(request::WORKERS, question(|asked: &A| Ok(asked.workers())))
        .route(request::DROPS, question(|asked: &A| Ok(asked.drops())))
        .route(request::METRICS, metrics())
}

/// The routes that only read, and that only the daemon has.
fn questions_of_daemon<D: AnswersOfDaemon>() -> Router<Arc<D>> {
    Router::new()
        .route(request::PORTS, question(|daemon: &D| Ok(daemon.ports())))
        .route(request::ROUTES, get(routes_of::<D>))
        .route(request::NEIGHBORS, question(D::neighbors))
        .route(request::NEXT_HOPS, question(D::next_hops))
        .route(request::SWITCHES, question(|daemon: &D| Ok(daemon.switches())))
        .route(request::MACS, question(|daemon: &D| Ok(daemon.macs())))
        .route(request::CLUSTER, question(|daemon: &D| Ok(daemon.cluster())))
        .route(request::FILTERS, question(D::filters))
        .route(request::HOOKS, question(|daemon: &D| Ok(daemon.hooks())))
}

/// A route that answers a question without parameters.
fn question<A: Answers, T: Serialize + Send + 'static>(
    question: impl FnOnce(&A) -> Result<T, Error> + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<A>> {
    get(move |State(asked): State<Arc<A>>| answer(asked, question))
}

async fn stop<A: Answers>(State(asked): State<Arc<A>>, Query(query): Query<StopQuery>) -> Response {
    carry_out(asked, move |asked| asked.stop(&query)).await
}

async fn routes_of<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Query(query): Query<RouteQuery>,
) -> Response {
    answer(daemon, move |daemon| daemon.routes(&query)).await
}

async fn no_such_path<A: Answers>(State(asked): State<Arc<A>>) -> Response {
    refused(StatusCode::NOT_FOUND, asked.no_such_path())
}

/// The metrics, in the OpenMetrics format.
fn metrics<A: Answers>() -> MethodRouter<Arc<A>> {
    get(|State(asked): State<Arc<A>>| async {
        let text = beside(&QUESTIONS, move || asked.metrics()).await.unwrap_or_default();
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    })
}

/// Answers a GET request on another thread, since some wait for control. [`QUESTIONS`] limits their number.
async fn answer<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    asked: Arc<D>,
    question: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    answer_within(&QUESTIONS, asked, question).await
}

/// Handles a POST request on another thread. These do not wait for GET requests.
async fn carry_out<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    asked: Arc<D>,
    order: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    answer_within(&ORDERS, asked, order).await
}

async fn answer_within<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    threads: &'static Semaphore,
    asked: Arc<D>,
    question: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    // The body is encoded on that thread, too: a long one takes a while.
    let answer = beside(threads, move || reply(StatusCode::BAD_REQUEST, question(&asked)));
    answer
        .await
        .unwrap_or_else(|panicked| reply::<()>(StatusCode::INTERNAL_SERVER_ERROR, Err(Error::new(panicked))))
}

/// Runs a function on another thread as soon as fewer than the limit are running.
async fn beside<T: Send + 'static>(
    threads: &'static Semaphore,
    deed: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // The semaphore is never closed; if it were, the answer would matter more than the limit.
    let turn = threads.acquire().await.ok();
    // The thread continues if the client goes away; it counts until it is done.
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        deed()
    })
    .await
}

/// An error reply with this status.
pub fn refused(status: StatusCode, error: Error) -> Response {
    reply::<()>(status, Err(error))
}

fn reply<T: Serialize>(unless: StatusCode, result: Result<T, Error>) -> Response {
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
            let mut asked = JoinSet::new();
            for n in 0..20_000 {
                let threads = if n % 3 == 0 { &ORDERS } else { &QUESTIONS };
                asked.spawn(beside(threads, || std::thread::current().id()));
            }
            asked.join_all().await.into_iter().map(Result::unwrap).collect()
        });
        assert!((1..=THREADS).contains(&threads.len()), "{} threads", threads.len());
    }
}
