//! How the kernel's scheduler treats a thread: real-time priority, nice value.

use std::io;

/// Sets the scheduling of a thread, 0 for the calling one: SCHED_FIFO for a priority of 1 or more, SCHED_OTHER for 0.
/// Threads and processes that it starts do not inherit it.
///
/// # Errors
/// What the system said: without CAP_SYS_NICE, or in a control group without real-time budget, EPERM.
pub fn set_real_time(thread: libc::pid_t, priority: u8) -> io::Result<()> {
    let class = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    let parameter = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: the kernel reads the parameter, which outlives the call, and writes nothing of ours.
    match unsafe { libc::sched_setscheduler(thread, class | libc::SCHED_RESET_ON_FORK, &raw const parameter) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Nice value of the threads that decide whether packets are forwarded: those that keep tables equal to Linux's,
/// follow its firewall, and deliver packets to Linux. On a busy machine they must not wait long for their turn,
/// because until then packets go to Linux, or are handled with outdated rules. Each of them pauses often, so others
/// are not delayed for long.
pub const URGENT: i8 = -10;

/// Sets the nice value of the calling thread, from -20 (highest priority) to 19, as `nice` does for processes.
/// Threads that it starts inherit it.
///
/// # Errors
/// What the system said: without CAP_SYS_NICE a lower value than before is refused with EACCES.
pub fn set_nice(value: i8) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, value.into())?)
}
