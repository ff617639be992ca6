//! The results of the tests, as lines and as counts.

use super::known;

/// How a test ended, with the first line of the reason.
pub enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
    TimedOut(String),
}

/// A line of the table.
pub struct Row {
    pub name: String,
    pub outcome: Outcome,
    pub seconds: f64,
}

/// The most informative line of a test's output: the first that reports an error, else the last.
pub fn why(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let telling = |line: &&str| {
        let low = line.to_lowercase();
        let noise = low.starts_with("brickmoon: query this program");
        !noise
            && ["brickmoon:", "error", "fail", "differ", "not found", "skip"]
                .iter()
                .any(|word| low.contains(word))
    };
    lines()
        .find(telling)
        .or_else(|| lines().next_back())
        .unwrap_or("it printed nothing")
        .chars()
        .take(160)
        .collect()
}

/// A row as text: state, name, seconds, why.
pub fn line(row: &Row) -> String {
    let known = known::reason(&row.name);
    let (state, why) = match (&row.outcome, known) {
        (Outcome::Passed, None) => ("passed", String::new()),
        (Outcome::Passed, Some(reason)) => {
            ("passed", format!("although it is listed as one that cannot pass: {reason}"))
        }
        (Outcome::Skipped(why), _) => ("skipped itself", why.clone()),
        (_, Some(reason)) => ("cannot pass", reason.to_owned()),
        (Outcome::Failed(why), None) => ("FAILED", why.clone()),
        (Outcome::TimedOut(why), None) => ("TIMED OUT", why.clone()),
    };
    format!("{state:14}  {:60}  {:6.1} s  {why}", row.name, row.seconds).trim_end().to_owned()
}

/// The counts, and the tests that failed.
pub fn summary(rows: Vec<Row>) -> Result<String, Vec<String>> {
    let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let known = |row: &Row| known::reason(&row.name).is_some();
    let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_) | Outcome::TimedOut(_));
    let (cannot, wrong): (Vec<_>, Vec<_>) = rows.iter().filter(failed).partition(|row| known(row));
    let output = format!(
        "{} tests: {} passed, {} skipped themselves, {} cannot pass, {} failed, {} timed out",
        rows.len(),
        count(|row| matches!(row.outcome, Outcome::Passed)),
        count(|row| matches!(row.outcome, Outcome::Skipped(_))),
        cannot.len(),
        wrong.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))).count(),
        wrong.iter().filter(|row| matches!(row.outcome, Outcome::TimedOut(_))).count(),
    );
    if wrong.is_empty() {
        return Ok(output);
    }
    Err(wrong.into_iter().map(line).chain([output]).collect())
}
