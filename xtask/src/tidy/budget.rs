//! The limit on the lines of Rust in each crate. A crate that exceeds it needs a review first.

use std::collections::BTreeMap;

use crate::layers::Layers;
use crate::sources::Source;

/// Crates over their budget, and budgets that are too large to be useful.
pub fn check(layers: &Layers, sources: &[Source]) -> Vec<String> {
    let lines = lines(sources);
    let of_one = |(name, row): (&String, &crate::layers::Row)| {
        let has = lines.get(name.as_str()).copied().unwrap_or(0);
        let budget = row.lines;
        if has > budget {
            Some(format!(
                "crates/{name}: {has} lines, over its budget of {budget} in xtask/layers.toml; make it smaller, or raise the budget with a decision record that says why"
            ))
        } else if has + SLACK < budget {
            Some(format!("xtask/layers.toml: crates/{name} has {has} lines; lower its budget of {budget}"))
        } else {
            None
        }
    };
    layers.iter().filter_map(of_one).collect()
}

/// How many lines a budget may exceed the actual number.
const SLACK: usize = 1000;

/// Lines of each crate, without tests.
fn lines(sources: &[Source]) -> BTreeMap<&str, usize> {
    let mut lines = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let mut parts = source.path.components().map(|part| part.as_os_str().to_str().unwrap_or_default());
        if let (Some("crates"), Some(name)) = (parts.next(), parts.next()) {
            *lines.entry(name).or_default() += source.lines;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::layers::Row;

    fn source(path: &str, lines: usize, is_test: bool) -> Source {
        Source { path: PathBuf::from(path), text: String::new(), lines, functions: Vec::new(), is_test }
    }

    fn findings(budget: usize) -> Vec<String> {
        let row = Row {
            layer: 0,
            may_use: Vec::new(),
            may_be_unsafe: false,
            lines: budget,
            cycles: Vec::new(),
            left: BTreeMap::new(),
        };
        let sources = [
            ("crates/one/src/a.rs", 700, false),
            ("crates/one/src/b.rs", 50, false),
            ("crates/one/tests/c.rs", 9999, true),
        ];
        check(
            &Layers::from([("one".into(), row)]),
            &sources.map(|(path, lines, is_test)| source(path, lines, is_test)),
        )
    }

    #[test]
    fn a_crate_keeps_within_its_budget() {
        assert!(findings(750).is_empty() && findings(1750).is_empty());
        assert!(findings(749)[0].starts_with("crates/one: 750 lines, over its budget of 749"));
        assert!(findings(1751)[0].ends_with("crates/one has 750 lines; lower its budget of 1751"));
    }
}
