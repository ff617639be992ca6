//! Logging to standard error; the level is set by the number of `-v` options or by `RUST_LOG`.
//!
//! ```text
//! any thread ── a line ──► buffer (bounded) ── bm-log ──► standard error
//! ```
//!
//! A thread that logs never waits: standard error may be a pipe that nobody reads. Lines that do not fit into the
//! buffer are lost and counted, and the log reports their number as soon as it can be written again.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// Size limit of the buffer, in bytes.
const BUFFER_MAX: usize = 1 << 20;
/// How long the process waits at its end for the buffer to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

static LOG: Log = Log::new();

/// Starts logging. Lines carry a time only on a terminal; elsewhere systemd, say, adds one.
pub fn start(verbose: u8) {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("(unnamed)");
        let trace = std::backtrace::Backtrace::capture();
        LOG.push(format!("thread {name}: {panic}\n{trace}\n").as_bytes());
        // The panic may end the process.
        LOG.release();
    }));
    let terminal = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(|| Line).with_ansi(terminal).with_target(verbose > 1);
    let log = registry().with(levels(verbose));
    if terminal { log.with(lines).init() } else { log.with(lines.without_time()).init() }
}

/// The levels that are logged: as `RUST_LOG` says (`debug`, or `warn,bm_control=trace`), or by how often `-v` was given.
fn levels(verbose: u8) -> Targets {
    let chosen = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    chosen.unwrap_or_else(|| {
        Targets::new().with_default(match verbose {
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    })
}

/// Logs a line at any level, such as why a command failed.
pub fn say(line: &str) {
    LOG.push(format!("{line}\n").as_bytes());
}

/// Keeps lines in the buffer until [`release`], so that logging does not start a thread.
pub fn hold() {
    LOG.held.store(true, Ordering::Relaxed);
}

/// Writes the buffered lines, and from now on each line at once.
pub fn release() {
    LOG.release();
}

/// Waits until everything is written, for at most a second; to be called before the process ends.
pub fn flush() {
    LOG.release();
    LOG.flush(FLUSH_MAX);
}

/// Number of lines lost since the process started.
pub fn lost() -> u64 {
    LOG.lost.load(Ordering::Relaxed)
}

/// Writes one event into the buffer.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct LogBuffer {
    bytes: Vec<u8>,
    /// Lost lines that the log has not reported yet.
    lost: u64,
    /// Bytes that have left `bytes` are being written.
    writing: bool,
}

struct Log {
    waiting: Mutex<LogBuffer>,
    changed: Condvar,
    lost: AtomicU64,
    /// Lines stay in the buffer until another thread may be started.
    held: AtomicBool,
    /// Whether there is a thread that writes; the first line starts it.
    writes: OnceLock<bool>,
}

impl Log {
    const fn new() -> Self {
        let waiting = LogBuffer { bytes: Vec::new(), lost: 0, writing: false };
        Self {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            held: AtomicBool::new(false),
            writes: OnceLock::new(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, LogBuffer> {
        // The data are consistent even if a thread panicked while it held the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&'static self, line: &[u8]) {
        let writes = self.held.load(Ordering::Relaxed) || self.is_written();
        let mut waiting = self.waiting();
        if !writes || !waiting.take(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Whether there is a thread that writes; starts it if necessary.
    fn is_written(&'static self) -> bool {
        *self.writes.get_or_init(|| {
            let thread = std::thread::Builder::new().name("bm-log".into());
            thread.spawn(move || self.writer_loop(&mut std::io::stderr())).is_ok()
        })
    }

    fn release(&'static self) {
        self.held.store(false, Ordering::Relaxed);
        let waits = !self.waiting().bytes.is_empty();
        if waits && !self.is_written() {
            let lines =
                std::mem::take(&mut self.waiting().bytes).iter().filter(|&&byte| byte == b'\n').count();
            self.lost.fetch_add(lines as u64, Ordering::Relaxed);
        }
    }

    fn writer_loop(&self, to: &mut impl Write) {
        loop {
            let mut waiting = self.waiting();
            while waiting.bytes.is_empty() {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            let bytes = waiting.begin();
            drop(waiting);
            // The reader may be gone; there is nowhere to report that.
            let _gone = to.write_all(&bytes);
            self.waiting().writing = false;
            self.changed.notify_all();
        }
    }

    fn flush(&self, longest: Duration) {
        let begin = Instant::now();
        let mut waiting = self.waiting();
        while !waiting.bytes.is_empty() || waiting.writing {
            let left = longest.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl LogBuffer {
    /// Adds a line if there is room.
    fn take(&mut self, line: &[u8]) -> bool {
        // After a loss only once everything before it has been written: the log shows where lines are missing.
        let fits = self.lost == 0 && self.bytes.len() + line.len() <= BUFFER_MAX;
        if fits {
            self.bytes.extend_from_slice(line);
        } else {
            self.lost += 1;
        }
        fits
    }

    /// Takes the bytes to be written now.
    fn begin(&mut self) -> Vec<u8> {
        self.writing = true;
        let mut bytes = std::mem::take(&mut self.bytes);
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            bytes.extend_from_slice(
                format!("{lost} log lines are missing here: standard error was not read fast enough\n")
                    .as_bytes(),
            );
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lines_are_counted_and_reported_in_place() {
        let mut waiting = LogBuffer::default();
        let line = [b'x'; 1023];
        let line = [&line[..], b"\n"].concat();
        let taken = (0..2000).filter(|_| waiting.take(&line)).count();
        assert_eq!(taken, BUFFER_MAX / 1024);
        assert!(!waiting.take(b"short\n"), "it would stand before those that are missing");
        let output = String::from_utf8(waiting.begin()).unwrap();
        assert_eq!(output.lines().count(), taken + 1);
        assert!(output.ends_with(&format!(
            "\n{} log lines are missing here: standard error was not read fast enough\n",
            2001 - taken
        )));
        assert!(waiting.take(b"again\n"), "there is room again");
        assert_eq!(waiting.begin(), b"again\n");
    }
}
