//! What Linux sends through our interfaces of connections that may become flows: `struct report` of `bpf/observe.bpf.c`.
//!
//! ```text
//! bm_observe_tc ─► reports, a ring ─► [`ReportReader`] ─► the thread that learns flows
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use bm_bpf::RingReader;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use crate::flows::{Report, ReportedConnection, ReportedTuple};
use crate::jiffies;

/// The map's name in the program.
pub(crate) const MAP: &str = "reports";
/// Bytes of the ring: `REPORTS_RING`.
const RING: u32 = 1 << 20;
/// Bytes of a report.
const REPORT: usize = 168;
/// Offset of the family, 4 or 6.
const FAMILY: usize = 148;
/// `AF_INET`, as a tuple has it.
const IPV4: u16 = libc::AF_INET as u16;

/// Reads fields in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().copied().map(u32::from_ne_bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| *byte)
    }

    fn address(&mut self, ipv4: bool) -> Option<IpAddr> {
        let bytes: &[u8; 16] = self.take()?;
        let [a, b, c, d, ..] = *bytes;
        Some(if ipv4 { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(*bytes).into() })
    }

    fn port(&mut self) -> Option<u16> {
        self.take().copied().map(u16::from_be_bytes)
    }

    /// `struct nf_conntrack_tuple`.
    fn tuple(&mut self) -> Option<ReportedTuple> {
        let is_ipv4 = self.0.get(18..20)? == IPV4.to_ne_bytes();
        let (source, source_port) = (self.address(is_ipv4)?, self.port()?);
        self.take::<2>()?;
        let (destination, destination_port) = (self.address(is_ipv4)?, self.port()?);
        self.take::<2>()?;
        Some(ReportedTuple { source, destination, source_port, destination_port })
    }
}

/// `struct report`; `None` for other bytes.
fn parse(bytes: &[u8]) -> Option<Report> {
    let bytes: &[u8; REPORT] = bytes.try_into().ok()?;
    let is_ipv4 = bytes[FAMILY] == 4;
    let mut fields = Fields(bytes);
    let (original, reply) = (fields.tuple()?, fields.tuple()?);
    let (source, destination) = (fields.address(is_ipv4)?, fields.address(is_ipv4)?);
    let (source_port, destination_port) = (fields.port()?, fields.port()?);
    let sent = ReportedTuple { source, destination, source_port, destination_port };
    let (input, output, mark) = (fields.number()?, fields.number()?, fields.number()?);
    let (connection_mark, generation, status) = (fields.number()?, fields.number()?, fields.number()?);
    // Of an overdue one it is negative.
    let timeout_s = fields.number()?.cast_signed().max(0).cast_unsigned() / jiffies::per_second();
    let zone = u16::from_ne_bytes(*fields.take()?);
    let (_zone_flags, zone_directions, _family) = (fields.byte()?, fields.byte()?, fields.byte()?);
    let (protocol, is_reply) = (fields.byte()?, fields.byte()? != 0);
    let (is_tracked, tcp_state) = (fields.byte()? != 0, fields.byte()?);
    let acknowledges = fields.byte()? != 0;
    fields.take::<2>()?;
    let (jiffies, acknowledged) = (fields.number()?, fields.number()?);
    let connection = is_tracked.then_some(ReportedConnection {
        original,
        reply,
        zone: if zone_directions & 1 != 0 { zone } else { 0 },
        own_zone: if zone_directions >> u8::from(is_reply) & 1 != 0 { zone } else { 0 },
        is_reply,
        mark: connection_mark,
        status,
        timeout_s,
        tcp_state,
        acknowledged: acknowledges.then_some(acknowledged),
    });
    Some(Report { protocol, connection, sent, input, output, mark, generation, jiffies })
}

pub(crate) fn create() -> libbpf_rs::Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        ..bpf_map_create_opts::default()
    };
    MapHandle::create(MapType::RingBuf, Some(MAP), 0, 0, RING, &options)
}

/// The ring, to be read on one thread.
pub struct Reports(MapHandle);

impl Reports {
    pub(crate) fn of(map: &MapHandle) -> libbpf_rs::Result<Self> {
        Ok(Self(MapHandle::try_from(map)?))
    }

    /// The reader, for the thread that calls this.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reader(self) -> io::Result<ReportReader> {
        let ring = RingReader::open(&self.0, parse).map_err(io::Error::other)?;
        Ok(ReportReader { map: self.0, ring })
    }
}

/// Reads what the observer reports.
pub struct ReportReader {
    map: MapHandle,
    ring: RingReader<Report>,
}

impl ReportReader {
    /// The reports since the last call; does not wait for any.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self) -> io::Result<Vec<Report>> {
        self.ring.take().map_err(io::Error::other)
    }
}

/// Readable while there are reports.
impl AsFd for ReportReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: [u8; 4], source_port: u16, destination: [u8; 4], destination_port: u16) -> Vec<u8> {
        let mut bytes = [&source[..], &[0; 12], &source_port.to_be_bytes(), &IPV4.to_ne_bytes()].concat();
        bytes.extend([&destination[..], &[0; 12], &destination_port.to_be_bytes(), &[6, 0]].concat());
        bytes
    }

    #[test]
    fn a_report_is_read_as_the_program_writes_it() {
        let mut bytes = tuple([192, 0, 2, 1], 40_000, [198, 51, 100, 7], 80);
        bytes.extend(tuple([198, 51, 100, 7], 80, [203, 0, 113, 1], 40_000));
        bytes.extend([&[203, 0, 113, 1][..], &[0; 12], &[198, 51, 100, 7], &[0; 12]].concat());
        bytes.extend([40_000u16.to_be_bytes(), 80u16.to_be_bytes()].concat());
        let two_seconds = 2 * jiffies::per_second();
        bytes.extend([2u32, 3, 4, 5, 6, 7, two_seconds].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend([9, 0, 0, 3, 4, 6, 0, 1, 3, 1, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let report = parse(&bytes).unwrap();
        assert_eq!((report.protocol, report.input, report.output, report.mark), (6, 2, 3, 4));
        assert_eq!((report.generation, report.jiffies), (6, 8));
        assert_eq!(report.sent.source, IpAddr::from([203, 0, 113, 1]));
        assert_eq!((report.sent.source_port, report.sent.destination_port), (40_000, 80));
        let connection = report.connection.unwrap();
        assert_eq!(connection.original.source, IpAddr::from([192, 0, 2, 1]));
        assert_eq!(connection.reply.destination_port, 40_000);
        assert_eq!((connection.zone, connection.own_zone), (9, 9));
        assert_eq!((connection.mark, connection.status), (5, 7));
        assert_eq!((connection.timeout_s, connection.tcp_state, connection.is_reply), (2, 3, false));
        assert_eq!(connection.acknowledged, Some(5));
        assert_eq!(parse(&bytes[1..]), None);
    }
}
