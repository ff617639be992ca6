//! Which core does what, and how a thread is pinned to its core.

use std::io;
use std::mem::MaybeUninit;

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
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the given size, which is that of `set`; zeroes are a valid set
    // if it fails.
    let set = unsafe {
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: every index is below CPU_SETSIZE, the number of bits in the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Pins a thread to a core; 0 is the calling thread.
pub fn pin(thread: libc::pid_t, core: usize) -> io::Result<()> {
    // SAFETY: all zeroes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    assert!(core < libc::CPU_SETSIZE as usize, "cores are dealt from a set of this size");
    // SAFETY: the core was just checked to be one of the set's bits; the kernel only reads the set.
    let result = unsafe {
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
            // SAFETY: takes nothing, touches nothing.
            assert_eq!(unsafe { libc::sched_getcpu() }, core as i32);
        })
        .join()
        .unwrap();
    }
}
