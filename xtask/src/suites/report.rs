//! The output of test programs, and the sum of their results.

use std::process::Output;
use std::time::Duration;

/// The results of all programs so far.
#[derive(Debug, Default)]
pub struct Sum {
    passed: u64,
    failed: u64,
    ignored: u64,
    programs: usize,
    /// Programs that failed, and how.
    bad: Vec<String>,
    /// What their failed tests printed, shown once more at the end, where it is found.
    failures: Vec<String>,
    /// Tests that failed at first, and passed when their programs were run again.
    flaky: Vec<String>,
    /// How long each program took.
    times: Vec<(Duration, String)>,
}

/// The most programs that are named as those that took longest.
const LONGEST_MAX: usize = 10;

/// Whether it ended well.
pub fn passed(output: &Result<Output, String>) -> bool {
    output.as_ref().is_ok_and(|output| output.status.success())
}

impl Sum {
    /// Counts the results in the output of a program.
    pub fn count(&mut self, name: &str, output: &Result<Output, String>) {
        self.programs += 1;
        match output {
            Ok(output) => {
                self.add_results(&String::from_utf8_lossy(&output.stdout));
                if !output.status.success() {
                    self.bad.push(format!("{name}: {}", output.status));
                    self.failures.push(failures(name, &String::from_utf8_lossy(&output.stdout)));
                }
            }
            Err(why) => self.bad.push(format!("{name}: {why}")),
        }
    }

    /// Prints the output of a program.
    pub fn show(&mut self, name: &str, output: &Result<Output, String>, took: Duration) {
        println!("     Running {name} ({:.1} s)", took.as_secs_f64());
        if let Ok(output) = output {
            println!("{}", String::from_utf8_lossy(&output.stdout).trim_end());
        }
        self.times.push((took, name.into()));
    }

    /// Records that a program passed when it was run again; `output` is that of its first run.
    pub fn passed_again(&mut self, name: &str, output: &Result<Output, String>) {
        let text = output.as_ref().map(|output| String::from_utf8_lossy(&output.stdout)).unwrap_or_default();
        let failed = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_string());
        let mut tests: Vec<String> = text.lines().filter_map(failed).collect();
        if tests.is_empty() {
            tests.push("ended before its result".into());
        }
        self.flaky.extend(tests.iter().map(|test| format!("{name}: {test}")));
    }

    /// Adds the numbers of a program's result lines.
    fn add_results(&mut self, text: &str) {
        for line in text.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let number = |what: &str| {
                let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
                part.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            self.passed += number("passed");
            self.failed += number("failed");
            self.ignored += number("ignored");
        }
    }

    /// What took longest, what was flaky, and the final line in the format of cargo's test programs.
    pub fn end(self, took: Duration) -> Result<String, Vec<String>> {
        let Self { passed, failed, ignored, programs, bad, failures, flaky, mut times } = self;
        times.sort();
        let longest = times.iter().rev().take(LONGEST_MAX);
        let longest: Vec<_> =
            longest.map(|(took, name)| format!("{name} {:.0} s", took.as_secs_f64())).collect();
        let longest = format!("longest: {}", longest.join(", "));
        let line = |word: &str| {
            format!(
                "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
                 0 filtered out; finished in {:.2}s",
                took.as_secs_f64()
            )
        };
        if bad.is_empty() && failed == 0 {
            let flaky: String = flaky
                .iter()
                .map(|test| format!("FLAKY (failed, and passed when it was run again alone): {test}\n"))
                .collect();
            return Ok(format!("{longest}\n{flaky}all {programs} test programs:\n{}", line("ok")));
        }
        Err([failures, vec![longest, "these test programs failed:".into()], bad, vec![line("FAILED")]]
            .concat())
    }
}

/// The most lines of a program's failures that are shown once more.
const FAILURE_LINES_MAX: usize = 60;

/// What the failed tests of a program printed, without backtraces, or its last lines if it has no such list.
fn failures(name: &str, text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let begin = lines.iter().position(|line| *line == "failures:").map_or(0, |index| index + 1);
    let end = lines[begin..].iter().position(|line| *line == "failures:").map_or(lines.len(), |n| begin + n);
    let mut kept: Vec<&str> = Vec::new();
    let mut in_trace = false;
    for line in &lines[begin..end] {
        // A backtrace ends with a note or where the next test's output begins.
        in_trace = (in_trace || *line == "stack backtrace:") && !line.starts_with(['-', 'n']);
        if !in_trace && !line.starts_with("note: ") {
            kept.push(line);
        }
    }
    let skipped = kept.len().saturating_sub(FAILURE_LINES_MAX);
    format!("---- {name}:\n{}", kept[skipped..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const GOOD: &str = "\nrunning 3 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; \
                        0 measured; 4 filtered out; finished in 0.21s\n";

    fn ended(status: i32, text: &str) -> Result<Output, String> {
        let status = ExitStatus::from_raw(status << 8);
        Ok(Output { status, stdout: text.into(), stderr: Vec::new() })
    }

    #[test]
    fn sums_up_what_passed() {
        let mut sum = Sum::default();
        sum.count("a", &ended(0, GOOD));
        sum.count("b", &ended(0, GOOD));
        sum.times = [(2, "a"), (7, "b")].map(|(s, name)| (Duration::from_secs(s), name.into())).into();
        let text = sum.end(Duration::from_secs(9)).unwrap();
        assert_eq!(
            text,
            "longest: b 7 s, a 2 s\nall 2 test programs:\ntest result: ok. 4 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; \
             finished in 9.00s"
        );
    }

    #[test]
    fn a_test_that_passes_only_alone_is_named() {
        let mut sum = Sum::default();
        sum.count("a", &ended(0, GOOD));
        sum.passed_again("a", &ended(101, "test b::c ... FAILED\ntest d ... ok\n"));
        sum.passed_again("e", &ended(9, "killed"));
        let text = sum.end(Duration::ZERO).unwrap();
        let flaky = "FLAKY (failed, and passed when it was run again alone)";
        assert!(text.contains(&format!("{flaky}: a: b::c\n{flaky}: e: ended before its result\n")), "{text}");
    }

    #[test]
    fn a_failed_program_fails_the_run() {
        let bad = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        for output in
            [ended(101, bad), ended(101, "killed before its result"), Err("there is no such file".into())]
        {
            let mut sum = Sum::default();
            assert!(!passed(&output));
            sum.count("good", &ended(0, GOOD));
            sum.count("bad", &output);
            sum.passed_again("good", &ended(101, "test a ... FAILED"));
            let findings = sum.end(Duration::ZERO).unwrap_err();
            let [.., line, last] = findings.as_slice() else { panic!("{findings:?}") };
            assert!(line.starts_with("bad: "), "{findings:?}");
            assert!(last.starts_with("test result: FAILED. "), "{findings:?}");
        }
    }

    #[test]
    fn what_failed_is_shown_at_the_end() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
                    thread 'b' (9) panicked at x.rs:1:1:\nleft is not right\nstack backtrace:\n   0: one\n\
                    \x20            at ./x.rs:9\nnote: Some details are omitted\n\n\nfailures:\n    b\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";
        let mut sum = Sum::default();
        sum.count("x", &ended(101, text));
        let findings = sum.end(Duration::ZERO).unwrap_err();
        assert_eq!(
            findings[0],
            "---- x:\n---- b stdout ----\nthread 'b' (9) panicked at x.rs:1:1:\nleft is not right"
        );
        assert_eq!(failures("x", "one\n\nKilled"), "---- x:\none\nKilled");
    }
}
