//! Raises limits of the process at its start, and drops privileges once the daemon has its configuration, its sockets and a bpffs.

use std::path::Path;

use bm_bpf::Bpffs;
use bm_control::config::{Config, Device};
use bm_privilege::{Calls, kept_by_daemon, needs_files_of_others};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of file descriptors that is enough for every configuration.
const DESCRIPTORS: u64 = 1 << 16;

/// Raises the limit on open files to [`DESCRIPTORS`], or as far as permitted.
pub fn raise_limits() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= DESCRIPTORS) {
        return;
    }
    let wanted = Some(DESCRIPTORS);
    let all = Rlimit { current: wanted, maximum: maximum.max(wanted).filter(|_| maximum.is_some()) };
    let allowed = Rlimit { current: maximum.map_or(wanted, |most| Some(most.min(DESCRIPTORS))), maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all).or_else(|_| setrlimit(Resource::Nofile, allowed)) {
        tracing::warn!(?current, "cannot raise the limit on open files: {error}");
    }
}

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
