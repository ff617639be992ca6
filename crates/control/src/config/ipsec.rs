//! `[ipsec]`: security associations and policies with manual keys.

use std::path::PathBuf;

use bm_ipsec::{Policy, Sa};

/// `[ipsec]`, each `[[ipsec.sa]]` and each `[[ipsec.policy]]`, without any of the problems that `bm_ipsec::problems`
/// finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipsec {
    /// Where the sequence numbers that have been used are recorded.
    pub state_file: PathBuf,
    /// Each `[[ipsec.sa]]`; `at` is its line.
    pub sas: Vec<Sa>,
    /// For each SA its name.
    pub names: Vec<String>,
    /// Each `[[ipsec.policy]]`; `at` is its line.
    pub policies: Vec<Policy>,
}

impl Default for Ipsec {
    fn default() -> Self {
        Self {
            state_file: "/var/lib/brickmoon/ipsec.state".into(),
            sas: Vec::new(),
            names: Vec::new(),
            policies: Vec::new(),
        }
    }
}

impl Ipsec {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sas.is_empty() && self.policies.is_empty()
    }
}
