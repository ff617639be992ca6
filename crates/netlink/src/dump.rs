//! Questions to the kernel whose answers are waited for.

use crate::error::{Error, Malformed};
use crate::message::{Messages, Raw};
use crate::socket::{Socket, answer_end, flag};

/// How a dump went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumped {
    /// The dump is consistent.
    Whole,
    /// Something changed during the dump.
    Interrupted,
}

/// Requests a dump and calls `each` for its messages.
pub fn dump(
    socket: &mut Socket,
    name: &'static str,
    kind: u16,
    body: &[u8],
    each: impl FnMut(&Raw<'_>) -> Result<(), Malformed>,
) -> Result<Dumped, Error> {
    let sequence = socket.ask_dump(kind, body)?;
    answer(socket, name, sequence, each)
}

/// Sends a request and calls `each` for the answer.
pub fn request(
    socket: &mut Socket,
    name: &'static str,
    kind: u16,
    body: &[u8],
    each: impl FnMut(&Raw<'_>) -> Result<(), Malformed>,
) -> Result<(), Error> {
    // The kernel's acknowledgement ends the answer.
    let sequence = socket.ask(kind, flag::ACK, body)?;
    answer(socket, name, sequence, each).map(drop)
}

/// Sends a request that changes something, and waits for the answer.
pub fn change(
    socket: &mut Socket,
    name: &'static str,
    kind: u16,
    flags: u16,
    body: &[u8],
) -> Result<(), Error> {
    let sequence = socket.ask(kind, flag::ACK | flags, body)?;
    match answer(socket, name, sequence, |_| Ok(()))? {
        Dumped::Whole => Ok(()),
        Dumped::Interrupted => Err(Error::Refused { request: name, errno: libc::EINTR, text: None }),
    }
}

fn answer(
    socket: &mut Socket,
    name: &'static str,
    sequence: u32,
    mut each: impl FnMut(&Raw<'_>) -> Result<(), Malformed>,
) -> Result<Dumped, Error> {
    let (mut dumped, mut wrong) = (Dumped::Whole, None);
    loop {
        let count = socket.receive(true)?;
        for index in 0..count {
            for raw in Messages(socket.slot(index)) {
                let raw = raw?;
                // The rest of an answer that was given up.
                if raw.sequence != sequence {
                    continue;
                }
                if raw.flags & flag::DUMP_INTERRUPTED != 0 {
                    dumped = Dumped::Interrupted;
                }
                match answer_end(name, &raw) {
                    Some(Err(error)) if error.errno() == Some(libc::EINTR) => return Ok(Dumped::Interrupted),
                    Some(Err(error)) => return Err(error),
                    Some(Ok(())) => return wrong.map_or(Ok(dumped), |why| Err(Error::Malformed(why))),
                    None => wrong = wrong.or(each(&raw).err()),
                }
            }
        }
    }
}

/// Receive buffer for answers.
const ANSWER_BUFFER: usize = 4 << 20;

/// A socket for questions to a part of the kernel; none where the kernel lacks that part.
pub fn open(protocol: isize) -> Result<Option<Socket>, Error> {
    present(Socket::open_protocol(protocol, ANSWER_BUFFER))
}

/// A socket for events of a part of the kernel; none where the kernel lacks that part.
pub fn subscribe(protocol: isize, groups: &[u32], receive_buffer: usize) -> Result<Option<Socket>, Error> {
    let mut socket = present(Socket::open_protocol(protocol, receive_buffer))?;
    if let Some(socket) = &mut socket {
        groups.iter().try_for_each(|&group| socket.join(group))?;
    }
    Ok(socket)
}

fn present(socket: Result<Socket, Error>) -> Result<Option<Socket>, Error> {
    match socket {
        Err(error) if error.errno() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        socket => socket.map(Some),
    }
}

/// Whether the kernel lacks what was requested: then there is none.
pub fn is_absent(error: &Error) -> bool {
    let absent = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::EINVAL];
    error.errno().is_some_and(|errno| absent.contains(&errno))
}
