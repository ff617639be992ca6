//! Errors of a configuration file: file, line, what is wrong and how to fix it.

use super::DeviceError;
use super::closest::closest;
use bm_filter::AnyPrefix;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// All errors of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    /// The errors, at least one, in the order of lines.
    pub problems: Vec<Problem>,
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong, and how to fix it.
    pub kind: ProblemKind,
}

/// Kinds of errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The file cannot be read.
    Unreadable(String),
    /// The file is not valid TOML.
    Syntax(String),
    UnknownKey {
        key: String,
        /// The section, such as `[daemon]`; empty at the top level.
        section: &'static str,
        /// The keys of the section.
        known: Vec<&'static str>,
    },
    /// A value of the wrong type.
    Type {
        /// Section and key.
        key: Key,
        /// The expected type, such as `a whole number`.
        wants: &'static str,
        /// What was found.
        found: String,
        /// A line that would do.
        example: String,
    },
    /// A number out of range.
    Range {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// A string that is not allowed.
    Text {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
        /// How to fix it.
        hint: &'static str,
    },
    /// A missing key.
    Missing {
        /// Section and key.
        key: Key,
        /// A line that would do.
        example: &'static str,
    },
    /// Two tables with the same name or interface.
    Again {
        /// What they share.
        what: String,
        /// Line of the first.
        first: usize,
    },
    /// The settings of the cluster contradict each other.
    Cluster(bm_cluster::Problem),
    /// An SA or policy that cannot work.
    Ipsec {
        what: bm_ipsec::What,
        /// Line of the SA or policy that it conflicts with, if it does.
        first: Option<usize>,
    },
    /// A key that cannot be read. The text never contains any of it.
    Secret {
        /// Section and key.
        key: Key,
        /// What is wrong, and how to fix it.
        why: String,
    },
    /// A number that is not a power of two.
    PowerOfTwo {
        /// Section and key.
        key: Key,
        /// What was found.
        found: u64,
    },
    /// An unknown choice.
    Choice {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
        /// The possible choices.
        known: Vec<&'static str>,
    },
    /// An invalid address with port.
    Address {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// A port without a device.
    NoDevice,
    /// An invalid device.
    Device(DeviceError),
    /// A device of two ports.
    DeviceTwice {
        device: String,
        /// Line of the first.
        first: usize,
    },
    /// A duplicate number in a list.
    Twice {
        /// Section and key.
        key: Key,
        /// The duplicate number.
        found: u64,
    },
    /// An invalid prefix.
    Prefix {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// An invalid port or range of ports.
    Ports {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// A rule without an action.
    NoAction,
    /// A rule that matches ports of a protocol without ports.
    PortsOfNothing,
    /// A rule with source and destination of different families.
    TwoFamilies {
        /// Source of the rule.
        source: AnyPrefix,
        /// Destination of the rule.
        destination: AnyPrefix,
    },
    /// Too many rules and claims.
    ManyRules {
        /// Number of rules and claims; those that accept by port count two or three times.
        rules: usize,
        /// Maximum number.
        most: usize,
    },
    /// Real-time priority for workers that never sleep.
    BusyRealTime { priority: u32 },
    /// More workers than cores to pin them to.
    FewCores {
        /// Number of cores.
        cores: usize,
        /// Number of workers.
        workers: u32,
    },
}

/// A key with its section, as in `` `slots` in [daemon] ``.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The section as in the file, with brackets.
    pub section: &'static str,
    pub key: &'static str,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in {}", self.key, self.section)
    }
}

impl ConfigError {
    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let kind = ProblemKind::Unreadable(error.to_string());
        Self { file: file.into(), problems: vec![Problem { line: 0, kind }] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}", self.file.display())?;
            if problem.line > 0 {
                write!(f, ", line {}", problem.line)?;
            }
            write!(f, ": {}", problem.kind)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => {
                write!(f, "cannot read the configuration: {why}; use --config FILE for another file")
            }
            Self::Syntax(why) => write!(f, "invalid TOML: {why}"),
            Self::UnknownKey { key, section, known } => unknown(f, key, section, known),
            Self::Type { key, wants, found, example } => {
                write!(f, "{key} must be {wants}, not {found}: write {example}")
            }
            Self::Range { key, found, least, most } => {
                write!(f, "{key} is {found}: must be from {least} to {most}")
            }
            Self::Text { key, found, hint } => write!(f, "{key} is \"{found}\": {hint}"),
            Self::Missing { key, example } => write!(f, "{key} is missing: write {example}"),
            Self::Again { what, first } => {
                write!(f, "duplicate {what}, first on line {first}: remove one of the two")
            }
            Self::Cluster(problem) => write!(f, "{problem}"),
            Self::Ipsec { what, first: None } => write!(f, "{what}"),
            Self::Ipsec { what, first: Some(line) } => write!(f, "{what}; the first is on line {line}"),
            Self::Secret { key, why } => write!(f, "{key}: {why}"),
            Self::PowerOfTwo { key, found } => {
                let above = found.checked_next_power_of_two().unwrap_or(1 << 63);
                write!(f, "{key} is {found}: must be a power of two, such as {} or {above}", above / 2)
            }
            Self::Choice { key, found, known } => choice(f, key, found, known),
            Self::Address { key, found } => write!(
                f,
                "{key} is \"{found}\": must be an address with a port, such as \"127.0.0.1:9473\" or \
                 \"[::1]:9473\", or \"off\""
            ),
            Self::NoDevice => {
                f.write_str("this [[port]] has no `device`: add one, such as device = \"xdp:eth0\"")
            }
            Self::Device(why) => write!(f, "{why}"),
            Self::DeviceTwice { device, first } => {
                write!(f, "duplicate port {device}, first on line {first}: remove one of the two")
            }
            Self::Twice { key, found } => write!(f, "{key} contains {found} twice: remove one"),
            Self::Prefix { key, found } => write!(
                f,
                "{key} is \"{found}\": must be an address, or a prefix such as \"192.0.2.0/24\" or \"2001:db8::/32\" \
                 without host bits"
            ),
            Self::Ports { key, found } => {
                write!(f, "{key} is \"{found}\": must be a port, such as 53, or a range, such as \"1024-65535\"")
            }
            Self::NoAction => {
                f.write_str("this [[filter.rule]] has no `action`: write action = \"drop\" or action = \"accept\"")
            }
            Self::PortsOfNothing => f.write_str(
                "this [[filter.rule]] matches ports but no protocol with ports: add protocol = \"tcp\", \"udp\", \
                 \"sctp\", \"dccp\" or \"udplite\", one per rule",
            ),
            Self::TwoFamilies { source, destination } => write!(
                f,
                "no packet can match source {source} and destination {destination}: use the same family for both, or two rules"
            ),
            Self::ManyRules { rules, most } => write!(
                f,
                "too many rules and claims: {rules} of at most {most} (those that accept by port count two or three times): \
                 merge some of them"
            ),
            Self::BusyRealTime { priority } => busy_real_time(f, *priority),
            Self::FewCores { cores, workers } => few_cores(f, *cores, *workers),
        }
    }
}

fn few_cores(f: &mut fmt::Formatter<'_>, cores: usize, workers: u32) -> fmt::Result {
    write!(
        f,
        "`cores` in [daemon] lists {cores} core{} for {workers} workers: list a core for each, or none",
        if cores == 1 { "" } else { "s" }
    )
}

fn busy_real_time(f: &mut fmt::Formatter<'_>, priority: u32) -> fmt::Result {
    write!(
        f,
        "priority = {priority} with idle = \"busy\": such workers would never yield their cores to other threads: set \
         priority = 0, or idle = \"sleep\""
    )
}

fn choice(f: &mut fmt::Formatter<'_>, key: &Key, found: &str, known: &[&str]) -> fmt::Result {
    write!(f, "{key} is \"{found}\", expected {}", listed(known, "\""))?;
    match closest(found, known) {
        Some(close) => write!(f, ": did you mean \"{close}\"?"),
        None => Ok(()),
    }
}

fn unknown(f: &mut fmt::Formatter<'_>, key: &str, section: &str, known: &[&'static str]) -> fmt::Result {
    write!(f, "unknown key `{key}`")?;
    if !section.is_empty() {
        write!(f, " in {section}")?;
    }
    match closest(key, known) {
        Some(close) => write!(f, ": did you mean `{close}`?"),
        None => write!(f, ", expected {}", listed(known, "`")),
    }
}

fn listed(words: &[&str], quote: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{quote}{word}{quote}")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}
