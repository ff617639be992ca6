//! Drops privileges once the daemon has its configuration, its sockets and a bpffs.

use std::path::Path;

use bm_bpf::Bpffs;
use bm_control::config::{Config, Device};
use bm_privilege::{Calls, kept_by_daemon, needs_files_of_others};

/// Drops privileges. Returns a note for `status` if they are kept.
pub fn confine(config: &Config, file: Option<&Path>) -> Option<String> {
    if !config.daemon.sandbox {
        return Some("sandbox = \"off\": the daemon keeps all privileges that it was started with".into());
    }
    // Even if only workers forward now: `brickmoon reload` may add a switch later, and cannot mount a bpffs then.
    if let Err(error) = Bpffs::keep_open() {
        // Users of the bpffs report this again and work without it.
        tracing::debug!("{error}");
    }
    let raw_io = config.ports.iter().any(|port| matches!(port.device, Device::Dpdk(_)));
    let kept = kept_by_daemon(raw_io, needs_files_of_others(file, &config.daemon.socket));
    let why = bm_privilege::confine(kept, Calls::Daemon { raw_io }).err()?;
    let note = format!("the daemon could not drop all privileges that it does not need: {why}");
    tracing::warn!("{note}");
    Some(note)
}
