//! What is logged: to standard error, by how often `-v` was given, or as `RUST_LOG` says.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. A line has its time only where nobody else (systemd, say) adds one.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let terminal = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    let log = log.with_target(verbose > 1);
    if terminal { log.init() } else { log.without_time().init() }
}
