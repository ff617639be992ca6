//! Errors of netlink, and how to fix them.

use std::fmt;
use std::io;

/// Why a request or a dump did not succeed.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused a request; `text` is its own message if it sent one.
    Refused {
        /// What was asked for, such as `add route`.
        request: &'static str,
        /// The error number, positive.
        errno: i32,
        /// The kernel's extended text.
        text: Option<String>,
    },
    /// A system call failed.
    System {
        /// What was being done, such as `open a netlink socket`.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel had more messages than the receive buffer could hold, and some are lost.
    Overrun,
    /// The kernel sent a message that is not well formed.
    Malformed(Malformed),
    /// No answer came in time.
    Silent {
        /// What was asked for.
        request: &'static str,
    },
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { request, errno, text: Some(text) } => {
                write!(
                    f,
                    "the kernel refused to {request}: {text} ({})",
                    io::Error::from_raw_os_error(*errno)
                )
            }
            Self::Refused { request, errno, text: None } => {
                write!(f, "the kernel refused to {request}: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::System { doing, source } => write!(f, "cannot {doing}: {source}"),
            Self::Overrun => f.write_str("the netlink receive buffer overflowed: a larger one is needed"),
            Self::Malformed(why) => write!(f, "a netlink message is malformed: {why}"),
            Self::Silent { request } => write!(f, "the kernel did not answer the request to {request}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    /// Of the kind of the kernel's error, with the whole text.
    fn from(error: Error) -> Self {
        let kind = error.errno().map(|errno| Self::from_raw_os_error(errno).kind());
        Self::new(kind.unwrap_or(io::ErrorKind::Other), error)
    }
}

impl From<Malformed> for Error {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

/// Why bytes are not a valid netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A message claims `length` bytes where `room` are left.
    Message {
        /// According to the header.
        length: usize,
        /// As the buffer has.
        room: usize,
    },
    /// The fixed part after the netlink header is truncated.
    Header {
        /// Message type.
        kind: u16,
        /// Bytes there.
        length: usize,
    },
    /// An attribute claims more bytes than are left, or fewer than its header.
    Attribute {
        /// According to the attribute.
        length: usize,
        /// As the message has.
        room: usize,
    },
    /// An attribute's value is too short, too long or out of range for its kind.
    Value {
        /// Attribute type.
        kind: u16,
        /// Bytes there.
        length: usize,
    },
    /// An attribute that the object cannot be without is absent.
    Missing {
        /// Attribute type.
        kind: u16,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { length, room } => {
                write!(f, "a message claims {length} bytes where only {room} are left")
            }
            Self::Header { kind, length } => write!(f, "a message of type {kind} has only {length} bytes"),
            Self::Attribute { length, room } => {
                write!(f, "an attribute claims {length} bytes where only {room} are left")
            }
            Self::Value { kind, length } => {
                write!(f, "attribute {kind} has an invalid value of {length} bytes")
            }
            Self::Missing { kind } => write!(f, "attribute {kind} is missing"),
        }
    }
}

impl std::error::Error for Malformed {}
