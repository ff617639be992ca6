//! A table into the kernel and out again, by the million: many netlink messages a system call.
//!
//! `ip -batch` takes 30 to 40 us a route, most of it for itself. Here the messages of thousands of routes go
//! in one call; the kernel works through them before it returns and answers only for those it refuses. IPv4
//! and IPv6 have locks of their own in recent kernels, so each family has its thread. Shorter prefixes go
//! first: the kernel's trie is rebuilt far less often than in the order of addresses, which halves the time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use bm_wire::prefix::Address;

use super::{Testbed, TestbedError, next_hop_ipv4, next_hop_ipv6};
use crate::interrupt;
use crate::tables::{Route, Table};

/// What to do with each route of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add it; one that is there is an error.
    Add,
    /// Add it, or give it the new next hop.
    Replace,
    /// Take it out.
    Delete,
}

/// How it went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Routes that the kernel took.
    pub done: usize,
    /// Routes that it refused.
    pub refused: usize,
    /// The error of the first that it refused.
    pub first_error: Option<String>,
}

impl Changed {
    fn plus(mut self, other: Self) -> Self {
        self.done += other.done;
        self.refused += other.refused;
        self.first_error = self.first_error.or(other.first_error);
        self
    }
}

impl Testbed {
    /// Changes the main table of the router's kernel. Next hops must be among those that the test bed has.
    pub fn change_routes(&self, change: Change, table: &Table) -> Result<Changed, TestbedError> {
        debug_assert!(table.next_hop_max() <= self.next_hops);
        let index = self.router.index(&self.interfaces.router_out)?;
        let in_router =
            |family: &(dyn Fn() -> Result<Changed, TestbedError> + Sync)| self.router.enter(family);
        std::thread::scope(|scope| {
            let ipv6 = scope.spawn(|| in_router(&|| send_all(change, index, &table.ipv6)));
            let ipv4 = in_router(&|| send_all(change, index, &table.ipv4));
            let ipv6 = ipv6.join().expect("the sender has no panic to pass on");
            Ok(ipv4?.plus(ipv6?))
        })
    }
}

/// Bytes of messages that go in one call: enough to make the call cheap, little enough to stay in cache.
const BATCH_BYTES: usize = 1 << 18;
/// Room for the refusals of a whole batch.
const RECEIVE_BYTES: libc::c_int = 1 << 24;

fn send_all<A: NextHopAddress>(
    change: Change,
    index: u32,
    routes: &[Route<A>],
) -> Result<Changed, TestbedError> {
    let socket = RouteSocket::open().map_err(TestbedError::system("open a netlink socket"))?;
    let mut changed = Changed { done: routes.len(), ..Changed::default() };
    let mut batch = Vec::with_capacity(BATCH_BYTES + 256);
    let mut routes: Vec<&Route<A>> = routes.iter().collect();
    routes.sort_by_key(|route| route.prefix.length());
    for (at, route) in routes.iter().enumerate() {
        push_message(&mut batch, change, index, route);
        if batch.len() < BATCH_BYTES && at + 1 < routes.len() {
            continue;
        }
        interrupt::check()?;
        socket.send(&batch).map_err(TestbedError::system("send routes to the kernel"))?;
        batch.clear();
        socket.refusals(&mut changed).map_err(TestbedError::system("read the kernel's answers"))?;
    }
    changed.done -= changed.refused;
    Ok(changed)
}

/// Numbers of linux/netlink.h and linux/rtnetlink.h.
mod rt {
    pub const NEWROUTE: u16 = 24;
    pub const DELROUTE: u16 = 25;
    pub const REQUEST: u16 = 0x001;
    pub const REPLACE: u16 = 0x100;
    pub const EXCLUSIVE: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
    pub const ERROR: u16 = 2;
    pub const TABLE_MAIN: u8 = 254;
    /// Routes look as if a BGP daemon had set them.
    pub const PROTOCOL_BGP: u8 = 186;
    pub const UNICAST: u8 = 1;
    pub const DESTINATION: u16 = 1;
    pub const OUTPUT_INTERFACE: u16 = 4;
    pub const GATEWAY: u16 = 5;
}

/// An address family as its routes are written in netlink.
trait NextHopAddress: Address {
    const FAMILY: u8;
    type Bytes: AsRef<[u8]>;
    fn bytes(self) -> Self::Bytes;
    fn next_hop(number: u16) -> Self::Bytes;
}

impl NextHopAddress for u32 {
    const FAMILY: u8 = libc::AF_INET as u8;
    type Bytes = [u8; 4];
    fn bytes(self) -> [u8; 4] {
        self.to_be_bytes()
    }
    fn next_hop(number: u16) -> [u8; 4] {
        next_hop_ipv4(number).octets()
    }
}

impl NextHopAddress for u128 {
    const FAMILY: u8 = libc::AF_INET6 as u8;
    type Bytes = [u8; 16];
    fn bytes(self) -> [u8; 16] {
        self.to_be_bytes()
    }
    fn next_hop(number: u16) -> [u8; 16] {
        next_hop_ipv6(number).octets()
    }
}

/// Appends one message: header, rtmsg, destination, gateway, interface.
fn push_message<A: NextHopAddress>(batch: &mut Vec<u8>, change: Change, index: u32, route: &Route<A>) {
    let (kind, flags) = match change {
        Change::Add => (rt::NEWROUTE, rt::REQUEST | rt::CREATE | rt::EXCLUSIVE),
        Change::Replace => (rt::NEWROUTE, rt::REQUEST | rt::CREATE | rt::REPLACE),
        Change::Delete => (rt::DELROUTE, rt::REQUEST),
    };
    let start = batch.len();
    batch.extend([0; 4]);
    batch.extend(kind.to_ne_bytes());
    batch.extend(flags.to_ne_bytes());
    batch.extend([0; 8]); // sequence number and port
    let length = route.prefix.length();
    batch.extend([A::FAMILY, length, 0, 0, rt::TABLE_MAIN, rt::PROTOCOL_BGP, 0, rt::UNICAST, 0, 0, 0, 0]);
    push_attribute(batch, rt::DESTINATION, route.prefix.first().bytes().as_ref());
    push_attribute(batch, rt::GATEWAY, A::next_hop(route.next_hop).as_ref());
    push_attribute(batch, rt::OUTPUT_INTERFACE, &index.to_ne_bytes());
    let bytes = (batch.len() - start) as u32;
    batch[start..start + 4].copy_from_slice(&bytes.to_ne_bytes());
}

/// Values are of 4 or 16 bytes here, so no padding is needed.
fn push_attribute(batch: &mut Vec<u8>, kind: u16, value: &[u8]) {
    debug_assert!(value.len().is_multiple_of(4));
    batch.extend((value.len() as u16 + 4).to_ne_bytes());
    batch.extend(kind.to_ne_bytes());
    batch.extend(value);
}

/// A netlink socket towards routing.
struct RouteSocket(OwnedFd);

impl RouteSocket {
    fn open() -> io::Result<Self> {
        // SAFETY: makes a descriptor from numbers; checked below before it is owned.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and nobody else's.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 * BATCH_BYTES as libc::c_int)?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BYTES)?;
        // Answers without a copy of the message that they answer.
        socket.set(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel reads one int, which outlives the call.
        match unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), length)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn send(&self, batch: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: the kernel reads `batch.len()` bytes from `batch`, which outlives the call.
            let sent = unsafe { libc::send(self.0.as_raw_fd(), batch.as_ptr().cast(), batch.len(), 0) };
            match io::Error::last_os_error() {
                _ if sent == batch.len() as isize => return Ok(()),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
    }

    /// Counts the errors that the kernel has answered with. It answers before `send` returns.
    fn refusals(&self, changed: &mut Changed) -> io::Result<()> {
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            let (fd, room) = (self.0.as_raw_fd(), buffer.len());
            // SAFETY: the kernel writes at most `room` bytes into `buffer`, which is that long.
            let read = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), room, libc::MSG_DONTWAIT) };
            let Ok(read) = usize::try_from(read) else {
                return match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                    error => Err(error),
                };
            };
            count_errors(&buffer[..read], changed);
        }
    }
}

fn count_errors(mut messages: &[u8], changed: &mut Changed) {
    while let [l0, l1, l2, l3, k0, k1, ..] = *messages {
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let code = messages.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
        if let (rt::ERROR, Some(code)) = (u16::from_ne_bytes([k0, k1]), code)
            && code != 0
        {
            changed.refused += 1;
            changed.first_error.get_or_insert_with(|| io::Error::from_raw_os_error(-code).to_string());
        }
        messages = messages.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ip route add 192.0.2.0/24 via 10.0.16.3 dev (index 7) proto bgp`, on a little-endian machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_message_is_as_the_kernel_reads_it() {
        let route = Route::<u32> { prefix: "192.0.2.0/24".parse().unwrap(), next_hop: 2 };
        let mut bytes = Vec::new();
        push_message(&mut bytes, Change::Add, 7, &route);
        let want = [
            52, 0, 0, 0, 24, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 2, 24, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0,
            8, 0, 1, 0, 192, 0, 2, 0, 8, 0, 5, 0, 10, 0, 16, 3, 8, 0, 4, 0, 7, 0, 0, 0,
        ];
        assert_eq!(bytes, want);
    }

    #[test]
    fn counts_refusals_and_keeps_the_first() {
        let answer = |code: i32| {
            let mut bytes = 36u32.to_ne_bytes().to_vec();
            bytes.extend(rt::ERROR.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(code.to_ne_bytes());
            bytes.extend([0; 16]);
            bytes
        };
        let mut changed = Changed { done: 5, ..Changed::default() };
        count_errors(&[answer(-17), answer(0), answer(-22)].concat(), &mut changed);
        assert_eq!(changed.refused, 2);
        assert!(changed.first_error.unwrap().starts_with("File exists"));
        count_errors(&[1, 2, 3], &mut Changed::default());
    }
}
