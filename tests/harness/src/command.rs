//! Commands within a namespace: with a time limit, their output kept, nothing left running.

use crate::binary::binary;
use crate::netns::Namespace;
use crate::{PATIENCE, mounts, sys};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A command that will start brickmoon in the machine's network namespace, with the tests' own bpffs mounted: what it
/// mounts and pins is gone after the test. `None` if there is no binary.
pub fn brickmoon() -> Option<Command> {
    let mut command = Command::new(binary()?);
    sys::start_within(&mut command, None, mounts::descriptor());
    Some(command)
}

/// How many frames were dropped for a reason, in the output of `show drops`.
pub(crate) fn frames_dropped(shown: &serde_json::Value, reason: &str) -> u64 {
    let drops = shown["drops"].as_array().into_iter().flatten();
    drops.filter(|drop| drop["reason"] == reason).filter_map(|drop| drop["frames"].as_u64()).sum()
}

impl Namespace {
    /// A command that will start here. Brickmoon itself starts where the tests' own bpffs is mounted.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mounts = binary().filter(|binary| binary.as_os_str() == program.as_ref());
        let mounts = mounts.and_then(|_| mounts::descriptor());
        let mut command = Command::new(program);
        sys::start_within(&mut command, Some(self.descriptor()), mounts);
        command
    }

    /// Runs a command line without quoting; panics with its output if it fails.
    pub fn run(&self, line: &str) -> String {
        let output = self.try_run(line);
        let text = text(&output);
        assert!(output.status.success(), "{line} in {}: {}\n{text}", self.name(), output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same for a command that may fail.
    pub fn try_run(&self, line: &str) -> Output {
        self.attempt(line).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same, returning an error if it cannot be run or takes too long: for callers that must not panic.
    pub fn attempt(&self, line: &str) -> Result<Output, String> {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().unwrap_or_default());
        run(line, command.args(words), PATIENCE)
    }

    /// Runs a shell command line with input; returns its error message if it fails.
    pub fn feed(&self, line: &str, text: &str) -> Result<(), String> {
        let mut command = self.command("sh");
        let output = finish(line, start(line, command.args(["-c", line])), text.as_bytes(), PATIENCE);
        let stderr = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(stderr()) }
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

/// Runs a command without input; kills it when it takes too long.
pub fn run(line: &str, command: &mut Command, patience: Duration) -> Result<Output, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("{line}: {error}"))?;
    try_finish(line, child, b"", patience)
}

/// Feeds a started command and waits for it; kills it and panics when it takes too long.
pub fn finish(line: &str, child: Child, input: &[u8], patience: Duration) -> Output {
    try_finish(line, child, input, patience).unwrap_or_else(|why| panic!("{why}"))
}

/// The same without a panic.
fn try_finish(line: &str, mut child: Child, input: &[u8], patience: Duration) -> Result<Output, String> {
    let (stdout, stderr, stdin) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    std::thread::scope(|scope| {
        let feeder = scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let [stdout, stderr] = [stdout.map(boxed), stderr.map(boxed)].map(|pipe| scope.spawn(|| read(pipe)));
        let status = end_of(&mut child, patience);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A command that does not read all its input has not failed.
        let _ = feeder.join();
        let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().unwrap_or_default());
        let too_long =
            || format!("{line}: not done after {patience:?}\n{}", String::from_utf8_lossy(&stdout));
        status.ok_or_else(too_long).map(|status| Output { status, stdout: stdout.clone(), stderr })
    })
}

/// How a process ended; `None` if it has not ended within `patience`.
pub fn end_of(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn boxed<'a>(pipe: impl Read + Send + 'a) -> Box<dyn Read + Send + 'a> {
    Box::new(pipe)
}

fn read(pipe: Option<Box<dyn Read + Send + '_>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Output before a broken pipe is still worth showing.
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

/// A background process that is killed when this is dropped.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts it; it shares the test's standard error.
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

    /// Asks it to end and waits; `false` if it had to be killed.
    pub fn terminate(&mut self, patience: Duration) -> bool {
        let _ = sys::signal(self.id(), libc::SIGTERM);
        self.wait(patience)
    }

    /// Waits for its end; kills it and returns `false` if that takes too long.
    pub fn wait(&mut self, patience: Duration) -> bool {
        if end_of(&mut self.child, patience).is_some() {
            return true;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended() {
        let begin = Instant::now();
        let why = run("sleep", Command::new("sleep").arg("600"), Duration::from_millis(50)).unwrap_err();
        assert!(why.starts_with("sleep: not done after 50ms"), "{why}");
        assert!(begin.elapsed() < Duration::from_secs(300));
        let done = run("echo", Command::new("echo").arg("done"), PATIENCE).unwrap();
        assert_eq!((done.status.success(), done.stdout), (true, b"done\n".to_vec()));
        assert!(run("nothing", &mut Command::new("/nothing/there"), PATIENCE).is_err());
    }
}
