//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of file descriptors that is enough for every configuration.
const DESCRIPTORS: u64 = 1 << 16;

/// Raises the limit on open files to [`DESCRIPTORS`], or as far as permitted.
pub fn raise() {
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
