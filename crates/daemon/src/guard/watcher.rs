//! Starts and supervises the process that watches the kernel path's tables after the daemon has ended.
//!
//! Without this process nothing would notice a change in Linux; if it cannot be started, the kernel path is not pinned and
//! ends with the daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bm_cli::Failure;
use bm_control::control_thread::{Control, Handle};
use bm_control::watcher::{self, Ended};
use bm_graph::Waker;
use bm_privilege::Calls;
use tokio::signal::unix::{SignalKind, signal};

/// The command of the process (`args::Command::WatchTables`).
const COMMAND: &str = "watch-tables";
/// Environment variable; with the value `off` the process is not started (for tests).
const SWITCH: &str = "BRICKMOON_WATCHER";

/// The running process.
pub struct Watcher {
    child: Child,
    /// Closed when the daemon ends, which is what the process waits for.
    _stream: UnixStream,
}

/// What watches the tables.
pub enum Watch {
    /// Nothing; nothing outlives the daemon.
    NotNeeded,
    /// A process.
    By(Watcher),
    /// Nothing, since the process could not be started; so nothing outlives the daemon.
    Nobody {
        /// The reason, as a note for `status`.
        note: String,
    },
}

impl Watcher {
    fn start(handle: &Handle, grace: Duration) -> io::Result<Self> {
        // The child has the same privileges as this process.
        let confined = rustix::thread::no_new_privs().unwrap_or(false).then_some("--confined");
        if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
            return Err(io::Error::other(format!("{SWITCH}=off is set in the environment")));
        }
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("brickmoon")
            .args([COMMAND, "--grace-ms", &grace.as_millis().to_string()])
            .args(confined);
        // Do not inherit a pipe: its reader waits for the end of the daemon, not of this process.
        let errors = if is_pipe(&io::stderr()) { Stdio::null() } else { Stdio::inherit() };
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(errors);
        let mut child = command.current_dir("/").spawn()?;
        // Closes our copy of the other end.
        drop(command);
        let given = stream.try_clone().and_then(|stream| {
            handle.try_ask(|control| control.watch_over(stream)).map_err(io::Error::other)
        });
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
    /// Starts the process; if that fails, the kernel path will end with the daemon.
    pub fn start(handle: &Handle, grace: Duration) -> Self {
        match Watcher::start(handle, grace) {
            Ok(watcher) => {
                tracing::debug!(
                    process = watcher.child.id(),
                    "started the process that watches the tables after the daemon has ended"
                );
                Self::By(watcher)
            }
            Err(why) => {
                let note = format!(
                    "the kernel path will end with the daemon: cannot start the process that watches its tables: {why}"
                );
                tracing::warn!("{note}");
                // If the control thread has ended, so has the daemon.
                let _ended = handle.ask(Control::unpin);
                Self::Nobody { note }
            }
        }
    }

    /// Starts the process again if it has ended.
    pub fn supervise(&mut self, handle: &Handle, grace: Duration) {
        let Self::By(watcher) = self else { return };
        if let Ok(Some(status)) = watcher.child.try_wait() {
            tracing::warn!(%status, "the process that watches the tables has ended; restarting it");
            *self = Self::start(handle, grace);
        }
    }

    /// Ends the process, since the daemon ends and the kernel path with it.
    pub fn end(&mut self) {
        if let Self::By(Watcher { child, .. }) = self {
            let _ended = child.kill();
            let _reaped = child.wait();
            *self = Self::NotNeeded;
        }
    }

    /// What watches the tables, for `status`.
    pub fn watched_by(&self) -> Option<String> {
        match self {
            Self::By(watcher) => Some(format!("process {}", watcher.child.id())),
            Self::NotNeeded | Self::Nobody { .. } => None,
        }
    }

    /// The note for `status` if the process could not be started.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Nobody { note } => Some(note.clone()),
            Self::By(_) | Self::NotNeeded => None,
        }
    }
}

/// Main function of the process: `brickmoon watch-tables`.
pub fn run(grace: Duration, confined: bool) -> Result<(), Failure> {
    // First, since it closes all descriptors except the standard streams.
    bm_fastpath::detach_from_parent();
    // Before another thread is started.
    if confined && let Err(why) = bm_privilege::confine(bm_privilege::kept_by_watcher(), Calls::Watcher) {
        tracing::warn!("the process that watches the tables could not drop privileges: {why}");
    }
    let stream = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
    let stream = UnixStream::from(stream);
    if stream.peer_addr().is_err() {
        return Err(Failure::Usage(format!("`brickmoon {COMMAND}` can only be started by `brickmoon up`")));
    }
    let stop = Waker::new().map_err(Failure::failed)?;
    wake_on_signal(stop.clone()).map_err(Failure::failed)?;
    match watcher::run(&stream, grace, &stop).map_err(Failure::failed)? {
        Ended::Grace => {}
        Ended::Changed(what) => tracing::warn!("{what} has changed and no daemon is running: Linux forwards"),
        Ended::Doubt(what) => tracing::warn!("{what}, and no daemon is running: Linux forwards"),
    }
    Ok(())
}

/// Wakes `stop` on SIGTERM.
fn wake_on_signal(stop: Waker) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let thread = std::thread::Builder::new().name("bm-signals".into()).spawn(move || {
        runtime.block_on(async {
            while terminate.recv().await.is_some() {
                stop.wake();
            }
        });
    });
    thread.map(drop)
}
