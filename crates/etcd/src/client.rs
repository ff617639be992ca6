//! Requests to etcd.

use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

use crate::base64::{decode, encode};
use crate::connection::Connection;
use crate::error::EtcdError;
use crate::settings::Settings;
use crate::tls;
use crate::watch::Watch;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// The revision of the store that has changed it last.
    pub revision: i64,
}

/// All keys with a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The revision of the store.
    pub revision: i64,
    pub entries: Vec<Entry>,
}

/// A client; it connects with its first request.
pub struct Client {
    settings: Settings,
    tls: Option<TlsConnector>,
    password: Option<String>,
    /// Which endpoint is next.
    at: usize,
    open: Option<Connection>,
    token: Option<String>,
}

impl Client {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn new(settings: Settings) -> Result<Self, EtcdError> {
        let tls = tls::connector(&settings)?;
        let password = settings.password_file.as_deref().map(read_password).transpose()?;
        Ok(Self { settings, tls, password, at: 0, open: None, token: None })
    }

    /// The endpoint that was asked last, or will be asked first.
    pub fn endpoint(&self) -> String {
        self.settings.endpoints.get(self.at).map(ToString::to_string).unwrap_or_default()
    }

    /// Closes the connection; the next request opens one.
    pub fn disconnect(&mut self) {
        self.open = None;
    }

    /// A lease for so many seconds.
    ///
    /// # Errors
    /// If etcd cannot be reached, or refuses it: so for all requests.
    pub async fn grant(&mut self, seconds: u32) -> Result<i64, EtcdError> {
        let answer = self.ask("/v3/lease/grant", json!({ "TTL": seconds })).await?;
        self.number(&answer["ID"])
    }

    /// Renews a lease; `false` if it has expired.
    ///
    /// # Errors
    /// As [`Self::grant`].
    pub async fn keep_alive(&mut self, lease: i64) -> Result<bool, EtcdError> {
        let answer = self.ask("/v3/lease/keepalive", json!({ "ID": lease })).await?;
        Ok(number(&answer["result"]["TTL"]).is_some_and(|seconds| seconds > 0))
    }

    /// Ends a lease, and deletes its keys.
    ///
    /// # Errors
    /// As [`Self::grant`].
    pub async fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        self.ask("/v3/lease/revoke", json!({ "ID": lease })).await.map(drop)
    }

    /// All keys with a prefix.
    ///
    /// # Errors
    /// As [`Self::grant`].
    pub async fn range(&mut self, prefix: &str) -> Result<Range, EtcdError> {
        let answer = self.ask("/v3/kv/range", range_of(prefix)).await?;
        let none = Vec::new();
        let all = answer["kvs"].as_array().unwrap_or(&none);
        let entries: Option<Vec<_>> = all.iter().map(read_entry).collect();
        let revision = self.number(&answer["header"]["revision"])?;
        Ok(Range { revision, entries: entries.ok_or_else(|| self.malformed())? })
    }

    /// Sets a key unconditionally; with a lease, it is deleted when that ends.
    ///
    /// # Errors
    /// As [`Self::grant`].
    pub async fn put(&mut self, key: &str, value: &[u8], lease: Option<i64>) -> Result<(), EtcdError> {
        self.ask("/v3/kv/put", put_of(key, value, lease)).await.map(drop)
    }

    /// Sets a key if it has not changed since this revision (0: if it does not exist). Returns whether it was set.
    ///
    /// # Errors
    /// As [`Self::grant`]. It may have been set nevertheless.
    pub async fn put_if(
        &mut self,
        key: &str,
        value: &[u8],
        lease: Option<i64>,
        revision: i64,
    ) -> Result<bool, EtcdError> {
        let is_same = json!({
            "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL", "mod_revision": revision
        });
        let put = json!({ "request_put": put_of(key, value, lease) });
        let answer = self.ask("/v3/kv/txn", json!({ "compare": [is_same], "success": [put] })).await?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Watches keys with a prefix from a revision on.
    ///
    /// # Errors
    /// As [`Self::grant`].
    pub async fn watch(&mut self, prefix: &str, revision: i64) -> Result<Watch, EtcdError> {
        let Some(endpoint) = self.settings.endpoints.get(self.at) else { return Err(self.malformed()) };
        let mut wanted = range_of(prefix);
        wanted["start_revision"] = revision.into();
        let mut connection = match Connection::open(endpoint, self.tls.as_ref()).await {
            Ok(connection) => connection,
            Err(why) => {
                self.open = None;
                self.next_endpoint();
                return Err(why);
            }
        };
        let body = json!({ "create_request": wanted });
        let answer = connection.stream("/v3/watch", &body, self.token.as_deref()).await?;
        Ok(Watch::new(connection, answer))
    }

    #[cfg(test)]
    pub(crate) fn set_token(&mut self, token: &str) {
        self.token = Some(token.into());
    }

    /// Sends a request; logs in before, and again if the token is no longer valid.
    pub(crate) async fn ask(&mut self, path: &str, body: Value) -> Result<Value, EtcdError> {
        if self.settings.user.is_some() && self.token.is_none() {
            self.log_in().await?;
        }
        match self.post(path, &body).await {
            Err(EtcdError::Refused { message, .. }) if message.contains("invalid auth token") => {
                self.log_in().await?;
                self.post(path, &body).await
            }
            other => other,
        }
    }

    async fn log_in(&mut self) -> Result<(), EtcdError> {
        let body = json!({ "name": self.settings.user, "password": self.password });
        self.token = None;
        let answer = self.post("/v3/auth/authenticate", &body).await?;
        let token = answer["token"].as_str().ok_or_else(|| self.malformed())?;
        self.token = Some(token.into());
        Ok(())
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.connect().await?,
        };
        let answer = open.post(path, body, self.token.as_deref()).await;
        match answer {
            Ok(_) | Err(EtcdError::Refused { .. }) => self.open = Some(open),
            Err(_) => self.next_endpoint(),
        }
        answer
    }

    /// To the first endpoint that can be reached.
    async fn connect(&mut self) -> Result<Connection, EtcdError> {
        let mut failed = Err(self.malformed());
        for _ in 0..self.settings.endpoints.len() {
            let endpoint = &self.settings.endpoints[self.at];
            match Connection::open(endpoint, self.tls.as_ref()).await {
                Ok(open) => return Ok(open),
                Err(why) => failed = Err(why),
            }
            self.next_endpoint();
        }
        failed
    }

    fn next_endpoint(&mut self) {
        self.at = (self.at + 1) % self.settings.endpoints.len().max(1);
    }

    fn malformed(&self) -> EtcdError {
        EtcdError::Malformed { endpoint: self.endpoint() }
    }

    fn number(&self, value: &Value) -> Result<i64, EtcdError> {
        number(value).ok_or_else(|| self.malformed())
    }
}

fn read_password(path: &std::path::Path) -> Result<String, EtcdError> {
    // Reading a FIFO would wait for whoever writes to it.
    let text = match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => Err("not a regular file".into()),
        _ => std::fs::read_to_string(path).map_err(|why| why.to_string()),
    };
    let text =
        text.map_err(|why| EtcdError::File { setting: "password_file", path: path.to_path_buf(), why })?;
    Ok(text.trim().to_string())
}

fn read_entry(entry: &Value) -> Option<Entry> {
    let [key, value] = ["key", "value"].map(|field| decode(entry[field].as_str().unwrap_or_default()));
    Some(Entry {
        key: String::from_utf8(key?).ok()?,
        value: value?,
        revision: number(&entry["mod_revision"])?,
    })
}

/// The gateway writes 64-bit numbers as text.
fn number(value: &Value) -> Option<i64> {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_i64())
}

/// All keys that begin with this: up to the prefix with its last byte one higher.
fn range_of(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({ "key": encode(prefix.as_bytes()), "range_end": encode(&end) })
}

fn put_of(key: &str, value: &[u8], lease: Option<i64>) -> Value {
    let mut put = json!({ "key": encode(key.as_bytes()), "value": encode(value) });
    if let Some(lease) = lease {
        put["lease"] = lease.into();
    }
    put
}
