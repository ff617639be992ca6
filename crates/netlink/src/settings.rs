//! Every setting under `/proc/sys/net`: what brickmoon does about it, and why.
//!
//! The list is data, from which docs/settings.md is made. A test compares it with the settings of a fresh network
//! namespace, so a new kernel's new setting is noticed; the daemon logs it at its start ([`unknown`]). A setting that
//! is not in the list has no effect here.
//!
//! Absent on purpose: values. Those that matter are read by `sysctl`, or come with messages (`netconf`).

pub mod attributes;
mod core;
mod ipv4;
mod ipv6;

use std::path::Path;

/// What brickmoon does about a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Any value has the same effect on forwarded packets as in Linux.
    Followed,
    /// With its default the packets concerned are forwarded; with any other value Linux handles them.
    LeftToLinux,
    /// It does not change what happens to forwarded packets, or only by what the kernel also says otherwise.
    WithoutEffect,
}

impl Treatment {
    /// In words, as the documentation has it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Followed => "followed",
            Self::LeftToLinux => "left to Linux if not default",
            Self::WithoutEffect => "without effect",
        }
    }
}

/// How a change is noticed while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// By a message of the kernel, at once.
    Message,
    /// By reading it again.
    Reading,
    /// Not at all, since it does not matter.
    Never,
}

/// A setting, or several with a common beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Path below `/proc/sys/net`. A `*` stands for the name of an interface, or for the rest of a name.
    pub path: &'static str,
    /// What brickmoon does about it.
    pub treatment: Treatment,
    /// How changes are noticed.
    pub noticed: Noticed,
    /// The reason, or what it changes.
    pub why: &'static str,
}

const fn setting(path: &'static str, treatment: Treatment, noticed: Noticed, why: &'static str) -> Setting {
    Setting { path, treatment, noticed, why }
}

/// Followed, and announced by the kernel.
const fn announced(path: &'static str, why: &'static str) -> Setting {
    setting(path, Treatment::Followed, Noticed::Message, why)
}

/// Followed, and read again and again.
const fn followed(path: &'static str, why: &'static str) -> Setting {
    setting(path, Treatment::Followed, Noticed::Reading, why)
}

/// Left to Linux if it is not the default, and read again and again.
const fn left(path: &'static str, why: &'static str) -> Setting {
    setting(path, Treatment::LeftToLinux, Noticed::Reading, why)
}

/// Without effect.
const fn none(path: &'static str, why: &'static str) -> Setting {
    setting(path, Treatment::WithoutEffect, Noticed::Never, why)
}

/// All settings, by part of `/proc/sys/net`. The first that fits a path is the one that counts.
pub const SETTINGS: [&[Setting]; 3] = [&ipv4::SETTINGS, &ipv6::SETTINGS, &core::SETTINGS];

/// The entry for a path below `/proc/sys/net`.
pub fn find(path: &str) -> Option<&'static Setting> {
    SETTINGS.into_iter().flatten().find(|setting| fits(setting.path, path))
}

/// Whether a path fits a pattern, part by part.
fn fits(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if fits_part(pattern, part) => {}
            _ => return false,
        }
    }
}

fn fits_part(pattern: &str, part: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => part.starts_with(beginning),
        None => pattern == part,
    }
}

/// Settings of this network namespace that are not in the list: a newer kernel has them. One of an interface is named
/// once, with a `*`.
pub fn unknown() -> Vec<String> {
    let mut paths = Vec::new();
    collect(Path::new("/proc/sys/net"), "", &mut paths);
    paths.retain(|path| find(path).is_none());
    paths
}

/// The paths of all settings below a folder; of interfaces only those of `default`, which stand for all.
fn collect(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_of_interface = prefix.ends_with("/conf/") || prefix.ends_with("/neigh/");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && is_of_interface && name != "default" => {}
            Ok(kind) if kind.is_dir() => {
                let shown = if is_of_interface { "*" } else { &name };
                collect(&entry.path(), &format!("{prefix}{shown}/"), paths);
            }
            _ => paths.push(format!("{prefix}{name}")),
        }
    }
}

/// The list as a page of documentation has it.
pub fn as_markdown() -> String {
    let mut text =
        String::from("| setting below `/proc/sys/net` | brickmoon | noticed by | why |\n|---|---|---|---|\n");
    for setting in SETTINGS.into_iter().flatten() {
        let noticed = match setting.noticed {
            Noticed::Message => "message",
            Noticed::Reading => "reading",
            Noticed::Never => "",
        };
        let treatment = setting.treatment.words();
        text += &format!("| `{}` | {treatment} | {noticed} | {} |\n", setting.path, setting.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_and_beginnings_fit_their_patterns() {
        assert_eq!(
            find("ipv4/conf/eth0.100/forwarding").map(|found| found.path),
            Some("ipv4/conf/*/forwarding")
        );
        assert_eq!(find("ipv4/tcp_anything").map(|found| found.path), Some("ipv4/tcp_*"));
        assert_eq!(find("ipv4/conf/eth0/nothing-of-this-kind"), None);
        assert!(!fits("a/*", "a/b/c") && !fits("a/*/c", "a/b") && fits("a/*/c", "a/b/c"));
    }

    #[test]
    fn this_kernel_has_no_setting_that_is_missing() {
        assert_eq!(
            unknown(),
            [""; 0],
            "new settings: add them to settings/*.rs with what they do to routed packets"
        );
    }

    #[test]
    fn no_path_is_listed_twice() {
        let mut paths: Vec<_> = SETTINGS.into_iter().flatten().map(|setting| setting.path).collect();
        let all = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), all);
    }

    #[test]
    fn the_page_shows_the_list() {
        let page = include_str!("../../../docs/settings.md");
        let table = format!("{}\n## All settings\n\n{}", attributes::as_markdown(), as_markdown());
        if std::env::var_os("BM_WRITE_SETTINGS").is_some() {
            let begin = page.find("| messages about").unwrap_or(page.len());
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
            std::fs::write(path, format!("{}{table}", &page[..begin])).unwrap();
            return;
        }
        assert!(
            page.ends_with(&table),
            "docs/settings.md is old: BM_WRITE_SETTINGS=1 cargo test -p bm-netlink the_page_shows"
        );
    }
}
