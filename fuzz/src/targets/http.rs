//! HTTP requests to a server that uses the daemon's code for connections, and bodies of answers as commands read them.
//!
//! Checks: the server answers a well-formed request after any bytes on another connection; its output begins like an
//! HTTP answer; and an answer is read, or refused with a message.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::routing::{get, post};
use bm_api::request::{ROUTES, RouteQuery, STATUS, STOP, StopQuery};
use bm_serve::connections;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// No answer takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Size of a connection's buffer in bytes.
const PIPE: usize = 64 << 10;

/// Accepts connections in memory instead of a socket.
struct FromMemory(mpsc::UnboundedReceiver<DuplexStream>);

impl connections::Listener for FromMemory {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<DuplexStream> {
        match self.0.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }
}

/// A server, and a channel to connect to it.
struct Server {
    runtime: Runtime,
    connect: mpsc::UnboundedSender<DuplexStream>,
}

thread_local! {
    static SERVER: RefCell<Server> = RefCell::new(Server::start());
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without devices");
        let (connect, listener) = mpsc::unbounded_channel();
        let routes = Router::new()
            .route(STATUS.path, get(|| async { "status" }))
            .route(ROUTES.path, get(|Query(query): Query<RouteQuery>| async move { format!("{query:?}") }))
            .route(STOP.path, post(|Query(query): Query<StopQuery>| async move { format!("{query:?}") }));
        let who = move |_: &DuplexStream| (0, routes.clone());
        runtime.spawn(connections::serve(FromMemory(listener), who, 8));
        Self { runtime, connect }
    }

    /// Sends these bytes and returns the whole answer. Optionally closes the sending side after them.
    fn exchange(&self, bytes: &[u8], hangs_up: bool) -> Vec<u8> {
        let (mut ours, theirs) = tokio::io::duplex(PIPE);
        self.connect.send(theirs).expect("the server runs");
        self.runtime.block_on(async {
            let exchange = async {
                let (mut reader, mut writer) = tokio::io::split(&mut ours);
                let send = async {
                    // The server may have closed the connection before everything is sent.
                    let _sent = writer.write_all(bytes).await;
                    if hangs_up {
                        let _ended = writer.shutdown().await;
                    }
                };
                let mut answer = Vec::new();
                let (_, read) = tokio::join!(send, reader.read_to_end(&mut answer));
                read.map(|_| answer)
            };
            let answer = tokio::time::timeout(PATIENCE, exchange).await.expect("the connection ends");
            answer.unwrap_or_default()
        })
    }
}

/// Uses the bytes as a request, and as the body of an answer.
pub fn run(bytes: &[u8]) {
    SERVER.with_borrow(|server| {
        let answer = server.exchange(bytes, true);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
        let after =
            server.exchange(b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", false);
        assert!(after.starts_with(b"HTTP/1.1 200 ") && after.ends_with(b"status"), "{after:?}");
    });
    if let Err(error) = bm_api::decode::<bm_api::Status>(200, bytes) {
        assert!(!error.to_string().is_empty(), "refused without a message");
    }
    // The body of an error is used as the message, so it is not checked.
    let _error = bm_api::decode::<bm_api::Status>(400, bytes);
    let _routes = bm_api::decode::<bm_api::Routes>(200, bytes);
    let _ports = bm_api::decode::<bm_api::Ports>(200, bytes);
}
