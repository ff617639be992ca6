//! Requests that are sent together, to any part of the kernel.
//!
//! The kernel handles all requests of a send before it returns. Only the last request of a send asks for an
//! acknowledgement, and failed ones are answered in any case; so many requests cost one system call and few answers.

use crate::error::Error;
use crate::message::{self, Messages};
use crate::socket::{Socket, answer_end, flag};

/// Requests that have not been sent yet.
#[derive(Debug, Default)]
pub struct Requests {
    buffer: Vec<u8>,
    /// Where the last request begins.
    last: usize,
    /// Sequence number of the first request, and how many there are.
    first_sequence: u32,
    pending: usize,
}

impl Requests {
    /// Adds a request, with `flags` in addition to those of every request; `body` writes what follows the header.
    pub fn add(&mut self, socket: &mut Socket, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let sequence = socket.next_sequence();
        if self.pending == 0 {
            self.first_sequence = sequence;
        }
        self.last = message::begin(&mut self.buffer, kind, flags | flag::REQUEST, sequence);
        body(&mut self.buffer);
        message::end(&mut self.buffer, self.last);
        self.pending += 1;
    }

    /// Length of all of them, in bytes.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Sends them and waits until the kernel has handled them; returns how many they were. Calls `refused` for each that
    /// was refused, with the number of those added before it, and the reason.
    ///
    /// # Errors
    /// If they could not be sent, or no answer came. They are dropped then, too.
    pub fn send(&mut self, socket: &mut Socket, refused: impl FnMut(usize, Error)) -> Result<usize, Error> {
        if self.pending == 0 {
            return Ok(0);
        }
        let done = self.exchange(socket, refused);
        self.buffer.clear();
        self.last = 0;
        let sent = std::mem::take(&mut self.pending);
        done.map(|()| sent)
    }

    fn exchange(&mut self, socket: &mut Socket, mut refused: impl FnMut(usize, Error)) -> Result<(), Error> {
        // The flags are the two bytes after length and type.
        let flags = &mut self.buffer[self.last + 6..self.last + 8];
        let asked = u16::from_ne_bytes([flags[0], flags[1]]) | flag::ACK;
        flags.copy_from_slice(&asked.to_ne_bytes());
        socket.send(&self.buffer)?;
        while !self.collect(socket, &mut refused)? {}
        Ok(())
    }

    /// Takes in answers; `true` once that to the last request has come.
    fn collect(&self, socket: &mut Socket, refused: &mut impl FnMut(usize, Error)) -> Result<bool, Error> {
        let count = socket.receive(true)?;
        let last = self.first_sequence.wrapping_add(self.pending as u32 - 1);
        let mut done = false;
        for index in 0..count {
            for raw in Messages(socket.slot(index)) {
                let raw = raw?;
                let number = raw.sequence.wrapping_sub(self.first_sequence) as usize;
                if number >= self.pending {
                    // An answer to a send that was given up.
                    continue;
                }
                done |= raw.sequence == last;
                if let Some(Err(error)) = answer_end("carry out a request in a batch", &raw) {
                    refused(number, error);
                }
            }
        }
        Ok(done)
    }
}
