//! Packet sockets, which send and receive whole frames on one interface.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Opens one for frames of an EtherType; with 0 it receives none.
///
/// # Errors
/// The system's error.
pub fn packet_socket(ifindex: u32, ethertype: u16, flags: SocketFlags) -> io::Result<OwnedFd> {
    // Without a protocol it receives nothing, from any interface, until it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags | SocketFlags::CLOEXEC, None)?;
    bind(&socket, &LinkAddress { ifindex, ethertype })?;
    Ok(socket)
}

/// `struct sockaddr_ll` without a hardware address.
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
