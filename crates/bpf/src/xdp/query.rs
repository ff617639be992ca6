//! What the kernel says about XDP on one interface, by netlink.
//!
//! libbpf has a function for this, which reads the list of all interfaces whenever it is called: the start of a thousand
//! ports would take more than a minute. Here the kernel is asked about the one interface.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::net::netlink::GENERIC;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// From `<linux/netlink.h>`.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const HEADER: usize = 16;
/// From `<linux/rtnetlink.h>` and `<linux/if_link.h>`.
const GET_LINK: u16 = 18;
const LINK_HEADER: usize = 16;
const EXT_MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 8;
const XDP: u16 = 43;
const XDP_ATTACHED: u16 = 2;
const XDP_PROGRAM: u16 = 4;
const XDP_DRIVER_PROGRAM: u16 = 5;
const XDP_GENERIC_PROGRAM: u16 = 6;
const XDP_HARDWARE_PROGRAM: u16 = 7;
/// From `<linux/genetlink.h>` and `<linux/netdev.h>`.
const CONTROLLER: u16 = 0x10;
const GENERIC_HEADER: usize = 4;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;
/// An attribute's type, without its flags.
const TYPE: u16 = 0x3fff;
/// Longer than the answer about an interface without its statistics, even one with many virtual functions.
const ANSWER_MAX: usize = 64 * 1024;

/// Programs on an interface, and what its device can do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// `XDP_ATTACHED_*`.
    pub attached: u8,
    /// Ids of programs; 0 for none. The first is the only one, if there is one.
    pub program: u32,
    pub driver_program: u32,
    pub generic_program: u32,
    pub hardware_program: u32,
    /// `NETDEV_XDP_ACT_*`; `None` before Linux 6.3, which does not say.
    pub features: Option<u64>,
}

/// Asks the kernel about an interface of this thread's network namespace.
pub(crate) fn state(ifindex: u32) -> io::Result<State> {
    let mut state = State { features: features(ifindex)?, ..State::default() };
    let mut body = vec![0; LINK_HEADER];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    put(&mut body, EXT_MASK, &SKIP_STATISTICS.to_ne_bytes());
    // Without a protocol it is that of routing.
    let answer = ask(None, GET_LINK, &body)?;
    let xdp = find(answer.get(LINK_HEADER..).unwrap_or_default(), XDP).unwrap_or_default();
    let id = |kind| find(xdp, kind).and_then(|value| Some(u32::from_ne_bytes(value.try_into().ok()?)));
    state.attached = find(xdp, XDP_ATTACHED).and_then(|value| value.first().copied()).unwrap_or(0);
    state.program = id(XDP_PROGRAM).unwrap_or(0);
    state.driver_program = id(XDP_DRIVER_PROGRAM).unwrap_or(0);
    state.generic_program = id(XDP_GENERIC_PROGRAM).unwrap_or(0);
    state.hardware_program = id(XDP_HARDWARE_PROGRAM).unwrap_or(0);
    Ok(state)
}

fn features(ifindex: u32) -> io::Result<Option<u64>> {
    let Some(family) = family()? else { return Ok(None) };
    let mut body = vec![GET_DEVICE, 1, 0, 0];
    put(&mut body, DEVICE_INDEX, &ifindex.to_ne_bytes());
    let answer = ask(Some(GENERIC), family, &body)?;
    let value = find(answer.get(GENERIC_HEADER..).unwrap_or_default(), DEVICE_FEATURES);
    Ok(value.and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?))))
}

/// The number of the family `netdev`, which stays the same as long as the system runs; `None` if there is none.
fn family() -> io::Result<Option<u16>> {
    static FAMILY: OnceLock<Option<u16>> = OnceLock::new();
    if let Some(known) = FAMILY.get() {
        return Ok(*known);
    }
    let mut body = vec![GET_FAMILY, 1, 0, 0];
    put(&mut body, FAMILY_NAME, b"netdev\0");
    let found = match ask(Some(GENERIC), CONTROLLER, &body) {
        Ok(answer) => {
            let value = find(answer.get(GENERIC_HEADER..).unwrap_or_default(), FAMILY_ID);
            value.and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        Err(error) => return Err(error),
    };
    Ok(*FAMILY.get_or_init(|| found))
}

/// Sends a request that has one answer, and returns the answer's body.
fn ask(protocol: Option<Protocol>, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // The number of the request, and the socket's own address, which the kernel fills in.
    message.extend([0; 8]);
    message.extend(body);
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let answer = receive(&socket)?;
    let (Some(header), Some(body)) = (answer.get(..HEADER), answer.get(HEADER..)) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    if u16::from_ne_bytes([header[4], header[5]]) != ERROR {
        return Ok(body.to_vec());
    }
    match body.first_chunk() {
        Some(errno) => Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*errno))),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); ANSWER_MAX];
    loop {
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok(((received, _), _)) => return Ok(received.to_vec()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Appends an attribute.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[a, b, c, d]) = attributes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([c, d]) & TYPE == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_cut_ones_are_not() {
        let mut body = Vec::new();
        put(&mut body, 7, b"abcde");
        put(&mut body, 9 | 0x8000, &[1, 2]);
        assert_eq!(
            (find(&body, 7), find(&body, 9), find(&body, 8)),
            (Some(&b"abcde"[..]), Some(&[1, 2][..]), None)
        );
        body.truncate(14);
        assert_eq!(find(&body, 9), None);
        assert_eq!(find(&[0, 0, 1, 0, 0, 0, 1, 0], 2), None, "an attribute without a length ends the list");
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        let error = state(0x7fff_fff0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
