//! A packet socket on a fabric link, for messages or for probes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Sends and receives frames of one EtherType on one interface.
#[derive(Debug)]
pub struct FabricSocket(OwnedFd);

impl FabricSocket {
    /// Opens one; it never blocks.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(ifindex: u32, ethertype: u16) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Without a protocol it receives nothing, from any interface, until it is bound.
        // SAFETY: passes numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain numbers, all of which may be zero.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = ifindex.cast_signed();
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is as long as said, and outlives the call.
        let done = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(socket)) }
    }

    /// Sends a frame; `false` if it was not taken: the link is down, or full.
    pub fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: the bytes outlive the call, and the kernel only reads them.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        usize::try_from(sent).is_ok_and(|sent| sent == frame.len())
    }

    /// The next frame, in a buffer that is long enough for any of ours; `None` if there is none.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        // SAFETY: the buffer outlives the call, and the kernel writes no more than its length.
        let count = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        buffer.get(..usize::try_from(count).ok()?)
    }
}

impl AsFd for FabricSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
