//! Every crate has a README: the page that newcomers read first.

use std::path::{Path, PathBuf};

/// A finding for each crate below `crates/` without a README.
pub fn check(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    let finding = |folder: PathBuf| {
        let short = folder.strip_prefix(root).unwrap_or(&folder).display();
        format!(
            "{short}: has no README.md; say what the crate is for and never does, draw it, and say where to change what and how it is tested"
        )
    };
    folders.filter(|folder| !folder.join("README.md").is_file()).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_readme_is_found() {
        let root = std::env::temp_dir().join(format!("bm-readmes-{}", std::process::id()));
        for name in ["with", "without"] {
            std::fs::create_dir_all(root.join("crates").join(name)).expect("a folder");
        }
        std::fs::write(root.join("crates/with/README.md"), "# with\n").expect("a file");
        let findings = check(&root);
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("crates/without: has no README.md"), "{findings:?}");
    }
}
