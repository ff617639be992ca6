//! A DPDK program as a child process: it reads commands, and prints lines.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process. It is killed when this is dropped, and DPDK's folder of it is removed.
pub(super) struct Program {
    name: &'static str,
    file_prefix: String,
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

/// EAL's option for files of the program `name` of this process.
pub(super) fn file_prefix(name: &str) -> String {
    format!("bm-{name}-{}", std::process::id())
}

impl Program {
    /// Starts it. Of the lines that it prints, those stay that `wanted` is true for.
    pub fn start(
        name: &'static str,
        file_prefix: String,
        command: &mut Command,
        wanted: fn(&str) -> bool,
    ) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok).filter(|line| wanted(line));
            // If this fails, the reader has ended.
            lines.map(|line| send.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(Self { name, file_prefix, child, commands, lines })
    }

    /// The next line.
    pub fn line(&self) -> Result<String, String> {
        self.lines.recv_timeout(PATIENCE).map_err(|_| format!("{} does not answer", self.name))
    }

    /// Sends a command.
    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        self.commands.write_all(line.as_bytes()).map_err(|error| format!("{} has ended: {error}", self.name))
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it run, or makes it stop until then.
    pub fn set_running(&self, running: bool) -> Result<(), String> {
        let signal = if running { Signal::CONT } else { Signal::STOP };
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).map_err(|error| format!("{} has ended: {error}", self.name))
    }

    /// Waits a second for it to end by itself.
    pub fn wait(&mut self) {
        for _ in 0..50 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        // DPDK leaves its folder behind. That of a running program is not empty.
        let folders = std::fs::read_dir("/var/run/dpdk").into_iter().flatten().flatten();
        folders
            .filter(|folder| folder.file_name().to_string_lossy().starts_with(&self.file_prefix))
            .for_each(|folder| drop(std::fs::remove_dir(folder.path())));
    }
}
