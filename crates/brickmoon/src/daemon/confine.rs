//! What the daemon gives up once it has its configuration, its sockets and a bpffs.

use std::path::Path;

use bm_bpf::Bpffs;
use bm_control::config::{Config, Device};
use bm_privilege::{Calls, kept_by_daemon, needs_files_of_others};

/// Drops privileges. Says what `status` tells where they are kept.
pub fn confine(config: &Config, file: Option<&Path>) -> Option<String> {
    if !config.daemon.sandbox {
        return Some("sandbox = \"off\": the daemon keeps all privileges that it was started with".into());
    }
    // Even if only workers forward now: `brickmoon reload` may add a switch, and cannot mount one for its pins then.
    if let Err(error) = Bpffs::keep_open() {
        // Whoever needs one says so once more, and goes on without.
        tracing::debug!("{error}");
    }
    let raw_io = config.ports.iter().any(|port| matches!(port.device, Device::Dpdk(_)));
    let kept = kept_by_daemon(raw_io, needs_files_of_others(file, &config.daemon.socket));
    let why = bm_privilege::confine(kept, Calls::Daemon { raw_io }).err()?;
    let note = format!("the daemon could not drop all privileges that it does not need: {why}");
    tracing::warn!("{note}");
    Some(note)
}
