//! What devices can send and receive for XDP, for all interfaces in one request (generic netlink, family `netdev`).
//!
//! libbpf queries one interface at a time, and reads the list of all interfaces for each query: with hundreds of
//! interfaces its caller would do little else.

use crate::attribute::{self, Attributes};
use crate::dump::{self, Dumped};
use crate::error::Error;
use crate::socket::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;
use std::collections::BTreeMap;

/// The family by which others are found (`GENL_ID_CTRL`), its question and its attributes.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// From `<linux/netdev.h>`.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
/// Length of the generic header.
const HEADER: usize = 4;
/// How often the list is read again because it changed meanwhile.
const PASSES: usize = 10;

/// The XDP features (`NETDEV_XDP_ACT_*`) of each device of this thread's network namespace, by number of the interface.
/// `None` on a Linux before 6.3, which does not say.
///
/// # Errors
/// The kernel's error, other than that it does not know the question.
pub fn xdp_features() -> Result<Option<BTreeMap<u32, u64>>, Error> {
    let Some(mut socket) = dump::open(NETLINK_GENERIC)? else { return Ok(None) };
    let Some(family) = family(&mut socket)? else { return Ok(None) };
    for _ in 0..PASSES {
        let mut all = BTreeMap::new();
        let dumped =
            dump::dump(&mut socket, "list the XDP features of devices", family, &header(DEV_GET), |raw| {
                let attributes = Attributes::after_header(raw.body, HEADER);
                let Some(ifindex) = attributes.find(DEV_IFINDEX)? else { return Ok(()) };
                let features = attributes.find(DEV_XDP_FEATURES)?;
                let features =
                    features.map(|value| attribute::number_u64(DEV_XDP_FEATURES, value)).transpose()?;
                all.insert(attribute::number_u32(DEV_IFINDEX, ifindex)?, features.unwrap_or(0));
                Ok(())
            })?;
        if dumped == Dumped::Whole {
            return Ok(Some(all));
        }
    }
    Err(Error::Silent { request: "list the XDP features of devices (they keep changing)" })
}

/// The number of the family; `None` if the kernel has no such family.
fn family(socket: &mut Socket) -> Result<Option<u16>, Error> {
    let mut body = header(GET_FAMILY).to_vec();
    attribute::put(&mut body, FAMILY_NAME, b"netdev\0");
    let mut family = None;
    let answer = dump::request(socket, "find the netlink family netdev", CONTROLLER, &body, |raw| {
        if let Some(value) = Attributes::after_header(raw.body, HEADER).find(FAMILY_ID)? {
            family = Some(attribute::number_u16(FAMILY_ID, value)?);
        }
        Ok(())
    });
    match answer {
        Err(error) if is_unknown(&error) => Ok(None),
        answer => answer.map(|()| family),
    }
}

/// Whether the family does not exist. Any other error, such as no free descriptors, says nothing about devices.
fn is_unknown(error: &Error) -> bool {
    error.errno() == Some(libc::ENOENT)
}

/// `struct genlmsghdr`: command, version, reserved.
fn header(command: u8) -> [u8; HEADER] {
    [command, 1, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_distinguished_from_an_old_kernel() {
        let refused = |errno| Error::Refused { request: "find", errno, text: None };
        assert!(is_unknown(&refused(libc::ENOENT)));
        for errno in [libc::EMFILE, libc::ENOMEM, libc::ENOBUFS] {
            assert!(!is_unknown(&refused(errno)));
        }
        assert!(!is_unknown(&Error::Overrun));
    }

    #[test]
    fn the_loopback_is_a_device() {
        match xdp_features().unwrap() {
            Some(all) => assert_eq!(all.get(&1), Some(&0), "{all:?}"),
            None => eprintln!("skipped: this Linux does not say"),
        }
    }
}
