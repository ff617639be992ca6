//! Finds the first change of the kernel's tables that is no longer followed, after the process with the
//! [`Watch`](crate::Watch) has ended.
//!
//! ```text
//! the daemon lives    FirstChange::record_changes  rulesets and settings: when did they change last?
//! it ends             FirstChange::take_over       its own socket for events: what has it not read?
//!                     FirstChange::find            the first message, and settings every few milliseconds
//! ```
//!
//! The daemon's socket is shared with the process that uses this, which reads from it only once the daemon has ended.
//! So no message is lost between the two, and while the daemon lives, routes cost nothing here. What the daemon does
//! not learn from that socket (rulesets, settings) is watched from the start: a change shortly before the daemon's
//! end counts as one that it did not follow.
//!
//! A message that changes nothing does not count: a neighbor that is confirmed or becomes stale with the same MAC
//! address, an address whose lifetime is renewed, an interface message with the same content as before. In doubt, it
//! counts.

use crate::error::Error;
use crate::legacy_tables;
use crate::message::{Message, Messages, Raw};
use crate::socket::{Socket, answer_end};
use crate::sysctl::{LinkSysctls, SysctlFiles, Sysctls};
use crate::watch::{Sign, Signs};
use crate::{Address, Link, Neighbor};
use bm_wire::Family;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the daemon may take to follow changes that it has to poll for.
const SETTLES: Duration = Duration::from_secs(1);
/// How often settings are read while the daemon lives.
const ATTEND_EVERY: Duration = Duration::from_secs(1);
/// How often they are read after that, unless it takes too long.
const FIND_EVERY: Duration = Duration::from_millis(4);
/// The largest share of the time for this: one part in this many.
const POLL_SHARE: u32 = 20;
/// Receive buffer of the sockets for rulesets.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Groups of the sockets for rulesets: nftables (`NFNLGRP_NFTABLES`), IPsec policies (`XFRMNLGRP_POLICY`), tc.
const RULESETS: [(isize, u32, &str); 3] = [
    (NETLINK_NETFILTER, 7, "an nftables ruleset"),
    (NETLINK_XFRM, 4, "an IPsec policy"),
    (NETLINK_ROUTE, libc::RTNLGRP_TC, "a qdisc or a tc filter"),
];

/// What changed.
pub type Subject = &'static str;

/// Finds the first change.
#[derive(Debug)]
pub struct FirstChange {
    events: Socket,
    rulesets: Vec<(Socket, Subject)>,
    settings: Settings,
    /// When the settings are read next.
    read_at: Instant,
    /// The daemon may not have followed the latest change of a ruleset or a setting before this time.
    settled_at: Instant,
    known: NetworkState,
}

impl FirstChange {
    /// With the socket that the daemon reads its events from.
    ///
    /// # Errors
    /// If the kernel refuses sockets that are needed.
    pub fn open(events: OwnedFd) -> Result<Self, Error> {
        let now = Instant::now();
        let mut rulesets = Vec::new();
        for (protocol, group, what) in RULESETS {
            match Socket::open_protocol(protocol, RECEIVE_BUFFER) {
                Ok(mut socket) => {
                    socket.join(group)?;
                    rulesets.push((socket, what));
                }
                // A kernel without netfilter or XFRM has no such rulesets.
                Err(error) if error.errno() == Some(libc::EPROTONOSUPPORT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            events: Socket::inherit(events),
            rulesets,
            settings: Settings::read(),
            read_at: now + ATTEND_EVERY,
            // The daemon has just read everything.
            settled_at: now,
            known: NetworkState::default(),
        })
    }

    /// While the daemon lives: records changes of what has to be polled. To be called when one of [`Self::rulesets`]
    /// is readable, and about once a second.
    ///
    /// # Errors
    /// If the kernel's messages cannot be read.
    pub fn record_changes(&mut self, now: Instant) -> Result<(), Error> {
        let mut changed = self.changed_ruleset()?.is_some();
        if now >= self.read_at {
            self.read_at = now + ATTEND_EVERY;
            changed |= self.settings.changed(&self.known).is_some();
        }
        if changed {
            self.settled_at = now + SETTLES;
        }
        Ok(())
    }

    /// To be called when the daemon has ended: returns what it has not followed, if anything.
    ///
    /// # Errors
    /// If the kernel's messages cannot be read: then the answer is unknown.
    pub fn take_over(&mut self, now: Instant) -> Result<Option<Subject>, Error> {
        self.read_at = now;
        self.record_changes(now)?;
        if now < self.settled_at {
            return Ok(Some("a ruleset or a setting, just before the daemon ended"));
        }
        // The daemon has not read what is in the queue now.
        if let Some(what) = self.changed_table()? {
            return Ok(Some(what));
        }
        let known = NetworkState::list()?;
        let meanwhile = self.changed_table()?;
        self.known = known;
        self.settings.read_links(&self.known);
        self.read_at = Instant::now() + FIND_EVERY;
        Ok(meanwhile)
    }

    /// After [`Self::take_over`]: the first change, if there was one. To be called when one of [`Self::as_fds`] is
    /// readable or [`Self::timeout`] has passed.
    ///
    /// # Errors
    /// If the kernel's messages cannot be read: then the answer is unknown.
    pub fn find(&mut self, now: Instant) -> Result<Option<Subject>, Error> {
        if let Some(what) = self.changed_table()? {
            return Ok(Some(what));
        }
        if let Some(what) = self.changed_ruleset()? {
            return Ok(Some(what));
        }
        if now < self.read_at {
            return Ok(None);
        }
        let changed = self.settings.changed(&self.known);
        self.read_at = Instant::now() + FIND_EVERY.max(now.elapsed() * POLL_SHARE);
        Ok(changed)
    }

    /// Descriptors that become readable when a ruleset changes.
    pub fn rulesets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rulesets.iter().map(|(socket, _)| socket.as_fd())
    }

    /// Descriptors that become readable when anything changes for which there are events.
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.events.as_fd()).chain(self.rulesets())
    }

    /// The time until settings have to be read.
    pub fn timeout(&self, now: Instant) -> Duration {
        self.read_at.saturating_duration_since(now)
    }

    fn changed_ruleset(&mut self) -> Result<Option<Subject>, Error> {
        let mut changed = None;
        for (socket, what) in &mut self.rulesets {
            receive(socket, |_| {
                changed = Some(*what);
                Ok(())
            })?;
        }
        Ok(changed)
    }

    fn changed_table(&mut self) -> Result<Option<Subject>, Error> {
        let (mut changed, known) = (None, &mut self.known);
        receive(&mut self.events, |raw| {
            if let Some(message) = Message::read(raw)? {
                changed = changed.or(known.changed_by(message));
            }
            Ok(())
        })?;
        Ok(changed)
    }
}

/// Reads all messages that are there.
fn receive(socket: &mut Socket, mut each: impl FnMut(&Raw<'_>) -> Result<(), Error>) -> Result<(), Error> {
    loop {
        let count = socket.receive(false)?;
        if count == 0 {
            return Ok(());
        }
        for index in 0..count {
            for raw in Messages(socket.slot(index)) {
                each(&raw?)?;
            }
        }
    }
}

/// The state of interfaces, addresses and neighbors, to distinguish a change from a message without news.
#[derive(Debug, Default)]
struct NetworkState {
    links: HashMap<u32, Link>,
    addresses: HashSet<Address>,
    /// The MAC address of each neighbor; no entry if it is not reachable.
    neighbors: HashMap<(u32, IpAddr), [u8; 6]>,
}

impl NetworkState {
    /// As they are now.
    fn list() -> Result<Self, Error> {
        let mut known = Self::default();
        let mut socket = Socket::open(RECEIVE_BUFFER)?;
        let mut take = |name, kind, body: &[u8]| list(&mut socket, name, kind, body, |it| known.take(it));
        take("list links", libc::RTM_GETLINK, &[0; 16])?;
        for family in [Family::V4, Family::V6] {
            let family = family.number();
            take("list addresses", libc::RTM_GETADDR, &[family, 0, 0, 0, 0, 0, 0, 0])?;
            take("list neighbors", libc::RTM_GETNEIGH, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        }
        Ok(known)
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Link(link) => {
                self.links.insert(link.ifindex, link);
            }
            Message::Address(address) => {
                self.addresses.insert(address);
            }
            Message::Neighbor(neighbor) => {
                let at = (neighbor.ifindex, neighbor.address);
                match neighbor.reachable_at() {
                    Some(mac) => self.neighbors.insert(at, mac),
                    None => self.neighbors.remove(&at),
                };
            }
            Message::NeighborGone(neighbor) => {
                self.neighbors.remove(&(neighbor.ifindex, neighbor.address));
            }
            _ => {}
        }
    }

    /// What a message changes, if anything.
    fn changed_by(&mut self, message: Message) -> Option<Subject> {
        let what = match &message {
            Message::Route4(_) | Message::Route6(_) => Some("a route"),
            Message::NextHop(_) | Message::NextHopGone(_) => Some("a next hop"),
            Message::Rule(_) | Message::RuleGone(_) => Some("a rule"),
            Message::Netconf { .. } | Message::NetconfGone { .. } => Some("a setting of an interface"),
            Message::Link(link) => (self.links.get(&link.ifindex) != Some(link)).then_some("an interface"),
            Message::LinkGone(_) => Some("an interface"),
            Message::Address(address) => (!self.addresses.contains(address)).then_some("an address"),
            Message::AddressGone(_) => Some("an address"),
            Message::Neighbor(neighbor) => self.moved(neighbor, neighbor.reachable_at()),
            Message::NeighborGone(neighbor) => self.moved(neighbor, None),
        };
        self.take(message);
        what
    }

    /// Whether a neighbor in use now has another MAC address, or is not reachable any more. A neighbor that was not
    /// reachable before is not used by the tables, so it does not matter.
    fn moved(&self, neighbor: &Neighbor, now: Option<[u8; 6]>) -> Option<Subject> {
        let before = self.neighbors.get(&(neighbor.ifindex, neighbor.address));
        // Before neighbors are listed, this may be any of them.
        let unknown = self.links.is_empty();
        (unknown || before.is_some_and(|mac| now != Some(*mac))).then_some("a neighbor")
    }
}

/// Lists one kind of objects.
fn list(
    socket: &mut Socket,
    name: &'static str,
    kind: u16,
    body: &[u8],
    mut take: impl FnMut(Message),
) -> Result<(), Error> {
    let sequence = socket.ask_dump(kind, body)?;
    loop {
        for index in 0..socket.receive(true)? {
            for raw in Messages(socket.slot(index)) {
                let raw = raw?;
                match answer_end(name, &raw).filter(|_| raw.sequence == sequence) {
                    // A kernel without a family refuses to list it.
                    Some(end) => return if kind == libc::RTM_GETLINK { end } else { Ok(()) },
                    None => Message::read(&raw)?.into_iter().for_each(&mut take),
                }
            }
        }
    }
}

/// Settings for which there are no events.
#[derive(Debug)]
struct Settings {
    files: SysctlFiles,
    sysctls: Sysctls,
    links: Option<BTreeMap<u32, LinkSysctls>>,
    tables: legacy_tables::Digest,
    /// Of path MTUs and redirects that Linux has learned.
    signs: [Signs; 2],
    learned: [Option<u64>; 2],
}

impl Settings {
    fn read() -> Self {
        let mut files = SysctlFiles::new();
        let sysctls = files.read();
        // Messages about unreachable destinations are too common for a sign; few of them lock a path MTU.
        let signs = [Sign::Ipv4Redirects, Sign::Ipv6].map(Signs::open);
        let learned = signs.each_ref().map(Signs::read);
        Self { files, sysctls, links: None, tables: legacy_tables::digest(), signs, learned }
    }

    /// Reads the settings of interfaces, as a base for later comparisons.
    fn read_links(&mut self, known: &NetworkState) {
        self.links = Some(self.links_now(known));
    }

    fn links_now(&mut self, known: &NetworkState) -> BTreeMap<u32, LinkSysctls> {
        let links = known.links.values().filter(|link| !link.loopback());
        self.files.read_links(links.map(|link| (link.ifindex, &*link.name)))
    }

    /// Reads all settings again; returns what has changed since the last time.
    fn changed(&mut self, known: &NetworkState) -> Option<Subject> {
        let (sysctls, tables) = (self.files.read(), legacy_tables::digest());
        let learned = self.signs.each_ref().map(Signs::read);
        let links = self.links.is_some().then(|| self.links_now(known));
        let changed = if sysctls != self.sysctls || links != self.links {
            Some("a setting in /proc/sys/net")
        } else if tables != self.tables {
            Some("a legacy iptables ruleset")
        } else if learned != self.learned {
            Some("a learned path MTU or a redirect")
        } else {
            None
        };
        (self.sysctls, self.links, self.tables, self.learned) = (sysctls, links, tables, learned);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbor::state;

    fn neighbor(state: u16, mac: Option<[u8; 6]>) -> Neighbor {
        let address = "192.0.2.2".parse().unwrap();
        Neighbor { ifindex: 7, address, state, mac, router: false }
    }

    fn known() -> NetworkState {
        let mut known = NetworkState::default();
        known.links.insert(7, link(7, 1500));
        known.take(Message::Neighbor(neighbor(state::REACHABLE, Some([1; 6]))));
        known
    }

    fn link(ifindex: u32, mtu: u32) -> Link {
        Link { ifindex, mtu, ..Link::default() }
    }

    #[test]
    fn a_neighbor_counts_when_its_mac_or_its_use_changes() {
        let says =
            |known: &mut NetworkState, state, mac| known.changed_by(Message::Neighbor(neighbor(state, mac)));
        let mut known = known();
        for refreshed in [state::STALE, state::DELAY, state::PROBE, state::REACHABLE, state::PERMANENT] {
            assert_eq!(says(&mut known, refreshed, Some([1; 6])), None);
        }
        assert_eq!(says(&mut known, state::REACHABLE, Some([2; 6])), Some("a neighbor"), "another MAC");
        assert_eq!(says(&mut known, state::FAILED, Some([2; 6])), Some("a neighbor"), "no answer");
        assert_eq!(says(&mut known, state::INCOMPLETE, None), None, "it was of no use before");
        assert_eq!(
            says(&mut known, state::REACHABLE, Some([2; 6])),
            None,
            "its packets are Linux's until then"
        );
        let gone = Message::NeighborGone(neighbor(state::STALE, Some([2; 6])));
        assert_eq!(known.changed_by(gone.clone()), Some("a neighbor"));
        assert_eq!(known.changed_by(gone), None, "once");
    }

    #[test]
    fn repeated_messages_are_not_changes() {
        let mut known = known();
        assert_eq!(known.changed_by(Message::Link(link(7, 1500))), None);
        assert_eq!(known.changed_by(Message::Link(link(7, 1400))), Some("an interface"));
        assert_eq!(known.changed_by(Message::Link(link(8, 1400))), Some("an interface"));
        let local = "192.0.2.1".parse().unwrap();
        let (peer, broadcast) = (None, None);
        let address = Address { ifindex: 7, local, length: 24, peer, broadcast, scope: 0, flags: 0x80 };
        assert_eq!(known.changed_by(Message::Address(address)), Some("an address"));
        assert_eq!(known.changed_by(Message::Address(address)), None, "its lifetime is renewed");
        assert_eq!(known.changed_by(Message::NextHopGone(3)), Some("a next hop"));
    }

    #[test]
    fn without_known_state_every_message_is_a_change() {
        let reachable = Message::Neighbor(neighbor(state::REACHABLE, Some([1; 6])));
        assert_eq!(NetworkState::default().changed_by(reachable), Some("a neighbor"));
    }
}
