//! Packet sockets, which send and receive whole frames on one interface.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

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

/// Makes a socket receive only what a classic BPF program keeps.
///
/// # Errors
/// The system's error.
pub fn attach_filter(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let steps = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let filter = libc::sock_fprog { len: steps, filter: program.as_ptr().cast_mut() };
    let length = size_of_val(&filter) as libc::socklen_t;
    let filter = std::ptr::from_ref(&filter).cast();
    // SAFETY: `filter` is `length` bytes, and `program` as many steps as it says. The kernel only reads them, and has copied
    // them when the call returns. The descriptor is open as long as `socket`.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter, length)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
