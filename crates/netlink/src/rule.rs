//! Policy routing rules: which table is used for which packets.
//!
//! brickmoon forwards by destination, as the default rules do. This module exists to notice when more is configured,
//! so that the control plane can leave those packets to Linux.

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use crate::family::ip_address;
use crate::route::{TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};
use bm_wire::Family;
use std::fmt;
use std::net::IpAddr;

/// Fixed part of a message: `struct fib_rule_hdr`.
const HEADER: usize = 12;
/// Action: look in a table.
const TO_TABLE: u8 = 1;
/// Flag: the selectors are turned round.
const INVERT: u32 = 2;
/// Attribute types (`FRA_*`).
mod fra {
    pub(crate) const DST: u16 = 1;
    pub(crate) const SRC: u16 = 2;
    pub const IIFNAME: u16 = 3;
    pub const PRIORITY: u16 = 6;
    pub(crate) const FWMARK: u16 = 10;
    pub(crate) const SUPPRESS_IFGROUP: u16 = 13;
    pub(crate) const SUPPRESS_PREFIXLEN: u16 = 14;
    pub const TABLE: u16 = 15;
    pub(crate) const FWMASK: u16 = 16;
    pub const OIFNAME: u16 = 17;
    pub(crate) const PAD: u16 = 18;
    pub(crate) const L3MDEV: u16 = 19;
    pub const PROTOCOL: u16 = 21;
}

/// A policy routing rule (`ip rule`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    pub family: Family,
    /// Its priority; the rule with the lowest value is tried first.
    pub priority: u32,
    /// Its origin (`RTPROT_*`), which Linux compares too: two rules may differ in nothing else.
    pub protocol: u8,
    /// Its action (`FR_ACT_*`); 1 is a lookup in `table`.
    pub action: u8,
    pub table: u32,
    /// Whether it looks in the table of the VRF that a packet belongs to.
    pub l3mdev: bool,
    /// Whether the selectors are turned round.
    pub invert: bool,
    /// Type of service that it is for; 0 for all.
    pub tos: u8,
    /// Sources that it is for.
    pub source: Option<(IpAddr, u8)>,
    pub destination: Option<(IpAddr, u8)>,
    /// Interface of arrival that it is for.
    pub input: Option<Box<str>>,
    /// Interface of departure that it is for.
    pub output: Option<Box<str>>,
    /// Mark and mask that it is for.
    pub mark: Option<(u32, u32)>,
    /// Results with a prefix this short or shorter do not count.
    pub suppress_length: Option<u32>,
    /// Selectors beyond these, as the kernel sent them.
    pub others: Box<[u8]>,
}

impl Rule {
    /// A rule that makes all packets look in a table.
    pub fn lookup(family: Family, priority: u32, table: u32) -> Self {
        Self {
            family,
            priority,
            protocol: 0,
            action: TO_TABLE,
            table,
            l3mdev: false,
            invert: false,
            tos: 0,
            source: None,
            destination: None,
            input: None,
            output: None,
            mark: None,
            suppress_length: None,
            others: Box::default(),
        }
    }

    /// Whether it is one of the default rules, or the one for VRFs.
    pub fn standard(&self) -> bool {
        let usual = [(0, TABLE_LOCAL), (32_766, TABLE_MAIN), (32_767, TABLE_DEFAULT)];
        let selects = self.invert
            || self.tos != 0
            || self.source.is_some()
            || self.destination.is_some()
            || self.input.is_some()
            || self.output.is_some()
            || self.mark.is_some()
            || self.suppress_length.is_some()
            || !self.others.is_empty();
        self.action == TO_TABLE && !selects && (self.l3mdev || usual.contains(&(self.priority, self.table)))
    }

    /// Reads the part after the netlink header. `None` for an address family other than IPv4 and IPv6.
    pub(crate) fn read(message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: libc::RTM_NEWRULE, length: message.len() });
        }
        let Some(family) = Family::from_number(message[0]) else { return Ok(None) };
        let mut rule = Self {
            action: message[7],
            invert: attribute::number_u32(0, &message[8..12])? & INVERT != 0,
            tos: message[3],
            ..Self::lookup(family, 0, u32::from(message[4]))
        };
        let mut others = Vec::new();
        for attribute in Attributes::after_header(message, HEADER) {
            let (kind, value) = attribute?;
            rule.take(kind, value, message[2], message[1], &mut others)?;
        }
        rule.others = others.into();
        Ok(Some(rule))
    }

    fn take(
        &mut self,
        kind: u16,
        value: &[u8],
        source_length: u8,
        destination_length: u8,
        others: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let number = || attribute::number_u32(kind, value);
        match kind {
            fra::DST => self.destination = ip_address(value).map(|address| (address, destination_length)),
            fra::SRC => self.source = ip_address(value).map(|address| (address, source_length)),
            fra::IIFNAME => self.input = Some(attribute::text(value)),
            fra::OIFNAME => self.output = Some(attribute::text(value)),
            fra::PRIORITY => self.priority = number()?,
            fra::TABLE => self.table = number()?,
            fra::FWMARK => self.mark = Some((number()?, self.mark.map_or(u32::MAX, |(_, mask)| mask))),
            fra::FWMASK => self.mark = Some((self.mark.map_or(0, |(mark, _)| mark), number()?)),
            fra::L3MDEV => self.l3mdev = attribute::number_u8(kind, value)? != 0,
            // The kernel always includes these two, with all bits set for none.
            fra::SUPPRESS_PREFIXLEN => self.suppress_length = Some(number()?).filter(|&n| n != u32::MAX),
            fra::SUPPRESS_IFGROUP if number()? == u32::MAX => {}
            fra::PROTOCOL => self.protocol = attribute::number_u8(kind, value)?,
            fra::PAD => {}
            _ => attribute::put(others, kind, value),
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:{}", self.family, self.priority, if self.invert { " not" } else { "" })?;
        for (name, prefix) in [("from", self.source), ("to", self.destination)] {
            if let Some((address, length)) = prefix {
                write!(f, " {name} {address}/{length}")?;
            }
        }
        for (name, interface) in [("iif", &self.input), ("oif", &self.output)] {
            if let Some(interface) = interface {
                write!(f, " {name} {interface}")?;
            }
        }
        if let Some((mark, mask)) = self.mark {
            write!(f, " fwmark {mark:#x}/{mask:#x}")?;
        }
        if self.tos != 0 {
            write!(f, " tos {:#04x}", self.tos)?;
        }
        if !self.others.is_empty() {
            f.write_str(" further-selectors")?;
        }
        match (self.action, self.l3mdev) {
            (TO_TABLE, true) => f.write_str(" lookup [l3mdev-table]")?,
            (TO_TABLE, false) => write!(f, " lookup {}", self.table)?,
            (action, _) => write!(f, " action {action}")?,
        }
        if let Some(length) = self.suppress_length {
            write!(f, " suppress_prefixlength {length}")?;
        }
        Ok(())
    }
}
