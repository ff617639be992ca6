//! Tables of nftables that we put into the kernel and remove again.
//!
//! ```text
//! Table ─► batch of messages (delete the old one, make the new one) ─► kernel: all of it or nothing
//! ```
//!
//! The tables bear a name that begins with [`OURS`], and whoever reads the ruleset to see what only Linux may handle
//! ([`crate::linux_only`]) leaves them out: what they drop, our own filters drop as well. This module knows nothing of
//! filters; it only writes what it is given, in the order in which the kernel wants it.

mod write;

use crate::error::Error;
use crate::linux_only::dump::{is_absent, open};
use crate::message::Messages;
use crate::socket::{Socket, answer_end};
use netlink_sys::protocols::NETLINK_NETFILTER;

/// What the names of our tables begin with.
pub const OURS: &str = "brickmoon_filters";

/// Families of tables that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Packets of IPv4 and IPv6, by the name of the interface that they come in on.
    Inet,
    /// Frames that come in on ports of bridges, likewise by name.
    Bridge,
    /// Frames of one interface, before a bridge or a bond has them.
    Netdev,
}

/// A table: its chains, of which those that others go to come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Family.
    pub family: Family,
    /// Name, which begins with [`OURS`].
    pub name: String,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name.
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
    /// As they come in on this interface; of a table of the family netdev alone.
    Ingress(String),
}

/// A rule: what it asks for, in order, then what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What `nft list table` shows beside it; may be empty.
    pub comment: String,
    /// What it asks for.
    pub matches: Vec<Match>,
    /// What it does if all of that is so.
    pub verdict: Verdict,
}

/// What a rule does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is counted and dropped.
    Drop,
    /// It goes to another chain for good.
    Goto(String),
}

/// Something that a rule asks for. A packet without what it asks about does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The value is this one, under the mask.
    Is(Value, Vec<u8>, Option<Vec<u8>>),
    /// The value is another one, under the mask.
    IsNot(Value, Vec<u8>, Option<Vec<u8>>),
    /// The value is within these, both counted.
    Within(Value, Vec<u8>, Vec<u8>),
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Ethertype, in network order.
    Protocol,
    /// Number of the interface, in host order.
    Interface,
    /// Name of the interface, of 16 bytes.
    InterfaceName,
    /// Protocol of the transport header, a byte; a packet whose headers cannot be followed has none.
    Transport,
    /// So many bytes of the network header from an offset.
    Network(u32, u32),
    /// So many bytes of the transport header; later fragments have none.
    Ports(u32, u32),
    /// So many bytes of the fragment header of IPv6.
    Fragment(u32, u32),
    /// What the kernel's local routes say of the destination (`RTN_*`), in host order.
    DestinationType,
    /// The same of routes to addresses of the interface that the packet came in on.
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
    /// What the system refused.
    pub fn open() -> Result<Option<Self>, Error> {
        Ok(open(NETLINK_NETFILTER)?.map(|socket| Self { socket }))
    }

    /// Puts a table in the place of the one of its name, if there is one. Packets meet either one or the other.
    ///
    /// # Errors
    /// What the kernel refused; then all is as before.
    pub fn put(&mut self, table: &Table) -> Result<(), Error> {
        let socket = &mut self.socket;
        let (bytes, first, last) = write::put(table, || socket.next_sequence());
        self.exchange("create an nftables table", &bytes, first, last)
    }

    /// Removes a table if it is there.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn remove(&mut self, family: Family, name: &str) -> Result<(), Error> {
        if !self.is_there(family, name)? {
            return Ok(());
        }
        let socket = &mut self.socket;
        let (bytes, first, last) = write::remove(family, name, || socket.next_sequence());
        self.exchange("remove an nftables table", &bytes, first, last)
    }

    /// Whether a table is there.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn is_there(&mut self, family: Family, name: &str) -> Result<bool, Error> {
        let socket = &mut self.socket;
        let (bytes, sequence) = write::ask(family, name, socket.next_sequence());
        match self.exchange("look up an nftables table", &bytes, sequence, sequence) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENOENT) || is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a batch and waits for its end: the answer to its last message, or the refusal of the whole.
    fn exchange(&mut self, name: &'static str, bytes: &[u8], first: u32, last: u32) -> Result<(), Error> {
        self.socket.send(bytes)?;
        let mut refused = None;
        loop {
            for index in 0..self.socket.receive(true)? {
                for raw in Messages(self.socket.slot(index)) {
                    let raw = raw?;
                    // The rest of an answer that was given up.
                    if raw.sequence < first || raw.sequence > last {
                        continue;
                    }
                    let Some(answer) = answer_end(name, &raw) else { continue };
                    let ends = raw.sequence == last || answer.is_err() && raw.sequence == first;
                    refused = refused.or(answer.err());
                    if ends {
                        return refused.map_or(Ok(()), Err);
                    }
                }
            }
        }
    }
}
