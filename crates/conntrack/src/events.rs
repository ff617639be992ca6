//! Events: connections that have changed or were destroyed.
//!
//! Not every connection has events. A connection gets the extension that they need when its first packet is tracked, and only
//! then (`nf_ct_ecache_ext_add` in the kernel's `net/netfilter/nf_conntrack_ecache.c`):
//!
//! | `net.netfilter.nf_conntrack_events` | which connections have events |
//! |---|---|
//! | 2, the default | those that began while some socket of the machine, in any network namespace, was subscribed to events of connections (older kernels: in the same one) |
//! | 1 | those that began since it is 1 |
//! | 0 | none; with `ct event set` in nftables, or `-j CT --ctevents`, those it is set for |
//!
//! Therefore these are destroyed without an event:
//! - connections from before the first subscription, or from a time without any, unless the setting was 1: open [`Events`]
//!   first;
//! - with `ct event set` and `--ctevents`, those of a rule that does not name `destroy`;
//! - all whose events were lost ([`Arrival::Overrun`]).
//!
//! An owner of such connections looks from time to time whether they are still there: [`crate::Conntrack::get`], or an
//! update, which is refused for one that is gone.
//!
//! A connection whose timeout ends is destroyed, with its event, when the kernel comes across it: a packet that looks for
//! another connection with a similar hash, a listing, or the collector, which passes all of them within a minute or two.

use crate::client::present;
use crate::layout::{group, message};
use crate::{Connection, Conntrack};
use bm_netlink::Error;
use bm_netlink::dump;
use bm_netlink::message::Messages;
use bm_netlink::socket::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use std::os::fd::{AsFd, BorrowedFd};

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It has changed: its TCP state, its mark, its status, or something of it by a request.
    Updated,
    /// It is gone.
    Destroyed,
}

/// What has happened, and to which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// After the change. `timeout_s`, `tcp_state`, `liberal` and `has_helper` only if the kernel says them.
    pub connection: Connection,
}

/// What has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Events in their order; empty if there are none at the moment.
    Events(Vec<Event>),
    /// There were more than the receive buffer can hold, and some are lost. Those that did fit can still be read.
    Overrun,
}

/// A subscription to events. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Events {
    socket: Socket,
}

impl Events {
    /// A receive buffer for some ten thousand events, in bytes.
    pub const BUFFER: usize = 8 << 20;

    /// Subscribes to events of these kinds, in the network namespace of the calling thread. Each request that changes a
    /// connection is an event as well, and those of `own` are left out if they are updates. Nothing is built for a kind
    /// without subscribers, so a program that makes many updates better does without [`EventKind::Updated`].
    pub fn open(kinds: &[EventKind], own: Option<&Conntrack>, receive_buffer: usize) -> Result<Self, Error> {
        let mut socket = present(dump::subscribe(NETLINK_NETFILTER, &[], receive_buffer)?)?;
        if let Some(own) = own {
            socket.drop_messages_of(message::NEW, own.port()?)?;
        }
        for kind in kinds {
            socket.join(match kind {
                EventKind::Updated => group::UPDATE,
                EventKind::Destroyed => group::DESTROY,
            })?;
        }
        Ok(Self { socket })
    }

    /// Reads some of the events that have arrived, without waiting. To be called until there are none.
    ///
    /// # Errors
    /// If the kernel's messages cannot be read. Events are lost then, as with [`Arrival::Overrun`].
    pub fn read(&mut self) -> Result<Arrival, Error> {
        let count = match self.socket.receive(false) {
            Ok(count) => count,
            Err(Error::Overrun) => return Ok(Arrival::Overrun),
            Err(error) => return Err(error),
        };
        let mut events = Vec::with_capacity(count);
        for index in 0..count {
            for raw in Messages(self.socket.slot(index)) {
                let raw = raw?;
                let kind = match raw.kind {
                    message::NEW => EventKind::Updated,
                    message::DELETE => EventKind::Destroyed,
                    _ => continue,
                };
                events.push(Event { kind, connection: Connection::read(raw.body)? });
            }
        }
        Ok(Arrival::Events(events))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
