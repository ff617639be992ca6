//! IPv6 destinations for which Linux has learned another path MTU or gateway than their route has.
//!
//! Linux learns them for its own packets, from ICMPv6 errors and redirects, but packets that it forwards meet them too.
//! There is no message about them. How many there are is in a file, which is read with the settings; only while there
//! are any they are listed, when their number changes and about once a second.

use crate::error::Error;
use crate::message::Messages;
use crate::route;
use crate::socket::{Socket, answer_end};
use bm_wire::prefix::Ipv6Prefix;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Statistics of IPv6 routes of the calling thread's network namespace.
const STATISTICS: &str = "/proc/thread-self/net/rt6_stats";
/// The field that counts copies of routes for single destinations.
const COPIES: usize = 4;
/// How often they are listed while their number stays the same.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// Follows them.
#[derive(Debug)]
pub(super) struct Exceptions {
    /// None without IPv6.
    statistics: Option<File>,
    count: u32,
    listed_at: Option<Instant>,
}

impl Exceptions {
    /// Watches the calling thread's network namespace.
    pub fn open() -> Self {
        Self { statistics: File::open(STATISTICS).ok(), count: 0, listed_at: None }
    }

    /// All of them, by table, if they may have changed since the last call.
    pub fn read(&mut self, now: Instant) -> Option<BTreeSet<(u32, Ipv6Prefix)>> {
        let count = self.statistics.as_ref().map_or(0, count);
        let due = self.listed_at.is_none_or(|at| now >= at + LIST_EVERY);
        if count == self.count && (count == 0 || !due) {
            return None;
        }
        self.count = count;
        self.listed_at = Some(now);
        if count == 0 {
            return Some(BTreeSet::new());
        }
        match list() {
            Ok(all) => Some(all),
            Err(error) => {
                tracing::warn!(%error, "cannot list learned IPv6 path MTUs and redirects");
                None
            }
        }
    }
}

/// How many there are; none if the file cannot be read.
fn count(statistics: &File) -> u32 {
    let mut text = [0; 128];
    let length = statistics.read_at(&mut text, 0).unwrap_or(0);
    let text = str::from_utf8(&text[..length]).unwrap_or_default();
    text.split_whitespace().nth(COPIES).and_then(|field| u32::from_str_radix(field, 16).ok()).unwrap_or(0)
}

fn list() -> Result<BTreeSet<(u32, Ipv6Prefix)>, Error> {
    const DOING: &str = "list learned IPv6 path MTUs and redirects";
    let mut socket = Socket::open(1 << 20)?;
    let mut request = vec![libc::AF_INET6 as u8, 0, 0, 0, 0, 0, 0, 0];
    request.extend_from_slice(&route::CLONED.to_ne_bytes());
    let sequence = socket.ask_dump(libc::RTM_GETROUTE, &request)?;
    let mut all = BTreeSet::new();
    loop {
        for index in 0..socket.receive(true)? {
            for raw in Messages(socket.slot(index)) {
                let raw = raw?;
                match answer_end(DOING, &raw).filter(|_| raw.sequence == sequence) {
                    Some(end) => return end.map(|()| all),
                    None if raw.kind == libc::RTM_NEWROUTE => all.extend(route::read_exception(raw.body)?),
                    None => {}
                }
            }
        }
    }
}
