//! `cargo xtask tidy`: every rule of the tree that a program can check.

mod budget;
mod cycles;
mod docs;
mod left;
mod links;
mod names;
mod place;
mod plain;
mod public;
mod readmes;
mod shared;
mod sizes;
mod text;

use std::path::Path;

use crate::{graph, layers, openapi, settings, sources};

/// Lowers what is left in `xtask/layers.toml` to what there is.
pub fn lower(root: &Path) -> Result<String, Vec<String>> {
    let layers = layers::read(root).map_err(|error| vec![error])?;
    left::lower(root, &layers)
}

/// All findings, or a line with what was checked.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    let layers = layers::read(root).map_err(|error| vec![error])?;
    let sources = sources::read(root)?;
    let mut findings = layers::check(root, &layers);
    findings.extend(sizes::check(root, &sources));
    findings.extend(text::check(&layers, &sources));
    findings.extend(shared::check(&sources));
    findings.extend(links::check(root));
    findings.extend(readmes::check(root));
    findings.extend(names::check(&sources));
    findings.extend(budget::check(&layers, &sources));
    findings.extend(docs::check(&sources));
    findings.extend(left::check(&layers, &sources));
    findings.extend(cycles::check(&layers, &sources));
    findings.extend(graph::check(root));
    findings.extend(openapi::check(root));
    findings.extend(settings::check(root));
    if findings.is_empty() {
        let functions: usize = sources.iter().map(|source| source.functions.len()).sum();
        Ok(format!(
            "tidy: {} crates, {} files, {functions} functions, nothing to fix",
            layers.len(),
            sources.len()
        ))
    } else {
        findings.sort();
        Err(findings)
    }
}
