//! Links between Markdown files: the file and the heading must exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All broken links in the Markdown files of the repository.
pub fn check(root: &Path) -> Vec<String> {
    let mut pages = Vec::new();
    walk(root, &mut pages);
    pages.sort();
    pages.iter().flat_map(|page| broken(root, page)).collect()
}

/// Folders that are not part of the repository.
const NOT_OURS: [&str; 3] = ["target", ".git", "node_modules"];

fn walk(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && !path.is_symlink() && !NOT_OURS.iter().any(|other| name == *other) {
            walk(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

fn broken(root: &Path, page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    let short = page.strip_prefix(root).unwrap_or(page).display();
    let finding = |(line, link): (usize, &str)| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.into() } else { page.parent()?.join(file) };
        if !target.exists() {
            return Some(format!("{short}:{line}: {file} does not exist"));
        }
        let is_page = target.extension().is_some_and(|extension| extension == "md");
        let there = || anchors(&std::fs::read_to_string(&target).unwrap_or_default()).contains(anchor);
        (!anchor.is_empty() && is_page && !there())
            .then(|| format!("{short}:{line}: there is no heading #{anchor}"))
    };
    links(&text).into_iter().filter_map(finding).collect()
}

/// The relative links of a page, with their line numbers; links in code are ignored.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (line, text) in prose(text) {
        // Text between backticks is code.
        let parts = text.split('`').step_by(2);
        for part in parts.flat_map(|part| part.split("](").skip(1)) {
            let Some((link, _)) = part.split_once(')') else { continue };
            if !link.contains("://") && !link.starts_with("mailto:") && !link.contains(char::is_whitespace) {
                links.push((line, link));
            }
        }
    }
    links
}

/// The lines of a page outside code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let keep = |(index, line): (usize, &'_ str)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some(index + 1)
    };
    let numbers: Vec<_> = text.lines().enumerate().map(keep).collect();
    numbers.into_iter().zip(text.lines()).filter_map(|(number, line)| Some((number?, line))).collect()
}

/// The anchors of a page's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    let anchor = |(_, line): (usize, &str)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_links_outside_of_code() {
        let text = "see [one](a.md#b), [two](https://example.org) and `[three](c.md)`\n```text\n[four](d.md)\n```\n[five](#e)";
        assert_eq!(links(text), [(1, "a.md#b"), (5, "#e")]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let found = anchors("# One `two`: three\n```text\n# none\n```\n## What 2 do_s\n");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["one-two-three", "what-2-do_s"]);
    }

    #[test]
    fn reports_broken_links() {
        let root = std::env::temp_dir().join(format!("bm-links-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs")).expect("a folder");
        std::fs::write(
            root.join("README.md"),
            "# Top\n[a](docs/a.md#a-b) [b](docs/b.md)\n[c](docs/a.md#d)\n",
        )
        .expect("a file");
        std::fs::write(root.join("docs/a.md"), "## A b\n[up](../README.md#top)\n").expect("a file");
        let found = check(&root);
        std::fs::remove_dir_all(root).expect("removed");
        assert_eq!(found, ["README.md:2: docs/b.md does not exist", "README.md:3: there is no heading #d"]);
    }
}
