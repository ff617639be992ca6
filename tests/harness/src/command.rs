//! Commands within a namespace: with a time limit, their output kept, nothing left running.

use crate::netns::Namespace;
use crate::sys;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take unless its caller says otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

impl Namespace {
    /// A command that will start here.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::start_within(&mut command, self.descriptor());
        command
    }

    /// Runs a command line of plain words; panics with its output where it fails.
    pub fn run(&self, line: &str) -> String {
        let output = self.try_run(line);
        let text = text(&output);
        assert!(output.status.success(), "{line} in {}: {}\n{text}", self.name(), output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, for a command that may fail.
    pub fn try_run(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a command line has words"));
        command.args(words);
        finish(line, start(line, &mut command), b"", PATIENCE)
    }

    /// Runs the lines as commands of `ip`, in order: all of them or a panic. A line may begin with `-6`.
    pub fn ip(&self, lines: &str) -> String {
        let lines: Vec<&str> = lines.lines().filter(|line| !line.is_empty()).collect();
        // One process for each run of lines of one kind, since a batch has one family.
        let runs = lines.chunk_by(|a, b| a.starts_with("-6 ") == b.starts_with("-6 "));
        runs.map(|run| self.batch(run)).collect()
    }

    fn batch(&self, lines: &[&str]) -> String {
        let mut command = self.command("ip");
        command.args(lines.iter().any(|line| line.starts_with("-6 ")).then_some("-6")).args(["-batch", "-"]);
        let lines: String =
            lines.iter().map(|line| line.trim_start_matches("-6 ").to_string() + "\n").collect();
        let output = finish("ip -batch", start("ip -batch", &mut command), lines.as_bytes(), PATIENCE);
        assert!(output.status.success(), "ip in {}:\n{lines}\n{}", self.name(), text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Starts a command with pipes on all three ends.
fn start(line: &str, command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Feeds a started command and waits for it; kills it and panics when it takes too long.
pub fn finish(line: &str, mut child: Child, input: &[u8], patience: Duration) -> Output {
    let deadline = Instant::now() + patience;
    let (stdout, stderr, stdin) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    std::thread::scope(|scope| {
        let feeder = scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let [stdout, stderr] = [stdout.map(boxed), stderr.map(boxed)].map(|pipe| scope.spawn(|| read(pipe)));
        let status = loop {
            match child.try_wait().unwrap_or_else(|error| panic!("{line}: {error}")) {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        if status.is_none() {
            let _ = child.kill();
        }
        // A command that does not read its input to the end is no failure.
        let _ = feeder.join();
        let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().unwrap_or_default());
        let status = status.unwrap_or_else(|| {
            let _ = child.wait();
            panic!("{line}: not done after {patience:?}\n{}", String::from_utf8_lossy(&stdout))
        });
        Output { status, stdout, stderr }
    })
}

fn boxed<'a>(pipe: impl Read + Send + 'a) -> Box<dyn Read + Send + 'a> {
    Box::new(pipe)
}

fn read(pipe: Option<Box<dyn Read + Send + '_>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What came before a broken pipe is still worth showing.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether a program can be found on the search path.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// A process of the background that is ended when dropped.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts it; its standard error is the test's own.
    pub fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        Self { child }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks it to end and waits; `false` where it had to be killed.
    pub fn terminate(&mut self, patience: Duration) -> bool {
        let _ = sys::signal(self.id(), libc::SIGTERM);
        self.wait(patience)
    }

    /// Waits for its end; kills it and says `false` when that takes too long.
    pub fn wait(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
