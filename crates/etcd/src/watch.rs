//! Changes of keys, as they happen: an answer that does not end.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::connection::Connection;
use crate::error::EtcdError;

/// The longest line.
const BYTES_MAX: usize = 4 << 20;

/// Ends when it is dropped.
pub struct Watch {
    connection: Connection,
    body: Incoming,
    /// The received part of the next line.
    line: Vec<u8>,
}

impl Watch {
    pub(crate) fn new(connection: Connection, body: Incoming) -> Self {
        Self { connection, body, line: Vec::new() }
    }

    /// Waits until something has changed.
    ///
    /// # Errors
    /// If the connection is lost, or etcd ends the watch.
    pub async fn changed(&mut self) -> Result<(), EtcdError> {
        loop {
            while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                if self.has_events(&line)? {
                    return Ok(());
                }
            }
            let part =
                self.body.frame().await.ok_or_else(|| self.connection.unreachable("the watch has ended"))?;
            let part = part.map_err(|why| self.connection.unreachable(why))?;
            self.line.extend_from_slice(part.data_ref().map_or(&[], |data| &data[..]));
            if self.line.len() > BYTES_MAX {
                return Err(self.connection.malformed());
            }
        }
    }

    /// The first line only says that the watch has begun.
    fn has_events(&self, line: &[u8]) -> Result<bool, EtcdError> {
        let value: Value = serde_json::from_slice(line).map_err(|_| self.connection.malformed())?;
        if value["error"].is_object() {
            return Err(self.connection.refused(&value["error"]));
        }
        if value["result"]["canceled"].as_bool() == Some(true) {
            let why = value["result"]["cancel_reason"].as_str().unwrap_or("etcd has ended the watch");
            return Err(self.connection.unreachable(why));
        }
        Ok(value["result"]["events"].as_array().is_some_and(|events| !events.is_empty()))
    }
}
