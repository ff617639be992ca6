//! A packet socket on a fabric link, for messages or for probes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Sends and receives frames of one EtherType on one interface.
#[derive(Debug)]
pub struct FabricSocket(OwnedFd);

impl FabricSocket {
    /// Opens one; it never blocks.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(ifindex: u32, ethertype: u16) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Without a protocol it receives nothing, from any interface, until it is bound.
        let socket = net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        net::bind(&socket, &LinkAddress { ifindex, ethertype })?;
        Ok(Self(socket))
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

/// What a packet socket is bound to: `struct sockaddr_ll` without a hardware address.
struct LinkAddress {
    ifindex: u32,
    ethertype: u16,
}

// SAFETY: the address is as long as said and lives for the call of `f`.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: self.ethertype.to_be(),
            sll_ifindex: self.ifindex.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        f(std::ptr::from_ref(&address).cast(), size_of_val(&address) as SocketAddrLen)
    }
}

impl AsFd for FabricSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
