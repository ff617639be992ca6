//! Tells systemd how the daemon is (sd_notify), where it asks to be told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Says `state`, such as `READY=1`. Does nothing where nobody listens.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // Whoever does not read has no right to keep us waiting.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        tracing::warn!("systemd was not told {state}: {error}");
    }
}

/// How often systemd wants to hear `WATCHDOG=1`: twice in the time that it waits. None where it does not.
pub fn watchdog() -> Option<Duration> {
    let of = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = of("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
    of("WATCHDOG_USEC").filter(|wait| is_ours && *wait > 0).map(|wait| Duration::from_micros(wait / 2))
}
