//! The groups of modules of which each reaches every other one.

use std::collections::BTreeSet;

use super::Imports;

/// All groups of two or more, sorted.
pub fn groups(imports: &Imports) -> Vec<Vec<String>> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    for from in imports.keys() {
        if groups.iter().any(|group| group.contains(from)) {
            continue;
        }
        let there = reached(imports, from);
        let group: Vec<String> = there
            .iter()
            .filter(|to| reached(imports, to).contains(from.as_str()))
            .map(ToString::to_string)
            .collect();
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups
}

/// All modules to which imports lead from this one.
fn reached<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        let others = imports.get(module).into_iter().flat_map(|others| others.keys());
        next.extend(others.map(String::as_str).filter(|other| found.insert(*other)));
    }
    found
}
