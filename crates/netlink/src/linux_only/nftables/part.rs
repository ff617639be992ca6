//! The ruleset as a part of the kernel that is followed.

use super::Ruleset;
use super::analysis::analyse;
use super::read::{read, read_messages};
use super::tracking;
use crate::error::Malformed;
use crate::linux_only::Feature;
use crate::linux_only::dump;
use crate::linux_only::entries::Entries;
use crate::linux_only::names::Names;
use crate::linux_only::part::{Part, Trouble};
use crate::message::Raw;
use crate::socket::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;

/// The ruleset.
#[derive(Debug, Default)]
pub struct Nftables {
    /// The socket for reading; opened again after a failure, so that no rest of an answer is in the way.
    socket: Option<Socket>,
    ruleset: Ruleset,
}

impl Part for Nftables {
    fn feature(&self) -> Feature {
        Feature::Nftables
    }

    fn title(&self) -> &'static str {
        "the nftables ruleset"
    }

    fn read(&mut self, _: &Names) -> Result<bool, Trouble> {
        let socket =
            self.socket.take().map_or_else(|| dump::open(NETLINK_NETFILTER), |socket| Ok(Some(socket)));
        let Some(mut socket) = socket? else { return Ok(false) };
        let ruleset = read(&mut socket)?;
        self.socket = Some(socket);
        self.ruleset = ruleset.ok_or(Trouble::Restless)?;
        Ok(true)
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        analyse(&self.ruleset, names, entries);
        tracking::analyse(&self.ruleset, entries);
    }
}

/// Adds the packets that the ruleset in these messages concerns: tables, then chains, then rules, as the kernel lists
/// them.
pub fn from_messages(messages: &[Raw<'_>], names: &Names, entries: &mut Entries) -> Result<(), Malformed> {
    let ruleset = read_messages(messages)?;
    analyse(&ruleset, names, entries);
    tracking::analyse(&ruleset, entries);
    Ok(())
}
