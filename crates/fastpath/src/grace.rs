//! When programs in the kernel no longer use old data: an RCU grace period, for which a separate thread waits.
//!
//! A program runs in an RCU read-side critical section, so data that became unreachable before a grace period is not
//! used by any program when it ends. `membarrier(2)` waits for one, which takes about 10 ms of sleep.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_fib::published::{Epoch, ReaderHandle, Readers};
use rustix::thread::{MembarrierCommand, membarrier};

/// Waits until all programs that run now have ended.
pub(crate) fn wait() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::Global)?)
}

/// Acts as one reader on behalf of all programs.
pub struct Grace {
    readers: Readers,
    asked: Option<Sender<Epoch>>,
    thread: Option<JoinHandle<()>>,
}

impl Grace {
    /// Registers with the readers of the tables that programs read.
    ///
    /// # Errors
    /// If the kernel has no membarrier, or no thread can be started.
    pub fn start(readers: &Readers) -> io::Result<Self> {
        wait()?;
        let (asked, asks) = channel();
        let reader = readers.register();
        let thread = std::thread::Builder::new().name("bm-grace".into()).spawn(move || run(reader, &asks))?;
        Ok(Self { readers: readers.clone(), asked: Some(asked), thread: Some(thread) })
    }

    /// To be called when what has been retired so far is unreachable for programs: its memory is freed one grace
    /// period from now. What is retired later may still be reachable, and waits for another call.
    pub fn ask(&self) {
        if let Some(asked) = &self.asked {
            // The thread lives as long as this value.
            let _ended = asked.send(self.readers.epoch());
        }
    }
}

/// The longest time that one grace period may take.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Waits for the next request, which may take long.
fn next(asks: &Receiver<Epoch>) -> Option<Epoch> {
    bm_sys::heartbeat::rest();
    let epoch = asks.recv().ok();
    bm_sys::heartbeat::beat();
    epoch
}

fn run(mut reader: ReaderHandle, asks: &Receiver<Epoch>) {
    let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
    while let Some(first) = next(asks) {
        // Requests that arrive meanwhile are served by the same grace period.
        let epoch = asks.try_iter().last().unwrap_or(first);
        if wait().is_ok() {
            reader.quiescent_at(epoch);
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_fib::published::Retired;
    use std::time::Instant;

    #[test]
    fn retired_memory_is_freed_after_the_grace_period() {
        let readers = Readers::new();
        let grace = Grace::start(&readers).unwrap();
        let mut retired = Retired::new(&readers);
        retired.push(7);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(retired.take_passed().count(), 0, "nobody has asked");
        grace.ask();
        retired.push(8);
        let until = Instant::now() + Duration::from_secs(5);
        let mut free = Vec::new();
        while free.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            free = retired.take_passed().collect();
        }
        assert_eq!(free, [7], "nobody has asked for what was retired later");
        grace.ask();
        while free.len() < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            free.extend(retired.take_passed());
        }
        assert_eq!(free, [7, 8]);
    }
}
