//! The state of the node at the other end of a link, from its messages and probes.
//!
//! ```text
//! nothing heard ─ offer (f, 0) ─────► the other end answers (g, f): its own fresh nonce, and ours
//!   session (f, g) ◄── (g, f): it has our nonce, so it has sent this lately ──► all messages are (f, g), with a rising number
//! ```
//!
//! A session has a nonce of each end, which both have drawn for it: a message that was recorded in any other session, or
//! before, belongs to none. It lasts until the other end proves that it has a nonce that was drawn since, as after a
//! restart. Offers change nothing, however old they are and however many: they are only answered.
//!
//! Probes are answered by the fabric program at the other end, messages by its daemon. As long as probes are answered,
//! its last announcement remains valid: restarting a daemon removes no routes on other nodes.
//!
//! Nodes may differ by one change of the epoch: messages are accepted if both accept frames of the same epoch. Each node
//! sends frames with the epoch that their output node has announced, so none is lost in whatever order nodes change.
//!
//! Pure: no socket and no clock, so its rules are tested without either.

use std::collections::BTreeSet;

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;

use crate::message::{Contents, ENTRIES, Entry, Epochs, Message};

/// How long a daemon may send no message before it counts as gone.
const SILENT_NS: u64 = 1_000_000_000;
/// How long a daemon that sends nothing still has the neighbors that it has announced: it cannot be asked for them.
const DEFENDED_NS: u64 = 5_000_000_000;
/// How long nonces are offered: each is accepted for up to twice as long.
const OFFERED_NS: u64 = 2_000_000_000;
/// Offers that are answered at a time.
const ANSWERED: usize = 1024;
/// How long a refusal is shown after the last message that was refused.
const REFUSED_NS: u64 = 3_000_000_000;

/// Why messages of the node at the other end are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They are authenticated with another key.
    Key,
    /// They come from another node than the one configured for the link: its name and number.
    Peer(String, u16),
    /// They are for another node than this one: the sender's name, the receiver's number.
    Receiver(String, u16),
    /// The node has another epoch, and not that of the last change.
    Epoch(Epoch),
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its program and its daemon answer.
    Up,
    /// Only its program answers: it forwards with its last tables.
    NoDaemon,
    /// Only its daemon answers.
    NoProgram,
    /// Neither does.
    Down,
}

/// A session: the nonces of both ends, and the number of the last message that was accepted.
#[derive(Clone, Copy, Debug)]
struct Current {
    own: u64,
    peer: u64,
    last: u64,
}

/// Nonces for the next session: the one that is offered, and the one that was before.
#[derive(Clone, Copy, Debug, Default)]
struct OfferedNonces {
    now: u64,
    before: u64,
    since_ns: u64,
}

/// One end of a link.
#[derive(Debug)]
pub struct Session {
    own: Node,
    name: String,
    peer: Node,
    epochs: Epochs,
    /// The epoch of frames to the peer.
    peer_epoch: Epoch,
    /// Gives random numbers.
    random: fn() -> u64,
    /// What probes carry.
    nonce: u64,
    /// The number of the last message: it only rises.
    sequence: u64,
    current: Option<Current>,
    offered: OfferedNonces,
    /// Nonces that were offered to us and have not been answered yet.
    offers: BTreeSet<u64>,
    heard_ns: Option<u64>,
    /// Whether its program sends probes back, and whether it ever has.
    answers: bool,
    has_answered: bool,
    refused: Option<(Refusal, u64)>,
    /// The version of our announcement that the peer acts on, and the highest that it ever did.
    peer_has: u64,
    confirmed: u64,
    version: u64,
    /// The version of the peer's announcement that this node acts on.
    applied: u64,
    entries: Vec<Entry>,
    parts: Option<(u64, Vec<Option<Vec<Entry>>>)>,
    /// Messages that are not about the state of the peer.
    inbox: Vec<Contents>,
}

impl Session {
    /// A session that has heard nothing; `random` gives random numbers.
    pub fn new(own: Node, name: &str, peer: Node, epochs: Epochs, random: fn() -> u64) -> Self {
        Self {
            own,
            name: name.into(),
            peer,
            epochs,
            peer_epoch: epochs.now,
            random,
            nonce: random(),
            sequence: 0,
            current: None,
            offered: OfferedNonces { now: random().max(1), ..OfferedNonces::default() },
            offers: BTreeSet::new(),
            heard_ns: None,
            answers: false,
            has_answered: false,
            refused: None,
            peer_has: 0,
            confirmed: 0,
            version: 0,
            applied: 0,
            entries: Vec::new(),
            parts: None,
            inbox: Vec::new(),
        }
    }

    /// The node at the other end.
    pub fn peer(&self) -> Node {
        self.peer
    }

    /// The epoch of frames to the peer: the one that it announced last.
    pub(crate) fn peer_epoch(&self) -> Epoch {
        self.peer_epoch
    }

    /// Whether the peer's daemon runs and does not have our epoch yet.
    pub(crate) fn is_behind(&self, now_ns: u64) -> bool {
        self.hears(now_ns) && self.peer_epoch != self.epochs.now
    }

    /// The epochs of this node have changed.
    pub(crate) fn set_epochs(&mut self, epochs: Epochs) {
        self.epochs = epochs;
    }

    /// What our probes carry.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The next message of the session; `None`: there is none.
    pub fn message(&mut self, contents: Contents) -> Option<Message> {
        let current = self.current?;
        Some(self.between(current.own, current.peer, contents))
    }

    fn between(&mut self, own_nonce: u64, peer_nonce: u64, contents: Contents) -> Message {
        self.sequence += 1;
        Message {
            epochs: self.epochs,
            sender: self.own.number(),
            receiver: self.peer.number(),
            own_nonce,
            peer_nonce,
            sequence: self.sequence,
            contents,
        }
    }

    /// The hellos of a tick: that of the session, an offer while the peer is silent, and answers to offers. `version` is that
    /// of our announcement.
    pub(crate) fn hellos(&mut self, version: u64, now_ns: u64) -> Vec<Message> {
        if now_ns >= self.offered.since_ns + OFFERED_NS {
            self.offered =
                OfferedNonces { now: (self.random)().max(1), before: self.offered.now, since_ns: now_ns };
        }
        let hello = Contents::Hello { version, has: self.applied, name: self.name.clone() };
        let offered = self.offered.now;
        let mut hellos: Vec<_> = self.message(hello.clone()).into_iter().collect();
        if !self.hears(now_ns) {
            hellos.push(self.between(offered, 0, hello.clone()));
        }
        for offer in std::mem::take(&mut self.offers) {
            hellos.push(self.between(offered, offer, hello.clone()));
        }
        hellos
    }

    /// All parts of our announcement, unless the peer has this version.
    pub fn announcement(&mut self, version: u64, entries: &[Entry], now_ns: u64) -> Vec<Message> {
        if self.peer_has == version || !self.hears(now_ns) {
            return Vec::new();
        }
        let mut parts: Vec<_> = entries.chunks(ENTRIES).map(<[Entry]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len() as u16;
        (0..)
            .zip(parts)
            .map(|(part, entries)| Contents::Part { version, part, parts: count, entries })
            .filter_map(|contents| self.message(contents))
            .collect()
    }

    /// Handles a message; returns whether the peer's state or announcement has changed.
    pub fn receive(&mut self, message: Message, now_ns: u64) -> bool {
        let is_current = self
            .current
            .is_some_and(|current| (current.peer, current.own) == (message.own_nonce, message.peer_nonce));
        let OfferedNonces { now, before, .. } = self.offered;
        let is_next = message.peer_nonce != 0 && [now, before].contains(&message.peer_nonce);
        if is_current && self.current.is_some_and(|current| message.sequence <= current.last) {
            // Repeated, or overtaken by a later one.
            return false;
        }
        if let Some(refused) = self.refusal(&message) {
            if is_current || is_next || !self.hears(now_ns) {
                self.refused = Some((refused, now_ns));
            }
            return false;
        }
        if !is_current && !is_next {
            let is_offer = message.peer_nonce == 0 && matches!(message.contents, Contents::Hello { .. });
            if is_offer && self.offers.len() < ANSWERED {
                self.offers.insert(message.own_nonce);
            }
            return false;
        }
        if !is_current {
            // It has none of our entries, and its versions may start again.
            (self.version, self.applied, self.parts, self.peer_has) = (0, 0, None, 0);
            // Whatever else was offered is of no use any more.
            self.offered = OfferedNonces { now: (self.random)().max(1), before: 0, since_ns: now_ns };
            self.offers.clear();
        }
        let was_up = self.hears(now_ns);
        self.current =
            Some(Current { own: message.peer_nonce, peer: message.own_nonce, last: message.sequence });
        (self.heard_ns, self.refused) = (Some(now_ns), None);
        let had = std::mem::replace(&mut self.peer_epoch, message.epochs.now);
        self.apply(message.contents) || !was_up || had != self.peer_epoch
    }

    fn refusal(&self, message: &Message) -> Option<Refusal> {
        let name = match &message.contents {
            Contents::Hello { name, .. } => name.clone(),
            _ => String::new(),
        };
        if message.sender != self.peer.number() {
            return Some(Refusal::Peer(name, message.sender));
        }
        if message.receiver != self.own.number() {
            return Some(Refusal::Receiver(name, message.receiver));
        }
        (!message.epochs.overlap(self.epochs)).then_some(Refusal::Epoch(message.epochs.now))
    }

    /// Notes that a message was authenticated with another key. While the peer's messages arrive, it is not the peer's.
    pub(crate) fn refuse_key(&mut self, now_ns: u64) {
        if !self.hears(now_ns) {
            self.refused = Some((Refusal::Key, now_ns));
        }
    }

    /// Notes that this node acts on what the peer has announced: only then is it confirmed.
    pub fn set_applied(&mut self) {
        self.applied = self.version;
    }

    fn apply(&mut self, contents: Contents) -> bool {
        match contents {
            Contents::Hello { version: _, has, name: _ } => {
                (self.peer_has, self.confirmed) = (has, self.confirmed.max(has));
                false
            }
            Contents::Part { version, part, parts, entries } => self.add_part(version, part, parts, entries),
            other => {
                self.inbox.push(other);
                false
            }
        }
    }

    fn add_part(&mut self, version: u64, part: u16, count: u16, entries: Vec<Entry>) -> bool {
        if version == self.version || part >= count {
            return false;
        }
        let (of, parts) = self.parts.get_or_insert_with(|| (version, vec![None; count.into()]));
        if *of != version || parts.len() != usize::from(count) {
            (*of, *parts) = (version, vec![None; count.into()]);
        }
        parts[usize::from(part)] = Some(entries);
        if parts.iter().any(Option::is_none) {
            return false;
        }
        let (version, parts) = self.parts.take().unwrap_or_default();
        (self.version, self.entries) = (version, parts.into_iter().flatten().flatten().collect());
        true
    }

    /// Questions, answers and counts received since the last call.
    pub(crate) fn take_inbox(&mut self) -> Vec<Contents> {
        std::mem::take(&mut self.inbox)
    }

    /// Notes whether probes come back; returns whether that has changed.
    pub(crate) fn set_answers(&mut self, answers: bool) -> bool {
        self.has_answered |= answers;
        std::mem::replace(&mut self.answers, answers) != answers
    }

    /// Whether the peer's daemon runs.
    pub fn hears(&self, now_ns: u64) -> bool {
        self.heard_ns.is_some_and(|at| now_ns.saturating_sub(at) < SILENT_NS)
    }

    /// Whether the peer's daemon can be asked for its neighbors, or could be until lately.
    pub(crate) fn defends(&self, now_ns: u64) -> bool {
        self.heard_ns.is_some_and(|at| now_ns.saturating_sub(at) < DEFENDED_NS)
    }

    /// Whether frames reach the peer by this link, with or without its daemon.
    pub fn reaches(&self) -> bool {
        self.answers
    }

    /// The state of the link.
    pub fn state(&self, now_ns: u64) -> State {
        match (self.answers, self.hears(now_ns)) {
            (true, true) => State::Up,
            (true, false) => State::NoDaemon,
            (false, true) => State::NoProgram,
            (false, false) => State::Down,
        }
    }

    /// Why messages are refused.
    pub fn refused(&self, now_ns: u64) -> Option<&Refusal> {
        self.refused.as_ref().filter(|(_, at)| now_ns.saturating_sub(*at) < REFUSED_NS).map(|(why, _)| why)
    }

    /// Whether the peer has announced anything yet.
    pub(crate) fn has_announced(&self) -> bool {
        self.version != 0
    }

    /// Whether the peer has announced its entries and sent probes back, so that it is known what leads there.
    pub fn is_known(&self) -> bool {
        self.has_announced() && self.has_answered
    }

    /// Whether the peer must not be used as intermediate.
    pub fn is_drained(&self) -> bool {
        self.entries.contains(&Entry::Drained)
    }

    /// The version of our announcement that the peer has acted on, or a later one since.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the peer's daemon runs and does not have this version of our announcement yet.
    pub fn lacks(&self, version: u64, now_ns: u64) -> bool {
        self.hears(now_ns) && self.peer_has != version
    }

    /// What the peer has announced last, whether frames still reach it by this link or not.
    pub fn announced(&self) -> &[Entry] {
        &self.entries
    }

    /// What the peer announces; empty while frames do not reach it.
    pub fn entries(&self) -> &[Entry] {
        if self.answers { &self.entries } else { &[] }
    }
}

#[cfg(test)]
mod tests;
