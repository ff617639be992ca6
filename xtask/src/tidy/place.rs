//! Where something is that tidy counts (`left.rs`).

use crate::sources::Source;

/// A thing that is counted: the crate, the key in `left`, and where it is.
pub struct Place {
    pub of: String,
    pub kind: &'static str,
    pub text: String,
}

impl Place {
    /// `line` counts from 1.
    pub fn new(source: &Source, kind: &'static str, line: usize, what: &str) -> Self {
        let text = format!("{}:{line}: {what}", source.path.display());
        Self { of: of(source).unwrap_or_default().into(), kind, text }
    }
}

/// The crate that a file is part of, without its tests.
pub fn of(source: &Source) -> Option<&str> {
    let path = source.path.to_str()?;
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let is_test = source.is_test
        || path.ends_with("_tests.rs")
        || ["/testing/", "/conformance/", "/tests/"].iter().any(|folder| path.contains(folder));
    (rest.starts_with("src/") && !is_test).then_some(name)
}
