//! Creates and deletes interfaces, and reports that some have changed, for callers that need no mirror.

use super::{HEADER, ifla};
use crate::attribute::{put, put_nested};
use crate::dump;
use crate::error::Error;
use crate::socket::{Socket, flag};
use std::os::fd::{AsFd, BorrowedFd};

/// `VETH_INFO_PEER` of `<linux/veth.h>`.
const VETH_PEER: u16 = 1;
/// Receive buffer for answers and events.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Creates a veth pair in this thread's network namespace.
///
/// # Errors
/// The kernel's error: usually that there is an interface of one of the names.
pub fn make_veth(name: &str, peer: &str) -> Result<(), Error> {
    let flags = flag::CREATE | flag::EXCLUSIVE;
    change("create a veth pair", libc::RTM_NEWLINK, flags, &veth(name, peer))
}

/// Deletes an interface of this thread's network namespace.
///
/// # Errors
/// The kernel's error.
pub fn remove(ifindex: u32) -> Result<(), Error> {
    let mut body = [0; HEADER];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    change("delete an interface", libc::RTM_DELLINK, 0, &body)
}

fn change(name: &'static str, kind: u16, flags: u16, body: &[u8]) -> Result<(), Error> {
    dump::change(&mut Socket::open(RECEIVE_BUFFER)?, name, kind, flags, body)
}

/// `struct ifinfomsg` and attributes of a pair.
fn veth(name: &str, peer: &str) -> Vec<u8> {
    let mut body = vec![0; HEADER];
    put_name(&mut body, name);
    put_nested(&mut body, ifla::LINKINFO, |info| {
        put(info, ifla::INFO_KIND, b"veth");
        put_nested(info, ifla::INFO_DATA, |data| {
            put_nested(data, VETH_PEER, |far| {
                far.extend([0; HEADER]);
                put_name(far, peer);
            });
        });
    });
    body
}

fn put_name(to: &mut Vec<u8>, name: &str) {
    put(to, ifla::IFNAME, &[name.as_bytes(), &[0]].concat());
}

/// Events about the interfaces of a network namespace, for callers that find out themselves what has changed.
#[derive(Debug)]
pub struct LinkEvents(Socket);

impl LinkEvents {
    /// Subscribes to those of this thread's network namespace.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen() -> Result<Self, Error> {
        let mut socket = Socket::open(RECEIVE_BUFFER)?;
        socket.join(libc::RTNLGRP_LINK)?;
        Ok(Self(socket))
    }

    /// Subscribes to those, and to events about addresses and neighbors.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen_with_neighbors() -> Result<Self, Error> {
        let Self(mut socket) = Self::listen()?;
        for group in [libc::RTNLGRP_NEIGH, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR] {
            socket.join(group)?;
        }
        Ok(Self(socket))
    }

    /// Reads all events that have arrived, without waiting for more; returns whether there were any, including lost
    /// ones.
    pub fn drain(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.0.receive(false) {
                Ok(1..) | Err(Error::Overrun) => any = true,
                Ok(0) | Err(_) => return any,
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    #[test]
    fn a_veth_request_has_nested_attributes() {
        let body = veth("lan0", "lan0-port");
        let (header, attributes) = body.split_at(HEADER);
        assert_eq!(header, [0; HEADER]);
        let mut expected = vec![9, 0, 3, 0];
        expected.extend(b"lan0\0\0\0\0");
        // IFLA_LINKINFO, which holds IFLA_INFO_KIND and IFLA_INFO_DATA, which holds VETH_INFO_PEER.
        expected.extend([52, 0, 18, 0, 8, 0, 1, 0]);
        expected.extend(b"veth");
        expected.extend([40, 0, 2, 0, 36, 0, 1, 0]);
        expected.extend([0; HEADER]);
        expected.extend([14, 0, 3, 0]);
        expected.extend(b"lan0-port\0\0\0");
        assert_eq!(attributes, expected);
    }

    #[test]
    fn a_veth_is_created_announced_and_deleted() {
        std::thread::spawn(|| {
            if let Err(error) = bm_sys::Namespace::Network.unshare() {
                return eprintln!("skipped: needs root for a network namespace: {error}");
            }
            let mut events = LinkEvents::listen().unwrap();
            assert!(!events.drain(), "nothing has happened");
            make_veth("one", "two").unwrap();
            assert!(events.drain());
            let links = Link::list().unwrap();
            let index = |name: &str| links.iter().find(|link| &*link.name == name).map(|link| link.ifindex);
            let one = index("one").unwrap();
            assert!(index("two").is_some());
            let again = make_veth("one", "three").unwrap_err();
            assert_eq!(again.errno(), Some(libc::EEXIST));
            assert!(again.to_string().starts_with("the kernel refused to create a veth pair: "), "{again}");
            remove(one).unwrap();
            assert!(events.drain());
            assert_eq!(Link::list().unwrap().len(), 1);
            assert_eq!(remove(one).unwrap_err().errno(), Some(libc::ENODEV));
        })
        .join()
        .unwrap();
    }
}
