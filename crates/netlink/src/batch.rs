//! Many requests in one send: adding full tables to the kernel, and resolving neighbors.
//!
//! A million routes cost a few hundred system calls and no million answers ([`crate::requests`]).

use crate::error::Error;
use crate::next_hop::{self, NextHop};
use crate::requests::Requests;
use crate::route::{RouteBody, RouteMessage};
use crate::socket::{Socket, flag};
use crate::{Neighbor, neighbor};
use bm_wire::prefix::{Address, Prefix};
use std::net::IpAddr;

/// A send goes out once it is this long.
const SEND: usize = 256 * 1024;
/// Room for the answers to a send all of whose requests fail.
const RECEIVE_BUFFER: usize = 32 << 20;
/// How many refusals are kept in full.
const KEPT: usize = 16;

/// A request that the kernel refused.
#[derive(Debug)]
pub struct Refusal {
    /// Which: the number of requests added before it.
    pub index: usize,
    /// Why.
    pub error: Error,
}

/// The result of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many requests were sent.
    pub sent: usize,
    /// How many of them the kernel refused.
    pub refused: usize,
    /// The first of those.
    pub first: Vec<Refusal>,
}

/// Collects requests and sends them together.
#[derive(Debug)]
pub struct Batch {
    socket: Socket,
    requests: Requests,
    outcome: Outcome,
}

impl Batch {
    /// Opens a batch in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(RECEIVE_BUFFER)?;
        Ok(Self { socket, requests: Requests::default(), outcome: Outcome::default() })
    }

    /// Adds a route; refused if one with the same TOS and metric exists.
    pub fn add_route<A: Address>(
        &mut self,
        table: u32,
        prefix: Prefix<A>,
        body: &RouteBody,
    ) -> Result<(), Error> {
        self.add(libc::RTM_NEWROUTE, flag::CREATE | flag::EXCLUSIVE, |message| {
            RouteMessage::<A>::write(table, prefix, body, message);
        })
    }

    /// Adds a route, or replaces the one with the same TOS and metric.
    pub fn replace_route<A: Address>(
        &mut self,
        table: u32,
        prefix: Prefix<A>,
        body: &RouteBody,
    ) -> Result<(), Error> {
        self.add(libc::RTM_NEWROUTE, flag::CREATE | flag::REPLACE, |message| {
            RouteMessage::<A>::write(table, prefix, body, message);
        })
    }

    /// Deletes a route.
    pub fn delete_route<A: Address>(
        &mut self,
        table: u32,
        prefix: Prefix<A>,
        body: &RouteBody,
    ) -> Result<(), Error> {
        self.add(libc::RTM_DELROUTE, 0, |message| RouteMessage::<A>::write(table, prefix, body, message))
    }

    /// Adds a next-hop object or group, or replaces the one with the same number.
    pub fn put_next_hop(&mut self, next_hop: &NextHop) -> Result<(), Error> {
        self.add(next_hop::RTM_NEWNEXTHOP, flag::CREATE | flag::REPLACE, |message| next_hop.write(message))
    }

    /// Makes the kernel use a neighbor as for a packet of its own: an unknown one is resolved, a stale one is
    /// confirmed. The result arrives as an event. Not for a permanent one: it would no longer be that, nor have a MAC.
    pub fn use_neighbor(&mut self, ifindex: u32, address: &IpAddr) -> Result<(), Error> {
        self.add(libc::RTM_NEWNEIGH, flag::CREATE, |message| Neighbor::write_use(ifindex, address, message))
    }

    /// Makes the kernel resolve a neighbor that it is not known to have; refused if it has it. Since Linux 5.16 a request to
    /// use a permanent neighbor makes it an unresolved one, so one that was just added must not be met by it.
    pub fn resolve_neighbor(&mut self, ifindex: u32, address: &IpAddr) -> Result<(), Error> {
        let flags = flag::CREATE | flag::EXCLUSIVE;
        self.add(libc::RTM_NEWNEIGH, flags, |message| Neighbor::write_use(ifindex, address, message))
    }

    /// Adds a permanent neighbor.
    pub fn put_neighbor(&mut self, ifindex: u32, address: &IpAddr, mac: [u8; 6]) -> Result<(), Error> {
        self.add(libc::RTM_NEWNEIGH, flag::CREATE | flag::REPLACE, |message| {
            neighbor::write_permanent(ifindex, address, mac, message);
        })
    }

    /// Deletes a neighbor.
    pub fn delete_neighbor(&mut self, ifindex: u32, address: &IpAddr) -> Result<(), Error> {
        self.add(libc::RTM_DELNEIGH, 0, |message| neighbor::write_which(ifindex, address, message))
    }

    fn add(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        self.requests.add(&mut self.socket, kind, flags, body);
        if self.requests.bytes() >= SEND { self.flush() } else { Ok(()) }
    }

    /// Sends the collected requests and waits until the kernel has handled them.
    ///
    /// # Errors
    /// If they could not be sent, or no answer came. The collected requests are then dropped, with the results of
    /// earlier ones; the next request starts a new batch.
    pub fn flush(&mut self) -> Result<(), Error> {
        let outcome = &mut self.outcome;
        let before = outcome.sent;
        let done = self.requests.send(&mut self.socket, |number, error| {
            outcome.refused += 1;
            if outcome.first.len() < KEPT {
                outcome.first.push(Refusal { index: before + number, error });
            }
        });
        match done {
            Ok(sent) => outcome.sent += sent,
            Err(_) => *outcome = Outcome::default(),
        }
        done.map(drop)
    }

    /// Sends the rest and returns the result of all requests so far.
    pub fn finish(&mut self) -> Result<Outcome, Error> {
        self.flush()?;
        Ok(std::mem::take(&mut self.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn continues_after_a_failed_exchange() {
        let mut batch = Batch::open().unwrap();
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        // SAFETY: both are open; the socket's number stays its own and now stands for `ours`.
        assert!(unsafe { libc::dup2(ours.as_raw_fd(), batch.socket.as_fd().as_raw_fd()) } >= 0);
        let ask = |batch: &mut Batch| batch.use_neighbor(1, &IpAddr::from([192, 0, 2, 1])).unwrap();
        let answer = |sequence: u32, code: i32| {
            let [length, kind] = [36u32.to_ne_bytes(), [libc::NLMSG_ERROR as u8, 0, 0, 0]];
            let message = [length, kind, sequence.to_ne_bytes(), [0; 4], code.to_ne_bytes()].concat();
            kernel.send(&[&message[..], &[0; 16]].concat()).unwrap();
        };
        ask(&mut batch);
        // Shorter than a header.
        kernel.send(&[4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(batch.flush().is_err());
        assert!(batch.flush().is_ok(), "nothing is left of it");
        ask(&mut batch);
        // An answer to the first comes late.
        answer(1, -libc::ENODEV);
        answer(2, -libc::EINVAL);
        let outcome = batch.finish().unwrap();
        assert_eq!((outcome.sent, outcome.refused, outcome.first.len()), (1, 1, 1));
        assert_eq!((outcome.first[0].index, outcome.first[0].error.errno()), (0, Some(libc::EINVAL)));
    }
}
