//! What a source file must contain, and what it must not.

use crate::layers::Layers;
use crate::sources::Source;

/// Findings about module pages, `unsafe`, leftovers and commented-out code.
pub fn check(layers: &Layers, sources: &[Source]) -> Vec<String> {
    sources
        .iter()
        .flat_map(|source| {
            let mut findings = Vec::new();
            let path = source.path.display().to_string();
            let is_root = path.ends_with("src/lib.rs") || path.ends_with("/main.rs");
            if !source.is_test && !source.text.starts_with("//!") {
                findings.push(format!("{path}: has no module documentation; begin with //! and say what it is for"));
            }
            if is_root && forbids(layers, &path) && !source.text.contains("#![forbid(unsafe_code)]") {
                findings.push(format!("{path}: must not contain unsafe code; add #![forbid(unsafe_code)]"));
            }
            if is_of_router(&path) {
                let found = OF_BENCHES.iter().filter(|name| source.text.contains(**name));
                findings.extend(found.map(|name| {
                    format!("{path}: uses {name}, which the router must not contain; use it in src/bin/brickmoon-bench")
                }));
            }
            findings.extend(source.text.lines().enumerate().filter_map(|(index, line)| {
                leftover(line).map(|what| format!("{path}:{}: {what}", index + 1))
            }));
            findings
        })
        .collect()
}

/// Crates for benches and tests only (docs/decisions/0027-benches-apart.md).
const OF_BENCHES: [&str; 3] = ["bm_eval", "bm_simulate", "bm_testbed"];

/// Whether the file belongs to the program `brickmoon`, whose package also has `brickmoon-bench`.
fn is_of_router(path: &str) -> bool {
    path.strip_prefix("crates/brickmoon/src/").is_some_and(|rest| !rest.starts_with("bin/"))
}

fn forbids(layers: &Layers, path: &str) -> bool {
    let name = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
    name.and_then(|name| layers.get(name)).is_some_and(|row| !row.may_be_unsafe)
}

/// The words are composed here, so that this file does not report itself.
fn leftover(line: &str) -> Option<String> {
    let line = line.trim();
    let macros = ["to", "un", "db"].into_iter().zip(["do!", "implemented!", "g!"]);
    let found = macros.map(|(start, end)| format!("{start}{end}(")).find(|word| line.contains(word.as_str()));
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat());
    let mark = marks.into_iter().find(|mark| line.starts_with("//") && line.contains(mark.as_str()));
    if let Some(word) = found.or(mark) {
        return Some(format!("{word} is left over; finish or remove it"));
    }
    let comment = line.strip_prefix("// ")?.trim();
    let is_code = comment.ends_with(';')
        && (comment.starts_with("let ") || comment.contains(" = ") || comment.ends_with(");"));
    is_code.then(|| "commented-out code; delete it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_benches_out_of_the_router() {
        let findings = |path: &str| {
            let text = "//! Why.\nuse bm_eval::bench;\n".to_string();
            let (path, functions) = (path.into(), Vec::new());
            check(&Layers::new(), &[Source { path, text, lines: 2, functions, is_test: false }])
        };
        assert!(findings("crates/brickmoon/src/commands.rs")[0].contains("uses bm_eval"));
        assert!(findings("crates/brickmoon/src/bin/brickmoon-bench/commands.rs").is_empty());
    }

    #[test]
    fn finds_leftover_code() {
        let todo = ["to", "do!(\"later\");"].concat();
        assert!(leftover(&todo).is_some());
        assert!(leftover("// let x = 5;").is_some());
        assert!(leftover("// drop(frame);").is_some());
        assert!(leftover("// The value falls; nothing else does.").is_none());
        assert!(leftover("let x = 5; // why").is_none());
    }
}
