//! A netlink socket, of the kernel's routing (`NETLINK_ROUTE`) unless another is asked for: sends, dumps, events.
//!
//! A socket belongs to the network namespace of the thread that opens it. One system call receives many messages into
//! one large buffer. The kernel splits a dump into pieces of at most 32 KiB whatever the buffer, so slots of that
//! size make a dump fast; larger ones would stay empty.

use crate::attribute::{self, Attributes};
use crate::error::Error;
use crate::message::{self, Raw};
use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;
use zeroize::Zeroize;

/// Bytes of a slot: the largest piece of a dump that the kernel makes.
const SLOT: usize = 32 * 1024;
/// Slots, which is messages or pieces a system call.
const SLOTS: usize = 32;
/// Send buffer: a batch is one send, and the kernel refuses one that does not fit.
const SEND_BUFFER: usize = 8 << 20;
/// The kernel doubles the size of a receive buffer, which is an `int`.
const RECEIVE_BUFFER_MAX: usize = i32::MAX as usize / 2;
/// Messages about the buckets of resilient groups; no message type that is needed is greater.
const NEWNEXTHOPBUCKET: u32 = 116;
/// The group of prefixes in advertisements, which libc does not have.
const RTNLGRP_IPV6_PREFIX: u32 = 18;
/// How long the kernel may take to start an answer. It answers immediately unless another process holds its lock.
const ANSWER_MS: i32 = 30_000;

/// Flags of messages that libc lacks or names by another type.
pub mod flag {
    pub const REQUEST: u16 = 1;
    pub const ACK: u16 = 4;
    pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
    pub const DUMP: u16 = 0x300;
    pub const REPLACE: u16 = 0x100;
    pub(crate) const CREATE: u16 = 0x400;
    pub(crate) const EXCLUSIVE: u16 = 0x200;
    /// On an answer: attributes with the kernel's text follow.
    pub(crate) const ACK_ATTRIBUTES: u16 = 0x200;
}

/// A routing socket.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    buffer: Box<[u8]>,
    /// Length of the message in each slot of the last receive; 0 for one that is not the kernel's.
    lengths: Vec<usize>,
    sequence: u32,
}

impl Socket {
    /// Opens a socket with a receive buffer of `receive_buffer` bytes, or as many as the system allows.
    pub fn open(receive_buffer: usize) -> Result<Self, Error> {
        Self::open_protocol(NETLINK_ROUTE, receive_buffer)
    }

    /// Opens a socket of another part of the kernel, `NETLINK_XFRM` for example.
    pub(crate) fn open_protocol(protocol: isize, receive_buffer: usize) -> Result<Self, Error> {
        let doing = "open a netlink socket";
        let wrap = |source| Error::System { doing, source };
        let mut inner = netlink_sys::Socket::new(protocol).map_err(wrap)?;
        inner.bind(&SocketAddr::new(0, 0)).map_err(wrap)?;
        // Older kernels lack these; then errors have no text and dumps are less filtered.
        let _ = inner.set_ext_ack(true);
        let _ = inner.set_cap_ack(true);
        let _ = inner.set_netlink_get_strict_chk(true);
        let buffer = vec![0; SLOT * SLOTS].into_boxed_slice();
        let socket = Self { inner, buffer, lengths: Vec::with_capacity(SLOTS), sequence: 0 };
        let size = receive_buffer.min(RECEIVE_BUFFER_MAX);
        // The first exceeds the system's limit and needs privileges.
        sockopt::set_socket_recv_buffer_size_force(&socket, size)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, size))
            .map_err(|error| wrap(error.into()))?;
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
        Ok(socket)
    }

    /// A socket that another process has opened, with the messages that it has not read yet.
    pub(crate) fn inherit(socket: OwnedFd) -> Self {
        // SAFETY: the descriptor is open and owned, and ownership passes on.
        let inner = unsafe { netlink_sys::Socket::from_raw_fd(socket.into_raw_fd()) };
        let buffer = vec![0; SLOT * SLOTS].into_boxed_slice();
        Self { inner, buffer, lengths: Vec::with_capacity(SLOTS), sequence: 0 }
    }

    /// Subscribes to the groups of all tables that we mirror.
    pub fn subscribe(&mut self) -> Result<(), Error> {
        let doing = "subscribe to routing events";
        self.filter_bridge_messages().map_err(|source| Error::System { doing, source })?;
        for group in [
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_NEIGH,
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV4_RULE,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV6_ROUTE,
            libc::RTNLGRP_IPV6_RULE,
            RTNLGRP_IPV6_PREFIX,
            libc::RTNLGRP_IPV4_NETCONF,
            libc::RTNLGRP_IPV6_NETCONF,
            libc::RTNLGRP_NEXTHOP,
        ] {
            self.inner.add_membership(group).map_err(|source| Error::System { doing, source })?;
        }
        Ok(())
    }

    /// Subscribes to one more group.
    pub fn join(&mut self, group: u32) -> Result<(), Error> {
        let doing = "subscribe to events of the kernel";
        self.inner.add_membership(group).map_err(|source| Error::System { doing, source })
    }

    /// Makes the kernel drop messages about bridge ports and their forwarding databases, and about buckets of
    /// resilient groups: on a host with many guests that is most of the traffic, and it is not needed here.
    fn filter_bridge_messages(&mut self) -> io::Result<()> {
        use libc::{BPF_JGE, BPF_JMP, BPF_K, BPF_RET};
        // The low byte of the message type, and the family: the first byte after the header.
        let (kind, family) = (if cfg!(target_endian = "little") { 4 } else { 5 }, message::HEADER as u32);
        let (keep, drop) = (step(BPF_RET | BPF_K, u32::MAX, 0, 0), step(BPF_RET | BPF_K, 0, 0, 0));
        let mut program = [
            load_byte(kind),
            step(BPF_JMP | BPF_JGE | BPF_K, NEWNEXTHOPBUCKET, 7, 0), // and all beyond: drop
            jump_if(libc::RTM_NEWLINK, 4, 0),
            jump_if(libc::RTM_DELLINK, 3, 0),
            jump_if(libc::RTM_NEWNEIGH, 2, 0),
            jump_if(libc::RTM_DELNEIGH, 1, 0),
            keep,
            load_byte(family),
            jump_if(libc::AF_BRIDGE as u16, 0, 1),
            drop,
            keep,
        ];
        self.attach(&mut program)
    }

    /// Attaches a filter of messages that arrive.
    fn attach(&mut self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let (fd, length) = (self.inner.as_raw_fd(), size_of_val(&filter) as libc::socklen_t);
        let filter = std::ptr::from_ref(&filter).cast();
        // SAFETY: `filter` is `length` bytes, and `program` as many steps as it says. The kernel only reads them, and
        // has copied them when the call returns. `fd` is open as long as `self`.
        match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter, length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends bytes that contain one or more complete messages.
    pub(crate) fn send(&mut self, messages: &[u8]) -> Result<(), Error> {
        let sent = self.inner.send(messages, 0);
        sent.map(drop).map_err(|source| Error::System { doing: "send a netlink message", source })
    }

    /// A number for the next request.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        // Events have sequence number 0.
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        self.sequence
    }

    /// Receives as many messages as are available, up to the number of slots; returns how many. With `wait` it waits
    /// for the first.
    pub fn receive(&mut self, wait: bool) -> Result<usize, Error> {
        if wait && !wait_for(self.as_fd(), ANSWER_MS)? {
            return Err(Error::Silent { request: "send its data" });
        }
        self.lengths.clear();
        match self.receive_slots() {
            Ok(()) => Ok(self.lengths.len()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                Some(libc::ENOBUFS) => Err(Error::Overrun),
                _ => Err(Error::System { doing: "receive from the kernel", source: error }),
            },
        }
    }

    fn receive_slots(&mut self) -> io::Result<()> {
        // SAFETY: both are plain C structs for which all zeroes is a value: null pointers, no lengths.
        let (mut senders, mut headers): ([libc::sockaddr_nl; SLOTS], [libc::mmsghdr; SLOTS]) =
            unsafe { std::mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: SLOT }; SLOTS];
        for (vector, slot) in vectors.iter_mut().zip(self.buffer.chunks_exact_mut(SLOT)) {
            vector.iov_base = slot.as_mut_ptr().cast();
        }
        for ((header, vector), sender) in headers.iter_mut().zip(&mut vectors).zip(&mut senders) {
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = std::ptr::from_mut(sender).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_nl>() as u32;
        }
        let fd = self.inner.as_raw_fd();
        // SAFETY: `headers` has SLOTS elements; each points at one vector, which covers a slot of
        // `buffer` that no other covers, and at one sender. All of them outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                headers.as_mut_ptr(),
                SLOTS as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (header, sender) in headers.iter().zip(&senders).take(count) {
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
            }
            // Anyone may send to a netlink port; only port 0 is the kernel.
            self.lengths.push(if sender.nl_pid == 0 { header.msg_len as usize } else { 0 });
        }
        Ok(())
    }

    /// The bytes of slot `index` of the last receive.
    pub fn slot(&self, index: usize) -> &[u8] {
        let length = self.lengths.get(index).copied().unwrap_or(0).min(SLOT);
        &self.buffer[index * SLOT..][..length]
    }

    /// Overwrites what was received with zeros, for what may contain keys.
    pub(crate) fn wipe(&mut self) {
        self.lengths.clear();
        self.buffer.zeroize();
    }

    /// Requests a dump. Its pieces are then received; [`answer_end`] recognizes the last one.
    pub(crate) fn ask_dump(&mut self, kind: u16, body: &[u8]) -> Result<u32, Error> {
        self.ask(kind, flag::DUMP, body)
    }

    /// Sends a request, with `flags` in addition to those of every request.
    pub fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<u32, Error> {
        let sequence = self.next_sequence();
        let mut message = Vec::with_capacity(64);
        let start = message::begin(&mut message, kind, flag::REQUEST | flags, sequence);
        message.extend_from_slice(body);
        message::end(&mut message, start);
        self.send(&message)?;
        Ok(sequence)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.inner.as_raw_fd();
        // SAFETY: `inner` owns the descriptor and closes it when dropped, which the borrow forbids.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn load_byte(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at, 0, 0)
}

/// Skips so many steps if the byte has this value, or so many otherwise.
fn jump_if(value: u16, equal: u8, other: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::from(value), equal, other)
}

/// Whether a message ends an answer, and how: done, or refused.
pub(crate) fn answer_end(name: &'static str, raw: &Raw<'_>) -> Option<Result<(), Error>> {
    let code = match i32::from(raw.kind) {
        libc::NLMSG_ERROR | libc::NLMSG_DONE => raw.body.get(..4)?,
        _ => return None,
    };
    match attribute::number_i32(0, code).unwrap_or_default() {
        0.. => Some(Ok(())),
        negative => Some(Err(Error::Refused { request: name, errno: -negative, text: kernel_text(raw) })),
    }
}

/// The kernel's own message for an error, if there is one.
fn kernel_text(raw: &Raw<'_>) -> Option<String> {
    const MESSAGE: u16 = 1;
    if raw.flags & flag::ACK_ATTRIBUTES == 0 {
        return None;
    }
    // An error's code is followed by the header of the request, without the rest, as requested.
    let header = if i32::from(raw.kind) == libc::NLMSG_ERROR { 4 + message::HEADER } else { 4 };
    let text = Attributes::after_header(raw.body, header).find(MESSAGE).ok()??;
    Some(attribute::text(text).into())
}

/// Waits until there is something to receive, for at most `ms` milliseconds (forever if negative).
fn wait_for(fd: BorrowedFd<'_>, ms: i32) -> Result<bool, Error> {
    let timeout = u64::try_from(ms).ok().map(Duration::from_millis);
    let timeout =
        timeout.map(|wait| Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ });
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(Error::System { doing: "wait for the kernel", source: error.into() }),
    }
}

/// As [`wait_for`], for the driver: a duration, or forever.
pub(crate) fn wait_until(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, Error> {
    let ms = timeout.map_or(-1, |timeout| {
        // Rounded up, so that a wait never ends too early and spins.
        i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    wait_for(fd, ms)
}
