//! The daemon as a child process inside the router's namespace: started, watched, killed, ended.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bm_bpf::Bpffs;
use bm_testbed::interrupt;
use bm_testbed::testbed::namespace::Namespace;
use bm_testbed::testbed::napi::POLLING_PRIORITY;
use bm_testbed::testbed::{Testbed, TestbedError, cores};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::program::router;

/// How long it may take until it is ready: a full table is mirrored meanwhile.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end in order.
const END: Duration = Duration::from_secs(10);
/// Its socket, within its folder.
const SOCKET: &str = "api.sock";
/// Real-time priority of its workers.
const WORKER_PRIORITY: i32 = POLLING_PRIORITY + 1;
/// Lines of its errors that are kept.
const LINES_KEPT: usize = 20;

/// Why the daemon did not do what it should.
#[derive(Debug)]
pub enum DaemonError {
    /// It cannot be started.
    Start {
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It ended before it was ready.
    Ended {
        /// How.
        status: ExitStatus,
        /// Its last words.
        log: String,
    },
    /// It did not say that it is ready.
    NotReady {
        /// Its last words.
        log: String,
    },
    /// It was asked to end and did not.
    StillRuns,
    /// It ended with another status than 0.
    BadEnd {
        /// How.
        status: ExitStatus,
        /// Its last words.
        log: String,
    },
    /// Something about it failed in the system.
    System(TestbedError),
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, error } if error.kind() == io::ErrorKind::NotFound => {
                let program = program.display();
                write!(
                    f,
                    "start {program}: {error}; install brickmoon in the folder of brickmoon-bench or in PATH"
                )
            }
            Self::Start { program, error } => write!(f, "start {}: {error}", program.display()),
            Self::Ended { status, log } => {
                write!(f, "brickmoon up ended ({status}) before it was ready\n{log}")
            }
            Self::NotReady { log } => {
                write!(f, "brickmoon up did not print \"ready\" within {} s\n{log}", READY.as_secs())
            }
            Self::StillRuns => write!(f, "brickmoon up still runs {} s after SIGTERM", END.as_secs()),
            Self::BadEnd { status, log } => write!(f, "brickmoon up ended with {status} at SIGTERM\n{log}"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DaemonError {}

impl From<TestbedError> for DaemonError {
    fn from(error: TestbedError) -> Self {
        Self::System(error)
    }
}

/// Where it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingPath {
    /// In workers, over AF_XDP.
    User,
    /// In the kernel, by XDP.
    Kernel,
    /// In the kernel, at tc.
    KernelTc,
    /// As it chooses.
    Auto,
}

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    /// Its socket and its configuration.
    folder: Folder,
}

/// A folder that goes away with all that is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Daemon {
    /// Starts `program up` on the router's two ports and waits until it is ready. With a core it has one worker there,
    /// set up to share the core with the polling of its input; without one it is as it comes.
    pub fn start(
        testbed: &Testbed,
        prefix: &str,
        program: Option<&Path>,
        path: ForwardingPath,
        core: Option<usize>,
    ) -> Result<Self, DaemonError> {
        let program = program.map_or_else(router, Path::to_owned);
        let folder = Folder(folder(prefix));
        // The kernel path has no workers, and refuses settings of theirs.
        let core = core.filter(|_| path == ForwardingPath::User);
        let config = write_config(&folder.0, core).map_err(TestbedError::system("write a configuration"))?;
        let mut arguments: Vec<OsString> = vec!["--config".into(), config.into_os_string()];
        let options_of_path = match path {
            ForwardingPath::User => &["--path", "user"][..],
            ForwardingPath::Kernel => &["--path", "kernel", "--attach", "xdp"],
            ForwardingPath::KernelTc => &["--path", "kernel", "--attach", "tc"],
            ForwardingPath::Auto => &[],
        };
        arguments.extend(options_of_path.iter().map(Into::into));
        for port in [&testbed.interfaces.router_in, &testbed.interfaces.router_out] {
            arguments.extend(["--port".into(), port.into()]);
        }
        Self::started(&testbed.router, folder, program, &arguments)
    }

    /// Starts `program up` with these arguments in a namespace, and waits until it is ready. The folder, where its
    /// socket is, goes with it.
    pub fn start_in(
        namespace: &Namespace,
        folder: PathBuf,
        program: &Path,
        arguments: &[OsString],
    ) -> Result<Self, DaemonError> {
        Self::started(namespace, Folder(folder), program.into(), arguments)
    }

    fn started(
        namespace: &Namespace,
        folder: Folder,
        program: PathBuf,
        arguments: &[OsString],
    ) -> Result<Self, DaemonError> {
        let mut command = Command::new(&program);
        command.arg("up").arg("--socket").arg(folder.0.join(SOCKET)).args(arguments);
        // In a process group of its own, so that Ctrl-C reaches us alone and we end it in our order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        namespace.confine(&mut command)?;
        die_with_us(&mut command);
        let mut child = command.spawn().map_err(|error| DaemonError::Start { program, error })?;
        let (lines, log) = (listen(child.stdout.take()), keep(child.stderr.take()));
        let mut daemon = Self { child, log, folder };
        daemon.await_ready(&lines)?;
        Ok(daemon)
    }

    fn threads(&self) -> Vec<libc::pid_t> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn await_ready(&mut self, lines: &Receiver<String>) -> Result<(), DaemonError> {
        let began = Instant::now();
        loop {
            match lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) if says_ready(&line) => return Ok(()),
                // The other end of a closed pipe has ended or is about to.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(20)),
                _ => {}
            }
            interrupt::check().map_err(TestbedError::from)?;
            if let Some(status) = self.ended()? {
                return Err(DaemonError::Ended { status, log: self.log_tail() });
            }
            if began.elapsed() > READY {
                return Err(DaemonError::NotReady { log: self.log_tail() });
            }
        }
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) -> Result<(), DaemonError> {
        self.child.kill().and_then(|()| self.child.wait()).map_err(TestbedError::system("kill brickmoon"))?;
        Ok(())
    }

    /// Asks it to end and waits until it has.
    pub fn stop(&mut self) -> Result<(), DaemonError> {
        // The child has not been waited for, so its number is still its own.
        let _ended = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < END {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(DaemonError::BadEnd { status, log: self.log_tail() }),
                None => interrupt::sleep(Duration::from_millis(10)).map_err(TestbedError::from)?,
            }
        }
        Err(DaemonError::StillRuns)
    }

    /// Ends it in order if that is possible, also after an interruption.
    pub fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // The child has not been waited for, so its number is still its own.
        let _ended = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, DaemonError> {
        Ok(self.child.try_wait().map_err(TestbedError::system("check whether brickmoon runs"))?)
    }

    /// Time that all its threads have held a core, in nanoseconds.
    pub fn core_ns(&self) -> u64 {
        self.threads().into_iter().map(cores::core_ns).sum()
    }

    /// Memory that it holds, huge pages too.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let [resident, huge] = ["VmRSS:", "HugetlbPages:"].map(|name| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        });
        Some((resident? + huge.unwrap_or(0)) * 1024)
    }

    /// Where it answers.
    pub fn socket(&self) -> PathBuf {
        self.folder.0.join(SOCKET)
    }

    fn log_tail(&self) -> String {
        // Its last lines may still be on their way through the pipe.
        std::thread::sleep(Duration::from_millis(50));
        let log = self.log.lock().map(|log| log.iter().cloned().collect::<Vec<_>>());
        log.unwrap_or_default().join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder(prefix: &str) -> PathBuf {
    Path::new("/run").join(prefix)
}

/// The worker goes onto the router's core, where Linux was measured, too, and before the polling that it shares the
/// core with: it takes what that has brought, then sleeps while it brings more. The other way round it would bring
/// frames that nobody has room for.
fn write_config(folder: &Path, core: Option<usize>) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let file = folder.join("config.toml");
    let cores = core.map(|core| format!("workers = 1\ncores = [{core}]\npriority = {WORKER_PRIORITY}\n"));
    let cores = cores.unwrap_or_default();
    fs::write(&file, format!("[daemon]\n{cores}"))?;
    Ok(file)
}

/// Whether a line says that the daemon is ready: the word stands first or alone.
fn says_ready(line: &str) -> bool {
    line.split(|letter: char| !letter.is_alphanumeric()).any(|word| word.eq_ignore_ascii_case("ready"))
}

fn die_with_us(command: &mut Command) {
    // SAFETY: runs in the child between fork and exec; it makes one system call and allocates nothing.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
}

/// Reads lines on a thread, to the end, so that the pipe never fills.
fn listen(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = channel();
    each_line(pipe, move |line| drop(send.send(line)));
    receive
}

/// Reads lines on a thread, to the end, and keeps the last ones.
fn keep(pipe: Option<impl Read + Send + 'static>) -> Arc<Mutex<VecDeque<String>>> {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let into = kept.clone();
    each_line(pipe, move |line| {
        if let Ok(mut lines) = into.lock() {
            lines.push_back(line);
            while lines.len() > LINES_KEPT {
                lines.pop_front();
            }
        }
    });
    kept
}

fn each_line(pipe: Option<impl Read + Send + 'static>, mut take: impl FnMut(String) + Send + 'static) {
    std::thread::spawn(move || {
        let lines = pipe.map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
        lines.into_iter().flatten().for_each(&mut take);
    });
}

/// The BPF file system before a run, to find what the run has left in it.
pub struct Before {
    mounted: bool,
    pins: BTreeSet<PathBuf>,
}

impl Before {
    pub fn look() -> Self {
        Self { mounted: Bpffs::find().is_some(), pins: pins() }
    }

    /// What has come since. A bpffs that the daemon has mounted for the run goes.
    pub fn new_pins(&self) -> Vec<PathBuf> {
        let new: Vec<_> = pins().difference(&self.pins).cloned().collect();
        self.unmount_new();
        new
    }

    /// Unmounts the bpffs that a daemon of the run has mounted, unless others have something in it by now.
    pub fn unmount_new(&self) {
        if !self.mounted {
            Bpffs::unmount_own();
        }
    }
}

/// What brickmoon has pinned in the BPF file system, but for what belongs to a network namespace that is still there:
/// a run leaves none, so that is another daemon's.
fn pins() -> BTreeSet<PathBuf> {
    let Some(bpffs) = Bpffs::find() else { return BTreeSet::new() };
    let others = entries(Path::new("/run/netns")).filter_map(|entry| fs::metadata(entry.path()).ok());
    let others: BTreeSet<_> = others.map(|data| data.ino().to_string()).collect();
    // The kernel puts files of its own into the root.
    let folders = ["brickmoon", "brickmoon-switch", "brickmoon-cluster", "brickmoon-relay"]
        .map(|name| bpffs.path().join(name));
    let namespaces = folders.iter().flat_map(|folder| entries(folder));
    let of_a_run = namespaces.filter(|entry| !others.contains(&*entry.file_name().to_string_lossy()));
    let mut found = BTreeSet::new();
    of_a_run.for_each(|entry| walk(entry.path(), &mut found));
    found
}

/// A path and all below it.
fn walk(path: PathBuf, found: &mut BTreeSet<PathBuf>) {
    entries(&path).for_each(|entry| walk(entry.path(), found));
    found.insert(path);
}

/// What is in a folder: nothing if it is none.
fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// What is still there and should not be, in words.
pub fn left_behind(prefix: &str, before: &Before) -> Option<String> {
    let mut left = namespaces_and_folder(prefix);
    left.extend(before.new_pins());
    listed(&left)
}

/// Which namespaces and folders with this prefix are still there and should not be, in words.
pub fn left_of(prefix: &str) -> Option<String> {
    listed(&namespaces_and_folder(prefix))
}

fn namespaces_and_folder(prefix: &str) -> Vec<PathBuf> {
    let namespaces = ["src", "rtr", "snk"].map(|end| PathBuf::from(format!("/run/netns/{prefix}-{end}")));
    namespaces.into_iter().chain([folder(prefix)]).filter(|path| path.exists()).collect()
}

fn listed(left: &[PathBuf]) -> Option<String> {
    let words = left.iter().map(|path| path.display().to_string());
    (!left.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_the_ready_line() {
        assert!(says_ready("ready") && says_ready("brickmoon: ready, 1200000 routes"));
        assert!(!says_ready("already up") && !says_ready(""));
    }

    #[test]
    fn writes_the_core_into_the_configuration() {
        let folder = std::env::temp_dir().join(format!("bm-eval-config-{}", std::process::id()));
        let file = write_config(&folder, Some(3)).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "[daemon]\nworkers = 1\ncores = [3]\npriority = 51\n");
        fs::remove_dir_all(folder).unwrap();
    }
}
