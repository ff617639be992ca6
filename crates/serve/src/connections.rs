//! Connections to our HTTP servers, limited in number and duration.
//!
//! A client that connects and sends nothing, sends its request one byte a minute, or does not read the reply, holds one
//! of our file descriptors. Without limits a few hundred such clients would use up all of them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

/// How long the head of a request may take, and how long a connection may be idle before it.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection may last in any case; longer than the longest request takes.
const LAST_MAX: Duration = Duration::from_secs(600);
/// How long a [`Pause`] keeps connections waiting. If it takes longer, the restart hangs, and `status` must be able to
/// say so.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long to wait after a connection could not be accepted, mostly because no file descriptor is free. Short, since
/// connections of another server may end at any time.
const RETRY: Duration = Duration::from_millis(20);

/// Number of kinds of clients ([`crate::rights`]).
const KINDS: usize = 3;

static PAUSES: AtomicUsize = AtomicUsize::new(0);
static PAUSED: Notify = Notify::const_new();
static RESUMED: Notify = Notify::const_new();

/// While one exists, no server accepts connections: clients wait in the listen queue.
///
/// Held while descriptors are closed and opened again, so that new connections do not take them in between.
pub struct Pause;

impl Pause {
    /// Accepts no connections from here on.
    pub fn begin() -> Self {
        PAUSES.fetch_add(1, Ordering::SeqCst);
        PAUSED.notify_waiters();
        Self
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        PAUSES.fetch_sub(1, Ordering::SeqCst);
        RESUMED.notify_waiters();
    }
}

/// A socket that listens.
pub trait Listener {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Accepts a connection as soon as there is no [`Pause`].
async fn accept<L: Listener>(listener: &mut L) -> L::Stream {
    loop {
        // Both are created before the counter is read, so that no later change is missed.
        let (paused, resumed) = (PAUSED.notified(), RESUMED.notified());
        if PAUSES.load(Ordering::SeqCst) > 0 {
            // A restart may hang.
            let _in_time = timeout(PAUSE_MAX, resumed).await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => return stream,
                // Either the client is gone already, or no file descriptor is free.
                Err(_) => sleep(RETRY).await,
            },
            () = paused => {}
        }
    }
}

/// Serves connections until the task is dropped. `who` returns the kind of client and its routes. Beyond `most`
/// connections of one kind the oldest is closed, so that clients that only hold connections cannot lock others out.
pub async fn serve<L: Listener>(mut listener: L, who: impl Fn(&L::Stream) -> (usize, Router), most: usize) {
    let mut kinds: [VecDeque<JoinHandle<()>>; KINDS] = Default::default();
    loop {
        let stream = accept(&mut listener).await;
        let (kind, routes) = who(&stream);
        let connections = &mut kinds[kind];
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= most {
            connections.pop_front().into_iter().for_each(|oldest| oldest.abort());
        }
        let service = TowerToHyperService::new(routes);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        connections.push_back(tokio::spawn(async move {
            // Errors on a connection only concern its client.
            let _ended = timeout(LAST_MAX, connection).await;
        }));
        // Clients that are gone already free their descriptor before the next is accepted, so that a queue of them does
        // not take all descriptors from other servers.
        yield_now().await;
    }
}
