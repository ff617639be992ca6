//! What the system lets the daemon have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are enough for everything.
const DESCRIPTORS: u64 = 1 << 16;

/// Raises the number of descriptors that the process may have: to what is enough, or as far as it may.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= DESCRIPTORS) {
        return;
    }
    let wanted = Some(DESCRIPTORS);
    let all = Rlimit { current: wanted, maximum: maximum.max(wanted).filter(|_| maximum.is_some()) };
    let allowed = Rlimit { current: maximum.map_or(wanted, |most| Some(most.min(DESCRIPTORS))), maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all).or_else(|_| setrlimit(Resource::Nofile, allowed)) {
        tracing::warn!(?current, "the number of descriptors cannot be raised: {error}");
    }
}
