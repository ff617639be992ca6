//! The endpoints of etcd, and the credentials for them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The endpoints of etcd, and the credentials for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Tried in this order.
    pub endpoints: Vec<Endpoint>,
    /// File with the CA certificates (PEM) that etcd's is checked against; needed for https.
    pub ca: Option<PathBuf>,
    /// Files with the client certificate and its key (PEM), if etcd requires one.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// User name, and the file with the password.
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
}

/// `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    /// Name or address, without brackets.
    pub host: String,
    pub port: u16,
}

/// A text that is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEndpoint;

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let (scheme, rest) = text.split_once("://").ok_or(BadEndpoint)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(BadEndpoint),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(BadEndpoint)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| BadEndpoint)?;
                (host, rest.strip_prefix(':').ok_or(BadEndpoint)?)
            }
            None => rest.split_once(':').ok_or(BadEndpoint)?,
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadEndpoint)?;
        if host.is_empty() || !host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:".contains(c)) {
            return Err(BadEndpoint);
        }
        Ok(Self { tls, host: host.into(), port })
    }
}

impl Endpoint {
    /// Host and port, as in a Host header.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_endpoints() {
        for text in ["http://127.0.0.1:2379", "https://[2001:db8::1]:2379", "https://etcd-1.example.net:443"]
        {
            assert_eq!(text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(
            "http://a:1/".parse::<Endpoint>().map(|endpoint| endpoint.to_string()).as_deref(),
            Ok("http://a:1")
        );
        for text in [
            "127.0.0.1:2379",
            "ftp://a:1",
            "http://a",
            "http://a:0",
            "http://a:70000",
            "http://:1",
            "http://a b:1",
            "http://[x]:1",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(BadEndpoint), "{text}");
        }
    }
}
