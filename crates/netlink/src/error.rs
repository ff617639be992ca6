//! Errors of netlink, and how to fix them.

use std::io;

/// Why a request or a dump did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel refused to {request}: {}", reason(*errno, text.as_deref()))]
    Refused {
        /// What was asked for, such as `add route`.
        request: &'static str,
        /// The error number, positive.
        errno: i32,
        /// The kernel's own message, if it sent one.
        text: Option<String>,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done, such as `open a netlink socket`.
        doing: &'static str,
        source: io::Error,
    },
    /// The kernel had more messages than the receive buffer could hold, and some are lost.
    #[error("the netlink receive buffer overflowed: a larger one is needed")]
    Overrun,
    #[error("a netlink message is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// No answer came in time.
    #[error("the kernel did not answer the request to {request}")]
    Silent { request: &'static str },
}

impl Error {
    /// The error number of the kernel, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::System { source, .. } => source.raw_os_error(),
            Self::Overrun => Some(libc::ENOBUFS),
            Self::Malformed(_) | Self::Silent { .. } => None,
        }
    }
}

fn reason(errno: i32, text: Option<&str>) -> String {
    let error = io::Error::from_raw_os_error(errno);
    text.map_or_else(|| error.to_string(), |text| format!("{text} ({error})"))
}

impl From<Error> for io::Error {
    /// Of the kind of the kernel's error, with the whole text.
    fn from(error: Error) -> Self {
        let kind = error.errno().map(|errno| Self::from_raw_os_error(errno).kind());
        Self::new(kind.unwrap_or(io::ErrorKind::Other), error)
    }
}

/// Why bytes are not a valid netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a message claims {length} bytes where only {room} are left")]
    Message {
        /// According to the header.
        length: usize,
        /// As the buffer has.
        room: usize,
    },
    #[error("a message of type {kind} has only {length} bytes")]
    Header {
        /// Message type.
        kind: u16,
        /// Bytes there.
        length: usize,
    },
    #[error("an attribute claims {length} bytes where only {room} are left")]
    Attribute {
        /// According to the attribute.
        length: usize,
        /// As the message has.
        room: usize,
    },
    #[error("attribute {kind} has an invalid value of {length} bytes")]
    Value {
        /// Attribute type.
        kind: u16,
        /// Bytes there.
        length: usize,
    },
    #[error("attribute {kind} is missing")]
    Missing {
        /// Attribute type.
        kind: u16,
    },
}
