//! The part of rtnetlink that a switch needs: interface events, and creating and removing its own interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `RTMGRP_LINK` of `<linux/rtnetlink.h>`.
const GROUP_LINK: u32 = 1;
const INFO_HEADER: usize = 16;
const MESSAGE_HEADER: usize = 16;
/// Attributes of `<linux/if_link.h>` and `<linux/veth.h>`.
const NAME: u16 = libc::IFLA_IFNAME;
const LINK_INFO: u16 = libc::IFLA_LINKINFO;
const KIND: u16 = 1;
const DATA: u16 = 2;
const PEER: u16 = 1;
const ANSWER: usize = 8192;

/// An rtnetlink socket.
pub struct Netlink(OwnedFd);

impl Netlink {
    /// A socket for requests.
    pub fn open() -> io::Result<Self> {
        Self::bound(0)
    }

    /// A non-blocking socket that receives interface events from now on.
    pub fn listen() -> io::Result<Self> {
        Self::bound(GROUP_LINK)
    }

    fn bound(groups: u32) -> io::Result<Self> {
        let wait = if groups == 0 { 0 } else { libc::SOCK_NONBLOCK };
        // SAFETY: passes numbers.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC | wait, libc::NETLINK_ROUTE)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: zeros are a value of this structure of numbers.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let len = size_of_val(&address) as u32;
        // SAFETY: the address is whole, and as long as said.
        if unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(socket))
    }

    /// Discards all waiting events. Returns whether there were any, or some were lost.
    pub fn drain(&self) -> bool {
        let (mut any, mut buffer) = (false, [0u8; ANSWER]);
        loop {
            match self.receive(&mut buffer) {
                Ok(_) => any = true,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return any,
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }

    /// Sends a request and waits for its answer.
    fn ask(&self, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(MESSAGE_HEADER + body.len());
        message.extend(((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        // SAFETY: the message is as long as said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = [0u8; ANSWER];
        let got = self.receive(&mut buffer)?;
        // The answer is an NLMSG_ERROR, whose first word is 0 or minus an errno.
        let code =
            buffer[..got].get(MESSAGE_HEADER..MESSAGE_HEADER + 4).and_then(|word| word.try_into().ok());
        match code.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Creates a veth pair.
    pub fn make_veth(&self, name: &str, peer: &str) -> io::Result<()> {
        let mut far = vec![0; INFO_HEADER];
        attribute(&mut far, NAME, &text(peer));
        let (mut data, mut info, mut body) = (Vec::new(), Vec::new(), vec![0; INFO_HEADER]);
        attribute(&mut data, PEER, &far);
        attribute(&mut info, KIND, b"veth");
        attribute(&mut info, DATA, &data);
        attribute(&mut body, NAME, &text(name));
        attribute(&mut body, LINK_INFO, &info);
        self.ask(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
    }

    /// Removes an interface.
    pub fn remove(&self, ifindex: u32) -> io::Result<()> {
        let mut body = vec![0; INFO_HEADER];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        self.ask(libc::RTM_DELLINK, 0, &body)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// Adds an attribute: length, kind, value, and zeros up to a multiple of four.
fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((4 + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}
