//! Measures what a hook takes, and whether that is too much for too long.
//!
//! ```text
//! window after window:  processor's clock over all calls ── above the budget? ──► thread's clock over some calls
//! ```
//!
//! The processor's clock also runs while another thread has the core, so what it says is never less than what the hook
//! took: as long as that is a small share of a core, or little for each frame, nothing needs to be known more exactly. Otherwise some calls of
//! the next window are measured in CPU time of the thread, which costs a system call. A hook is over its budget if
//! both its share of a core and its cost per frame are too high: where there is little to do, neither cold caches nor
//! other processes matter, and where there is much to do, a cheap hook may take what it needs.

use std::time::{Duration, Instant};

/// The length of a window in ticks of the processor's clock: about a tenth of a second.
const WINDOW: u64 = 1 << 28;
/// The first calls of a window are all measured in CPU time, then one in so many. A prime, since hooks of several stages
/// are called in turn.
const SAMPLED: u64 = 7;
/// How many calls count as the first: where calls are so few, they are long, and differ.
const FIRST: u64 = 64;

/// The processor's clock; nanoseconds where there is none to read.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor that we run on has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// What this thread has taken so far.
#[derive(Clone, Copy)]
struct ThreadTime {
    ns: u64,
    /// How often it has slept.
    sleeps: i64,
    at: Instant,
}

impl ThreadTime {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        // SAFETY: all zeros is a value of the struct, and the call writes nothing else.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            usage
        };
        let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        Self { ns, sleeps: usage.ru_nvcsw, at: Instant::now() }
    }

    /// Nanoseconds of the core since `before`: while a hook sleeps, its worker does nothing else either.
    fn since(self, before: Self) -> u64 {
        if self.sleeps == before.sleeps {
            self.ns.saturating_sub(before.ns)
        } else {
            self.at.duration_since(before.at).as_nanos() as u64
        }
    }
}

/// What a hook may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Ticks of the processor's clock for each frame, in CPU time; 0 for no limit.
    pub cycles: u64,
    /// The share of a core below which that does not matter.
    pub percent: u64,
    /// For how long it may take more.
    pub patience: Duration,
}

/// What a hook took that is over its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Of a core; at most 100.
    pub percent: u64,
    /// Of each frame.
    pub cycles: u64,
}

/// What the calls of a window took.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    calls: u64,
    frames: u64,
    cycles: u64,
    sampled_calls: u64,
    sampled_frames: u64,
    sampled_ns: u64,
}

/// How long a window lasted, by both clocks.
#[derive(Clone, Copy)]
struct Lasted {
    cycles: u64,
    ns: u64,
}

/// Measures one hook on one thread.
pub struct Meter {
    budget: Budget,
    window: Window,
    /// When it began.
    start: u64,
    start_at: Instant,
    /// The last window was suspicious.
    samples: bool,
    over_since: Option<Instant>,
}

/// A call that began.
#[derive(Clone, Copy)]
pub struct Begun {
    cycles: u64,
    taken: Option<ThreadTime>,
}

impl Meter {
    pub fn new(budget: Budget) -> Self {
        let (start, start_at) = (cycles(), Instant::now());
        Self { budget, window: Window::default(), start, start_at, samples: false, over_since: None }
    }

    /// Before a call.
    #[inline]
    pub fn begin(&self) -> Begun {
        let taken = if self.samples { self.sample() } else { None };
        Begun { cycles: cycles(), taken }
    }

    #[cold]
    fn sample(&self) -> Option<ThreadTime> {
        let Window { calls, sampled_calls, .. } = self.window;
        (sampled_calls < FIRST || calls.is_multiple_of(SAMPLED)).then(ThreadTime::now)
    }

    /// After a call for so many frames: what it took by the processor's clock, and the excess if it has lasted too
    /// long.
    #[inline]
    pub fn end(&mut self, begun: Begun, frames: u64) -> (u64, Option<Excess>) {
        let now = cycles();
        let took = now.wrapping_sub(begun.cycles);
        if let Some(before) = begun.taken {
            self.window.sampled_ns += ThreadTime::now().since(before);
            self.window.sampled_calls += 1;
            self.window.sampled_frames += frames;
        }
        self.window.calls += 1;
        self.window.frames += frames;
        self.window.cycles += took;
        let lasted = now.wrapping_sub(self.start);
        (took, if lasted < WINDOW { None } else { self.close(now, lasted) })
    }

    #[cold]
    fn close(&mut self, now: u64, lasted: u64) -> Option<Excess> {
        let (window, at) = (std::mem::take(&mut self.window), Instant::now());
        let ns = at.duration_since(self.start_at).as_nanos() as u64;
        (self.start, self.start_at) = (now, at);
        self.judge(&window, Lasted { cycles: lasted, ns }, at)
    }

    fn judge(&mut self, window: &Window, lasted: Lasted, now: Instant) -> Option<Excess> {
        let Budget { cycles, percent, patience } = self.budget;
        let suspicious = cycles > 0
            && window.cycles / window.frames.max(1) > cycles
            && window.cycles.saturating_mul(100) / lasted.cycles.max(1) > percent;
        let sampled = std::mem::replace(&mut self.samples, suspicious);
        if !self.samples {
            self.over_since = None;
            return None;
        }
        let excess = excess(window, lasted).filter(|_| sampled)?;
        if excess.percent <= percent || excess.cycles <= cycles {
            self.over_since = None;
            return None;
        }
        let since = *self.over_since.get_or_insert(now);
        (now.duration_since(since) >= patience).then_some(excess)
    }
}

/// What a window's sampled calls say about all of them.
fn excess(window: &Window, lasted: Lasted) -> Option<Excess> {
    let Window { calls, sampled_calls, sampled_frames, sampled_ns, .. } = *window;
    let all_ns = u128::from(sampled_ns) * u128::from(calls) / u128::from(sampled_calls.max(1));
    let percent = all_ns * 100 / u128::from(lasted.ns.max(1));
    let ticks = u128::from(sampled_ns) * u128::from(lasted.cycles) / u128::from(lasted.ns.max(1));
    let each = ticks / u128::from(sampled_frames.max(1));
    // What is measured contains the two readings of the clocks, so it may add up to more than there was.
    (sampled_calls > 0).then_some(Excess { percent: percent.min(100) as u64, cycles: each as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of a processor with 2.5 GHz.
    const SECOND: Lasted = Lasted { cycles: 2_500_000_000, ns: 1_000_000_000 };

    fn meter(cycles: u64) -> Meter {
        Meter::new(Budget { cycles, percent: 25, patience: Duration::from_secs(2) })
    }

    /// A second with `frames` calls for one frame each, which took `ns` of CPU time and `slept` times as long by the
    /// processor's clock.
    fn second(frames: u64, ns: u64, slept: u64) -> Window {
        Window {
            calls: frames,
            frames,
            cycles: frames * ns * slept * 5 / 2,
            sampled_calls: frames / SAMPLED,
            sampled_frames: frames / SAMPLED,
            sampled_ns: frames / SAMPLED * ns,
        }
    }

    #[test]
    fn only_lasting_excess_is_over_budget() {
        let (start, mut meter) = (Instant::now(), meter(5000));
        // 30 % of a core, 7,500 cycles a frame.
        let dear = second(100_000, 3000, 1);
        let mut judge = |window: &Window, s: u64| meter.judge(window, SECOND, start + Duration::from_secs(s));
        assert_eq!(judge(&dear, 0), None, "nothing was sampled yet");
        assert_eq!((judge(&dear, 1), judge(&dear, 2)), (None, None));
        assert_eq!(judge(&second(10_000, 3000, 1), 3), None, "little load");
        let verdicts = [4, 5, 6, 7].map(|s| judge(&dear, s));
        assert_eq!(verdicts, [None, None, None, Some(Excess { percent: 30, cycles: 7500 })]);
    }

    #[test]
    fn light_traffic_cheap_hooks_and_other_processes_are_not_held_against_a_hook() {
        let mut free = meter(0);
        let mut meter = meter(5000);
        // 50 packets a second; a cheap hook at full load; half of a core, but by other threads' doing.
        for window in [second(50, 9000, 2), second(700_000, 1000, 1), second(40_000, 3000, 5)] {
            assert!((0..9).all(|_| meter.judge(&window, SECOND, Instant::now()).is_none()), "{window:?}");
        }
        assert!(!cheap_is_measured(), "the thread's clock takes longer than such a hook");
        assert!((0..9).all(|_| free.judge(&second(100_000, 9000, 1), SECOND, Instant::now()).is_none()));
    }

    /// Whether a cheap hook that takes a whole core is measured in CPU time.
    fn cheap_is_measured() -> bool {
        let mut meter = meter(5000);
        _ = meter.judge(&second(2_000_000, 500, 1), SECOND, Instant::now());
        meter.samples
    }

    /// What calls of `work` for ten frames each are found to take.
    fn found(work: impl Fn()) -> Excess {
        let budget = Budget { cycles: 100, percent: 25, patience: Duration::ZERO };
        let (mut meter, begin) = (Meter::new(budget), Instant::now());
        loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "it must be found");
            let begun = meter.begin();
            work();
            if let (_, Some(excess)) = meter.end(begun, 10) {
                return excess;
            }
        }
    }

    #[test]
    fn a_loop_is_measured_in_cpu_time_and_a_sleep_by_the_clock() {
        let busy = found(|| {
            let before = ThreadTime::now().ns;
            while ThreadTime::now().ns - before < 100_000 {}
        });
        let sleeps = found(|| std::thread::sleep(Duration::from_millis(1)));
        // 10 us and 100 us for each frame, on a processor of 1 to 6 GHz.
        assert!((10_000..90_000).contains(&busy.cycles) && (26..=100).contains(&busy.percent), "{busy:?}");
        assert!(sleeps.cycles >= 100_000 && (26..=100).contains(&sleeps.percent), "{sleeps:?}");
    }
}
