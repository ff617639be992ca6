//! Which core does what, and how a thread is pinned to its core.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A core for each part of a measurement. With few cores some parts share one, but never router and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The generator's.
    pub source: usize,
    /// The router's: none of our other threads run there.
    pub router: usize,
    /// The sink's, if it has one to itself; otherwise its work runs on the router's core, as on a single machine.
    pub sink: Option<usize>,
    /// For everything that is not measured.
    pub spare: usize,
}

impl Cores {
    /// Assigns the cores that this process may use; `None` with fewer than two.
    pub fn deal() -> Option<Self> {
        Self::assign(&allowed())
    }

    fn assign(cores: &[usize]) -> Option<Self> {
        let (&source, &router) = (cores.first()?, cores.get(1)?);
        let sink = cores.get(2).copied();
        Some(Self { source, router, sink, spare: cores.get(3).copied().unwrap_or(source) })
    }
}

/// The cores that this process may use.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Pins a thread to a core; 0 is the calling thread.
pub fn pin(thread: libc::pid_t, core: usize) -> io::Result<()> {
    assert!(core < CpuSet::MAX_CPU, "cores are dealt from a set of this size");
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(Pid::from_raw(thread), &set)?)
}

/// Gives a thread real-time priority (SCHED_FIFO), or the normal one if 0; thread 0 is the caller.
pub fn prioritise(thread: libc::pid_t, priority: i32) -> io::Result<()> {
    let policy = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel only reads the parameter.
    match unsafe { libc::sched_setscheduler(thread, policy, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPU time that a thread has used in nanoseconds, or 0 if it has ended.
pub fn core_ns(thread: libc::pid_t) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_and_source_never_share() {
        assert_eq!(Cores::assign(&[3]), None);
        assert_eq!(Cores::assign(&[0, 1]), Some(Cores { source: 0, router: 1, sink: None, spare: 0 }));
        assert_eq!(Cores::assign(&[0, 1, 2]), Some(Cores { source: 0, router: 1, sink: Some(2), spare: 0 }));
        assert_eq!(Cores::assign(&[2, 4, 6, 8]).map(|cores| cores.spare), Some(8));
    }

    #[test]
    fn a_thread_moves_to_its_core() {
        let core = allowed()[0];
        std::thread::spawn(move || {
            pin(0, core).unwrap();
            assert_eq!(rustix::thread::sched_getcpu(), core);
        })
        .join()
        .unwrap();
    }
}
