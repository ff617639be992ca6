//! nftables tables that brickmoon creates and removes.
//!
//! ```text
//! Table ─► batch of messages (delete the old one, make the new one) ─► kernel: all of it or nothing
//! ```
//!
//! The names of these tables begin with [`OURS`], and each rule has a mark in its userdata. The code that reads the
//! ruleset to see what only Linux may handle (`bm-firewall`) skips marked rules in the tables of its own daemon:
//! what they drop, brickmoon's filters drop as well. Others may have tables with such names, or add rules to ours. This
//! module knows nothing about filters; it only writes what it is given, in the order that the kernel requires.
//!
//! An owned table exists only as long as the socket that created it ([`Nft::open_to_own`]): the kernel removes it when the
//! process dies, before anything else that the process has open.

mod write;

use crate::dump::{is_absent, open};
use crate::error::Error;
use crate::message::Messages;
use crate::socket::{Socket, answer_end};
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::fcntl_dupfd_cloexec;
use std::io;

pub use write::is_marked;

/// Prefix of the names of brickmoon's tables.
pub const OURS: &str = "brickmoon_filters";
/// What follows the name of a daemon's tables in that of its owned table.
const OWNED: &str = "_owned";
/// Descriptors for sockets that own tables, the best first: higher than any that a daemon opens otherwise.
const HIGH_DESCRIPTORS: [i32; 3] = [16_384, 4096, 1000];

/// The name of the owned table of the daemon that names its other tables like this.
pub fn owned_name(name: &str) -> String {
    format!("{name}{OWNED}")
}

/// Whether a table may be one of the daemon that names its tables like this.
pub fn is_of(name: &str, table: &str) -> bool {
    table.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest == OWNED)
}

/// Families of the tables that brickmoon creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Packets of IPv4 and IPv6, by the name of the interface that they come in on.
    Inet,
    /// Frames that come in on ports of bridges, likewise by name.
    Bridge,
    /// Frames of one interface, before a bridge or a bond gets them.
    Netdev,
}

/// A table: its chains, with those that others jump to first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    /// Its name, which begins with [`OURS`].
    pub name: String,
    /// Whether it exists only as long as the socket that creates it.
    pub owned: bool,
    pub chains: Vec<Chain>,
}

/// A chain of nftables, with its rules in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// Where packets enter it.
    pub hook: Hook,
    /// Its rules. A packet that no rule decides about is accepted.
    pub rules: Vec<Rule>,
}

/// Where packets enter a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Only from other chains.
    Nowhere,
    /// As they come in: before connection tracking, reassembly and address translation.
    Prerouting,
    /// Packets as they arrive on this interface; only in a table of the family netdev. Chains of an owned table come
    /// before others.
    Ingress(String),
}

/// A rule: its matches, in order, then its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The comment that `nft list table` shows; may be empty.
    pub comment: String,
    pub matches: Vec<Match>,
    /// The verdict for packets that fulfil all matches.
    pub verdict: Verdict,
}

/// The verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is accepted.
    Accept,
    /// It is counted and dropped.
    Drop,
    /// The packet goes to another chain and does not return.
    Goto(String),
    /// The packet gets this bit of its priority, and the next rule is evaluated.
    Mark(u32),
    /// The packet loses this bit of its priority and is accepted.
    AcceptUnmarked(u32),
}

/// A match of a rule. A packet that lacks the field does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The value is equal, under the mask.
    Is(Value, Vec<u8>, Option<Vec<u8>>),
    /// The value is different, under the mask.
    IsNot(Value, Vec<u8>, Option<Vec<u8>>),
    /// The value is within these, both counted.
    Within(Value, Vec<u8>, Vec<u8>),
}

/// A bit of the priority (`skb->priority`) of packets on their way from one of our chains to the next. Received packets
/// have priority 0 unless a filter of tc has set it, which keeps all other bits.
pub const HANDED_OVER: u32 = 0x8000_0000;
/// A bit of the priority of packets whose inbound IPsec policy a worker has looked up.
pub const CHECKED: u32 = 0x4000_0000;

/// The value that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Ethertype, in network order.
    Protocol,
    /// Priority, in host order.
    Priority,
    /// Number of the interface, in host order.
    Interface,
    /// Name of the interface, of 16 bytes.
    InterfaceName,
    /// Protocol of the transport header, a byte; a packet whose headers cannot be followed has none.
    Transport,
    /// Bytes of the Ethernet header, with the tag if there is one: offset and length.
    Link(u32, u32),
    /// Bytes of the network header: offset and length.
    Network(u32, u32),
    /// Bytes of the transport header: offset and length; later fragments have none.
    Ports(u32, u32),
    /// Bytes of the IPv6 fragment header: offset and length.
    Fragment(u32, u32),
    /// The type of the destination according to the kernel's local routes (`RTN_*`), in host order.
    DestinationType,
    /// The type of the destination, but only by addresses of the interface that the packet came in on.
    DestinationTypeHere,
}

/// Puts tables into the kernel and removes them.
#[derive(Debug)]
pub struct Nft {
    socket: Socket,
}

impl Nft {
    /// Opens a socket in the network namespace of the calling thread. None where the kernel has no nftables.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> Result<Option<Self>, Error> {
        Ok(open(NETLINK_NETFILTER)?.map(|socket| Self { socket }))
    }

    /// Opens a socket for a table that lives as long as this process. The kernel closes the descriptors of a process that
    /// dies from the highest to the lowest (it puts each in front of a list of work), so this one is as high as possible.
    ///
    /// # Errors
    /// The system's error.
    pub fn open_to_own() -> Result<Option<Self>, Error> {
        let Some(low) = Self::open()? else { return Ok(None) };
        let high =
            HIGH_DESCRIPTORS.into_iter().find_map(|least| fcntl_dupfd_cloexec(&low.socket, least).ok());
        let Some(high) = high else {
            let doing = "get a high descriptor (LimitNOFILE must be above 1000)";
            return Err(Error::System { doing, source: io::ErrorKind::QuotaExceeded.into() });
        };
        Ok(Some(Self { socket: Socket::inherit(high) }))
    }

    /// Creates a table, or replaces the one of the same name. Every packet meets either the old or the new one.
    ///
    /// # Errors
    /// The kernel's error; then nothing has changed.
    pub fn put(&mut self, table: &Table) -> Result<(), Error> {
        let socket = &mut self.socket;
        let request = write::put(table, || socket.next_sequence());
        self.exchange("create an nftables table", &request)
    }

    /// Removes a table if it is there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&mut self, family: Family, name: &str) -> Result<(), Error> {
        if !self.is_there(family, name)? {
            return Ok(());
        }
        let socket = &mut self.socket;
        let request = write::remove(family, name, || socket.next_sequence());
        self.exchange("remove an nftables table", &request)
    }

    /// Whether a table is there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_there(&mut self, family: Family, name: &str) -> Result<bool, Error> {
        let socket = &mut self.socket;
        let request = write::ask(family, name, socket.next_sequence());
        match self.exchange("look up an nftables table", &request) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENOENT) || is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a batch and waits for its end: the answer to its last message, or the refusal of the batch.
    fn exchange(&mut self, name: &'static str, request: &write::Request) -> Result<(), Error> {
        self.socket.send(&request.bytes)?;
        let mut refused = None;
        loop {
            for index in 0..self.socket.receive(true)? {
                for raw in Messages(self.socket.slot(index)) {
                    let raw = raw?;
                    // The rest of an answer that was given up.
                    if raw.sequence < request.first || raw.sequence > request.last {
                        continue;
                    }
                    let Some(answer) = answer_end(name, &raw) else { continue };
                    let ends =
                        raw.sequence == request.last || answer.is_err() && raw.sequence == request.first;
                    refused = refused.or(answer.err());
                    if ends {
                        return refused.map_or(Ok(()), Err);
                    }
                }
            }
        }
    }
}
