//! The router under test: Linux alone, or brickmoon on top of it, controlled as its users do.

pub use crate::binary::binary;
use crate::command::{Running, finish};
use crate::lab::{Ends, Lab, SIDES};
use crate::netns::Namespace;
use crate::{audit, report, sys};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// How long the daemon may take to forward, to stop, and to follow the kernel's tables.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which router is in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The kernel's own forwarding: the oracle.
    Linux,
    /// The daemon.
    Brickmoon {
        /// The binary.
        path: PathBuf,
        /// Where it forwards.
        forwarding: Forwarding,
    },
}

/// The path that the daemon forwards on: the argument of `up --path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// In workers.
    User,
    /// In the kernel, by XDP.
    Kernel,
    /// In the kernel, at tc.
    KernelTc,
    /// As the daemon chooses.
    Auto,
}

impl Forwarding {
    /// Whether Linux does all that is not plain.
    fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::KernelTc)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux => "linux",
            Self::Brickmoon { forwarding: Forwarding::User, .. } => "brickmoon",
            Self::Brickmoon { forwarding: Forwarding::Kernel, .. } => "brickmoon-kernel",
            Self::Brickmoon { forwarding: Forwarding::KernelTc, .. } => "brickmoon-tc",
            Self::Brickmoon { forwarding: Forwarding::Auto, .. } => "brickmoon-auto",
        })
    }
}

impl Subject {
    /// The subjects of this run, Linux first: Linux and both paths, or the one that `BM_SUBJECT` names.
    pub fn all(test: &str) -> Vec<Self> {
        let mut subjects = Self::with_tc(test);
        let wants_tc = std::env::var("BM_SUBJECT").is_ok_and(|wanted| wanted == "brickmoon-tc");
        subjects.retain(|subject| {
            wants_tc || !matches!(subject, Self::Brickmoon { forwarding: Forwarding::KernelTc, .. })
        });
        subjects
    }

    /// The same, with the kernel path at tc beside that of XDP.
    pub fn with_tc(test: &str) -> Vec<Self> {
        if !sys::is_root() {
            report::skip(test, "namespaces need root");
            return Vec::new();
        }
        let wanted = std::env::var("BM_SUBJECT").unwrap_or_default();
        let names = ["linux", "brickmoon", "brickmoon-kernel", "brickmoon-tc"];
        assert!(wanted.is_empty() || names.contains(&&*wanted), "BM_SUBJECT={wanted}: one of {names:?}");
        let mut subjects = vec![Self::Linux];
        match binary() {
            Some(path) => subjects.extend(
                [Forwarding::User, Forwarding::Kernel, Forwarding::KernelTc]
                    .map(|forwarding| Self::Brickmoon { path: path.clone(), forwarding }),
            ),
            None if wanted.starts_with("brickmoon") => panic!("no brickmoon binary: cargo build --release"),
            None => report::skip(test, "brickmoon's part: no binary (cargo build --release)"),
        }
        subjects.retain(|subject| wanted.is_empty() || subject.to_string() == wanted);
        subjects
    }

    /// The kernel path, if it is a subject of this run: by XDP, unless `BM_SUBJECT` says at tc.
    pub fn kernel(test: &str) -> Option<Self> {
        let is_kernel =
            |subject: &Self| matches!(subject, Self::Brickmoon { forwarding, .. } if forwarding.is_kernel());
        Self::all(test).into_iter().find(is_kernel)
    }

    /// The user path, if it is a subject of this run.
    pub fn user(test: &str) -> Option<Self> {
        let is_user =
            |subject: &Self| matches!(subject, Self::Brickmoon { forwarding: Forwarding::User, .. });
        Self::all(test).into_iter().find(is_user)
    }

    /// The daemon's message when it refuses a configuration.
    pub fn refused(&self, lab: &Lab, way: &str, config: &str) -> String {
        let Self::Brickmoon { path, .. } = self else { return String::new() };
        let file = std::env::temp_dir().join(format!("bm-refused-{}-{way}.toml", std::process::id()));
        std::fs::write(&file, config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut command = lab.rtr.command(path);
        command.args(["up", "--path", way, "--port", "r0", "--config"]).arg(&file);
        let socket = file.with_extension("sock");
        command.arg("--socket").arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let done = finish("brickmoon up", child, b"", PATIENCE);
        let _removed = std::fs::remove_file(&file);
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "not refused: {message}");
        message
    }

    /// Starts it in the lab's router, with all three links as its ports.
    pub fn start<'a>(&self, lab: &'a Lab) -> Router<'a> {
        self.start_on(lab, &SIDES.map(|side| side.router()))
    }

    /// Starts it with flows turned on.
    pub fn start_with_flows<'a>(&self, lab: &'a Lab) -> Router<'a> {
        self.start_with(lab, &SIDES.map(|side| side.router()), "[flows]\nmode = \"auto\"\n")
    }

    /// Starts it with only these ports.
    pub fn start_on<'a>(&self, lab: &'a Lab, ports: &[&str]) -> Router<'a> {
        self.start_with(lab, ports, "")
    }

    /// The same with a configuration, which [`Router::reload_with`] can replace.
    pub fn start_with<'a>(&self, lab: &'a Lab, ports: &[&str], config: &str) -> Router<'a> {
        let daemon = match self {
            Self::Linux => None,
            Self::Brickmoon { path, forwarding } => {
                if *forwarding == Forwarding::Kernel {
                    // A veth takes frames from XDP only if its far end has GRO.
                    SIDES.iter().for_each(|side| lab.receive_offload(*side));
                }
                Some(Daemon::start_with((path, *forwarding), &lab.rtr, ports, config, &[]))
            }
        };
        Router { namespace: &lab.rtr, daemon, variables: Vec::new() }
    }
}

/// Runs a test on every subject of this run: a lab and a router each, verified and stopped at the end.
pub fn each(test: &str, ends: Ends, action: impl Fn(&Lab, &mut Router)) {
    for subject in Subject::all(test) {
        let lab = Lab::new(test, ends);
        let mut router = subject.start(&lab);
        action(&lab, &mut router);
        router.settle();
        router.stop();
    }
}

/// A running subject. Dropping it kills the daemon; `stop` ends it as a user would.
pub struct Router<'a> {
    namespace: &'a Namespace,
    daemon: Option<Daemon>,
    variables: Vec<(String, String)>,
}

impl Router<'_> {
    /// Its name in a report.
    pub fn name(&self) -> &'static str {
        match &self.daemon {
            None => "linux",
            Some(Daemon { forwarding: Forwarding::User, .. }) => "brickmoon",
            Some(Daemon { forwarding: Forwarding::Kernel, .. }) => "brickmoon-kernel",
            Some(Daemon { forwarding: Forwarding::KernelTc, .. }) => "brickmoon-tc",
            Some(Daemon { forwarding: Forwarding::Auto, .. }) => "brickmoon-auto",
        }
    }

    /// Whether this is brickmoon.
    pub fn is_brickmoon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Whether this is brickmoon forwarding in the kernel, where Linux does everything but plain forwarding.
    pub fn is_kernel(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.forwarding.is_kernel())
    }

    /// Waits until the subject has the current state of the kernel's tables.
    pub fn settle(&self) {
        let Some(daemon) = &self.daemon else { return };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let verify = daemon.ask(self.namespace, "verify", &[]);
            if verify.status.success() {
                return;
            }
            assert!(Instant::now() < deadline, "brickmoon verify still fails:\n{}", daemon.with_log(&verify));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asserts that the mirror equals the kernel now, without waiting.
    pub fn assert_verified(&self) {
        if let Some(daemon) = &self.daemon {
            let verify = daemon.ask(self.namespace, "verify", &[]);
            assert!(verify.status.success(), "brickmoon verify:\n{}", daemon.with_log(&verify));
        }
    }

    /// Runs a command of brickmoon against the daemon; `None` for Linux.
    pub fn ask(&self, command: &str, arguments: &[&str]) -> Option<Output> {
        self.daemon.as_ref().map(|daemon| daemon.ask(self.namespace, command, arguments))
    }

    /// The JSON output of a brickmoon command; null for Linux.
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        let Some(daemon) = &self.daemon else { return serde_json::Value::Null };
        let (command, arguments) = words.split_first().expect("a command");
        daemon.json(&daemon.ask(self.namespace, command, &[arguments, &["--json"]].concat()))
    }

    /// How many frames brickmoon has dropped for this reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        crate::command::frames_dropped(&self.json(&["show", "drops"]), reason)
    }

    /// The output of the most informative commands, for a failing test.
    pub fn status_text(&self) -> String {
        let message = |words: &[&str]| {
            self.ask(words[0], &words[1..]).map(|message| message.stdout).unwrap_or_default()
        };
        let text = [message(&["status"]), message(&["show", "ports"])].concat();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// How many flows brickmoon has; 0 for Linux.
    pub fn flows(&self) -> u64 {
        self.json(&["status"])["flows"]["flows"].as_u64().unwrap_or_default()
    }

    /// Makes brickmoon forget all flows.
    pub fn clear_flows(&self) {
        let Some(daemon) = &self.daemon else { return };
        let message = daemon.ask(self.namespace, "clear", &["flows"]);
        assert!(message.status.success(), "clear flows:\n{}", daemon.with_log(&message));
    }

    /// Frames that brickmoon itself has sent, on all ports; 0 for Linux.
    pub fn sent(&self) -> u64 {
        let ports = self.json(&["show", "ports"]);
        let ports = ports["ports"].as_array().into_iter().flatten();
        ports.filter_map(|port| port["account"]["sent"].as_u64()).sum()
    }

    /// The daemon's process.
    pub fn process(&mut self) -> Option<u32> {
        self.daemon.as_mut().map(|daemon| daemon.process.child().id())
    }

    /// Where the daemon answers.
    pub fn socket(&self) -> Option<String> {
        self.daemon.as_ref().map(|daemon| daemon.socket.display().to_string())
    }

    /// Adds a variable to the environment of later daemons.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    /// Kills the daemon as a crash would.
    pub fn kill(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.process.child().kill().unwrap_or_else(|error| panic!("kill -9: {error}"));
            daemon.process.child().wait().unwrap_or_else(|error| panic!("kill -9: {error}"));
        }
    }

    /// Waits until the daemon ends by itself; returns its exit status.
    pub fn end_status(&mut self) -> Option<i32> {
        let daemon = self.daemon.as_mut()?;
        assert!(daemon.process.wait(PATIENCE), "the daemon does not end:\n{}", daemon.log());
        daemon.process.child().wait().ok()?.code()
    }

    /// Starts the daemon again after `kill`, or while nothing runs.
    pub fn restart(&mut self) {
        let ports = self.daemon.as_ref().map(|daemon| daemon.ports.clone()).unwrap_or_default();
        self.restart_with(&ports.iter().map(String::as_str).collect::<Vec<_>>(), "");
    }

    /// The same with other ports, and a configuration; empty for none.
    pub fn restart_with(&mut self, ports: &[&str], config: &str) {
        if let Some(daemon) = &mut self.daemon {
            let router = (daemon.path.as_path(), daemon.forwarding);
            let again = Daemon::start_with(router, self.namespace, ports, config, &self.variables);
            *daemon = again;
        }
    }

    /// Starts the daemon again with these ports and a configuration; the daemon chooses the path.
    pub fn restart_choosing(&mut self, ports: &[&str], config: &str) {
        if let Some(daemon) = &mut self.daemon {
            daemon.forwarding = Forwarding::Auto;
        }
        self.restart_with(ports, config);
    }

    /// Makes the daemon read another configuration while it runs; it must have been started with one.
    pub fn reload_with(&self, config: &str) -> Option<Output> {
        self.write_config(config);
        self.ask("reload", &[])
    }

    /// Writes another configuration into the file that the daemon was started with.
    pub fn write_config(&self, config: &str) {
        let Some(daemon) = &self.daemon else { return };
        let file = daemon.socket.with_file_name("brickmoon.toml");
        std::fs::write(&file, config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// The body of an answer of the daemon's socket.
    pub fn get(&self, path: &str) -> Option<String> {
        use std::io::{Read, Write};
        let daemon = self.daemon.as_ref()?;
        let mut socket = std::os::unix::net::UnixStream::connect(&daemon.socket).ok()?;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: brickmoon\r\nConnection: close\r\n\r\n").ok()?;
        let mut reply = String::new();
        socket.read_to_string(&mut reply).ok()?;
        reply.split_once("\r\n\r\n").map(|(_, body)| body.into())
    }

    /// How many counters of the daemon are in use, according to its file of counters.
    pub fn counters_used(&self) -> u32 {
        let Some(daemon) = &self.daemon else { return 0 };
        let file = daemon.socket.with_extension("stats");
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        // The magic number and the capacity come before it.
        u32::from_ne_bytes(bytes[12..16].try_into().expect("four bytes"))
    }

    /// The daemon's output.
    pub fn log(&self) -> String {
        self.daemon.as_ref().map(Daemon::log).unwrap_or_default()
    }

    /// Ends the daemon with `stop` and these arguments.
    pub fn end(&mut self, arguments: &[&str]) {
        if let Some(daemon) = &mut self.daemon {
            let stop = daemon.ask(self.namespace, "stop", arguments);
            assert!(stop.status.success(), "brickmoon stop {arguments:?}:\n{}", daemon.with_log(&stop));
            assert!(daemon.process.wait(PATIENCE), "brickmoon does not stop within {PATIENCE:?}");
        }
    }

    /// Checks the tables and the accounts at the end, then stops the daemon and expects it to report success.
    pub fn stop(self) {
        let Some(mut daemon) = self.daemon else { return };
        let verify = daemon.ask(self.namespace, "verify", &[]);
        assert!(verify.status.success(), "brickmoon verify at the end:\n{}", daemon.with_log(&verify));
        daemon.audit(self.namespace);
        let stop = daemon.ask(self.namespace, "stop", &[]);
        assert!(stop.status.success(), "brickmoon stop:\n{}", daemon.with_log(&stop));
        assert!(
            daemon.process.wait(PATIENCE),
            "brickmoon does not stop within {PATIENCE:?}\n{}",
            daemon.log()
        );
    }
}

/// The daemon, its control socket and its output so far.
struct Daemon {
    path: PathBuf,
    forwarding: Forwarding,
    ports: Vec<String>,
    socket: PathBuf,
    process: Running,
    log: Arc<Mutex<String>>,
}

impl Daemon {
    fn start_with(
        (path, forwarding): (&Path, Forwarding),
        namespace: &Namespace,
        ports: &[&str],
        config: &str,
        variables: &[(String, String)],
    ) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // A folder, since the daemon has more files than the socket, and leaves them behind when it is killed.
        let folder = std::env::temp_dir().join(format!("bm-p{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let socket = folder.join("api.sock");
        let mut command = namespace.command(path);
        command.arg("up").arg("--socket").arg(&socket);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        match forwarding {
            Forwarding::User => command.args(["--path", "user"]),
            Forwarding::Kernel => command.args(["--path", "kernel", "--attach", "xdp"]),
            Forwarding::KernelTc => command.args(["--path", "kernel", "--attach", "tc"]),
            Forwarding::Auto => &mut command,
        };
        for port in ports {
            command.arg("--port").arg(port);
        }
        if !config.is_empty() {
            let file = folder.join("brickmoon.toml");
            std::fs::write(&file, config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            command.arg("--config").arg(file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(&mut command);
        let log = Arc::new(Mutex::new(String::new()));
        let (ready, is_ready) = mpsc::channel();
        let child = process.child();
        follow(child.stdout.take().expect("stdout is a pipe"), &log, Some(ready));
        follow(child.stderr.take().expect("stderr is a pipe"), &log, None);
        let ports = ports.iter().map(|port| port.to_string()).collect();
        let path = path.to_path_buf();
        let daemon = Self { path, forwarding, ports, socket, process, log };
        let waited = is_ready.recv_timeout(PATIENCE);
        assert!(waited.is_ok(), "brickmoon up is not ready within {PATIENCE:?}:\n{}", daemon.log());
        daemon
    }

    fn ask(&self, namespace: &Namespace, command: &str, arguments: &[&str]) -> Output {
        let mut process = namespace.command(&self.path);
        process.arg(command).args(arguments).arg("--socket").arg(&self.socket);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = process.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        finish(&format!("brickmoon {command}"), child, b"", PATIENCE * 3)
    }

    /// Asserts that every account adds up once nothing moves (check 112), and that the daemon has done the work: a test
    /// in which Linux did it proves nothing.
    fn audit(&self, namespace: &Namespace) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ports = self.ask(namespace, "show", &["ports", "--json"]);
            let apps = self.ask(namespace, "show", &["apps", "--json"]);
            let (ports, apps) = (self.json(&ports), self.json(&apps));
            let open = [audit::open(&ports), audit::open(&apps)].concat();
            if open.is_empty() {
                let [received, sent, host, dropped] = audit::totals(&ports);
                // On the kernel path there may have been no packet that it could forward.
                let worked = if self.forwarding == Forwarding::User { sent } else { received };
                assert!(worked > 0, "brickmoon has done nothing: {ports}\n{}", self.log());
                report::say(&format!(
                    "{}: brickmoon: {received} received, {sent} sent, {host} to Linux, {dropped} dropped",
                    namespace.name()
                ));
                return;
            }
            assert!(Instant::now() < deadline, "accounts that do not add up:\n{}", open.join("\n"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn json(&self, output: &Output) -> serde_json::Value {
        let value = serde_json::from_slice(&output.stdout);
        value.unwrap_or_else(|error| panic!("brickmoon show --json: {error}\n{}", self.with_log(output)))
    }

    fn log(&self) -> String {
        self.log.lock().map(|log| log.clone()).unwrap_or_default()
    }

    fn with_log(&self, output: &Output) -> String {
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        format!("{}\n{stdout}{stderr}\nthe daemon's log:\n{}", output.status, self.log())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.socket.parent().map(std::fs::remove_dir_all);
        if std::thread::panicking() {
            eprintln!("brickmoon's log:\n{}", self.log());
        }
    }
}

/// Keeps the output of a pipe, and reports a line that starts with "ready".
fn follow(
    pipe: impl std::io::Read + Send + 'static,
    log: &Arc<Mutex<String>>,
    ready: Option<mpsc::Sender<()>>,
) {
    let log = Arc::clone(log);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Some(ready) = ready.as_ref().filter(|_| line.starts_with("ready")) {
                // After the first time, there is no receiver any more.
                let _ = ready.send(());
            }
            if let Ok(mut log) = log.lock() {
                log.push_str(&line);
                log.push('\n');
            }
        }
    });
}
