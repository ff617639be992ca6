//! Serves the web page: its files, and the API's paths that only read, for clients that the guard admits.
//!
//! ```text
//! connection ─► GET? ─► Guard: host ─► / page.css page.js
//!                                 └──► Guard: token ─► Answers::routes_of_page
//! ```
//!
//! Refused requests never reach a handler, so they cost no thread. The page needs nothing from elsewhere, and its script
//! only reads.

mod guard;
mod page;
mod token;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bm_api::Error;
use bm_cli::Failure;
use guard::{Guard, Refusal};
use page::{FILES, HEADERS};
use token::Token;
use tokio::net::{TcpListener, TcpStream};

use crate::connections::serve;
use crate::server::refused;

/// Maximum number of connections to the page. A browser opens six.
const CONNECTIONS: usize = 64;

/// The address at which the page is served once the daemon runs.
pub struct Page {
    listener: TcpListener,
    address: SocketAddr,
    token: Option<Token>,
}

/// What every request is checked with.
#[derive(Clone)]
struct Checks {
    guard: Arc<Mutex<Guard>>,
    started: Instant,
    peer: IpAddr,
}

impl Page {
    /// Opens the address, and reads the token file.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub async fn listen(address: SocketAddr, token: Option<&Path>) -> Result<Self, Failure> {
        let token =
            match token {
                None => None,
                Some(file) => Some(Token::read(file).map_err(|error| {
                    Failure::Usage(format!("web_token = \"{}\": {error}", file.display()))
                })?),
            };
        let failed = |error| Failure::Failed(format!("cannot listen for the web page on {address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, token })
    }

    /// The URL of the page.
    pub fn address(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Serves the page, and the API by these routes, until the task is dropped.
    pub async fn serve(self, routes: Router) {
        let guard = Arc::new(Mutex::new(Guard::new(self.token)));
        let started = Instant::now();
        let routes = FILES.iter().fold(routes, |routes, file| {
            routes.route(
                file.path,
                get(move || async move { ([(header::CONTENT_TYPE, file.kind)], file.text) }),
            )
        });
        serve(
            self.listener,
            |stream: &TcpStream| {
                let peer = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
                let checks = Checks { guard: guard.clone(), started, peer };
                (0, routes.clone().layer(middleware::from_fn_with_state(checks, checked)))
            },
            CONNECTIONS,
        )
        .await;
    }
}

/// Answers a request if it passes the checks. Every reply has the page's headers.
async fn checked(State(checks): State<Checks>, request: Request, next: Next) -> Response {
    let mut response = match checks.refusal(&request) {
        None => next.run(request).await,
        Some(response) => response,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Checks {
    /// The reply to a request that is refused.
    fn refusal(&self, request: &Request) -> Option<Response> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let error = Error::new("this address only answers GET requests")
                .hint("use the control socket, or `brickmoon reload` and `brickmoon stop`");
            return Some(refused(StatusCode::METHOD_NOT_ALLOWED, error));
        }
        if is_ambiguous(request.headers()) {
            let error = Error::new("a request needs one Host header, and no body");
            return Some(refused(StatusCode::BAD_REQUEST, error));
        }
        self.check(request).err().map(refusal)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        // A panic while it was locked cannot have left it in a state that admits more.
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.check_host(value(request.headers(), header::HOST))?;
        if FILES.iter().any(|file| file.path == request.uri().path()) {
            return Ok(());
        }
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let authorization = value(request.headers(), header::AUTHORIZATION);
        guard.check_token(self.peer, authorization, now_ns)
    }
}

/// Whether a proxy could understand these headers otherwise: two names of the host, or two lengths (RFC 9112 3.2, 6.3).
fn is_ambiguous(headers: &HeaderMap) -> bool {
    let has_body = headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get_all(header::CONTENT_LENGTH).iter().any(|length| length != "0");
    has_body || headers.get_all(header::HOST).iter().count() > 1
}

fn value(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The reply to a request that the guard refuses.
fn refusal(why: Refusal) -> Response {
    match why {
        Refusal::Host => {
            let error = Error::new("without a token the web page only answers to names of this machine")
                .hint("open it as localhost or 127.0.0.1, or set `web_token` in [daemon]");
            refused(StatusCode::FORBIDDEN, error)
        }
        Refusal::Token => {
            let error = Error::new("no token, or a wrong one")
                .hint("log in with the contents of the file that `web_token` in [daemon] names");
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (challenge, refused(StatusCode::UNAUTHORIZED, error)).into_response()
        }
        Refusal::TooMany => {
            let error = Error::new("too many wrong tokens from this address").hint("wait for ten seconds");
            refused(StatusCode::TOO_MANY_REQUESTS, error)
        }
    }
}
