//! Adds routes and neighbors to the kernel by the thousand: many requests in one send.
//!
//! `ip -batch` takes 30 to 40 us per route, most of it in ip itself, which is too much for a test that changes ten
//! thousand per second in addition to what it tests. The kernel handles a send before it returns, and answers only
//! requests that it refuses.

use crate::netns::Namespace;
use crate::sys;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;

/// A send is made once it is this long; less than a socket's default limit.
const SEND: usize = 32 << 10;
/// `RTPROT_BGP`: the routes should look like those of a routing daemon.
const PROTOCOL: u8 = 186;
const MAIN: u8 = libc::RT_TABLE_MAIN;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const REPLACE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

/// Collects requests about one interface and sends them.
pub struct Requests {
    socket: File,
    interface: u32,
    buffer: Vec<u8>,
}

/// A prefix and its length.
pub type Prefix = (IpAddr, u8);

impl Requests {
    /// For the interface of this name.
    pub fn about(namespace: &Namespace, interface: &str) -> Self {
        let open = || Ok((sys::netlink_socket(libc::NETLINK_ROUTE)?, sys::interface_index(interface)?));
        let opened: std::io::Result<_> = namespace.within(open);
        let (socket, interface) = opened.unwrap_or_else(|error| panic!("netlink, {interface}: {error}"));
        Self { socket, interface, buffer: Vec::new() }
    }

    /// Adds a route, or replaces the one to this prefix.
    pub fn replace_route(&mut self, prefix: Prefix, via: IpAddr) {
        let interface = self.interface.to_ne_bytes();
        let attributes = [
            (libc::RTA_DST, bytes(prefix.0)),
            (libc::RTA_GATEWAY, bytes(via)),
            (libc::RTA_OIF, interface.to_vec()),
        ];
        self.add(libc::RTM_NEWROUTE, REPLACE, &route(prefix), &attributes);
    }

    /// Deletes a route.
    pub fn delete_route(&mut self, prefix: Prefix) {
        self.add(libc::RTM_DELROUTE, REQUEST, &route(prefix), &[(libc::RTA_DST, bytes(prefix.0))]);
    }

    /// Adds or replaces a permanent neighbor.
    pub fn replace_neighbor(&mut self, address: IpAddr, mac: [u8; 6]) {
        let attributes = [(libc::NDA_DST, bytes(address)), (libc::NDA_LLADDR, mac.to_vec())];
        self.add(libc::RTM_NEWNEIGH, REPLACE, &self.neighbor(address), &attributes);
    }

    /// Deletes a neighbor.
    pub fn delete_neighbor(&mut self, address: IpAddr) {
        let attributes = [(libc::NDA_DST, bytes(address))];
        self.add(libc::RTM_DELNEIGH, REQUEST, &self.neighbor(address), &attributes);
    }

    /// `struct ndmsg`.
    fn neighbor(&self, address: IpAddr) -> [u8; 12] {
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&self.interface.to_ne_bytes());
        header[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        header
    }

    fn add(&mut self, kind: u16, flags: u16, header: &[u8; 12], attributes: &[(u16, Vec<u8>)]) {
        if self.buffer.len() >= SEND {
            self.send();
        }
        // `struct nlmsghdr`; the length of every part is a multiple of four, as netlink requires, except that of a
        // MAC address.
        let padded = |value: &Vec<u8>| 4 + value.len().next_multiple_of(4);
        let length = 16 + 12 + attributes.iter().map(|(_, value)| padded(value)).sum::<usize>();
        self.buffer.extend((length as u32).to_ne_bytes());
        self.buffer.extend(kind.to_ne_bytes());
        self.buffer.extend(flags.to_ne_bytes());
        self.buffer.extend([0; 8]);
        self.buffer.extend(header);
        for (kind, value) in attributes {
            self.buffer.extend((4 + value.len() as u16).to_ne_bytes());
            self.buffer.extend(kind.to_ne_bytes());
            self.buffer.extend(value);
            self.buffer.resize(self.buffer.len().next_multiple_of(4), 0);
        }
    }

    fn send(&mut self) {
        let sent = self.socket.write(&self.buffer);
        sent.unwrap_or_else(|error| panic!("{} bytes of netlink: {error}", self.buffer.len()));
        self.buffer.clear();
    }

    /// Sends the rest. Returns how many requests the kernel has refused since the last call, and the last error.
    pub fn finish(&mut self) -> (usize, Option<std::io::Error>) {
        if !self.buffer.is_empty() {
            self.send();
        }
        let (mut refused, mut why) = (0, None);
        let mut answer = [0; 4096];
        loop {
            match self.socket.read(&mut answer) {
                Ok(0) => return (refused, why),
                // `struct nlmsgerr` begins with the error.
                Ok(_) => {
                    let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
                    refused += 1;
                    why = Some(std::io::Error::from_raw_os_error(-code));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return (refused, why),
                Err(error) => panic!("the kernel's answers: {error}"),
            }
        }
    }
}

/// `struct rtmsg`.
fn route((address, length): Prefix) -> [u8; 12] {
    [family(address), length, 0, 0, MAIN, PROTOCOL, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST, 0, 0, 0, 0]
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_has_the_requested_routes_and_neighbors() {
        if !sys::is_root() {
            return crate::report::skip("netlink", "needs root for a network namespace");
        }
        let namespace = Namespace::new("netlink", "rtr");
        namespace.ip(
            "link add w0 type veth peer name w1\nlink set w0 up\nlink set w1 up\naddr add 192.0.2.1/24 dev w0\n",
        );
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut requests = Requests::about(&namespace, "w0");
        for number in 0..2000u32 {
            let prefix = (IpAddr::from((10 << 24 | number << 8).to_be_bytes()), 24);
            requests.replace_route(prefix, address("192.0.2.2"));
            requests.replace_route(prefix, address(if number == 7 { "192.0.2.3" } else { "192.0.2.2" }));
            if number % 2 == 0 {
                requests.delete_route(prefix);
            }
        }
        requests.replace_route((address("2001:db8:1::"), 48), address("fe80::2"));
        requests.replace_neighbor(address("192.0.2.9"), [2, 0, 0, 0, 0, 9]);
        requests.replace_neighbor(address("192.0.2.8"), [2, 0, 0, 0, 0, 8]);
        requests.delete_neighbor(address("192.0.2.8"));
        assert_eq!(requests.finish().0, 0);
        let routes = namespace.ip("route show proto bgp\n");
        assert_eq!(routes.lines().count(), 1000);
        assert!(routes.contains("10.0.7.0/24 via 192.0.2.3 dev w0"), "{routes}");
        assert!(namespace.ip("-6 route show proto bgp\n").contains("2001:db8:1::/48 via fe80::2"));
        let neighbors = namespace.ip("neigh show dev w0 nud permanent\n");
        assert!(neighbors.contains("192.0.2.9 lladdr 02:00:00:00:00:09"), "{neighbors}");
        assert!(!neighbors.contains("192.0.2.8"), "{neighbors}");
        // It was deleted before.
        requests.delete_route((address("10.0.0.0"), 24));
        let (refused, why) = requests.finish();
        assert_eq!((refused, why.and_then(|why| why.raw_os_error())), (1, Some(libc::ESRCH)));
    }
}
