//! Settings of conntrack in `/proc/sys/net/netfilter`, which the kernel does not announce
//! (`Documentation/networking/nf_conntrack-sysctl.rst`).

use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

const DIRECTORY: &str = "/proc/sys/net/netfilter";
/// States of TCP connections, as names of settings have them. A connection has never the first one.
const TCP_STATES: [&str; 10] = [
    "none",
    "syn_sent",
    "syn_recv",
    "established",
    "fin_wait",
    "close_wait",
    "last_ack",
    "time_wait",
    "close",
    "syn_sent",
];

/// Settings of the network namespace of the thread that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Packets and bytes of connections are counted.
    pub acct: bool,
    /// The most connections of the machine.
    pub max: u32,
    /// Of established TCP connections, in seconds.
    pub tcp_timeout_established_s: u32,
    /// Of UDP connections that have just begun, or were answered by nobody, in seconds.
    pub udp_timeout_s: u32,
    /// Of UDP connections with packets in both directions, over more than two seconds, in seconds.
    pub udp_timeout_stream_s: u32,
    /// 1: windows of no TCP connection are compared, but for RST packets.
    pub tcp_be_liberal: bool,
}

impl Settings {
    /// Reads all.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the kernel has no conntrack, or has not loaded it.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new(DIRECTORY))
    }

    /// How long Linux keeps a TCP connection in a state (`enum tcp_conntrack`) without packets, in seconds.
    ///
    /// # Errors
    /// If it cannot be read, or there is no such state.
    pub fn tcp_timeout_s(state: u8) -> io::Result<u32> {
        let name = TCP_STATES.get(usize::from(state)).ok_or(io::ErrorKind::InvalidInput)?;
        number(Path::new(DIRECTORY), &format!("nf_conntrack_tcp_timeout_{name}"))
    }

    fn read_from(directory: &Path) -> io::Result<Self> {
        let flag = |name| Ok::<_, io::Error>(number::<u32>(directory, name)? != 0);
        Ok(Self {
            acct: flag("nf_conntrack_acct")?,
            max: number(directory, "nf_conntrack_max")?,
            tcp_timeout_established_s: number(directory, "nf_conntrack_tcp_timeout_established")?,
            udp_timeout_s: number(directory, "nf_conntrack_udp_timeout")?,
            udp_timeout_stream_s: number(directory, "nf_conntrack_udp_timeout_stream")?,
            tcp_be_liberal: flag("nf_conntrack_tcp_be_liberal")?,
        })
    }
}

/// The number in a file.
fn number<T: FromStr>(directory: &Path, name: &str) -> io::Result<T> {
    let path = directory.join(name);
    let wrap = |kind, why: &str| io::Error::new(kind, format!("cannot read {}: {why}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| wrap(error.kind(), &error.to_string()))?;
    text.trim().parse().map_err(|_| wrap(io::ErrorKind::InvalidData, &format!("{text:?} is no number")))
}
