//! Reads packets from a capture file, one by one.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

use crate::error::PcapPortError;

/// The first bytes of a pcapng file: the type of its section header, the same in both byte orders.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// An open capture file of either kind.
pub(crate) struct Capture {
    path: PathBuf,
    format: Format,
    /// Packets read so far.
    count: u64,
}

enum Format {
    Pcap(PcapReader<File>),
    PcapNg(PcapNgReader<File>),
}

impl Capture {
    pub(crate) fn open(path: &Path) -> Result<Self, PcapPortError> {
        let system = |error| PcapPortError::Open { path: path.into(), error };
        let mut file = File::open(path).map_err(system)?;
        let mut magic = [0; 4];
        // A shorter file is not a capture; its reader reports that.
        let is_ng = file.read_exact(&mut magic).is_ok() && magic == PCAPNG;
        file.rewind().map_err(system)?;
        let failed = |error: PcapError| PcapPortError::read(path, 0, &error);
        let format = if is_ng {
            Format::PcapNg(PcapNgReader::new(file).map_err(failed)?)
        } else {
            let reader = PcapReader::new(file).map_err(failed)?;
            check_link_type(path, 0, reader.header().datalink)?;
            Format::Pcap(reader)
        };
        Ok(Self { path: path.into(), format, count: 0 })
    }

    /// Passes the next packet to `take`; `None` at the end of the file.
    pub(crate) fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, PcapPortError> {
        let packet = self.count + 1;
        let taken = match &mut self.format {
            // The raw form, because captures with a wrong snapshot length are common and harmless.
            Format::Pcap(reader) => match reader.next_raw_packet() {
                Some(Ok(raw)) => Some(take(&raw.data)),
                Some(Err(error)) => return Err(PcapPortError::read(&self.path, packet, &error)),
                None => None,
            },
            Format::PcapNg(reader) => next_ng(&self.path, packet, reader)?.map(|data| take(&data)),
        };
        self.count += u64::from(taken.is_some());
        Ok(taken)
    }
}

/// The next packet of a pcapng file; blocks without a packet are skipped.
fn next_ng(
    path: &Path,
    packet: u64,
    reader: &mut PcapNgReader<File>,
) -> Result<Option<Vec<u8>>, PcapPortError> {
    loop {
        let Some(block) = reader.next_block() else { return Ok(None) };
        let block = block.map_err(|error| PcapPortError::read(path, packet, &error))?;
        // A simple packet block has no captured length, and its reader does not remove the padding.
        let (interface, kept, mut data) = match block {
            Block::EnhancedPacket(block) => (block.interface_id, None, block.data.into_owned()),
            Block::SimplePacket(block) => (0, Some(block.original_len), block.data.into_owned()),
            Block::Packet(block) => (block.interface_id.into(), None, block.data.into_owned()),
            _ => continue,
        };
        let Some(interface) = reader.interfaces().get(interface as usize) else {
            return Err(PcapPortError::read(path, packet, &PcapError::InvalidInterfaceId(interface)));
        };
        check_link_type(path, packet, interface.linktype)?;
        if let Some(length) = kept {
            let snap = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
            data.truncate(length.min(snap) as usize);
        }
        return Ok(Some(data));
    }
}

fn check_link_type(path: &Path, packet: u64, link_type: DataLink) -> Result<(), PcapPortError> {
    match link_type {
        DataLink::ETHERNET => Ok(()),
        other => Err(PcapPortError::LinkType { path: path.into(), packet, link_type: other.into() }),
    }
}
