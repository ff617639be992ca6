//! Every name under which `show drops` and metrics count packets: the one list for `show drops --explain` and the
//! documentation.

use bm_api::{Cause, Causes};
use bm_fastpath::{LEFT_TO_LINUX, LinuxCause};
use bm_stats::Reason;

/// What happens to packets with a cause, as `show drops --explain` prints it.
const DROPPED: &str = "dropped";
const LEFT: &str = "left to Linux";
const BY_LINUX: &str = "dropped by Linux";

/// All names; reasons of hooks and of switches and clusters are their own.
pub fn all() -> Causes {
    let dropped = Reason::ALL.iter().map(|reason| cause(DROPPED, reason.name(), reason.meaning()));
    let left = LEFT_TO_LINUX.iter().map(|(name, meaning)| cause(LEFT, name, meaning));
    let by_linux = LinuxCause::ALL.iter().map(|of| cause(BY_LINUX, of.name(), of.meaning()));
    Causes { causes: dropped.chain(left).chain(by_linux).collect() }
}

fn cause(outcome: &str, name: &str, meaning: &str) -> Cause {
    Cause { outcome: outcome.into(), name: name.into(), meaning: meaning.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page with the table of all causes.
    const PAGE: &str = include_str!("../../../docs/operations.md");

    /// The rows of tables of the page whose first column is this one.
    fn rows(first: &str) -> Vec<Vec<&str>> {
        let cells = |line: &'static str| -> Vec<&str> {
            line.trim_matches('|').split(" | ").map(str::trim).collect()
        };
        let mut lines = PAGE.lines();
        lines.find(|line| cells(line)[0] == first).unwrap_or_else(|| panic!("no table {first:?}"));
        lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect()
    }

    #[test]
    fn the_page_lists_every_cause_as_the_code_has_it() {
        let all = all();
        let expected: Vec<_> = all
            .causes
            .iter()
            .map(|cause| vec![cause.outcome.clone(), format!("`{}`", cause.name), cause.meaning.clone()])
            .collect();
        let written = rows("outcome");
        for (written, expected) in written.iter().zip(&expected) {
            assert_eq!(written, expected, "docs/operations.md");
        }
        assert_eq!(written.len(), expected.len(), "docs/operations.md lacks rows, or has too many");
    }

    #[test]
    fn metrics_have_the_same_names() {
        let counter = |cause: &Cause| match cause.outcome.as_str() {
            DROPPED => (
                format!("router/0/r0/drop/{}", cause.name),
                format!("brickmoon_dropped_frames_total{{app=\"router/0/r0\",reason=\"{}\"}} 1", cause.name),
            ),
            LEFT => (
                format!("linux/r0/left/{}", cause.name),
                format!("brickmoon_left_to_linux_frames_total{{port=\"r0\",cause=\"{}\"}} 1", cause.name),
            ),
            _ => (
                format!("linux/r0/dropped/{}", cause.name),
                format!("brickmoon_linux_dropped_frames_total{{port=\"r0\",reason=\"{}\"}} 1", cause.name),
            ),
        };
        let (counters, lines): (Vec<_>, Vec<_>) = all().causes.iter().map(counter).unzip();
        let counters: Vec<_> = counters.into_iter().map(|name| (name, 1)).collect();
        let text = crate::metrics::render(
            &bm_api::Status::default(),
            &counters,
            &[],
            &bm_api::Collectors::default(),
        );
        for line in lines {
            assert!(text.lines().any(|other| other == line), "no line {line} in {text}");
        }
    }

    #[test]
    fn the_page_shows_the_columns_that_commands_print() {
        let heading = |columns: &[(&str, bm_cli::Align)]| {
            let names: Vec<_> =
                columns.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
            names.join(" ")
        };
        let lines: Vec<String> =
            PAGE.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for columns in [
            &bm_cli::PORT_COLUMNS[..],
            &bm_cli::ACCOUNT_COLUMNS,
            &bm_cli::DROP_COLUMNS,
            &bm_cli::LEFT_COLUMNS,
            &bm_cli::BY_LINUX_COLUMNS,
            &bm_cli::CAUSE_COLUMNS,
        ] {
            let heading = heading(columns);
            assert!(lines.contains(&heading), "docs/operations.md shows no {heading:?}");
        }
    }
}
