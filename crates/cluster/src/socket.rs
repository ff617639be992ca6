//! A packet socket: on a fabric link for messages or for probes, on an external port for questions to hosts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bm_sys::{attach_filter, packet_socket};
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};

/// Sends and receives frames of one EtherType on one interface.
#[derive(Debug)]
pub struct FabricSocket(OwnedFd);

impl FabricSocket {
    /// Opens one; it never blocks.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(ifindex: u32, ethertype: u16) -> io::Result<Self> {
        packet_socket(ifindex, ethertype, SocketFlags::NONBLOCK).map(Self)
    }

    /// A socket that receives only the frames that a classic BPF program keeps.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn open_filtered(
        ifindex: u32,
        ethertype: u16,
        keep: &[libc::sock_filter],
    ) -> io::Result<Self> {
        let socket = Self::open(ifindex, ethertype)?;
        attach_filter(&socket.0, keep)?;
        Ok(socket)
    }

    /// Sends a frame; `false` if it was not taken: the link is down, or full.
    pub fn send(&self, frame: &[u8]) -> bool {
        net::send(&self.0, frame, SendFlags::empty()).is_ok_and(|sent| sent == frame.len())
    }

    /// The next frame, in a buffer that is long enough for any of ours; `None` if there is none.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let (count, _) = net::recv(&self.0, &mut *buffer, RecvFlags::empty()).ok()?;
        buffer.get(..count)
    }
}

impl AsFd for FabricSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
