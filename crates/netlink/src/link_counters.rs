//! What Linux has counted on an interface: the numbers of `ip -s link`.
//!
//! They are asked for one interface at a time (`RTM_GETSTATS`): a machine may have thousands of which few are ports.

use crate::attribute::{self, Attributes};
use crate::dump;
use crate::error::{Error, Malformed};
use crate::message::Raw;
use crate::socket::Socket;

/// Message types, which libc does not have.
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
/// Length of `struct if_stats_msg`: family, padding, interface, which groups of counters.
const HEADER: usize = 12;
/// The attribute with the counters (`IFLA_STATS_LINK_64`), and the bit that asks for it.
const LINK_64: u16 = 1;
const WANT_LINK_64: u32 = 1;
/// Receive buffer: an answer is one short message.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    pub rx: Direction,
    pub tx: Direction,
}

/// The counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub packets: u64,
    pub bytes: u64,
    pub errors: u64,
    /// Dropped by Linux or the driver, or missed by the device: `dropped` and `missed` of `ip -s link`.
    pub dropped: u64,
}

/// Reads counters of interfaces of the network namespace in which it was opened.
#[derive(Debug)]
pub struct LinkCountersReader(Socket);

impl LinkCountersReader {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> Result<Self, Error> {
        Socket::open(RECEIVE_BUFFER).map(Self)
    }

    /// The counters of the interface with this index; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&mut self, ifindex: u32) -> Result<Option<LinkCounters>, Error> {
        let mut body = [0; HEADER];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        body[8..12].copy_from_slice(&WANT_LINK_64.to_ne_bytes());
        let mut found = None;
        let asked = dump::request(&mut self.0, "read counters", RTM_GETSTATS, &body, |raw| {
            if raw.kind == RTM_NEWSTATS {
                found = counters(raw)?;
            }
            Ok(())
        });
        match asked {
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            asked => asked.map(|()| found),
        }
    }
}

/// The counters in a message.
fn counters(raw: &Raw<'_>) -> Result<Option<LinkCounters>, Malformed> {
    let Some(value) = Attributes::after_header(raw.body, HEADER).find(LINK_64)? else { return Ok(None) };
    // `struct rtnl_link_stats64`, which only grows at its end.
    let at = |index: usize| -> Result<u64, Malformed> {
        let bytes = value.get(index * 8..index * 8 + 8);
        attribute::number_u64(LINK_64, bytes.ok_or(Malformed::Value { kind: LINK_64, length: value.len() })?)
    };
    let (dropped, missed) = (at(6)?, at(15)?);
    let rx = Direction { packets: at(0)?, bytes: at(2)?, errors: at(4)?, dropped: dropped + missed };
    let tx = Direction { packets: at(1)?, bytes: at(3)?, errors: at(5)?, dropped: at(7)? };
    Ok(Some(LinkCounters { rx, tx }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_fields_of_linux() {
        // A message as Linux 6.18 sends it: interface 7, then 25 counters, of which number N has the value N + 100.
        let mut body = vec![0; HEADER];
        body[4] = 7;
        let values: Vec<u8> = (100u64..125).flat_map(u64::to_ne_bytes).collect();
        attribute::put(&mut body, LINK_64, &values);
        let raw = Raw { kind: RTM_NEWSTATS, flags: 0, sequence: 1, port: 0, body: &body };
        let rx = Direction { packets: 100, bytes: 102, errors: 104, dropped: 106 + 115 };
        let tx = Direction { packets: 101, bytes: 103, errors: 105, dropped: 107 };
        assert_eq!(counters(&raw).unwrap(), Some(LinkCounters { rx, tx }));
        let short = Raw { body: &body[..HEADER], ..raw };
        assert_eq!(counters(&short).unwrap(), None);
        let mut body = body[..HEADER + 4 + 64].to_vec();
        body[HEADER] = 4 + 64;
        let cut = Raw { body: &body, ..raw };
        assert!(counters(&cut).is_err());
    }

    #[test]
    fn the_loopback_interface_has_counters_and_an_unknown_one_has_none() {
        let mut reader = LinkCountersReader::open().unwrap();
        let loopback = reader.read(1).unwrap().expect("every namespace has one");
        assert_eq!(loopback.rx.packets, loopback.tx.packets);
        assert_eq!(reader.read(0x7fff_fff0).unwrap(), None);
    }
}
