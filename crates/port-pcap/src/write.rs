//! Writes packets to a capture file: pcap with nanoseconds, little-endian on every machine.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bm_sys::Mutex;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};

use crate::error::PcapPortError;

/// The file, which the packet writer owns, but [`Output::flush`] needs as well.
#[derive(Clone)]
struct Buffered(Arc<Mutex<BufWriter<File>>>);

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}

/// A capture file that is being written.
pub(crate) struct Output {
    path: PathBuf,
    file: Buffered,
    writer: PcapWriter<Buffered>,
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
        let file = Buffered(Arc::new(Mutex::new(BufWriter::new(file))));
        let writer = PcapWriter::with_header(file.clone(), header)
            .map_err(|error| PcapPortError::write(path, 0, error))?;
        let mut output = Self { path: path.into(), file, writer, count: 0 };
        // A header that cannot be written yet is no loss: the first packet meets the same error.
        let _later = output.flush();
        Ok(output)
    }

    pub(crate) fn write(&mut self, time: Duration, packet: &[u8]) -> Result<(), PcapPortError> {
        self.count += 1;
        let packet = PcapPacket::new(time, packet.len() as u32, packet);
        let written = self.writer.write_packet(&packet);
        written.map(drop).map_err(|error| PcapPortError::write(&self.path, self.count, error))
    }

    /// Writes buffered data, so that other processes that follow the file see it.
    pub(crate) fn flush(&mut self) -> Result<(), PcapPortError> {
        let flushed = self.file.flush();
        flushed.map_err(|error| PcapPortError::Write { path: self.path.clone(), packet: self.count, error })
    }
}
