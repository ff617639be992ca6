//! MRT table dumps (RFC 6396, with the additional paths of RFC 8050): TABLE_DUMP_V2, unicast.
//!
//! ```text
//! timestamp 4 | type 2 | subtype 2 | length 4 | then for a prefix:
//! sequence 4 | bits 1 | prefix | entries 2 | each: peer 2 | time 4 | [path id 4] | length 2 | attributes
//! ```
//!
//! Of several entries for one prefix, the first one with the shortest AS path is used: a collector's dump does not say
//! which one its peers would choose. Other records are counted and skipped.

use std::fmt;
use std::io::{self, BufRead};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_wire::prefix::Prefix;

use super::{RibBuilder, RibFault};

/// What is wrong with an MRT record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MrtFault {
    /// The file ends within the record.
    Cut,
    /// MRT has no record of this type.
    NotMrt {
        /// The type.
        kind: u16,
    },
    /// The record is too long to be valid.
    TooLong { length: u32 },
    /// The record ends before its last field.
    Short,
    /// A prefix longer than its family's addresses.
    PrefixLength { length: u8 },
    /// An entry from a peer that the index table does not have.
    Peer {
        /// The entry's peer.
        index: u16,
        /// Peers in the table.
        peers: usize,
    },
    /// A next hop that is no IPv4 and no IPv6 address.
    NextHopLength {
        /// Its length in bytes.
        length: usize,
    },
    /// A prefix without an entry.
    NoEntry,
}

impl fmt::Display for MrtFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("the file ends in the middle of it: fetch the dump again"),
            Self::NotMrt { kind } => write!(f, "type {kind}: this is neither text nor an MRT dump"),
            Self::TooLong { length } => write!(f, "it is {length} bytes long: the dump is damaged"),
            Self::Short => f.write_str("it ends before its last field"),
            Self::PrefixLength { length } => write!(f, "prefix length {length} is too large"),
            Self::Peer { index, peers } => {
                write!(f, "peer {index} is not among the {peers} of the index table")
            }
            Self::NextHopLength { length } => write!(f, "it has a next hop of {length} bytes"),
            Self::NoEntry => f.write_str("it has a prefix without an entry"),
        }
    }
}

/// MRT type, and its subtypes that are read (RFC 6396 4.3, RFC 8050 4).
mod kind {
    pub const TABLE_DUMP_V2: u16 = 13;
    /// All types (RFC 6396 4): OSPF and IS-IS, tables, updates, with and without microseconds.
    pub const ALL: [u16; 9] = [11, 12, TABLE_DUMP_V2, 16, 17, 32, 33, 48, 49];
    pub const PEER_INDEX_TABLE: u16 = 1;
    pub const RIB_IPV4_UNICAST: u16 = 2;
    pub const RIB_IPV6_UNICAST: u16 = 4;
    pub const RIB_IPV4_UNICAST_ADDPATH: u16 = 8;
    pub const RIB_IPV6_UNICAST_ADDPATH: u16 = 10;
}

/// BGP path attributes that are read, and the flag for a length of two bytes (RFC 4271 4.3).
mod attribute {
    pub const AS_PATH: u8 = 2;
    pub const NEXT_HOP: u8 = 3;
    pub const MP_REACH_NLRI: u8 = 14;
    pub const EXTENDED_LENGTH: u8 = 0x10;
}

/// The longest record accepted: a prefix seen by 4,096 peers with attributes of 4 KiB each.
const RECORD_BYTES_MAX: u32 = 1 << 24;

pub fn read(mut input: impl BufRead, gathered: &mut RibBuilder) -> Result<(), RibFault> {
    let (mut offset, mut record, mut peers) = (0, Vec::new(), Vec::new());
    while !input.fill_buf()?.is_empty() {
        let fault = |fault| RibFault::Record(offset, fault);
        let mut header = [0; 12];
        input.read_exact(&mut header).map_err(|error| cut(offset, error))?;
        let [_, _, _, _, t0, t1, s0, s1, length @ ..] = header;
        let (kind, length) = (u16::from_be_bytes([t0, t1]), u32::from_be_bytes(length));
        if !kind::ALL.contains(&kind) {
            return Err(fault(MrtFault::NotMrt { kind }));
        }
        if length > RECORD_BYTES_MAX {
            return Err(fault(MrtFault::TooLong { length }));
        }
        record.resize(length as usize, 0);
        input.read_exact(&mut record).map_err(|error| cut(offset, error))?;
        match (kind, u16::from_be_bytes([s0, s1])) {
            (kind::TABLE_DUMP_V2, kind::PEER_INDEX_TABLE) => peers = read_peers(&record).map_err(fault)?,
            (kind::TABLE_DUMP_V2, subtype) => {
                read_prefix(&record, subtype, &peers, gathered).map_err(fault)?;
            }
            _ => gathered.skipped += 1,
        }
        offset += 12 + u64::from(length);
    }
    Ok(())
}

fn cut(offset: u64, error: io::Error) -> RibFault {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => RibFault::Record(offset, MrtFault::Cut),
        _ => RibFault::Io(error),
    }
}

/// The addresses of the collector's peers, in order (RFC 6396 4.3.1).
fn read_peers(record: &[u8]) -> Result<Vec<IpAddr>, MrtFault> {
    let mut fields = Fields(record);
    fields.take(4)?; // collector's BGP identifier
    let name_bytes = fields.u16()?;
    fields.take(name_bytes.into())?;
    let count = fields.u16()?;
    let mut peers = Vec::with_capacity(count.into());
    for _ in 0..count {
        let bits = fields.u8()?;
        fields.take(4)?; // peer's BGP identifier
        peers.push(address(fields.take(if bits & 1 == 0 { 4 } else { 16 })?)?);
        fields.take(if bits & 2 == 0 { 2 } else { 4 })?; // peer's AS
    }
    Ok(peers)
}

/// One prefix with the entries of those peers that announced it (RFC 6396 4.3.2, RFC 8050 4.1).
fn read_prefix(record: &[u8], subtype: u16, peers: &[IpAddr], into: &mut RibBuilder) -> Result<(), MrtFault> {
    let (is_ipv4, has_path_id) = match subtype {
        kind::RIB_IPV4_UNICAST => (true, false),
        kind::RIB_IPV6_UNICAST => (false, false),
        kind::RIB_IPV4_UNICAST_ADDPATH => (true, true),
        kind::RIB_IPV6_UNICAST_ADDPATH => (false, true),
        _ => {
            into.skipped += 1;
            return Ok(());
        }
    };
    let mut fields = Fields(record);
    fields.take(4)?; // sequence number
    let length = fields.u8()?;
    if length > if is_ipv4 { 32 } else { 128 } {
        return Err(MrtFault::PrefixLength { length });
    }
    let mut address = [0; 16];
    let bytes = fields.take(usize::from(length).div_ceil(8))?;
    address[..bytes.len()].copy_from_slice(bytes);
    let next_hop = into.number(best_next_hop(&mut fields, has_path_id, peers)?);
    let too_long = MrtFault::PrefixLength { length };
    let [a, b, c, d, ..] = address;
    if is_ipv4 {
        let prefix = Prefix::containing(u32::from_be_bytes([a, b, c, d]), length).ok_or(too_long)?;
        into.add_ipv4(prefix, next_hop);
    } else {
        let prefix = Prefix::containing(u128::from_be_bytes(address), length).ok_or(too_long)?;
        into.add_ipv6(prefix, next_hop);
    }
    Ok(())
}

fn best_next_hop(fields: &mut Fields<'_>, has_path_id: bool, peers: &[IpAddr]) -> Result<IpAddr, MrtFault> {
    let mut best: Option<(usize, IpAddr)> = None;
    for _ in 0..fields.u16()? {
        let index = fields.u16()?;
        fields.take(4)?; // originated time
        if has_path_id {
            fields.take(4)?;
        }
        let attributes_bytes = fields.u16()?;
        let path = read_attributes(fields.take(attributes_bytes.into())?)?;
        let peer = peers.get(usize::from(index)).copied();
        let fault = MrtFault::Peer { index, peers: peers.len() };
        let next_hop = path.next_hop.or(peer).ok_or(fault)?;
        if best.is_none_or(|(as_path_length, _)| path.as_path_length < as_path_length) {
            best = Some((path.as_path_length, next_hop));
        }
    }
    best.map(|(_, next_hop)| next_hop).ok_or(MrtFault::NoEntry)
}

/// What an entry says about its path.
#[derive(Default)]
struct Path {
    as_path_length: usize,
    next_hop: Option<IpAddr>,
}

fn read_attributes(attributes: &[u8]) -> Result<Path, MrtFault> {
    let (mut fields, mut path) = (Fields(attributes), Path::default());
    while !fields.0.is_empty() {
        let (flags, kind) = (fields.u8()?, fields.u8()?);
        let long = flags & attribute::EXTENDED_LENGTH != 0;
        let length = if long { fields.u16()?.into() } else { fields.u8()?.into() };
        let value = fields.take(length)?;
        match kind {
            attribute::AS_PATH => path.as_path_length = as_path_length(value)?,
            attribute::NEXT_HOP => path.next_hop = path.next_hop.or(Some(address(value)?)),
            attribute::MP_REACH_NLRI => path.next_hop = Some(reached_by(value)?),
            _ => {}
        }
    }
    Ok(path)
}

/// AS numbers have four bytes here, whatever the peer uses (RFC 6396 4.3.4); a set counts as one
/// (RFC 4271 9.1.2.2), a confederation as none (RFC 5065 5.3).
fn as_path_length(value: &[u8]) -> Result<usize, MrtFault> {
    let (mut fields, mut length) = (Fields(value), 0);
    while !fields.0.is_empty() {
        let (kind, count) = (fields.u8()?, usize::from(fields.u8()?));
        fields.take(count * 4)?;
        length += match kind {
            1 => 1,
            2 => count,
            _ => 0,
        };
    }
    Ok(length)
}

/// The next hop of MP_REACH_NLRI. A dump contains only its length and address (RFC 6396 4.3.4); some writers
/// put the address family before it, whose first byte is 0, which is not a valid length.
fn reached_by(value: &[u8]) -> Result<IpAddr, MrtFault> {
    let mut fields = Fields(value);
    if value.first() == Some(&0) {
        fields.take(3)?;
    }
    let length = usize::from(fields.u8()?);
    let next_hop = fields.take(length)?;
    // Two IPv6 addresses are a global one and a link-local one.
    address(if length == 32 { &next_hop[..16] } else { next_hop })
}

fn address(bytes: &[u8]) -> Result<IpAddr, MrtFault> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Ok(Ipv4Addr::from(bytes).into());
    }
    let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| MrtFault::NextHopLength { length: bytes.len() })?;
    Ok(Ipv6Addr::from(bytes).into())
}

/// Bytes still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MrtFault> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(MrtFault::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, MrtFault> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, MrtFault> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}
