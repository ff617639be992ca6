//! How long a silent thread has waited for a core, as far as the kernel tells: a machine with more to do than its cores
//! can is no reason to say that a thread hangs.

use std::path::Path;
use std::time::{Duration, Instant};

/// No more than this is excused: whoever gets no core for so long is as good as hung.
const EXCUSED_MAX: Duration = Duration::from_secs(2);

/// What was seen of one thread since it fell silent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waited {
    /// When it was looked at last, and how long it had run by then, in nanoseconds.
    last: Option<(Instant, u64)>,
    waited: Duration,
}

impl Waited {
    /// How long it has waited for a core up to `now`, between the looks.
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

/// How long a thread has run, in nanoseconds.
fn ran(task: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Whether it runs or waits for a core, and for nothing else.
fn is_runnable(task: &Path) -> bool {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
}
