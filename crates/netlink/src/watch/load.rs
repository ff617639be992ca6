//! A dump of all tables into a fresh mirror, a piece at a time.
//!
//! The kernel lists its tables while they change. Two things may go wrong, and both are handled by repeating that
//! part: it reports that a list changed meanwhile (`NLM_F_DUMP_INTR`), or, for IPv6 routes, it reports nothing, but
//! continues at a position that a change has shifted, and skips routes. What any of the passes saw counts; for what
//! was deleted since then there is an event in the backlog.

use super::Statistics;
use super::lifetimes::Lifetimes;
use crate::attribute;
use crate::error::Error;
use crate::message::{Message, Messages, Raw};
use crate::mirror::{Mirror, Routes, Touched};
use crate::route::RouteEvent;
use crate::socket::{Socket, answer_end, flag};
use crate::{netconf, next_hop};
use bm_wire::Family;
use std::time::{Duration, Instant};

/// How often a part is read before its passes together count as complete.
const PASSES: u32 = 5;
/// How long an audit waits for events about what it saw that the kernel announces without its lock, as of neighbors.
const REST: Duration = Duration::from_millis(50);
const V4: u8 = libc::AF_INET as u8;
const V6: u8 = libc::AF_INET6 as u8;

/// A part of a dump.
struct Part {
    /// What is done, for messages.
    name: &'static str,
    kind: u16,
    family: u8,
    /// Length of the fixed header in bytes.
    header: usize,
}

impl Part {
    const fn new(name: &'static str, kind: u16, family: u8, header: usize) -> Self {
        Self { name, kind, family, header }
    }

    fn is_routes(&self) -> bool {
        self.kind == libc::RTM_GETROUTE
    }

    fn is_ipv6_routes(&self) -> bool {
        self.is_routes() && self.family == V6
    }

    /// The request, after the netlink header.
    fn request(&self) -> Vec<u8> {
        const IFLA_EXT_MASK: u16 = 29;
        const SKIP_STATS: u32 = 8;
        let mut body = vec![0; self.header];
        body[0] = self.family;
        if self.kind == libc::RTM_GETLINK {
            attribute::put(&mut body, IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes());
        }
        body
    }
}

/// Objects to which others refer come first: events that are applied again find the same state.
const PARTS: [Part; 12] = [
    Part::new("list links", libc::RTM_GETLINK, 0, 16),
    Part::new("list IPv4 settings", netconf::RTM_GETNETCONF, V4, 4),
    Part::new("list IPv6 settings", netconf::RTM_GETNETCONF, V6, 4),
    Part::new("list IPv4 addresses", libc::RTM_GETADDR, V4, 8),
    Part::new("list IPv6 addresses", libc::RTM_GETADDR, V6, 8),
    Part::new("list IPv4 rules", libc::RTM_GETRULE, V4, 12),
    Part::new("list IPv6 rules", libc::RTM_GETRULE, V6, 12),
    Part::new("list next-hop objects", next_hop::RTM_GETNEXTHOP, 0, 8),
    Part::new("list IPv4 neighbors", libc::RTM_GETNEIGH, V4, 12),
    Part::new("list IPv6 neighbors", libc::RTM_GETNEIGH, V6, 12),
    Part::new("list IPv4 routes", libc::RTM_GETROUTE, V4, 12),
    Part::new("list IPv6 routes", libc::RTM_GETROUTE, V6, 12),
];

/// Why tables are dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// There is no mirror yet.
    Start,
    /// Events were lost.
    Overrun,
    /// To see whether mirror and kernel agree.
    Audit,
}

/// A dump under way.
#[derive(Debug)]
pub(super) struct Load {
    pub reason: Reason,
    pub started: Instant,
    /// Events since the start, as they came.
    pub backlog: Vec<u8>,
    /// When a finished audit has rested.
    pub rest_until: Option<Instant>,
    /// Whether every change that a finished audit saw has been announced.
    announced: bool,
    /// IPv6 routes have changed since this was last cleared.
    pub disturbed: bool,
    fresh: Mirror,
    part: usize,
    pass: u32,
    state: Pass,
    interrupted: bool,
    /// The routes that earlier passes saw, while they are listed again.
    aside: (Routes<u32>, Routes<u128>),
    /// When the lifetimes of IPv6 routes end.
    lifetimes: Lifetimes,
}

/// A finished dump.
pub(super) struct FreshMirror {
    pub mirror: Mirror,
    /// It should be compared once more, some time.
    pub doubtful: bool,
    /// When the lifetimes of IPv6 routes end.
    pub lifetimes: Lifetimes,
}

/// How far a pass over a part is.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// Not asked for yet.
    Begin,
    /// The answer has this sequence number.
    Asked(u32),
    /// The answer is complete.
    Ended,
}

impl Load {
    pub fn begin(reason: Reason, now: Instant) -> Self {
        let mut fresh = Mirror::default();
        // Nobody needs the changes of a mirror that nobody has seen.
        fresh.everything_changed();
        Self {
            reason,
            started: now,
            backlog: Vec::new(),
            rest_until: None,
            announced: false,
            disturbed: false,
            fresh,
            part: 0,
            pass: 0,
            state: Pass::Begin,
            interrupted: false,
            aside: Default::default(),
            lifetimes: Lifetimes::default(),
        }
    }

    /// Reads one receive's worth of the dump, and returns whether it was complete before. The caller reads all events
    /// between two steps, so that what they say about a pass is known when the step after its end starts.
    pub fn step(&mut self, socket: &mut Socket, statistics: &mut Statistics) -> Result<bool, Error> {
        if let Pass::Ended = self.state {
            self.pass_ended(statistics);
        }
        let Some(part) = PARTS.get(self.part) else { return Ok(true) };
        let sequence = match self.state {
            Pass::Asked(sequence) => sequence,
            Pass::Begin | Pass::Ended => {
                self.disturbed = false;
                socket.ask_dump(part.kind, &part.request())?
            }
        };
        self.state = Pass::Asked(sequence);
        let count = socket.receive(true)?;
        for index in 0..count {
            for raw in Messages(socket.slot(index)) {
                let raw = raw?;
                if raw.sequence != sequence {
                    continue;
                }
                self.interrupted |= raw.flags & flag::DUMP_INTERRUPTED != 0;
                match answer_end(part.name, &raw) {
                    Some(end) => {
                        self.state = Pass::Ended;
                        if end.is_ok() && part.kind == libc::RTM_GETRULE {
                            Family::from_number(part.family)
                                .into_iter()
                                .for_each(|of| self.fresh.rules_listed(of));
                        }
                        absent_is_empty(end)?;
                    }
                    None => self.take(&raw, statistics),
                }
            }
        }
        Ok(false)
    }

    /// Whether a finished dump may be used. An audit waits first: for some changes there are events just after a dump
    /// can see them, and they would look like differences. The caller reads all events between two calls.
    pub(crate) fn may_finish(&mut self, socket: &mut Socket, now: Instant) -> Result<bool, Error> {
        if self.reason != Reason::Audit || self.announced {
            return Ok(true);
        }
        if now >= *self.rest_until.get_or_insert(now + REST) {
            wait_for_changes(socket)?;
            self.announced = true;
        }
        Ok(false)
    }

    fn take(&mut self, raw: &Raw<'_>, statistics: &mut Statistics) {
        match Message::read(raw) {
            Ok(Some(message)) => {
                self.fresh.apply(message);
                self.lifetimes.note(self.fresh.take_lifetimes(), Instant::now());
            }
            Ok(None) => {}
            Err(why) => {
                statistics.malformed += 1;
                tracing::warn!(%why, part = PARTS[self.part].name, "a netlink dump contains a malformed entry");
            }
        }
    }

    fn pass_ended(&mut self, statistics: &mut Statistics) {
        let part = &PARTS[self.part];
        let shifted = part.is_ipv6_routes() && self.disturbed;
        let again = std::mem::take(&mut self.interrupted) || shifted;
        let (ipv4, ipv6) = std::mem::take(&mut self.aside);
        self.fresh.fill_routes(&ipv4, &ipv6);
        self.state = Pass::Begin;
        self.pass += 1;
        if again && self.pass < PASSES {
            statistics.repeated += 1;
            // Lists of routes and rules are ordered and cannot be read twice into one mirror; everything else can.
            if let (libc::RTM_GETRULE, Some(family)) = (part.kind, Family::from_number(part.family)) {
                self.fresh.forget_rules(family);
            }
            if part.is_routes() {
                self.aside = self.fresh.take_routes(part.is_ipv6_routes());
            }
            return;
        }
        self.part += 1;
        self.pass = 0;
    }

    /// The fresh mirror as of the last event read.
    ///
    /// A replacement does not name the route that it replaces: if a prefix has several routes of one metric, and the
    /// dump saw it after the replacement, applying that again may replace the wrong one. An audit therefore leaves
    /// prefixes that changed meanwhile as `live` has them; other dumps request an audit. The same goes for rules, of
    /// which two may be equal.
    pub fn finish(mut self, live: &Mirror) -> FreshMirror {
        let (mut replaced, mut touched, mut rules) = (false, Touched::default(), [false; 2]);
        let audit = self.reason == Reason::Audit;
        for raw in Messages(&self.backlog) {
            let Ok(Some(message)) = raw.and_then(|raw| Message::read(&raw)) else { continue };
            match &message {
                Message::Route4(route) => {
                    replaced |= route.event == RouteEvent::Replaced;
                    touched.0.insert((route.table, route.prefix));
                }
                Message::Route6(route) => {
                    touched.1.insert((route.table, route.prefix));
                }
                Message::Rule(rule) | Message::RuleGone(rule) => rules[rule.family as usize] = true,
                _ => {}
            }
            self.fresh.apply(message);
        }
        let heard = self.fresh.take_lifetimes();
        self.lifetimes.note(heard, Instant::now());
        let mut rules_in_doubt = rules;
        if audit {
            self.fresh.copy_routes(live, &touched);
            for family in Family::BOTH.into_iter().filter(|family| rules[*family as usize]) {
                self.fresh.copy_rules(live, family);
                rules_in_doubt[family as usize] = live.rules_in_doubt(family);
            }
            replaced = false;
        }
        self.fresh.keep_doubts(live, &touched, rules_in_doubt);
        // Its changes do not matter, because it was never seen.
        self.fresh.take_changes();
        self.fresh.take_comparison_request();
        FreshMirror { mirror: self.fresh, doubtful: replaced, lifetimes: self.lifetimes }
    }
}

/// Waits for those who are changing tables. A process may be interrupted for long between a change and its event; it holds
/// the kernel's lock (RTNL) meanwhile, which the question about the loopback device needs as well. Once that is answered,
/// the event of each change that was seen before can be received.
fn wait_for_changes(socket: &mut Socket) -> Result<(), Error> {
    let loopback = [[0; 4], 1i32.to_ne_bytes(), [0; 4], [0; 4]].concat();
    socket.ask(libc::RTM_GETLINK, 0, &loopback)?;
    socket.receive(true).map(drop)
}

/// A kernel without a kind of object refuses to list it: then there are none.
fn absent_is_empty(end: Result<(), Error>) -> Result<(), Error> {
    match end {
        Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => Ok(()),
        end => end,
    }
}
