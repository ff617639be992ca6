//! Why a command failed.

use std::fmt;

/// Why a command failed; it determines the exit status.
#[derive(Debug)]
pub enum Failure {
    /// An error while running: exit status 1.
    Failed(String),
    /// Wrong usage or configuration: exit status 2.
    Usage(String),
    /// A program asked for this exit status and printed the reason itself.
    Status(u8),
}

impl Failure {
    /// A failure with the text of `error`.
    pub fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }

    /// Wrong usage or configuration, with the text of `error`.
    pub fn usage(error: impl ToString) -> Self {
        Self::Usage(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) | Self::Usage(why) => f.write_str(why),
            Self::Status(status) => write!(f, "exit status {status}"),
        }
    }
}
