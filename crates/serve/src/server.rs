//! The HTTP servers of the control socket and the metrics address: one path for each method of [`Answers`].

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, RawQuery, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bm_api::request::{self, ClearQuery, ExplainQuery, MemberQuery, RouteQuery, StopQuery};
use bm_api::{Error, encode};
use bm_cli::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::answers::{Answers, AnswersOfDaemon};
use crate::connections::serve;

/// Maximum number of connections to the metrics address, which only scrapers use.
const CONNECTIONS_OF_METRICS: usize = 64;

/// Maximum number of GET and of POST requests that are handled at the same time, each on its own thread. Every thread
/// keeps a stack; further requests wait for a moment, since most are answered within a millisecond.
static GET_THREADS: Semaphore = Semaphore::const_new(8);
static POST_THREADS: Semaphore = Semaphore::const_new(4);
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
pub async fn serve_metrics<A: Answers>(listener: TcpListener, answers: Arc<A>) {
    let routes = Router::new().route("/metrics", metrics()).with_state(answers);
    serve(listener, |_| (0, routes.clone()), CONNECTIONS_OF_METRICS).await;
}

/// All routes of a Lua program.
pub fn routes_of_program<A: Answers>(program: Arc<A>) -> Router {
    let orders = Router::new().route(request::STOP, post(stop::<A>));
    with_errors(read_routes().merge(orders)).with_state(program)
}

/// All routes of the daemon.
pub fn routes<D: AnswersOfDaemon>(daemon: Arc<D>) -> Router {
    let orders = Router::new()
        .route(request::VERIFY, post(|State(daemon): State<Arc<D>>| answer_post(daemon, D::verify)))
        .route(request::RELOAD, post(|State(daemon): State<Arc<D>>| answer_post(daemon, D::reload)))
        .route(request::CLEAR, post(clear::<D>))
        .route(request::DRAIN, post(|daemon| drain::<D>(daemon, true)))
        .route(request::JOIN, post(|daemon| drain::<D>(daemon, false)))
        .route(request::REMOVE, post(remove::<D>))
        .route(request::STOP, post(stop::<D>));
    with_errors(all_read_routes().merge(orders)).with_state(daemon)
}

/// The routes of the daemon for clients with read access only.
pub fn routes_of_readers<D: AnswersOfDaemon>(daemon: Arc<D>) -> Router {
    let refuse = || async {
        let error =
            Error::new("members of this group have read access only").hint("run this command as root");
        refused(StatusCode::FORBIDDEN, error)
    };
    let orders = request::REQUESTS.iter().filter(|request| request.method == request::Method::Post);
    let routes = orders.fold(all_read_routes(), |routes, order| routes.route(order.path, post(refuse)));
    with_errors(routes).with_state(daemon)
}

/// The routes of the daemon for its web page: those that only read this node.
pub fn routes_of_page<D: AnswersOfDaemon>(daemon: Arc<D>) -> Router {
    with_errors(read_routes().merge(read_routes_of_daemon())).with_state(daemon)
}

/// The same routes, with an error for other paths and methods.
fn with_errors<A: Answers>(routes: Router<Arc<A>>) -> Router<Arc<A>> {
    routes.method_not_allowed_fallback(other_method).fallback(no_such_path::<A>)
}

/// The routes that only read, of this node and of others.
fn all_read_routes<D: AnswersOfDaemon>() -> Router<Arc<D>> {
    read_routes().merge(read_routes_of_daemon()).route("/v1/nodes/{name}/{*path}", get(of_node::<D>))
}

/// The routes that only read, and that every process has.
fn read_routes<A: Answers>() -> Router<Arc<A>> {
    Router::new()
        .route(request::STATUS, get_route(A::status))
        .route(request::APPS, get_route(|answers: &A| Ok(answers.apps())))
        .route(request::LINKS, get_route(|answers: &A| Ok(answers.links())))
        .route(request::WORKERS, get_route(|answers: &A| Ok(answers.workers())))
        .route(request::DROPS, get_route(|answers: &A| Ok(answers.drops())))
        .route(request::METRICS, metrics())
}

/// The routes that only read, and that only the daemon has.
fn read_routes_of_daemon<D: AnswersOfDaemon>() -> Router<Arc<D>> {
    Router::new()
        .route(request::PORTS, get_route(D::ports))
        .route(request::ROUTES, get(routes_of::<D>))
        .route(request::EXPLAIN, get(explain::<D>))
        .route(request::NEIGHBORS, get_route(D::neighbors))
        .route(request::NEXT_HOPS, get_route(D::next_hops))
        .route(request::SWITCHES, get_route(|daemon: &D| Ok(daemon.switches())))
        .route(request::MACS, get_route(|daemon: &D| Ok(daemon.macs())))
        .route(request::CLUSTER, get_route(|daemon: &D| Ok(daemon.cluster())))
        .route(request::FILTERS, get_route(D::filters))
        .route(request::SAS, get_route(|daemon: &D| Ok(daemon.sas())))
        .route(request::POLICIES, get_route(|daemon: &D| Ok(daemon.policies())))
        .route(request::CLEARED, get_route(|daemon: &D| Ok(daemon.cleared())))
        .route(request::COLLECTORS, get_route(|daemon: &D| Ok(daemon.collectors())))
        .route(request::HOOKS, get_route(|daemon: &D| Ok(daemon.hooks())))
}

/// A GET route without parameters.
fn get_route<A: Answers, T: Serialize + Send + 'static>(
    handler: impl FnOnce(&A) -> Result<T, Error> + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<A>> {
    get(move |State(answers): State<Arc<A>>| answer_get(answers, handler))
}

/// The parameters of a request. If they are wrong, the reply is an [`Error`], as for all others.
struct Parameters<T>(T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        let refuse = |rejection: QueryRejection| {
            // Which parameter, and what is wrong with it.
            let why = rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string);
            refused(StatusCode::BAD_REQUEST, Error::new(why).hint("docs/api.md lists the parameters"))
        };
        Query::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(refuse)
    }
}

async fn stop<A: Answers>(
    State(answers): State<Arc<A>>,
    Parameters(query): Parameters<StopQuery>,
) -> Response {
    answer_post(answers, move |answers| answers.stop(&query)).await
}

async fn drain<D: AnswersOfDaemon>(State(daemon): State<Arc<D>>, drained: bool) -> Response {
    answer_post(daemon, move |daemon| daemon.set_drained(drained)).await
}

async fn clear<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Parameters(query): Parameters<ClearQuery>,
) -> Response {
    answer_post(daemon, move |daemon| daemon.clear(&query)).await
}

async fn remove<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Parameters(query): Parameters<MemberQuery>,
) -> Response {
    answer_post(daemon, move |daemon| daemon.remove_member(&query.name)).await
}

/// What another node of the cluster answers, unchanged.
async fn of_node<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Path((name, path)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let path = query.map_or_else(|| format!("/{path}"), |query| format!("/{path}?{query}"));
    let answer = on_thread(&GET_THREADS, move || daemon.of_node(&name, &path)).await;
    match answer.unwrap_or_else(|panicked| Err(Error::new(panicked))) {
        Ok((status, body)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => refused(StatusCode::BAD_REQUEST, error),
    }
}

async fn routes_of<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Parameters(query): Parameters<RouteQuery>,
) -> Response {
    answer_get(daemon, move |daemon| daemon.routes(&query)).await
}

async fn explain<D: AnswersOfDaemon>(
    State(daemon): State<Arc<D>>,
    Parameters(query): Parameters<ExplainQuery>,
) -> Response {
    answer_get(daemon, move |daemon| daemon.explain(&query)).await
}

async fn no_such_path<A: Answers>(State(answers): State<Arc<A>>) -> Response {
    refused(StatusCode::NOT_FOUND, answers.no_such_path())
}

async fn other_method() -> Response {
    let error = Error::new("this path is for another method").hint("GET only reads, POST acts: docs/api.md");
    refused(StatusCode::METHOD_NOT_ALLOWED, error)
}

/// The metrics, in the OpenMetrics format.
fn metrics<A: Answers>() -> MethodRouter<Arc<A>> {
    get(|State(answers): State<Arc<A>>| async {
        let text = on_thread(&GET_THREADS, move || answers.metrics()).await.unwrap_or_default();
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    })
}

/// Answers a GET request on another thread, since some wait for control. [`GET_THREADS`] limits their number.
async fn answer_get<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    answers: Arc<D>,
    handler: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    answer_within(&GET_THREADS, answers, handler).await
}

/// Handles a POST request on another thread. These do not wait for GET requests.
async fn answer_post<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    answers: Arc<D>,
    handler: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    answer_within(&POST_THREADS, answers, handler).await
}

async fn answer_within<D: Send + Sync + 'static, T: Serialize + Send + 'static>(
    threads: &'static Semaphore,
    answers: Arc<D>,
    handler: impl FnOnce(&D) -> Result<T, Error> + Send + 'static,
) -> Response {
    // The body is encoded on that thread, too: a long one takes a while.
    let answer = on_thread(threads, move || reply(StatusCode::BAD_REQUEST, handler(&answers)));
    answer
        .await
        .unwrap_or_else(|panicked| reply::<()>(StatusCode::INTERNAL_SERVER_ERROR, Err(Error::new(panicked))))
}

/// Runs a function on another thread as soon as fewer than the limit are running.
async fn on_thread<T: Send + 'static>(
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

    use axum::body::Body;
    use axum::http::{Method, Request};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use tokio::task::JoinSet;

    use crate::testing::Nothing;

    /// The HTTP status of the reply to a request.
    async fn status(routes: &Router, method: Method, path: &str) -> StatusCode {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        TowerToHyperService::new(routes.clone()).call(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn the_daemon_answers_all_requests_and_readers_may_only_get() {
        let daemon = Arc::new(Nothing);
        let all = routes(daemon.clone());
        let (reading, page) = (routes_of_readers(daemon.clone()), routes_of_page(daemon));
        for request in request::REQUESTS {
            let (is_get, path) = (request.method == request::Method::Get, request.path);
            let method = if is_get { Method::GET } else { Method::POST };
            let other = if is_get { Method::POST } else { Method::GET };
            assert_eq!(status(&all, method.clone(), path).await, StatusCode::OK, "{path}");
            assert_eq!(status(&all, other, path).await, StatusCode::METHOD_NOT_ALLOWED, "{path}");
            let (to_readers, on_page) = match is_get {
                true => (StatusCode::OK, StatusCode::OK),
                false => (StatusCode::FORBIDDEN, StatusCode::NOT_FOUND),
            };
            assert_eq!(status(&reading, method.clone(), path).await, to_readers, "{path}");
            assert_eq!(status(&page, method, path).await, on_page, "{path}");
        }
        let of_node = format!("{}one/v1/ports", request::NODES);
        assert_eq!(status(&all, Method::GET, &of_node).await, StatusCode::OK);
        assert_eq!(status(&page, Method::GET, &of_node).await, StatusCode::NOT_FOUND);
        assert_eq!(status(&all, Method::GET, "/v1/none").await, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn every_refusal_is_an_error_with_a_message() {
        for (method, path, status, message) in [
            (Method::GET, "/v1/routes?limit=many", 400, "limit: invalid digit found in string"),
            (Method::GET, "/v1/reload", 405, "this path is for another method"),
            (Method::GET, "/v1/none", 404, "no such path"),
        ] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let reply = TowerToHyperService::new(routes(Arc::new(Nothing))).call(request).await.unwrap();
            assert_eq!(reply.status(), status, "{path}");
            let body = axum::body::to_bytes(reply.into_body(), 1000).await.unwrap();
            assert_eq!(bm_api::decode::<bm_api::Routes>(status, &body).unwrap_err().message, message);
        }
    }

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
