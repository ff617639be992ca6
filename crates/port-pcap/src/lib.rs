//! Ports that read and write capture files.
//!
//! ```text
//!   in.pcap or in.pcapng ──► PcapPort::receive ─► worker ─► PcapPort::transmit ──► out.pcap
//! ```
//!
//! For tests and benches: a capture goes through the same apps as the frames of a network card. Written packets have
//! nanosecond time stamps of the clock that the port was given. Absent on purpose: the timing of the capture; packets
//! arrive as fast as the worker polls.

#![forbid(unsafe_code)]

mod error;
mod port;
mod read;
mod write;

pub use error::PcapPortError;
pub use port::{Clock, PcapPort};
