//! `verify`: differences between brickmoon's tables and the kernel's.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Verify {
    /// Whether there are no differences; `notes` do not count.
    pub equal: bool,
    /// The differences; not all if there are very many.
    pub differences: Vec<Difference>,
    /// Total number of differences.
    pub differences_total: usize,
    /// What brickmoon leaves to Linux: unsupported rules, routes through other interfaces.
    pub notes: Vec<String>,
    /// Number of compared objects of the kernel.
    pub compared: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// An object that the daemon's tables and the kernel's disagree about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// Which tables differ.
    pub area: Area,
    /// What differs, as a sentence without a full stop.
    pub message: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.area, self.message)
    }
}

/// Which tables differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The mirror differs from the kernel.
    Mirror,
    /// A compiled table differs from the mirror.
    Compiled,
    /// A route could not be compiled.
    Refused,
    /// The list of packets that only Linux may handle differs from the kernel's settings.
    Firewall,
    /// An XDP program on a port has other settings than it should.
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
