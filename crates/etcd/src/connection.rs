//! One HTTP/1.1 connection to an endpoint.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::EtcdError;
use crate::settings::Endpoint;

/// How long a connection, or an answer, may take.
pub const WAIT: Duration = Duration::from_secs(2);
/// The longest answer.
const BYTES_MAX: usize = 4 << 20;

/// An open connection.
pub struct Connection {
    endpoint: Endpoint,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// If there is no answer in time, or TLS fails.
    pub async fn open(endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Self, EtcdError> {
        let opened = timeout(WAIT, connect(endpoint, tls)).await.unwrap_or_else(|_| Err(late()));
        match opened {
            Ok(sender) => Ok(Self { endpoint: endpoint.clone(), sender }),
            Err(why) => Err(EtcdError::Unreachable { endpoint: endpoint.to_string(), why }),
        }
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    /// If there is none in time, or etcd refuses the request.
    pub async fn post(&mut self, path: &str, body: &Value, token: Option<&str>) -> Result<Value, EtcdError> {
        let answer = async {
            let response = self.send(path, body, token).await?;
            let ok = response.status().is_success();
            let body = Limited::new(response.into_body(), BYTES_MAX).collect().await;
            let body = body.map_err(|why| self.unreachable(why))?.to_bytes();
            let value: Value = serde_json::from_slice(&body).map_err(|_| self.malformed())?;
            if ok { Ok(value) } else { Err(self.refused(&value)) }
        };
        let answer = timeout(WAIT, answer).await;
        answer.map_err(|_| EtcdError::Unreachable { endpoint: self.endpoint.to_string(), why: late() })?
    }

    /// Sends a request and waits for the beginning of an answer that does not end.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub async fn stream(
        &mut self,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Incoming, EtcdError> {
        let response = timeout(WAIT, self.send(path, body, token)).await;
        let response = response
            .map_err(|_| EtcdError::Unreachable { endpoint: self.endpoint.to_string(), why: late() })??;
        if response.status().is_success() { Ok(response.into_body()) } else { Err(self.malformed()) }
    }

    async fn send(
        &mut self,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, EtcdError> {
        let mut request = Request::post(path)
            .header("host", self.endpoint.authority())
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(|_| self.malformed())?;
        // The connection may not have seen yet that the last answer is complete.
        self.sender.ready().await.map_err(|why| self.unreachable(why))?;
        self.sender.send_request(request).await.map_err(|why| self.unreachable(why))
    }

    pub fn unreachable(&self, why: impl ToString) -> EtcdError {
        EtcdError::Unreachable { endpoint: self.endpoint.to_string(), why: why.to_string() }
    }

    pub fn malformed(&self) -> EtcdError {
        EtcdError::Malformed { endpoint: self.endpoint.to_string() }
    }

    /// Errors of the gateway are objects with a message.
    pub fn refused(&self, answer: &Value) -> EtcdError {
        let message = answer["message"].as_str().or(answer["error"].as_str());
        match message {
            Some(message) => {
                EtcdError::Refused { endpoint: self.endpoint.to_string(), message: message.into() }
            }
            None => self.malformed(),
        }
    }
}

async fn connect(
    endpoint: &Endpoint,
    tls: Option<&TlsConnector>,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let text = |why: std::io::Error| why.to_string();
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    if !endpoint.tls {
        return start_http(TokioIo::new(stream)).await;
    }
    let tls = tls.ok_or("no certificates are configured")?;
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|why| why.to_string())?;
    start_http(TokioIo::new(tls.connect(name, stream).await.map_err(text)?)).await
}

async fn start_http<T>(io: TokioIo<T>) -> Result<SendRequest<Full<Bytes>>, String>
where
    TokioIo<T>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(io).await.map_err(|why| why.to_string())?;
    // It ends with the sender and the body that belong to it. Its errors are those of the requests.
    tokio::spawn(connection);
    Ok(sender)
}

fn late() -> String {
    format!("no answer in {} s", WAIT.as_secs())
}
