//! Destinations for which Linux has learned another path MTU or gateway than their route has.
//!
//! Linux learns them for its own packets, from ICMP errors and redirects, but packets that it forwards meet them too: any
//! of IPv6, and of IPv4 gateways from redirects and path MTUs that are locked since they are below `route/min_pmtu`. There
//! is no message about them. A file that is read with the settings has a sign of new ones. Then they are listed, and once a
//! second while there are any, for a tenth of the time at most.
//!
//! ```text
//! IPv6  how many there are               none: nothing to list
//! IPv4  how many ICMP errors came that   unchanged: none are new
//!       may be about a path MTU, and redirects
//! ```

use crate::error::Error;
use crate::message::Messages;
use crate::route;
use crate::socket::{Socket, answer_end};
use bm_wire::Family;
use bm_wire::prefix::{Address, Prefix};
use std::collections::BTreeSet;
use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Statistics of IPv6 routes of the calling thread's network namespace.
const ROUTES: &str = "/proc/thread-self/net/rt6_stats";
/// The field that counts copies of routes for single destinations.
const COPIES: usize = 4;
/// Statistics of IPv4, with two lines for ICMP: names and numbers.
const MESSAGES: &str = "/proc/thread-self/net/snmp";
const ICMP: &str = "Icmp:";
/// How often they are listed without a sign.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// The largest share of the time for it: one part in this many.
const LIST_SHARE: u32 = 10;

/// Which of them may be new.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sign {
    /// The number of all.
    Ipv6,
    /// The number of messages from which they are learned.
    Ipv4,
    /// The number of redirects among these.
    Ipv4Redirects,
}

/// A file with signs.
#[derive(Debug)]
pub(crate) struct Signs {
    /// None without the family.
    file: Option<File>,
    sign: Sign,
}

impl Signs {
    /// Of the calling thread's network namespace.
    pub fn open(sign: Sign) -> Self {
        let path = if matches!(sign, Sign::Ipv6) { ROUTES } else { MESSAGES };
        Self { file: File::open(path).ok(), sign }
    }

    /// None if the file cannot be read.
    pub fn read(&self) -> Option<u64> {
        let mut text = [0; 4096];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        // The first 4096 bytes end anywhere.
        let text = String::from_utf8_lossy(&text[..length]);
        match self.sign {
            Sign::Ipv6 => u64::from_str_radix(text.split_whitespace().nth(COPIES)?, 16).ok(),
            Sign::Ipv4 => Some(counted(&text, "InDestUnreachs")? + counted(&text, "InRedirects")?),
            Sign::Ipv4Redirects => counted(&text, "InRedirects"),
        }
    }
}

/// A number of the line for ICMP.
fn counted(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(ICMP));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|field| field == name)?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

/// Follows those of a family.
#[derive(Debug)]
pub(super) struct Exceptions<A> {
    signs: Signs,
    /// What these said when they were listed last.
    seen: u64,
    /// When that was, and how long it took.
    listed: Option<(Instant, Duration)>,
    /// Whether there were any.
    any: bool,
    _of: PhantomData<A>,
}

impl<A: Address> Exceptions<A> {
    /// Watches the calling thread's network namespace.
    pub fn open() -> Self {
        let sign = if A::FAMILY == Family::V6 { Sign::Ipv6 } else { Sign::Ipv4 };
        Self { signs: Signs::open(sign), seen: 0, listed: None, any: false, _of: PhantomData }
    }

    /// All of them, by table, if they may have changed since the last call.
    pub fn read(&mut self, now: Instant) -> Option<BTreeSet<(u32, Prefix<A>)>> {
        let sign = self.signs.read().unwrap_or(self.seen);
        if A::FAMILY == Family::V6 && sign == 0 {
            self.seen = 0;
            return std::mem::take(&mut self.any).then(BTreeSet::new);
        }
        let is_new = sign != self.seen;
        let pause = if is_new { Duration::ZERO } else { LIST_EVERY };
        let is_due = self.listed.is_none_or(|(at, took)| now >= at + pause.max(took * LIST_SHARE));
        if !is_due || !(is_new || self.any) {
            return None;
        }
        self.seen = sign;
        let listed = list();
        self.listed = Some((now, now.elapsed()));
        match listed {
            Ok(all) => {
                self.any = A::FAMILY == Family::V6 || !all.is_empty();
                Some(all)
            }
            Err(error) => {
                tracing::warn!(%error, family = %A::FAMILY, "cannot list learned path MTUs and redirects");
                None
            }
        }
    }
}

fn list<A: Address>() -> Result<BTreeSet<(u32, Prefix<A>)>, Error> {
    const DOING: &str = "list learned path MTUs and redirects";
    let mut socket = Socket::open(1 << 20)?;
    let mut request = vec![A::FAMILY.number(), 0, 0, 0, 0, 0, 0, 0];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_names() {
        let text =
            "Ip: Forwarding DefaultTTL\nIp: 1 64\nIcmp: InMsgs InDestUnreachs InRedirects\nIcmp: 9 7 2\n";
        assert_eq!(
            ["InDestUnreachs", "InRedirects", "Out"].map(|name| counted(text, name)),
            [Some(7), Some(2), None]
        );
        assert!(
            [Sign::Ipv4, Sign::Ipv4Redirects]
                .map(|sign| Signs::open(sign).read())
                .iter()
                .all(Option::is_some)
        );
    }
}
