//! The interfaces as they are now, without following their changes.

use super::{HEADER, Link};
use crate::dump::{self, Dumped};
use crate::error::Error;
use crate::message::Message;
use netlink_sys::protocols::NETLINK_ROUTE;

/// How often links are listed again because they changed meanwhile.
const PASSES: usize = 10;

impl Link {
    /// The interfaces of the network namespace that this thread is in, as they are now.
    ///
    /// Files below `/sys/class/net` belong to the namespace in which `/sys` was mounted, which is another one if the
    /// process has moved with `setns`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn list() -> Result<Vec<Self>, Error> {
        /// `struct ifinfomsg`, all zeroes: every link.
        const ALL: [u8; HEADER] = [0; HEADER];
        let Some(mut socket) = dump::open(NETLINK_ROUTE)? else { return Ok(Vec::new()) };
        for _ in 0..PASSES {
            let mut links = Vec::new();
            let dumped = dump::dump(&mut socket, "list links", libc::RTM_GETLINK, &ALL, |raw| {
                if let Some(Message::Link(link)) = Message::read(raw)? {
                    links.push(link);
                }
                Ok(())
            })?;
            if dumped == Dumped::Whole {
                return Ok(links);
            }
        }
        Err(Error::Silent { request: "list links (they keep changing)" })
    }
}
