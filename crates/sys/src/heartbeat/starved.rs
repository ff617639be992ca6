//! How long a silent thread has waited for a core, according to the kernel: a thread on an overloaded machine does not
//! hang.

use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum waiting time that is excused: a thread that gets no core for longer counts as hung.
const EXCUSED_MAX: Duration = Duration::from_secs(2);

/// How long one thread has waited for a core since it fell silent.
#[derive(Clone, Copy, Default)]
pub(crate) struct CoreWait {
    /// Time of the last check, and the run time of the thread by then, in nanoseconds.
    last: Option<(Instant, u64)>,
    waited: Duration,
}

impl CoreWait {
    /// How long the thread has waited for a core, up to `now`.
    pub fn until(&mut self, now: Instant, task: &Path) -> Duration {
        let Some(ran) = ran(task).filter(|_| is_runnable(task)) else {
            self.last = None;
            return self.waited;
        };
        if let Some((then, before)) = self.last
            && before == ran
        {
            self.waited += now.saturating_duration_since(then);
        }
        self.last = Some((now, ran));
        self.waited.min(EXCUSED_MAX)
    }
}

/// Run time of a thread in nanoseconds.
fn ran(task: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Whether the thread is running or runnable.
fn is_runnable(task: &Path) -> bool {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
}
