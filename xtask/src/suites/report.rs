//! What test programs said, and the sum of it.

use std::process::Output;
use std::time::Duration;

/// How all programs so far have ended.
#[derive(Debug, Default)]
pub struct Sum {
    passed: u64,
    failed: u64,
    ignored: u64,
    programs: usize,
    /// Programs that ended badly, and how.
    bad: Vec<String>,
}

impl Sum {
    /// Shows what a program has said, and counts it.
    pub fn add(&mut self, name: &str, output: &Result<Output, String>, took: Duration) {
        self.programs += 1;
        println!("     Running {name} ({:.1} s)", took.as_secs_f64());
        match output {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                println!("{}", said.trim_end());
                self.count(&said);
                if !output.status.success() {
                    self.bad.push(format!("{name}: {}", output.status));
                }
            }
            Err(why) => self.bad.push(format!("{name}: {why}")),
        }
    }

    /// Adds the numbers of a program's result lines.
    fn count(&mut self, said: &str) {
        for line in said.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let number = |what: &str| {
                let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
                part.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            self.passed += number("passed");
            self.failed += number("failed");
            self.ignored += number("ignored");
        }
    }

    /// The last word, in the form that cargo's test programs have.
    pub fn end(self, took: Duration) -> Result<String, Vec<String>> {
        let Self { passed, failed, ignored, programs, bad } = self;
        let line = |word: &str| {
            format!(
                "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
                 0 filtered out; finished in {:.2}s",
                took.as_secs_f64()
            )
        };
        if bad.is_empty() && failed == 0 {
            return Ok(format!("all {programs} test programs:\n{}", line("ok")));
        }
        Err([vec!["these test programs failed:".into()], bad, vec![line("FAILED")]].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const GOOD: &str = "\nrunning 3 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; \
                        0 measured; 4 filtered out; finished in 0.21s\n";

    fn ended(status: i32, said: &str) -> Result<Output, String> {
        let status = ExitStatus::from_raw(status << 8);
        Ok(Output { status, stdout: said.into(), stderr: Vec::new() })
    }

    #[test]
    fn sums_up_what_passed() {
        let mut sum = Sum::default();
        sum.add("a", &ended(0, GOOD), Duration::ZERO);
        sum.add("b", &ended(0, GOOD), Duration::ZERO);
        let said = sum.end(Duration::from_secs(9)).unwrap();
        assert_eq!(
            said,
            "all 2 test programs:\ntest result: ok. 4 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; \
             finished in 9.00s"
        );
    }

    #[test]
    fn one_that_fails_in_whatever_way_fails_all() {
        let bad = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        for output in
            [ended(101, bad), ended(101, "killed before its result"), Err("there is no such file".into())]
        {
            let mut sum = Sum::default();
            sum.add("good", &ended(0, GOOD), Duration::ZERO);
            sum.add("bad", &output, Duration::ZERO);
            let findings = sum.end(Duration::ZERO).unwrap_err();
            assert!(findings[1].starts_with("bad: "), "{findings:?}");
            assert!(findings[2].starts_with("test result: FAILED. "), "{findings:?}");
        }
    }
}
