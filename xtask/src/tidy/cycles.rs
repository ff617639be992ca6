//! Modules of a crate that import each other in a cycle.
//!
//! A module imports another one if a path in its code, outside tests, leads to an item that the other one defines; a
//! path through `pub use` leads to where the item is. A module and the modules inside it are one subject and may use
//! each other: those imports do not count.
//!
//! Cycles that stay are listed in `xtask/layers.toml`, each with its reason.

mod groups;
mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::layers::{Cycle, Layers};
use crate::sources::Source;

/// Which module imports which, with the names of the items. A module's name is its path in the crate.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Every cycle that is not listed, and every one listed that does not exist.
pub fn check(layers: &Layers, sources: &[Source]) -> Vec<String> {
    let of_one = |(folder, imports): (String, Imports)| {
        let name = folder.strip_prefix("crates/").unwrap_or(&folder);
        let listed = layers.get(name).map_or(&[][..], |row| &row.cycles);
        findings(&folder, &imports, listed)
    };
    by_folder(sources).into_iter().flat_map(of_one).collect()
}

fn findings(folder: &str, imports: &Imports, listed: &[Cycle]) -> Vec<String> {
    let groups = groups::groups(imports);
    let is_listed = |group: &Vec<String>| listed.iter().any(|cycle| cycle.modules == *group);
    let new = groups.iter().filter(|group| !is_listed(group)).map(|group| {
        format!(
            "{folder}: modules import each other: {}; move what they share to a file of its own, or list them with the reason in xtask/layers.toml",
            describe(group, imports)
        )
    });
    let gone = listed.iter().filter(|cycle| !groups.contains(&cycle.modules)).map(|cycle| {
        let modules = cycle.modules.join(", ");
        format!("xtask/layers.toml: {folder} has no cycle of exactly {modules}; take it out of the list")
    });
    new.chain(gone).collect()
}

/// `a -> b (Item), b -> a (other)`.
fn describe(group: &[String], imports: &Imports) -> String {
    let within = group.iter().flat_map(|from| {
        let others = imports.get(from).into_iter().flatten();
        others.filter(|(to, _)| group.contains(to)).map(move |(to, names)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("{from} -> {to} ({})", names.join(", "))
        })
    });
    within.collect::<Vec<_>>().join(", ")
}

/// The imports within each crate, by its folder.
fn by_folder(sources: &[Source]) -> BTreeMap<String, Imports> {
    let mut crates: BTreeMap<String, Vec<(&Path, &str)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let path = source.path.to_str().unwrap_or_default();
        let Some((folder, _)) = path.split_once("/src/") else { continue };
        let in_src = source.path.strip_prefix(folder).and_then(|path| path.strip_prefix("src"));
        let Ok(in_src) = in_src else { continue };
        let (folder, in_src) = binary(folder, in_src);
        crates.entry(folder).or_default().push((in_src, &source.text));
    }
    crates.into_iter().map(|(folder, files)| (folder, modules::imports(&files))).collect()
}

/// A program in `src/bin/NAME` is a crate of its own.
fn binary<'a>(folder: &str, path: &'a Path) -> (String, &'a Path) {
    let mut parts = path.components();
    let name = parts.next().filter(|first| first.as_os_str() == "bin").and_then(|_| parts.next());
    match name.and_then(|name| name.as_os_str().to_str()) {
        Some(name) if !name.ends_with(".rs") => (format!("{folder}/src/bin/{name}"), parts.as_path()),
        Some(_) => (format!("{folder}/src/bin"), path),
        None => (folder.to_string(), path),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: PathBuf::from(path),
            text: text.into(),
            lines: 1,
            functions: Vec::new(),
            is_test: false,
        }
    }

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| source(path, text)).collect();
        check(&Layers::new(), &sources)
    }

    #[test]
    fn finds_modules_that_import_each_other() {
        let findings = found(&[
            ("crates/one/src/lib.rs", "mod a; mod b; mod c;"),
            ("crates/one/src/a.rs", "use crate::b::{Two, three}; pub struct One;"),
            ("crates/one/src/b.rs", "pub struct Two; pub fn three() { super::c::four(); }"),
            ("crates/one/src/c.rs", "pub fn four() -> crate::a::One { crate::a::One }"),
        ]);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert!(finding.contains("a -> b (Two, three), b -> c (four), c -> a (One)"), "{finding}");
    }

    #[test]
    fn follows_names_through_reexports() {
        let files = [
            ("crates/one/src/lib.rs", "mod a; mod b; pub use a::One; pub use b::*;"),
            ("crates/one/src/a.rs", "use crate::Two; pub struct One;"),
            ("crates/one/src/b.rs", "use crate::One; pub struct Two;"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn a_module_may_use_its_parent_and_tests_anything() {
        let files = [
            ("crates/one/src/lib.rs", "mod a; pub struct Root;"),
            ("crates/one/src/a.rs", "mod b; pub use b::Two; pub struct One; use crate::Root;"),
            ("crates/one/src/a/b.rs", "use super::One; pub struct Two; #[cfg(test)] mod c;"),
            ("crates/one/src/a/b/c.rs", "use crate::d::Four;"),
            ("crates/one/src/d.rs", "use crate::a::Two; #[cfg(test)] mod t { use crate::a::One; }"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn programs_of_a_crate_are_apart() {
        let files = [
            ("crates/one/src/main.rs", "mod a; fn f() { a::g(); }"),
            ("crates/one/src/a.rs", "pub fn g() {}"),
            ("crates/one/src/bin/other/main.rs", "mod a; mod b;"),
            ("crates/one/src/bin/other/a.rs", "use crate::b::B; pub struct A;"),
            ("crates/one/src/bin/other/b.rs", "pub struct B(crate::a::A);"),
        ];
        let findings = found(&files);
        assert!(findings.len() == 1 && findings[0].starts_with("crates/one/src/bin/other: "), "{findings:?}");
    }

    #[test]
    fn the_list_must_be_exact() {
        let name = |name: &str| BTreeSet::from([name.to_string()]);
        let imports = Imports::from([
            ("a".into(), BTreeMap::from([("b".into(), name("B"))])),
            ("b".into(), BTreeMap::from([("a".into(), name("A"))])),
        ]);
        let listed = |modules: &[&str]| {
            let modules = modules.iter().map(ToString::to_string).collect();
            findings("crates/one", &imports, &[Cycle { modules }])
        };
        assert!(listed(&["a", "b"]).is_empty());
        let findings = listed(&["a", "c"]);
        assert!(findings[0].contains("a -> b (B), b -> a (A)"), "{findings:?}");
        assert!(findings[1].contains("no cycle of exactly a, c"), "{findings:?}");
    }
}
