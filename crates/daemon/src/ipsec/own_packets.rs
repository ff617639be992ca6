//! Sends ESP packets through Linux, by raw sockets, where only Linux knows the way to a peer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use bm_forward::OwnPackets;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

/// A socket of each family that the kernel has.
pub struct RawSockets {
    ipv4: Option<OwnedFd>,
    ipv6: Option<OwnedFd>,
}

impl RawSockets {
    /// Sockets for packets with their IP headers, which do not receive.
    pub fn open() -> Self {
        Self { ipv4: socket(AddressFamily::INET), ipv6: socket(AddressFamily::INET6) }
    }
}

fn socket(family: AddressFamily) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW)) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!("no raw socket, so ESP packets whose route leads to Linux are dropped: {error}");
            None
        }
    }
}

impl OwnPackets for RawSockets {
    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let (socket, to, packet): (_, SocketAddr, &[u8]) = match (Ipv4::parse(packet), Ipv6::parse(packet)) {
            (Ok(ip), _) => {
                (&self.ipv4, (Ipv4Addr::from(ip.destination()), 0).into(), &packet[..ip.total_len().into()])
            }
            (_, Ok(ip)) => {
                (&self.ipv6, (Ipv6Addr::from(ip.destination()), 0).into(), &packet[..ip.total_len()])
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let socket = socket.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        sendto(socket, packet, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }
}
