//! Client of the daemon: HTTP over its Unix socket, with a time limit for every request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bm_api::request::{self, Request};
use bm_cli::Failure;
use http_body_util::{BodyExt, Empty};
use hyper::Method;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::program_socket;
use crate::socket::somebody_listens;

/// Time limit of a request that only reads.
const GET_MAX: Duration = Duration::from_secs(30);
/// Time limit of a request that changes something or takes long: comparing a million routes, opening ports again.
const POST_MAX: Duration = Duration::from_secs(300);
/// Time limit of a request whose answer is soon asked for again.
const SESSION_MAX: Duration = Duration::from_secs(5);

/// The daemon, or the Lua program, that requests are sent to.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its control socket.
    pub socket: PathBuf,
    /// Time limit of a request; `None` for the one that suits the request.
    pub timeout: Option<Duration>,
    /// The node of its cluster that is to answer instead.
    pub node: Option<String>,
}

/// Sends a request and decodes the reply.
///
/// # Errors
/// The daemon's own error, or why it could not be reached within the time limit.
pub fn ask<Q: Serialize, R: DeserializeOwned>(
    server: &Server,
    request: Request<Q, R>,
    query: &Q,
) -> Result<R, Failure> {
    let (method, longest) = match request.method {
        request::Method::Get => (Method::GET, GET_MAX),
        request::Method::Post => (Method::POST, POST_MAX),
    };
    let longest = server.timeout.unwrap_or(longest);
    let path = path(server, request, query)?;
    let (status, body) = runtime()?.block_on(async {
        match timeout(longest, exchange(&server.socket, method.clone(), &path)).await {
            Ok(answered) => answered,
            Err(_) => Err(unanswered(&server.socket, &format!("{method} {path}"), longest)),
        }
    })?;
    bm_api::decode(status, &body).map_err(Failure::failed)
}

/// The path of a request with its parameters.
fn path<Q: Serialize, R>(server: &Server, request: Request<Q, R>, query: &Q) -> Result<String, Failure> {
    let query = serde_urlencoded::to_string(query).map_err(Failure::failed)?;
    let path = match query.is_empty() {
        true => request.path.to_string(),
        false => format!("{}?{query}", request.path),
    };
    match &server.node {
        None => Ok(path),
        Some(node) if request.method == request::Method::Get => {
            Ok(format!("{}{}{path}", request::NODES, escaped(node)))
        }
        Some(_) => Err(Failure::Usage(
            "--node is only for commands that show something; run others on that node".into(),
        )),
    }
}

/// A part of a path, percent-encoded (RFC 3986 2.3).
fn escaped(part: &str) -> String {
    let mut escaped = String::new();
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Longest answer to a request of another node, in time.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// What a daemon's socket answers to a GET request: status and body. For other nodes of a cluster, so an error is an
/// answer as well.
pub fn answer(socket: &Path, path: &str) -> (u16, Vec<u8>) {
    if !path.starts_with("/v1/") || path.starts_with(request::NODES) {
        return refusal("another node cannot make this request");
    }
    let Ok(runtime) = runtime() else { return refusal("the node cannot answer now") };
    match runtime.block_on(async { timeout(ANSWER_MAX, exchange(socket, Method::GET, path)).await }) {
        Ok(Ok((status, body))) => (status, body.to_vec()),
        Ok(Err(_)) | Err(_) => refusal("the node's control socket does not answer"),
    }
}

fn refusal(message: &str) -> (u16, Vec<u8>) {
    (400, bm_api::encode(&bm_api::Error::new(message)).unwrap_or_default())
}

/// Whether a process listens on a socket, even if it accepts no connections at the moment.
pub fn is_listening(socket: &Path) -> Result<bool, Failure> {
    Ok(runtime()?.block_on(somebody_listens(socket)))
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread().enable_all().build().map_err(Failure::failed)
}

fn unanswered(socket: &Path, what: &str, longest: Duration) -> Failure {
    let (socket, seconds) = (socket.display(), longest.as_secs());
    Failure::Failed(format!(
        "no answer to `{what}` from {socket} within {seconds} s: the process there hangs or is very busy; use --timeout S to wait longer"
    ))
}

async fn exchange(socket: &Path, method: Method, path: &str) -> Result<(u16, Bytes), Failure> {
    send(&mut connect(socket).await?, method, path).await
}

async fn connect(socket: &Path) -> Result<SendRequest<Empty<Bytes>>, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(socket, &error))?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Failure::failed)?;
    // Ends together with `sender`; errors are reported by `send_request`.
    let _connection = tokio::spawn(connection);
    Ok(sender)
}

async fn send(
    sender: &mut SendRequest<Empty<Bytes>>,
    method: Method,
    path: &str,
) -> Result<(u16, Bytes), Failure> {
    let request = hyper::Request::builder().method(method).uri(path).header("host", "brickmoon");
    let request = request.body(Empty::<Bytes>::new()).map_err(Failure::failed)?;
    let reply = sender.send_request(request).await.map_err(Failure::failed)?;
    let status = reply.status().as_u16();
    let body = reply.into_body().collect().await.map_err(Failure::failed)?.to_bytes();
    Ok((status, body))
}

/// Many GET requests, one after the other, over one connection as long as it lasts.
pub struct Session {
    server: Server,
    runtime: Runtime,
    sender: Option<SendRequest<Empty<Bytes>>>,
}

impl Session {
    /// Opens no connection yet.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn new(server: Server) -> Result<Self, Failure> {
        Ok(Self { server, runtime: runtime()?, sender: None })
    }

    /// Sends a GET request; returns status and body of the answer.
    ///
    /// # Errors
    /// If there is no answer within the time limit.
    pub fn get(&mut self, path: &str) -> Result<(u16, Bytes), Failure> {
        let longest = self.server.timeout.unwrap_or(SESSION_MAX);
        self.runtime.block_on(async {
            // The server closes a connection that was idle for too long: that is no error.
            if let Some(mut open) = self.sender.take()
                && let Ok(Ok(reply)) = timeout(longest, send(&mut open, Method::GET, path)).await
            {
                self.sender = Some(open);
                return Ok(reply);
            }
            let socket = &self.server.socket;
            let Ok(first) = timeout(longest, first_of_connection(socket, path)).await else {
                return Err(unanswered(socket, &format!("GET {path}"), longest));
            };
            let (open, reply) = first?;
            self.sender = Some(open);
            Ok(reply)
        })
    }
}

/// Connects, and sends a first GET request.
async fn first_of_connection(
    socket: &Path,
    path: &str,
) -> Result<(SendRequest<Empty<Bytes>>, (u16, Bytes)), Failure> {
    let mut open = connect(socket).await?;
    let reply = send(&mut open, Method::GET, path).await?;
    Ok((open, reply))
}

fn unreachable(socket: &Path, error: &std::io::Error) -> Failure {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, WouldBlock};
    let programs: Vec<_> =
        program_socket::programs_beside(socket).iter().map(|path| path.display().to_string()).collect();
    let programs = match programs.is_empty() {
        true => String::new(),
        false => format!("; Lua programs listen at {}", programs.join(", ")),
    };
    let socket = socket.display();
    Failure::Failed(match error.kind() {
        NotFound | ConnectionRefused => format!(
            "no daemon answers at {socket}: start it with `brickmoon up --port IF...`, or give its socket with --socket{programs}"
        ),
        PermissionDenied => {
            format!("{socket}: permission denied: run this command as root, or set read_group in [daemon]")
        }
        WouldBlock => {
            format!("{socket}: the process there accepts no connections: it hangs or is very busy")
        }
        _ => format!("{socket}: {error}"),
    })
}
