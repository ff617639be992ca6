//! Processes that keep cores busy, as other programs on a router do.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal, setpriority_process, setsid};

use super::{TestbedError, cores};

/// Their niceness: `nice -n 5`.
const NICE: i32 = 5;

/// One busy process for each core; they are ended when this is dropped.
pub struct Busy(Vec<Child>);

impl Busy {
    /// Starts one process for each core that this process may use, each pinned to its core.
    ///
    /// # Errors
    /// [`TestbedError::System`] if a process cannot be started.
    pub fn on_all_cores() -> Result<Self, TestbedError> {
        let mut busy = Self(Vec::new());
        for core in cores::allowed() {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            // SAFETY: runs between fork and exec and makes system calls only, which allocate nothing.
            unsafe { command.pre_exec(move || settle(core)) };
            let child = command.spawn().map_err(TestbedError::system("start a busy process"))?;
            busy.0.push(child);
        }
        Ok(busy)
    }

    /// Number of processes.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if the process has already ended, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Puts the calling process into its own session, like programs started elsewhere, since the scheduler may treat a
/// session as a group; pins it, lowers its priority, and makes it end with this process.
fn settle(core: usize) -> io::Result<()> {
    cores::pin(0, core)?;
    setsid()?;
    setpriority_process(None, NICE)?;
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_each_core_busy_until_dropped() {
        let busy = Busy::on_all_cores().unwrap();
        let processes: Vec<_> = busy.0.iter().map(Child::id).collect();
        assert_eq!(processes.len(), cores::allowed().len());
        assert_eq!(busy.count(), processes.len());
        let nice = |process: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().to_owned()
        };
        assert!(processes.iter().all(|&process| nice(process) == "5"));
        drop(busy);
        assert!(!processes.iter().any(|process| std::path::Path::new(&format!("/proc/{process}")).exists()));
    }
}
