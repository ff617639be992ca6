//! Reports the state of the daemon to systemd (sd_notify) if systemd asked for it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends `state`, such as `READY=1`. Does nothing without systemd.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not block the daemon.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        tracing::warn!("cannot send {state} to systemd: {error}");
    }
}

/// Interval for sending `WATCHDOG=1`, half of systemd's timeout; `None` if the watchdog is off.
pub fn watchdog() -> Option<Duration> {
    if number("WATCHDOG_PID").is_some_and(|process| process != u64::from(std::process::id())) {
        return None;
    }
    let wait = number("WATCHDOG_USEC").filter(|wait| *wait > 0)?;
    Some(Duration::from_micros(wait / 2))
}

/// The number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
