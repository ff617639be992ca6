//! Errors of capture files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pcap_file::PcapError;

/// Why a capture file cannot be read or written completely.
#[derive(Debug)]
pub enum PcapPortError {
    /// The file cannot be opened or created.
    Open {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is truncated or malformed.
    Format {
        /// Which file.
        path: PathBuf,
        /// Which packet, counted from 1; 0 for the part before the first.
        packet: u64,
        /// What is wrong.
        reason: String,
    },
    /// The packets are not Ethernet frames.
    LinkType {
        /// Which file.
        path: PathBuf,
        /// Which packet, counted from 1; 0 if the file's header sets it for all.
        packet: u64,
        /// The number of the link type; 1 is Ethernet.
        link_type: u32,
    },
    /// A packet could not be written.
    Write {
        /// Which file.
        path: PathBuf,
        /// Which packet, counted from 1.
        packet: u64,
        /// The system's error.
        error: io::Error,
    },
}

impl PcapPortError {
    /// The reader's error for `packet`.
    pub(crate) fn read(path: &Path, packet: u64, error: &PcapError) -> Self {
        let reason = match error {
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the file ends in the middle of a packet".into()
            }
            PcapError::IoError(error) => error.to_string(),
            other => other.to_string(),
        };
        Self::Format { path: path.into(), packet, reason }
    }

    /// The writer's error for `packet`.
    pub(crate) fn write(path: &Path, packet: u64, error: PcapError) -> Self {
        let error = match error {
            PcapError::IoError(error) => error,
            other => io::Error::other(other),
        };
        Self::Write { path: path.into(), packet, error }
    }
}

impl fmt::Display for PcapPortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Format { path, packet: 0, reason } => {
                write!(f, "{}: not a capture file (pcap or pcapng): {reason}", path.display())
            }
            Self::Format { path, packet, reason } => {
                write!(f, "{}, packet {packet}: {reason}", path.display())
            }
            Self::LinkType { path, packet, link_type } => {
                write!(f, "{}", path.display())?;
                if *packet > 0 {
                    write!(f, ", packet {packet}")?;
                }
                write!(f, ": link type {link_type} is not Ethernet (1): capture on an Ethernet interface")
            }
            Self::Write { path, packet, error } => write!(f, "{}, packet {packet}: {error}", path.display()),
        }
    }
}

impl std::error::Error for PcapPortError {}
