//! Packets into a capture file: pcap with nanoseconds, little-endian on every machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};

use crate::error::PcapPortError;

/// A capture file that is being written.
pub(crate) struct Output {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
    /// Packets written so far.
    count: u64,
}

impl Output {
    pub(crate) fn create(path: &Path) -> Result<Self, PcapPortError> {
        let file = File::create(path).map_err(|error| PcapPortError::Open { path: path.into(), error })?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|error| PcapPortError::write(path, 0, error))?;
        Ok(Self { path: path.into(), writer, count: 0 })
    }

    pub(crate) fn write(&mut self, time: Duration, packet: &[u8]) -> Result<(), PcapPortError> {
        self.count += 1;
        let packet = PcapPacket::new(time, packet.len() as u32, packet);
        let written = self.writer.write_packet(&packet);
        written.map(drop).map_err(|error| PcapPortError::write(&self.path, self.count, error))
    }

    /// Writes what is still in memory, and ends.
    pub(crate) fn finish(self) -> Result<(), PcapPortError> {
        let flushed = self.writer.into_writer().flush();
        flushed.map_err(|error| PcapPortError::Write { path: self.path, packet: self.count, error })
    }
}
