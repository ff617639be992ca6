//! What can be wrong with a configuration: file, line, what was found, and the mend.

use super::DeviceError;
use bm_filter::AnyPrefix;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Everything that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// At least one, in the order of lines.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; 0 where it is about the whole file.
    pub line: usize,
    /// What is wrong.
    pub what: What,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The file cannot be read.
    Unreadable(String),
    /// It is no TOML.
    Syntax(String),
    /// A key that we do not know.
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands, such as `[daemon]`; empty at the top.
        section: &'static str,
        /// Those that may stand there.
        known: Vec<&'static str>,
    },
    /// A value of another type.
    Type {
        /// Section and key.
        key: Key,
        /// What it wants, such as `a whole number`.
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
        /// Least and greatest.
        least: u64,
        /// Greatest.
        most: u64,
    },
    /// A text that does not fit.
    Text {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
        /// What to write.
        hint: &'static str,
    },
    /// A key that must be there.
    Missing {
        /// Section and key.
        key: Key,
        /// A line that would do.
        example: &'static str,
    },
    /// Two tables of the same name, or that want the same interface.
    Again {
        /// What they want.
        what: String,
        /// Where it stood first.
        first: usize,
    },
    /// A number that is no power of two.
    PowerOfTwo {
        /// Section and key.
        key: Key,
        /// What was found.
        found: u64,
    },
    /// A word that is none of those known.
    Choice {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
        /// Those known.
        known: Vec<&'static str>,
    },
    /// An address with port that cannot be read.
    Address {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// A port without a device.
    NoDevice,
    /// A device that cannot be read.
    Device(DeviceError),
    /// The same device twice.
    DeviceTwice {
        /// The device.
        device: String,
        /// Line where it was first.
        first: usize,
    },
    /// A key twice in a list.
    Twice {
        /// Section and key.
        key: Key,
        /// What is there twice.
        found: u64,
    },
    /// A prefix that cannot be read.
    Prefix {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// Ports that cannot be read.
    Ports {
        /// Section and key.
        key: Key,
        /// What was found.
        found: String,
    },
    /// A rule that does nothing.
    NoAction,
    /// A rule that asks for ports of a protocol that has none.
    PortsOfNothing,
    /// A rule between families.
    TwoFamilies {
        /// Its source.
        source: AnyPrefix,
        /// Its destination.
        destination: AnyPrefix,
    },
    /// More rules, or claims, than there is room for.
    ManyRules {
        /// How many, claims among them, and twice what accepts by port.
        rules: usize,
        /// How many there may be.
        most: usize,
    },
    /// Real-time priority for workers that never sleep.
    BusyRealTime {
        /// Which priority.
        priority: u32,
    },
    /// More workers than cores to pin them to.
    FewCores {
        /// How many cores are named.
        cores: usize,
        /// How many workers there are to be.
        workers: u32,
    },
}

/// A key with its section, as in `` `slots` in [daemon] ``.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it stands in the file, brackets included.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in {}", self.key, self.section)
    }
}

impl ConfigError {
    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let what = What::Unreadable(error.to_string());
        Self { file: file.into(), problems: vec![Problem { line: 0, what }] }
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
            write!(f, ": {}", problem.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => {
                write!(f, "the configuration cannot be read: {why}; --config FILE names another")
            }
            Self::Syntax(why) => write!(f, "this is no TOML: {why}"),
            Self::UnknownKey { key, section, known } => unknown(f, key, section, known),
            Self::Type { key, wants, found, example } => {
                write!(f, "{key} wants {wants}, but this is {found}: write {example}")
            }
            Self::Range { key, found, least, most } => {
                write!(f, "{key} is {found}: give a number from {least} to {most}")
            }
            Self::Text { key, found, hint } => write!(f, "{key} is \"{found}\": {hint}"),
            Self::Missing { key, example } => write!(f, "{key} is missing: write {example}"),
            Self::Again { what, first } => {
                write!(f, "{what} is named on line {first} already: remove one of the two")
            }
            Self::PowerOfTwo { key, found } => {
                let above = found.checked_next_power_of_two().unwrap_or(1 << 63);
                write!(f, "{key} is {found}, which is no power of two: take {} or {above}", above / 2)
            }
            Self::Choice { key, found, known } => choice(f, key, found, known),
            Self::Address { key, found } => write!(
                f,
                "{key} is \"{found}\": give an address with a port, such as \"127.0.0.1:9473\" or \
                 \"[::1]:9473\", or \"off\""
            ),
            Self::NoDevice => {
                f.write_str("this [[port]] has no `device`: name one, such as device = \"xdp:eth0\"")
            }
            Self::Device(why) => write!(f, "{why}"),
            Self::DeviceTwice { device, first } => {
                write!(f, "{device} is a port already, on line {first}: remove one of the two")
            }
            Self::Twice { key, found } => write!(f, "{key} has {found} twice: remove one"),
            Self::Prefix { key, found } => write!(
                f,
                "{key} is \"{found}\": give a prefix, such as \"192.0.2.0/24\" or \"2001:db8::/32\", without bits \
                 past its length, or an address"
            ),
            Self::Ports { key, found } => {
                write!(f, "{key} is \"{found}\": give a port, such as 53, or two, such as \"1024-65535\"")
            }
            Self::NoAction => {
                f.write_str("this [[filter.rule]] has no `action`: write action = \"drop\" or action = \"accept\"")
            }
            Self::PortsOfNothing => f.write_str(
                "this [[filter.rule]] asks for ports without a protocol that has some: write protocol = \"tcp\", \
                 \"udp\", \"sctp\", \"dccp\" or \"udplite\", in a rule each",
            ),
            Self::TwoFamilies { source, destination } => write!(
                f,
                "no packet goes from {source} to {destination}: give both of one family, or make two rules"
            ),
            Self::ManyRules { rules, most } => write!(
                f,
                "rules and claims count {rules} (twice each that accepts by port), and there is room for {most}: \
                 join some of them"
            ),
            Self::BusyRealTime { priority } => busy_real_time(f, *priority),
            Self::FewCores { cores, workers } => write!(
                f,
                "`cores` in [daemon] names {cores} cores for {workers} workers: name a core for each, or none"
            ),
        }
    }
}

fn busy_real_time(f: &mut fmt::Formatter<'_>, priority: u32) -> fmt::Result {
    write!(
        f,
        "priority = {priority} with idle = \"busy\": such workers would never leave their cores to anybody else; set \
         priority = 0, or idle = \"sleep\""
    )
}

fn choice(f: &mut fmt::Formatter<'_>, key: &Key, found: &str, known: &[&str]) -> fmt::Result {
    write!(f, "{key} is \"{found}\": ")?;
    if let Some(close) = closest(found, known) {
        write!(f, "did you mean \"{close}\"? ")?;
    }
    write!(f, "It may be {}", listed(known, "\""))
}

fn unknown(f: &mut fmt::Formatter<'_>, key: &str, section: &str, known: &[&'static str]) -> fmt::Result {
    write!(f, "unknown key `{key}`")?;
    if !section.is_empty() {
        write!(f, " in {section}")?;
    }
    match closest(key, known) {
        Some(close) => write!(f, ": did you mean `{close}`?"),
        None => write!(f, ": it may be {}", listed(known, "`")),
    }
}

fn listed(words: &[&str], quote: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{quote}{word}{quote}")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

/// The word that was probably meant: few letters away from what was written.
pub(super) fn closest<'w>(written: &str, known: &[&'w str]) -> Option<&'w str> {
    let near = known.iter().map(|word| (distance(written, word), *word));
    let (away, word) = near.min_by_key(|(away, _)| *away)?;
    (away <= 1 + written.len().min(word.len()) / 4).then_some(word)
}

/// Letters to add, leave out, replace or swap with the next, to make one word of the other.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let mut rows = vec![vec![0; two.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=two.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != two[j - 1]);
                let swapped = i > 1 && j > 1 && one[i - 1] == two[j - 2] && one[i - 2] == two[j - 1];
                let swapped = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swapped).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[one.len()][two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_letters_apart() {
        for (one, two, away) in [
            ("port", "port", 0),
            ("prot", "port", 1),
            ("prots", "port", 2),
            ("", "ab", 2),
            ("slot", "slots", 1),
        ] {
            assert_eq!(distance(one, two), away, "{one} {two}");
        }
        assert_eq!(closest("prots", &["daemon", "port"]), Some("port"));
        assert_eq!(closest("interfaces", &["daemon", "port"]), None);
    }
}
