//! What a process answers: a function for each request that it knows, in one table.
//!
//! ```text
//! Answers::new(..).on(request::PORTS, |daemon, _| daemon.ports()) ..
//!    ├─ routes                 for root
//!    ├─ routes_of_readers      for members of the group that may read
//!    ├─ routes_of_page         for the web page: what only reads this node
//!    └─ routes_of_metrics      for Prometheus
//! ```
//!
//! The types of a request say what its function gets and returns. Each runs on a thread of its own, since it may wait.

use std::error::Error as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, RawQuery, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bm_api::Error;
use bm_api::request::{METRICS, Method, NODES, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::server::{GET_THREADS, POST_THREADS, on_thread, refused, reply};

/// Path at which Prometheus expects metrics.
const METRICS_PATH: &str = "/metrics";

/// Status and body of a reply.
pub type EncodedReply = (u16, Vec<u8>);

/// What a process of type `P` answers.
pub struct Answers<P> {
    answers: Vec<Answer<P>>,
    /// The requests to other nodes.
    of_nodes: Option<MethodRouter<Arc<P>>>,
    /// The error for a path that the process does not serve.
    no_such_path: fn() -> Error,
}

struct Answer<P> {
    method: Method,
    path: &'static str,
    route: MethodRouter<Arc<P>>,
}

impl<P: Send + Sync + 'static> Answers<P> {
    /// Answers nothing yet; `no_such_path` is the error for all other paths.
    pub fn new(no_such_path: fn() -> Error) -> Self {
        Self { answers: Vec::new(), of_nodes: None, no_such_path }
    }

    /// Answers a request with a function of the process and the parameters.
    pub fn on<Q, R>(mut self, request: Request<Q, R>, answer: fn(&P, Q) -> Result<R, Error>) -> Self
    where
        Q: DeserializeOwned + Send + 'static,
        R: Serialize + 'static,
    {
        let threads = match request.method {
            Method::Get => &GET_THREADS,
            Method::Post => &POST_THREADS,
        };
        let handler = move |State(process): State<Arc<P>>, Parameters(query): Parameters<Q>| async move {
            // The body is encoded on that thread, too: a long one takes a while.
            let replied =
                on_thread(threads, move || reply(StatusCode::BAD_REQUEST, answer(&process, query))).await;
            replied
                .unwrap_or_else(|panicked| refused(StatusCode::INTERNAL_SERVER_ERROR, Error::new(panicked)))
        };
        let route = match request.method {
            Method::Get => get(handler),
            Method::Post => post(handler),
        };
        self.answers.push(Answer { method: request.method, path: request.path, route });
        self
    }

    /// Answers requests for metrics with this text, which is in the OpenMetrics format.
    pub fn on_metrics(mut self, metrics: fn(&P) -> String) -> Self {
        let route = get(move |State(process): State<Arc<P>>| async move {
            let text = on_thread(&GET_THREADS, move || metrics(&process)).await.unwrap_or_default();
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        });
        self.answers.push(Answer { method: METRICS.method, path: METRICS.path, route });
        self
    }

    /// Answers requests to other nodes with what the node of this name answers at this path: status and body, unchanged.
    pub fn on_nodes(mut self, ask: fn(&P, &str, &str) -> Result<EncodedReply, Error>) -> Self {
        self.of_nodes = Some(get(
            move |State(process): State<Arc<P>>,
                  Path((name, path)): Path<(String, String)>,
                  RawQuery(query): RawQuery| async move {
                let path = query.map_or_else(|| format!("/{path}"), |query| format!("/{path}?{query}"));
                let answer = on_thread(&GET_THREADS, move || ask(&process, &name, &path)).await;
                match answer.unwrap_or_else(|panicked| Err(Error::new(panicked))) {
                    Ok((status, body)) => {
                        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
                    }
                    Err(error) => refused(StatusCode::BAD_REQUEST, error),
                }
            },
        ));
        self
    }

    /// The paths that are answered.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.answers.iter().map(|answer| answer.path)
    }

    /// The routes for clients that may do everything.
    pub fn routes(&self, process: Arc<P>) -> Router {
        let routes = self
            .answers
            .iter()
            .fold(self.routes_of_nodes(), |routes, answer| routes.route(answer.path, answer.route.clone()));
        self.with_errors(routes, process)
    }

    /// The routes for clients that may only read.
    pub fn routes_of_readers(&self, process: Arc<P>) -> Router {
        let routes = self.answers.iter().fold(self.routes_of_nodes(), |routes, answer| {
            let route = match answer.method {
                Method::Get => answer.route.clone(),
                Method::Post => post(read_access_only),
            };
            routes.route(answer.path, route)
        });
        self.with_errors(routes, process)
    }

    /// The routes for the web page: those that only read this node.
    pub fn routes_of_page(&self, process: Arc<P>) -> Router {
        let reading = self.answers.iter().filter(|answer| answer.method == Method::Get);
        let routes =
            reading.fold(Router::new(), |routes, answer| routes.route(answer.path, answer.route.clone()));
        self.with_errors(routes, process)
    }

    /// The route for Prometheus.
    pub fn routes_of_metrics(&self, process: Arc<P>) -> Router {
        let metrics = self.answers.iter().filter(|answer| answer.path == METRICS.path);
        let routes =
            metrics.fold(Router::new(), |routes, answer| routes.route(METRICS_PATH, answer.route.clone()));
        routes.with_state(process)
    }

    fn routes_of_nodes(&self) -> Router<Arc<P>> {
        match &self.of_nodes {
            Some(route) => Router::new().route(&format!("{NODES}{{name}}/{{*path}}"), route.clone()),
            None => Router::new(),
        }
    }

    /// Adds errors for other paths and methods.
    fn with_errors(&self, routes: Router<Arc<P>>, process: Arc<P>) -> Router {
        let no_such_path = self.no_such_path;
        routes
            .method_not_allowed_fallback(other_method)
            .fallback(move || async move { refused(StatusCode::NOT_FOUND, no_such_path()) })
            .with_state(process)
    }
}

/// The parameters of a request. If they are wrong, the reply is an [`Error`], as for all others.
struct Parameters<Q>(Q);

impl<S: Sync, Q: DeserializeOwned> FromRequestParts<S> for Parameters<Q> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        Query::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(wrong_parameters)
    }
}

/// Says which parameter is wrong, and what is wrong with it.
fn wrong_parameters(rejection: QueryRejection) -> Response {
    let why = rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string);
    refused(StatusCode::BAD_REQUEST, Error::new(why).hint("docs/api.md lists the parameters"))
}

async fn other_method() -> Response {
    let error = Error::new("this path is for another method").hint("GET only reads, POST acts: docs/api.md");
    refused(StatusCode::METHOD_NOT_ALLOWED, error)
}

async fn read_access_only() -> Response {
    let error = Error::new("members of this group have read access only").hint("run this command as root");
    refused(StatusCode::FORBIDDEN, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::body::Body;
    use axum::http;
    use bm_api::request::{PORTS, RELOAD, ROUTES};
    use bm_api::{Ports, Reloaded, Routes};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    /// A process without any state, with an answer of each kind.
    fn answers() -> Answers<()> {
        Answers::new(|| Error::new("no such path"))
            .on(PORTS, |_, _| Ok(Ports::default()))
            .on(ROUTES, |_, _| Ok(Routes::default()))
            .on(RELOAD, |_, _| Ok(Reloaded::default()))
            .on_metrics(|_| String::new())
            .on_nodes(|_, _, _| Ok((200, Vec::new())))
    }

    async fn ask(routes: &Router, method: http::Method, path: &str) -> Response {
        let request = http::Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        TowerToHyperService::new(routes.clone()).call(request).await.unwrap()
    }

    #[tokio::test]
    async fn each_client_reaches_what_it_may() {
        let (get, post) = (http::Method::GET, http::Method::POST);
        let process = Arc::new(());
        let all = answers().routes(process.clone());
        let readers = answers().routes_of_readers(process.clone());
        let page = answers().routes_of_page(process.clone());
        let metrics = answers().routes_of_metrics(process);
        let node = format!("{NODES}one/v1/ports");
        for (method, path, expected) in [
            (&get, PORTS.path, [200, 200, 200, 404]),
            (&get, "/v1/ports?unknown=1", [200, 200, 200, 404]),
            (&get, ROUTES.path, [200, 200, 200, 404]),
            (&get, METRICS.path, [200, 200, 200, 404]),
            (&get, METRICS_PATH, [404, 404, 404, 200]),
            (&post, RELOAD.path, [200, 403, 404, 404]),
            (&get, RELOAD.path, [405, 405, 404, 404]),
            (&post, PORTS.path, [405, 405, 405, 404]),
            (&get, &node, [200, 200, 404, 404]),
            (&get, "/v1/none", [404; 4]),
        ] {
            for (routes, expected) in [&all, &readers, &page, &metrics].into_iter().zip(expected) {
                assert_eq!(ask(routes, method.clone(), path).await.status(), expected, "{method} {path}");
            }
        }
    }

    #[tokio::test]
    async fn every_refusal_is_an_error_with_a_message() {
        let routes = answers().routes(Arc::new(()));
        for (method, path, status, message) in [
            (http::Method::GET, "/v1/routes?limit=many", 400, "limit: invalid digit found in string"),
            (http::Method::GET, "/v1/reload", 405, "this path is for another method"),
            (http::Method::GET, "/v1/none", 404, "no such path"),
        ] {
            let reply = ask(&routes, method, path).await;
            assert_eq!(reply.status(), status, "{path}");
            let body = axum::body::to_bytes(reply.into_body(), 1000).await.unwrap();
            assert_eq!(bm_api::decode::<Routes>(status, &body).unwrap_err().message, message);
        }
    }
}
