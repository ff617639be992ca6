//! The options of `brickmoon up`, which override the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use bm_control::config::{IdleChoice, PathChoice};
use bm_fastpath::AttachChoice;

/// Options that override the configuration file; those that are not given leave its settings as they are.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Ports in addition to those of the file.
    pub ports: Vec<String>,
    pub paths: Vec<PathOption>,
    pub attach: Option<AttachChoice>,
    pub workers: Option<u32>,
    pub idle: Option<IdleChoice>,
    /// Control socket to listen on.
    pub socket: Option<PathBuf>,
    /// Address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Address of the web page.
    pub web: Option<SocketAddr>,
    /// File with the token that the web page asks for.
    pub web_token: Option<PathBuf>,
}

/// The path that packets take, for one port or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOption {
    /// The port as written; `None` for all ports that have no path of their own.
    pub port: Option<String>,
    pub path: PathChoice,
}
