//! Capture files in pcapng, with the names of ports, times in nanoseconds, and a comment on each packet that says what
//! happened to it.
//!
//! The format is that of draft-ietf-opsawg-pcapng; each function below writes one block of it. Blocks are in the byte
//! order of the machine.

use std::io::{self, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Options of all blocks.
const COMMENT: u16 = 1;
/// Of the section.
const APPLICATION: u16 = 4;
/// Of an interface.
const NAME: u16 = 2;
const DESCRIPTION: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
/// Of a packet.
const FLAGS: u16 = 2;
const QUEUE: u16 = 6;
const VERDICT: u16 = 7;
/// Of statistics.
const LOST: u16 = 7;

/// The verdict is the result of an XDP program.
const OF_XDP: u8 = 2;

/// An interface, which a packet refers to by its place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub description: String,
}

/// What a packet's block says besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About<'a> {
    /// The place of its interface in the list.
    pub interface: u32,
    /// Since 1970.
    pub time_ns: u64,
    /// Of the whole frame.
    pub length: u32,
    pub received: bool,
    pub queue: u32,
    /// The result of the XDP program, if one decided about it.
    pub verdict: Option<i32>,
    pub comment: &'a str,
}

/// Writes a capture file, which can be read at any time: it ends after a whole block.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    // Longer texts are cut: a length has 16 bits.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn time(body: &mut Vec<u8>, time_ns: u64) {
    body.extend(((time_ns >> 32) as u32).to_ne_bytes());
    body.extend((time_ns as u32).to_ne_bytes());
}

impl<W: Write> Writer<W> {
    /// Starts a file with these interfaces, whose packets have `snap_length` bytes at most.
    ///
    /// # Errors
    /// The output's error.
    pub fn new(to: W, application: &str, interfaces: &[Interface], snap_length: u32) -> io::Result<Self> {
        let mut writer = Self { to };
        let mut body = BYTE_ORDER.to_ne_bytes().to_vec();
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        // The length of the section is unknown.
        body.extend(u64::MAX.to_ne_bytes());
        option(&mut body, APPLICATION, application.as_bytes());
        writer.block(SECTION, body)?;
        for interface in interfaces {
            let mut body = ETHERNET.to_ne_bytes().to_vec();
            body.extend(0u16.to_ne_bytes());
            body.extend(snap_length.to_ne_bytes());
            option(&mut body, NAME, interface.name.as_bytes());
            option(&mut body, DESCRIPTION, interface.description.as_bytes());
            option(&mut body, TIME_RESOLUTION, &[9]);
            writer.block(INTERFACE, body)?;
        }
        Ok(writer)
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// The output's error.
    pub fn packet(&mut self, about: &About<'_>, frame: &[u8]) -> io::Result<()> {
        let mut body = about.interface.to_ne_bytes().to_vec();
        time(&mut body, about.time_ns);
        body.extend((frame.len() as u32).to_ne_bytes());
        body.extend(about.length.to_ne_bytes());
        body.extend(frame);
        pad(&mut body);
        option(&mut body, COMMENT, about.comment.as_bytes());
        option(&mut body, FLAGS, &(if about.received { 1u32 } else { 2 }).to_ne_bytes());
        option(&mut body, QUEUE, &about.queue.to_ne_bytes());
        if let Some(verdict) = about.verdict {
            let verdict = u64::from(verdict.cast_unsigned()).to_ne_bytes();
            option(&mut body, VERDICT, &[&[OF_XDP], &verdict[..]].concat());
        }
        self.block(PACKET, body)
    }

    /// Ends the file with the number of packets that were lost.
    ///
    /// # Errors
    /// The output's error.
    pub fn end(&mut self, interface: u32, time_ns: u64, lost: u64) -> io::Result<()> {
        let mut body = interface.to_ne_bytes().to_vec();
        time(&mut body, time_ns);
        option(&mut body, COMMENT, b"of all interfaces of this capture");
        option(&mut body, LOST, &lost.to_ne_bytes());
        self.block(STATISTICS, body)
    }

    /// Hands everything to the file or the pipe.
    ///
    /// # Errors
    /// The output's error.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// A block whose body ends in options.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        // The end of the options.
        body.extend([0; 4]);
        let length = (body.len() as u32 + 12).to_ne_bytes();
        self.to.write_all(&[&kind.to_ne_bytes()[..], &length, &body, &length].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use std::borrow::Cow;

    #[test]
    fn other_readers_read_the_same() {
        let interface = Interface { name: "r0".into(), description: "kernel path".into() };
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, "brickmoon", &[interface], 96).unwrap();
        let about = About {
            interface: 0,
            time_ns: 1_700_000_000_123_456_789,
            length: 120,
            received: true,
            queue: 3,
            verdict: Some(4),
            comment: "r0: forwarded to r1",
        };
        writer.packet(&about, &[0xab; 61]).unwrap();
        writer.end(0, 1_700_000_001_000_000_000, 5).unwrap();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.unwrap().into_owned());
        }
        assert_eq!(blocks.len(), 3);
        let Block::EnhancedPacket(packet) = &blocks[1] else { panic!("{blocks:?}") };
        assert_eq!((packet.original_len, &packet.data[..]), (120, &[0xab; 61][..]));
        let texts: Vec<_> = packet
            .options
            .iter()
            .filter_map(|option| match option {
                EnhancedPacketOption::Comment(Cow::Owned(text)) => Some(text.clone()),
                EnhancedPacketOption::Comment(Cow::Borrowed(text)) => Some((*text).into()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, ["r0: forwarded to r1"]);
        assert!(packet.options.contains(&EnhancedPacketOption::Flags(1)), "{packet:?}");
        let Block::InterfaceDescription(interface) = &blocks[0] else { panic!("{blocks:?}") };
        assert_eq!(interface.snaplen, 96);
        assert!(matches!(blocks[2], Block::InterfaceStatistics(_)));
    }
}
