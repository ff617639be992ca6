//! A sender like a program on a host: a packet socket, many frames per system call, normal priority.
//!
//! Frames that the router has not received yet count as the socket's memory, and the socket holds fewer than a veth, so
//! this sender waits for room, as a program on a host does. Whatever is missing at the sink was lost by the router. The
//! generator ([`Generator`](super::Generator)) is faster and does not wait.

use std::io;
use std::net::Ipv4Addr;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::thread::set_current_timer_slack;

use super::paced::{monotonic, packet_socket, sleep_until};
use super::{Stream, layout};
use crate::interrupt;
use crate::testbed::{Testbed, TestbedError};

/// Number of frames per system call.
const CALL: usize = 64;
/// Size of the socket's buffer in bytes; the kernel doubles it. A small frame takes 768 of them, and a veth holds 256
/// frames.
const SEND_BUFFER: usize = 64 << 10;
/// The longest wait for room in the socket.
const ROOM: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long a paced sender sleeps if nothing is due.
const NAP: Duration = Duration::from_micros(100);

/// When to send how many frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A number of bursts of a number of frames back to back, with a pause after each.
    Bursts {
        /// Bursts.
        count: u32,
        frames: u32,
        /// Time from one burst to the next.
        pause: Duration,
    },
    /// Frames at a rate. A sender that was delayed sends the missing ones back to back.
    Rate {
        /// Frames in all.
        frames: u32,
        /// Frames a second.
        per_second: f64,
    },
}

impl Pace {
    /// Frames in all.
    pub fn frames(&self) -> u64 {
        match *self {
            Self::Bursts { count, frames, .. } => u64::from(count) * u64::from(frames),
            Self::Rate { frames, .. } => frames.into(),
        }
    }
}

fn refused(error: io::Error) -> TestbedError {
    TestbedError::system("send frames")(error)
}

/// Sends the frames of a stream from the source of a test bed; returns how long it took, once all are sent.
///
/// # Errors
/// [`TestbedError`] if the system refuses.
pub fn send(testbed: &Testbed, stream: &Stream, pace: Pace) -> Result<Duration, TestbedError> {
    let index = testbed.source.index(&testbed.interfaces.source)?;
    testbed
        .source
        .enter(|| Sender::open(index, &|number, now| layout::frame(stream, number, now))?.send_all(pace))
}

/// Sends answers to the packets of an IPv4 stream from the sink of a test bed to one address, that which the router has
/// given their source: from each destination in turn. Returns how long it took, once all are sent.
///
/// # Errors
/// [`TestbedError`] if the system refuses.
pub fn answer(
    testbed: &Testbed,
    stream: &Stream,
    to: Ipv4Addr,
    pace: Pace,
) -> Result<Duration, TestbedError> {
    let index = testbed.sink.index(&testbed.interfaces.sink)?;
    testbed
        .sink
        .enter(|| Sender::open(index, &|number, _| layout::answer(stream, number, to))?.send_all(pace))
}

/// Limits the socket's buffer, and makes timers of this thread exact.
fn prepare(socket: &OwnedFd) -> io::Result<()> {
    set_current_timer_slack(Some(NonZero::<u64>::MIN))?;
    Ok(set_socket_send_buffer_size(socket, SEND_BUFFER)?)
}

struct Sender<'a> {
    socket: OwnedFd,
    /// Makes a frame from its number and the time in nanoseconds.
    make: &'a dyn Fn(u32, u64) -> Vec<u8>,
    /// Number of the next frame.
    next: u32,
    /// Frames of the current call.
    frames: Vec<Vec<u8>>,
}

impl<'a> Sender<'a> {
    /// A sender on an interface, given by its number, of this thread's namespace.
    fn open(index: u32, make: &'a dyn Fn(u32, u64) -> Vec<u8>) -> Result<Self, TestbedError> {
        let socket = packet_socket(index).map_err(refused)?;
        prepare(&socket).map_err(refused)?;
        Ok(Self { socket, make, next: 0, frames: Vec::new() })
    }

    /// Sends all frames; returns how long it took.
    fn send_all(mut self, pace: Pace) -> Result<Duration, TestbedError> {
        let began = monotonic();
        match pace {
            Pace::Bursts { count, frames, pause } => {
                for _ in 0..count {
                    self.send(frames as usize).map_err(refused)?;
                    interrupt::sleep(pause)?;
                }
            }
            Pace::Rate { frames, per_second } => {
                while self.next < frames {
                    interrupt::check()?;
                    let due = ((monotonic() - began).as_secs_f64() * per_second) as u32;
                    match due.min(frames) - self.next {
                        0 => sleep_until(monotonic() + NAP),
                        owed => self.send(owed as usize).map_err(refused)?,
                    }
                }
            }
        }
        Ok(monotonic() - began)
    }

    /// Sends this many frames back to back.
    fn send(&mut self, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let now = monotonic().as_nanos() as u64;
            let call = left.min(CALL) as u32;
            self.frames.clear();
            self.frames.extend((0..call).map(|at| (self.make)(self.next.wrapping_add(at), now)));
            self.next = self.next.wrapping_add(call);
            left -= call as usize;
            self.send_call()?;
        }
        Ok(())
    }

    /// Sends the frames of a call, in several calls if the socket has no room.
    fn send_call(&mut self) -> io::Result<()> {
        let mut parts = Vec::with_capacity(self.frames.len());
        for frame in &mut self.frames {
            parts.push(libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() });
        }
        let mut messages = Vec::with_capacity(parts.len());
        for part in &mut parts {
            // SAFETY: a C struct of numbers and pointers, for which all zeroes is a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
            messages.push(message);
        }
        let mut left = &mut messages[..];
        while !left.is_empty() {
            // SAFETY: the messages, their parts and the frames are whole and outlive the call, which reads the frames.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    left.as_mut_ptr(),
                    left.len() as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if sent >= 0 {
                left = &mut left[sent as usize..];
                continue;
            }
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => {}
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) => {
                    self.await_room()?
                }
                error => return Err(error),
            }
        }
        Ok(())
    }

    fn await_room(&self) -> io::Result<()> {
        let mut watched = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
        match poll(&mut watched, Some(&ROOM)).unwrap_or(1) {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "nobody takes frames from the wire")),
            _ => Ok(()),
        }
    }
}
