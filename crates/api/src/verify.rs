//! `verify`: our tables compared with the kernel's, a sentence for each difference.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    /// Whether nothing differs; what is in `notes` does not count.
    pub equal: bool,
    /// What differs.
    pub differences: Vec<Difference>,
    /// How many differences were found; more than are listed where there are very many.
    pub differences_total: usize,
    /// What Linux does in our place since we cannot: unsupported rules, routes over other interfaces.
    pub notes: Vec<String>,
    /// Objects of the kernel that were compared.
    pub compared: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Between what and what.
    pub area: Area,
    /// What differs, as one sentence without a full stop.
    pub sentence: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.area, self.sentence)
    }
}

/// Where a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The mirror is not as the kernel.
    Mirror,
    /// A compiled table is not as the mirror.
    Compiled,
    /// A route could not be compiled.
    Refused,
    /// The list of what only Linux may handle is not as the kernel's settings.
    Firewall,
    /// A program on a port goes by something else than it should.
    Programs,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mirror => "mirror",
            Self::Compiled => "compiled",
            Self::Refused => "refused",
            Self::Firewall => "firewall",
            Self::Programs => "programs",
        })
    }
}
