//! Files and functions that are too long, and the list of exceptions, which may only shrink.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources::{self, Source};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
/// For a function that reads from top to bottom.
const SEQUENCE_LINES: usize = 100;
/// How deep the blocks of such a function may be in each other.
const SEQUENCE_NESTING: usize = 2;
const LIST: &str = "xtask/oversize.txt";

/// Findings about sizes; tests are not measured.
pub fn check(root: &Path, sources: &[Source]) -> Vec<String> {
    let allowed = allowed(root);
    let mut left = allowed.clone();
    let mut findings = Vec::new();
    let mut measure = |what: String, lines: usize, limit: usize| {
        let most = allowed.get(&what).copied();
        if lines > limit {
            left.remove(&what);
            match most {
                Some(most) if lines < most => {
                    findings.push(format!("{LIST}: {what} has {lines} lines now; lower its number"))
                }
                Some(most) if lines == most => {}
                _ => findings.push(format!(
                    "{what}: {lines} lines, over the limit of {limit}: does it do two things? split it"
                )),
            }
        }
    };
    for source in sources.iter().filter(|source| !source.is_test) {
        measure(source.path.display().to_string(), source.lines, FILE_LINES);
        for function in &source.functions {
            let is_sequence = function.nesting <= SEQUENCE_NESTING;
            let limit = if is_sequence { SEQUENCE_LINES } else { FUNCTION_LINES };
            measure(format!("{}:{}", source.path.display(), function.name), function.lines, limit);
        }
    }
    for (path, lines) in sources::c_files(root) {
        measure(path.display().to_string(), lines, FILE_LINES);
    }
    findings.extend(
        left.keys().map(|what| format!("{LIST}: {what} is within the limit or gone; remove the line")),
    );
    findings
}

fn allowed(root: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(what, most)| Some((what.into(), most.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sequences_may_be_longer() {
        let findings = |lines, nesting| {
            let functions = vec![crate::sources::Function { name: "f".into(), lines, nesting }];
            let (path, text) = ("x.rs".into(), String::new());
            check(Path::new("/nowhere"), &[Source { path, text, lines, functions, is_test: false }])
        };
        assert_eq!((findings(70, 5).len(), findings(100, 2).len()), (0, 0));
        assert!(findings(71, 3)[0].starts_with("x.rs:f: 71 lines, over the limit of 70"));
        assert!(findings(101, 0)[0].starts_with("x.rs:f: 101 lines, over the limit of 100"));
    }

    #[test]
    fn c_files_are_measured_too() {
        let root = std::env::temp_dir().join(format!("bm-sizes-{}", std::process::id()));
        for (file, lines) in [("bpf/long.h", 501), ("c/short.c", 500), ("tests/long.c", 501)] {
            let file = root.join("crates/one").join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, "\n".repeat(lines)).expect("a file");
        }
        let findings = check(&root, &[]);
        std::fs::remove_dir_all(root).expect("removed");
        assert_eq!(
            findings,
            ["crates/one/bpf/long.h: 501 lines, over the limit of 500: does it do two things? split it"]
        );
    }
}
