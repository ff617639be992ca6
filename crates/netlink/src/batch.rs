//! Many requests in one send: adding full tables to the kernel, and resolving neighbors.
//!
//! The kernel handles all requests of a send before it returns. Only the last request of a send asks for an
//! acknowledgement, and failed ones are answered in any case; so a million routes cost a few hundred system calls and
//! no million answers.

use crate::error::Error;
use crate::message::{self, Messages};
use crate::next_hop::{self, NextHop};
use crate::route::{RouteBody, RouteMessage};
use crate::socket::{Socket, answer_end, flag};
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
    buffer: Vec<u8>,
    /// Where the last request begins.
    last: usize,
    /// Sequence number of the first request of this send, and how many requests it has.
    first_sequence: u32,
    pending: usize,
    outcome: Outcome,
}

impl Batch {
    /// Opens a batch in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            socket: Socket::open(RECEIVE_BUFFER)?,
            buffer: Vec::with_capacity(SEND + 4096),
            last: 0,
            first_sequence: 0,
            pending: 0,
            outcome: Outcome::default(),
        })
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
        let sequence = self.socket.next_sequence();
        if self.pending == 0 {
            self.first_sequence = sequence;
        }
        self.last = message::begin(&mut self.buffer, kind, flags | flag::REQUEST, sequence);
        body(&mut self.buffer);
        message::end(&mut self.buffer, self.last);
        self.pending += 1;
        if self.buffer.len() >= SEND { self.flush() } else { Ok(()) }
    }

    /// Sends the collected requests and waits until the kernel has handled them.
    ///
    /// # Errors
    /// If they could not be sent, or no answer came. The collected requests are then dropped, with the results of
    /// earlier ones; the next request starts a new batch.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.pending == 0 {
            return Ok(());
        }
        let done = self.exchange();
        self.buffer.clear();
        self.last = 0;
        let sent = std::mem::take(&mut self.pending);
        match &done {
            Ok(()) => self.outcome.sent += sent,
            Err(_) => self.outcome = Outcome::default(),
        }
        done
    }

    fn exchange(&mut self) -> Result<(), Error> {
        // The flags are the two bytes after length and type.
        let flags = &mut self.buffer[self.last + 6..self.last + 8];
        let asked = u16::from_ne_bytes([flags[0], flags[1]]) | flag::ACK;
        flags.copy_from_slice(&asked.to_ne_bytes());
        self.socket.send(&self.buffer)?;
        let last = self.first_sequence.wrapping_add(self.pending as u32 - 1);
        while !self.collect(last)? {}
        Ok(())
    }

    /// Takes in answers; `true` once that to the request `last` has come.
    fn collect(&mut self, last: u32) -> Result<bool, Error> {
        let count = self.socket.receive(true)?;
        let mut done = false;
        for index in 0..count {
            for raw in Messages(self.socket.slot(index)) {
                let raw = raw?;
                let offset = raw.sequence.wrapping_sub(self.first_sequence) as usize;
                if offset >= self.pending {
                    // An answer to a send that was given up.
                    continue;
                }
                done |= raw.sequence == last;
                if let Some(Err(error)) = answer_end("carry out a request in a batch", &raw) {
                    self.outcome.refused += 1;
                    if self.outcome.first.len() < KEPT {
                        self.outcome.first.push(Refusal { index: self.outcome.sent + offset, error });
                    }
                }
            }
        }
        Ok(done)
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
