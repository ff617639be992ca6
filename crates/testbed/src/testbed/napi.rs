//! The kernel threads that poll an interface, pinned to a core.
//!
//! A veth interface is polled on whichever core last sent to it, so the router would run on the generator's core.
//! If threads poll it, the router has its own core, and the CPU time of that core can be read.

use std::collections::HashSet;

use super::namespace::Namespace;
use super::{TestbedError, cores};

/// Real-time priority of polling, for Linux and brickmoon alike: without it a polling thread waits for the
/// tick whenever another thread wants its core.
pub const POLLING_PRIORITY: i32 = 50;

/// The polling threads of one interface. When this is dropped, the interface is polled wherever frames are sent again.
pub struct Napi<'a> {
    namespace: &'a Namespace,
    interface: String,
    /// Threads of other interfaces of the same name, in other namespaces.
    others: HashSet<libc::pid_t>,
}

impl<'a> Napi<'a> {
    /// Moves the polling of an interface to threads.
    pub fn threaded(namespace: &'a Namespace, interface: &str) -> Result<Self, TestbedError> {
        let napi = Self { namespace, interface: interface.into(), others: named(interface).collect() };
        napi.write("threaded", "1")?;
        Ok(napi)
    }

    /// Pins the threads to a core. An interface gets new threads each time an XDP program is attached or detached, so
    /// this must be called again then.
    pub fn pin(&self, core: usize, priority: i32) -> Result<(), TestbedError> {
        for thread in self.threads() {
            // A thread may end after it was found; then it needs no core.
            if let Err(error) = cores::pin(thread, core).and_then(|()| cores::prioritise(thread, priority))
                && error.raw_os_error() != Some(libc::ESRCH)
            {
                let what = format!("bind the polling thread of {}", self.interface);
                return Err(TestbedError::System { what, error });
            }
        }
        Ok(())
    }

    /// The current threads.
    pub fn threads(&self) -> Vec<libc::pid_t> {
        named(&self.interface).filter(|thread| !self.others.contains(thread)).collect()
    }

    /// CPU time that the threads have used, in nanoseconds.
    pub fn core_ns(&self) -> u64 {
        self.threads().into_iter().map(cores::core_ns).sum()
    }

    /// Writes one of the interface's files below /sys/class/net.
    fn write(&self, file: &str, value: &str) -> Result<(), TestbedError> {
        let line = format!("echo {value} > /sys/class/net/{}/{file}", self.interface);
        self.namespace.run(&["sh", "-c", &line]).map(|_| ())
    }
}

impl Drop for Napi<'_> {
    fn drop(&mut self) {
        // If the namespace is gone, so are the threads.
        let _ = self.write("threaded", "0");
    }
}

/// Whether kernel threads are visible here: not in a PID namespace of its own, such as that of a container.
pub fn kernel_threads_are_seen() -> bool {
    std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n")
}

/// Threads that poll an interface of this name in any namespace: kernel threads called `napi/NAME-NUMBER`.
fn named(interface: &str) -> impl Iterator<Item = libc::pid_t> {
    let begin = format!("napi/{interface}-");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |entry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with(&begin).then_some(thread)
    })
}
