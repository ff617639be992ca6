//! The project's tools: `cargo xtask tidy` checks the tree's rules, `cargo xtask graph` draws it, `cargo xtask openapi`
//! describes the API for programs, `cargo xtask settings` the configuration, `cargo xtask test` runs the tests, `cargo xtask instructions` counts instructions per
//! packet, and `cargo xtask snabb` runs the tests of Snabb's tree.
//!
//! Limits are tests here (see docs/style.md): a program checks what a reviewer would otherwise have to look for, and each
//! finding says what to do.

mod graph;
mod instructions;
mod layers;
mod openapi;
mod settings;
mod snabb;
mod sources;
mod suites;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_path_buf()
}

fn main() -> ExitCode {
    let root = root();
    let done = match std::env::args().nth(1).as_deref() {
        Some("tidy") => match std::env::args().nth(2).as_deref() {
            None => tidy::run(&root),
            Some("--lower") => tidy::lower(&root),
            Some(other) => Err(vec![format!("unknown option {other:?}: tidy takes only --lower")]),
        },
        Some("test") => suites::run(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        Some("graph") => graph::write(&root),
        Some("instructions") => {
            let more = std::env::args().nth(2);
            match more.as_deref() {
                None => instructions::run(&root, false),
                Some("--record") => instructions::run(&root, true),
                Some(other) => {
                    Err(vec![format!("unknown option {other:?}: instructions takes only --record")])
                }
            }
        }
        Some("openapi") => match std::env::args().nth(2).as_deref() {
            None => openapi::write(&root),
            Some("--check") => match openapi::check(&root) {
                findings if findings.is_empty() => Ok("openapi: nothing to write".into()),
                findings => Err(findings),
            },
            Some(other) => Err(vec![format!("unknown option {other:?}: openapi takes only --check")]),
        },
        Some("settings") => settings::write(&root),
        Some("snabb") => snabb::run(&root, std::env::args().skip(2)),
        _ => Err(vec![
            "usage: cargo xtask tidy [--lower] | graph | openapi [--check] | settings | test [PROGRAM...] | instructions [--record] | snabb TREE"
                .into(),
        ]),
    };
    match done {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(findings) => {
            findings.iter().for_each(|finding| eprintln!("{finding}"));
            ExitCode::FAILURE
        }
    }
}
