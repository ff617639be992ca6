//! What a test prints while it passes: bypasses the test runner's capture, so that `cargo test` shows it.

use std::io::Write;

/// Writes a line to standard error, and to the file that `BM_REPORT` names.
pub fn say(line: &str) {
    // Not `eprintln!`: the test runner would keep that until the test fails.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
    if let Some(path) = std::env::var_os("BM_REPORT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.unwrap_or_else(|error| panic!("BM_REPORT={}: {error}", path.display()));
    }
}

/// Reports that a test, or a part of it, did not run, and why.
pub fn skip(test: &str, why: &str) {
    say(&format!("{test}: skipped: {why}"));
}
