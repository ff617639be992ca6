//! Runs tests: each in a process group, with its own namespaces and folder of shared memory, until its time limit.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::plan::{Job, Test};
use super::table::{self, Outcome, Row};

/// Where tests run.
pub struct Place {
    src: PathBuf,
    logs: PathBuf,
    limit: Duration,
}

/// Snabb's sign for a test that skipped itself.
const SKIPPED: i32 = 43;

/// Runs before each test's command: gives it its own loopback interface and /sys, and private folders for `ip netns`
/// and for Snabb's shared memory, which are gone afterwards.
const FIRST: &str = "ip link set lo up; mount -t sysfs sysfs /sys; mkdir -p /run/netns /run/snabb
mount -t tmpfs tmpfs /run/netns; mount -t tmpfs tmpfs /run/snabb";

impl Place {
    /// For the copy of a tree; the output of tests is written below `folder`.
    pub fn new(copy: &Path, folder: &Path, limit: Duration) -> Self {
        Self { src: copy.join("src"), logs: folder.join("log"), limit }
    }

    fn start(&self, test: &Test, log: &Path) -> std::io::Result<Child> {
        let output = File::create(log)?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", &format!("{FIRST}\n{}", test.command)]);
        command.current_dir(&self.src).env("TEST_SKIPPED", SKIPPED.to_string());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0).spawn()
    }

    /// Runs a test until it ends or its time is up; processes that it leaves behind end with it.
    fn run(&self, test: &Test, number: usize) -> Row {
        let began = Instant::now();
        let log = self.logs.join(format!("{number}.log"));
        let outcome = match self.start(test, &log) {
            Err(why) => Outcome::Failed(format!("unshare: {why}")),
            Ok(mut child) => {
                let status = wait(&mut child, began + self.limit * test.patience);
                let _gone = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).output();
                let _reaped = child.wait();
                outcome_of(status, &fs::read(&log).unwrap_or_default())
            }
        };
        Row { name: test.name.clone(), outcome, seconds: began.elapsed().as_secs_f64() }
    }
}

fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        sleep(Duration::from_millis(20));
    }
    None
}

/// By the exit status; Python uses the same one for tests that were all skipped and tests that passed, and only
/// prints the difference.
fn outcome_of(status: Option<ExitStatus>, log: &[u8]) -> Outcome {
    let log = String::from_utf8_lossy(log);
    let Some(status) = status else { return Outcome::TimedOut(table::why(&log)) };
    let count = |after: &str| -> Option<u32> {
        let rest = &log[log.rfind(after)? + after.len()..];
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    match status.code() {
        Some(0)
            if count("OK (skipped=")
                .is_some_and(|skipped| count("\nRan ").is_none_or(|ran| ran <= skipped)) =>
        {
            Outcome::Skipped("its Python tests skipped themselves".into())
        }
        Some(0) => Outcome::Passed,
        Some(SKIPPED) => Outcome::Skipped(table::why(&log)),
        Some(_) => Outcome::Failed(table::why(&log)),
        None => Outcome::Failed(format!("ended by signal {}", status.signal().unwrap_or(0))),
    }
}

/// Runs jobs, several at once; those that need the machine to themselves come last. Rows are printed as they are
/// finished.
pub fn all(jobs: Vec<Job>, place: &Place, at_once: usize) -> Vec<Row> {
    let _made = fs::create_dir_all(&place.logs);
    let mut number = 0;
    let mut numbered = |test| {
        number += 1;
        (number, test)
    };
    let jobs = jobs.into_iter().map(|job| job.into_iter().map(&mut numbered).collect::<Vec<_>>());
    let (alone, side_by_side): (Vec<_>, Vec<_>) =
        jobs.partition(|job| job.iter().any(|(_, test): &(usize, Test)| test.alone));
    let rows = Mutex::new(Vec::new());
    let pool = |jobs: Vec<Vec<(usize, Test)>>, threads: usize| {
        let queue = Mutex::new(VecDeque::from(jobs));
        let next = || queue.lock().ok()?.pop_front();
        let work = || {
            while let Some(job) = next() {
                for (number, test) in &job {
                    let row = place.run(test, *number);
                    println!("{}", table::line(&row));
                    if let Ok(mut rows) = rows.lock() {
                        rows.push(row);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    };
    pool(side_by_side, at_once);
    pool(alone, 1);
    rows.into_inner().unwrap_or_default()
}
