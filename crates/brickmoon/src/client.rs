//! Asks the daemon: HTTP over its Unix socket.

use std::path::Path;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::Failure;

/// What the daemon answers to `method` of `path`.
pub fn ask<T: DeserializeOwned>(socket: &Path, method: Method, path: &str) -> Result<T, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let (status, body) = runtime.block_on(exchange(socket, method, path))?;
    bm_api::decode(status, &body).map_err(Failure::failed)
}

async fn exchange(socket: &Path, method: Method, path: &str) -> Result<(u16, Bytes), Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(socket, &error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Failure::failed)?;
    // Ends when `sender` does; what goes wrong on it, `send_request` reports.
    let _connection = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "brickmoon");
    let request = request.body(Empty::<Bytes>::new()).map_err(Failure::failed)?;
    let reply = sender.send_request(request).await.map_err(Failure::failed)?;
    let status = reply.status().as_u16();
    let body = reply.into_body().collect().await.map_err(Failure::failed)?.to_bytes();
    Ok((status, body))
}

fn unreachable(socket: &Path, error: &std::io::Error) -> Failure {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    let socket = socket.display();
    Failure::Failed(match error.kind() {
        NotFound | ConnectionRefused => format!(
            "no daemon answers at {socket}: start it with `brickmoon up --port IF...`, or name its socket with --socket"
        ),
        PermissionDenied => format!("{socket}: permission denied; ask as root"),
        _ => format!("{socket}: {error}"),
    })
}
