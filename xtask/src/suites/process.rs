//! Runs a test program: reads its output, and kills it if it does not end.

use std::fmt::Write;
use std::fs;
use std::io::{self, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::Program;

/// How long a program may run: three times the longest.
const LIMIT: Duration = Duration::from_secs(12 * 60);
/// How long what compiles first may run, such as Clippy, and gets a core only when it is idle.
const LIMIT_OF_COMPILING: Duration = Duration::from_secs(40 * 60);
/// How long other processes may have the output open after the program has ended.
const GRACE: Duration = Duration::from_secs(10);

/// Runs a program, with its standard output and error in one stream, as on a terminal. One that runs for too long is
/// killed, with all processes that have its output open; so are those that still have it open after the program has ended.
/// The output then says which processes these were, and the status is a failure.
pub fn run(program: &Program) -> Result<Output, String> {
    let limit = if program.when_idle { LIMIT_OF_COMPILING } else { LIMIT };
    run_within(program, limit, GRACE).map_err(|error| format!("{}: {error}", program.path.display()))
}

fn run_within(program: &Program, limit: Duration, grace: Duration) -> io::Result<Output> {
    let (reader, writer) = io::pipe()?;
    let pipe = fs::read_link(format!("/proc/self/fd/{}", reader.as_raw_fd()))?;
    let files = TemporaryFiles::new()?;
    let mut command = Command::new(&program.path);
    super::without_package(&mut command);
    command.args(&program.arguments).envs(program.environment.iter().copied()).env("TMPDIR", &files.0);
    command.current_dir(&program.folder).stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn();
    // It has the other end of the pipe, which would otherwise never be closed.
    drop(command);
    let mut run = Run { child: child?, chunks: start_reading(reader), text: Vec::new(), pipe };
    let status = match run.wait(limit, grace)? {
        End::Closed(status) => status,
        End::Late => run.kill(&format!("ran for more than {} s", limit.as_secs()))?,
        End::LeftOthers => run.kill("has ended, and others still have its output open")?,
    };
    Ok(Output { status, stdout: run.text, stderr: Vec::new() })
}

/// Starts a thread that reads until every process has closed the other end.
fn start_reading(mut reader: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, chunks) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    chunks
}

struct Run {
    child: Child,
    chunks: Receiver<Vec<u8>>,
    text: Vec<u8>,
    /// Its output, as /proc names it.
    pipe: PathBuf,
}

enum End {
    /// It has ended, and its output with it.
    Closed(ExitStatus),
    Late,
    LeftOthers,
}

impl Run {
    fn wait(&mut self, limit: Duration, grace: Duration) -> io::Result<End> {
        let begin = Instant::now();
        let mut ended: Option<Instant> = None;
        loop {
            match self.chunks.recv_timeout(Duration::from_millis(100)) {
                Ok(chunk) => self.text.extend(chunk),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(1)),
            }
            if let Some(status) = self.child.try_wait()? {
                if self.is_closed() {
                    return Ok(End::Closed(status));
                }
                if ended.get_or_insert_with(Instant::now).elapsed() > grace {
                    return Ok(End::LeftOthers);
                }
            } else if begin.elapsed() > limit {
                return Ok(End::Late);
            }
        }
    }

    /// Takes what has been read by now. Returns whether the output is closed.
    fn is_closed(&mut self) -> bool {
        loop {
            match self.chunks.recv_timeout(Duration::from_millis(1)) {
                Ok(chunk) => self.text.extend(chunk),
                Err(why) => return matches!(why, RecvTimeoutError::Disconnected),
            }
        }
    }

    /// Kills it and all others that have its output open, and says what each of them did.
    fn kill(&mut self, why: &str) -> io::Result<ExitStatus> {
        let mut story = format!("\ncargo xtask test: this program {why}:\n");
        let own = self.child.id();
        let others = holders(&self.pipe).into_iter().filter(|process| *process != own);
        let processes: Vec<u32> = [own].into_iter().chain(others).collect();
        for process in &processes {
            describe(*process, &mut story);
        }
        let numbers = processes.iter().map(u32::to_string);
        // Some may have ended meanwhile.
        Command::new("kill").arg("-9").args(numbers).stderr(Stdio::null()).status()?;
        self.child.wait()?;
        self.is_closed();
        self.text.extend(story.as_bytes());
        Ok(ExitStatus::from_raw(9))
    }
}

/// The processes that have a pipe open, except this one.
fn holders(pipe: &PathBuf) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|number| *number != std::process::id());
    others
        .filter(|number| {
            let files = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten().flatten();
            files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == *pipe))
        })
        .collect()
}

/// Appends a process's command, and in which function of the kernel each of its threads waits. Threads of tests have the names of their tests.
fn describe(process: u32, story: &mut String) {
    let command = proc_file(process, "cmdline").replace('\0', " ");
    let _ = writeln!(story, "{process}: {}", command.trim());
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    for thread in threads.filter_map(|entry| entry.file_name().into_string().ok()) {
        let name = proc_file(process, &format!("task/{thread}/comm"));
        let place = proc_file(process, &format!("task/{thread}/wchan"));
        let _ = writeln!(story, "    {} in {}", name.trim(), place.trim());
    }
}

/// A file of a process in /proc; empty if the process has ended.
fn proc_file(process: u32, path: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{path}")).unwrap_or_default()
}

/// A folder for a program's temporary files, removed when the program has ended in any way.
struct TemporaryFiles(PathBuf);

impl TemporaryFiles {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short, since paths of sockets in it may have at most 108 bytes.
        let folder = std::env::temp_dir().join(format!("bm-t{}-{number}", std::process::id()));
        fs::create_dir(&folder).map(|()| Self(folder))
    }
}

impl Drop for TemporaryFiles {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is not removed: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (bool, String) {
        let program = Program {
            name: "x".into(),
            path: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: Vec::new(),
            folder: "/".into(),
            when_idle: false,
        };
        let output = run_within(&program, limit, Duration::from_millis(200)).unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn all_output_is_kept() {
        let (passed, text) = shell("seq 100000; echo end >&2", LIMIT);
        assert!(passed && text.ends_with("100000\nend\n") && text.starts_with("1\n2\n"));
        assert!(!shell("exit 3", LIMIT).0);
    }

    #[test]
    fn what_never_ends_is_killed_with_all_it_started() {
        let (passed, text) = shell("echo begun; sleep 1000 & sleep 1000", Duration::from_millis(300));
        assert!(!passed && text.starts_with("begun\n\ncargo xtask test: this program ran for"), "{text}");
        assert_eq!(text.matches(": sleep 1000\n").count(), 2, "{text}");
    }

    #[test]
    fn what_is_left_behind_is_named_and_killed() {
        let (passed, text) = shell("sleep 1000 & echo done", LIMIT);
        assert!(!passed && text.starts_with("done\n\ncargo xtask test: this program has ended"), "{text}");
        assert_eq!(text.matches(": sleep 1000\n").count(), 1, "{text}");
    }
}
