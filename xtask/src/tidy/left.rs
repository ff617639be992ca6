//! What the tree still has too much of: `left` in `xtask/layers.toml` says how many of each a crate has. These numbers may
//! only fall; `cargo xtask tidy --lower` lowers them.

use std::collections::BTreeMap;
use std::path::Path;

use super::place::{self, Place};
use super::{plain, public};
use crate::layers::Layers;
use crate::sources::{self, Source};

/// What is counted: its key in `left`, and what to do about it.
const KINDS: [(&str, &str); 6] = [
    (public::UNUSED, "public items whose names occur nowhere outside; make them pub(crate), or remove them"),
    (plain::CLOSURES, "closures with a name that is used once; write them there, or make them functions"),
    (plain::TUPLES, "functions that take a tuple apart; take values, or a type with a noun's name"),
    (
        plain::LEANING,
        "comments that begin with \"The same\", \"That of\" or \"Those of\"; say what it is, or nothing",
    ),
    (plain::NAMES, "types named by a participle or a loose word; name what they are, with a noun"),
    (plain::WORDS, "lines with a word that only this tree uses; take the one of Linux, DPDK or VPP"),
];

/// Numbers that have risen, with all places, and numbers that have fallen.
pub fn check(layers: &Layers, sources: &[Source]) -> Vec<String> {
    let places = places(sources);
    let mut findings = Vec::new();
    for (name, row) in layers {
        for (kind, what) in KINDS {
            let allowed = row.left.get(kind).copied().unwrap_or(0);
            let found = places.get(&(name.as_str(), kind)).map_or(&[][..], Vec::as_slice);
            if found.len() > allowed {
                let list: String = found.iter().map(|place| format!("\n    {place}")).collect();
                findings.push(format!(
                    "crates/{name}: {} {what} (xtask/layers.toml: {kind} = {allowed}):{list}",
                    found.len()
                ));
            } else if found.len() < allowed {
                let now = found.len();
                findings.push(format!("xtask/layers.toml: {name} has {kind} = {now} now, not {allowed}; `cargo xtask tidy --lower` writes it"));
            }
        }
    }
    findings
}

/// Writes the numbers that have fallen, and all numbers of crates that have none.
pub fn lower(root: &Path, layers: &Layers) -> Result<String, Vec<String>> {
    let sources = sources::read(root)?;
    let path = root.join("xtask/layers.toml");
    let failed = |error: std::io::Error| vec![format!("{}: {error}", path.display())];
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    std::fs::write(&path, lowered(&text, layers, &places(&sources))).map_err(failed)?;
    Ok("tidy: xtask/layers.toml is lowered".into())
}

/// The text of `layers.toml` with new numbers, in a line behind `layer`.
fn lowered(text: &str, layers: &Layers, places: &Places) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut name = "";
    for line in text.lines().filter(|line| !line.starts_with("left = ")) {
        lines.push(line.into());
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name = section;
        }
        let Some(row) = layers.get(name).filter(|_| line.starts_with("layer = ")) else { continue };
        let mut numbers = Vec::new();
        for (kind, _) in KINDS {
            let found = places.get(&(name, kind)).map_or(0, Vec::len);
            let number = match row.left.get(kind) {
                Some(before) => found.min(*before),
                None if row.left.is_empty() => found,
                None => 0,
            };
            if number > 0 {
                numbers.push(format!("{kind} = {number}"));
            }
        }
        if !numbers.is_empty() {
            lines.push(format!("left = {{ {} }}", numbers.join(", ")));
        }
    }
    lines.join("\n") + "\n"
}

/// By crate and kind.
type Places<'a> = BTreeMap<(&'a str, &'static str), Vec<String>>;

fn places(sources: &[Source]) -> Places<'_> {
    let mut all = Places::new();
    let names: BTreeMap<&str, &str> = sources.iter().filter_map(place::of).map(|name| (name, name)).collect();
    for Place { of, kind, text } in plain::places(sources).into_iter().chain(public::places(sources)) {
        if let Some(name) = names.get(of.as_str()) {
            all.entry((*name, kind)).or_default().push(text);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Row;

    fn row(left: &[(&str, usize)]) -> Row {
        let left = left.iter().map(|(kind, number)| (kind.to_string(), *number)).collect();
        Row { layer: 0, may_use: Vec::new(), may_be_unsafe: false, lines: 0, cycles: Vec::new(), left }
    }

    fn source(text: &str) -> Source {
        let path = "crates/one/src/lib.rs".into();
        Source { path, text: text.into(), lines: 0, functions: Vec::new(), is_test: false }
    }

    const TWO: &str = "/// The same for IPv6.\npub struct Asked;";

    #[test]
    fn numbers_may_neither_rise_nor_stay_when_there_are_fewer() {
        let findings =
            |left: &[(&str, usize)]| check(&Layers::from([("one".into(), row(left))]), &[source(TWO)]);
        assert!(findings(&[("public", 1), ("leaning", 1), ("names", 1)]).is_empty());
        let over = findings(&[("public", 1), ("leaning", 1)]);
        assert!(
            over[0].ends_with("(xtask/layers.toml: names = 0):\n    crates/one/src/lib.rs:2: Asked"),
            "{over:?}"
        );
        let under = findings(&[("public", 1), ("leaning", 3), ("names", 1)]);
        assert!(under[0].starts_with("xtask/layers.toml: one has leaning = 1 now, not 3"), "{under:?}");
    }

    #[test]
    fn numbers_are_lowered_in_the_file() {
        let layers = Layers::from([
            ("one".into(), row(&[("leaning", 4), ("names", 1), ("tuples", 2)])),
            ("two".into(), row(&[])),
        ]);
        let text = "# Why.\n[one]\nlayer = 0\nleft = { leaning = 4, names = 1, tuples = 2 }\nlines = 9\n\n[two]\nlayer = 1\n";
        let sources = [source(TWO)];
        assert_eq!(
            lowered(text, &layers, &places(&sources)),
            "# Why.\n[one]\nlayer = 0\nleft = { leaning = 1, names = 1 }\nlines = 9\n\n[two]\nlayer = 1\n"
        );
    }
}
