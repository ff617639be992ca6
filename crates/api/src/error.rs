//! Why a request was not carried out, and what to do about it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Body of every reply whose HTTP status is not 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong, as one sentence without a full stop.
    pub message: String,
    /// What to do, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Error {
    /// An error without advice.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), mend: None }
    }

    /// The same with what to do.
    #[must_use]
    pub fn mend(self, mend: impl fmt::Display) -> Self {
        Self { mend: Some(mend.to_string()), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.mend {
            Some(mend) => write!(f, ": {mend}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}
