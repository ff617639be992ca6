//! The process that watches over the kernel path's tables when the daemon has ended: started and looked after here.
//!
//! Without it nobody would notice a change in Linux, so then nothing of the kernel path stays pinned: it ends with the
//! daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bm_control::driver::Handle;
use bm_control::watcher::{self, Ended};
use bm_graph::Waker;
use bm_privilege::Calls;
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// The command that it is (`args::Command::WatchTables`).
const COMMAND: &str = "watch-tables";
/// With the value `off` there is none, for tests of what happens then.
const SWITCH: &str = "BRICKMOON_WATCHER";

/// The process, as the daemon has it.
pub struct Watcher {
    child: Child,
    /// It ends with us, which is what the process waits for.
    _stream: UnixStream,
}

/// Who watches over the tables.
pub enum Watch {
    /// Nobody, since nothing outlives the daemon.
    NotNeeded,
    /// A process.
    By(Watcher),
    /// Nobody, since it could not be started, so nothing outlives the daemon.
    Nobody {
        /// Why, as a note of `status`.
        note: String,
    },
}

impl Watcher {
    fn start(handle: &Handle, grace: Duration) -> io::Result<Self> {
        // As this process is: what it has given up, a child of it does not have.
        let confined = rustix::thread::no_new_privs().unwrap_or(false).then_some("--confined");
        if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
            return Err(io::Error::other(format!("{SWITCH}=off is in the environment")));
        }
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("brickmoon")
            .args([COMMAND, "--grace-ms", &grace.as_millis().to_string()])
            .args(confined);
        // Not a pipe of ours: whoever reads that to its end waits for the daemon, and not for this process.
        let errors = if is_pipe(&io::stderr()) { Stdio::null() } else { Stdio::inherit() };
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(errors);
        let mut child = command.current_dir("/").spawn()?;
        // With the command goes our copy of the other end.
        drop(command);
        let given = stream.try_clone().and_then(|stream| handle.watch_over(stream).map_err(io::Error::other));
        if let Err(error) = given {
            let _ended = child.kill();
            let _reaped = child.wait();
            return Err(error);
        }
        Ok(Self { child, _stream: stream })
    }
}

fn is_pipe(stream: &impl AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(std::fs::File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|meta| meta.file_type().is_fifo())
}

impl Watch {
    /// Has a process watch over the tables from now on; where none can, the kernel path ends with the daemon.
    pub fn start(handle: &Handle, grace: Duration) -> Self {
        match Watcher::start(handle, grace) {
            Ok(watcher) => {
                tracing::debug!(
                    process = watcher.child.id(),
                    "watches over the tables when the daemon has ended"
                );
                Self::By(watcher)
            }
            Err(why) => {
                let note = format!(
                    "the kernel path ends with the daemon, since no process can watch over its tables then: {why}"
                );
                tracing::warn!("{note}");
                // If control has ended, so has everything.
                let _ended = handle.unpin();
                Self::Nobody { note }
            }
        }
    }

    /// Starts the process again if it has ended.
    pub fn look_after(&mut self, handle: &Handle, grace: Duration) {
        let Self::By(watcher) = self else { return };
        if let Ok(Some(status)) = watcher.child.try_wait() {
            tracing::warn!(%status, "the process that watches over the tables has ended; it is started again");
            *self = Self::start(handle, grace);
        }
    }

    /// The daemon ends, and nothing of the kernel path stays.
    pub fn end(&mut self) {
        if let Self::By(Watcher { child, .. }) = self {
            let _ended = child.kill();
            let _reaped = child.wait();
            *self = Self::NotNeeded;
        }
    }

    /// Who it is, for `status`.
    pub fn by(&self) -> Option<String> {
        match self {
            Self::By(watcher) => Some(format!("process {}", watcher.child.id())),
            Self::NotNeeded | Self::Nobody { .. } => None,
        }
    }

    /// What `status` tells besides.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Nobody { note } => Some(note.clone()),
            Self::By(_) | Self::NotNeeded => None,
        }
    }
}

/// What that process does: `brickmoon watch-tables`.
pub fn run(grace: Duration, confined: bool) -> Result<(), Failure> {
    // First, since it closes whatever is open but input and output.
    bm_fastpath::stand_alone();
    // Before there is another thread.
    if confined && let Err(why) = bm_privilege::confine(bm_privilege::kept_by_watcher(), Calls::Watcher) {
        tracing::warn!("the process that watches over the tables keeps the daemon's privileges: {why}");
    }
    let stream = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
    let stream = UnixStream::from(stream);
    if stream.peer_addr().is_err() {
        return Err(Failure::Usage(format!("`brickmoon {COMMAND}` is started by `brickmoon up` alone")));
    }
    let stop = Waker::new().map_err(Failure::failed)?;
    wake_on_signal(stop.clone()).map_err(Failure::failed)?;
    match watcher::run(&stream, grace, &stop).map_err(Failure::failed)? {
        Ended::Grace => {}
        Ended::Changed(what) => tracing::warn!("{what} has changed and no daemon follows: Linux forwards"),
        Ended::Doubt(what) => tracing::warn!("{what}, and no daemon follows: Linux forwards"),
    }
    Ok(())
}

/// Wakes `stop` whenever the process is asked to end.
fn wake_on_signal(stop: Waker) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let wait = move || {
        runtime.block_on(async {
            while terminate.recv().await.is_some() {
                stop.wake();
            }
        });
    };
    std::thread::Builder::new().name("bm-signals".into()).spawn(wait).map(drop)
}
