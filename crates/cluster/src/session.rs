//! The state of the node at the other end of a link, from its messages and probes.
//!
//! ```text
//! nothing heard ─ hello ─► its nonce is known ─ hello with our nonce ─► confirmed: its messages are accepted
//!                              ▲                                            │ another nonce: it was restarted
//!                              └────────────────────────────────────────────┘
//! ```
//!
//! Probes are answered by the fabric program at the other end, messages by its daemon. As long as probes are answered,
//! its last announcement remains valid: restarting a daemon removes no routes on other nodes.
//!
//! Nodes may differ by one change of the epoch: messages are accepted if both accept frames of the same epoch. Each node
//! sends frames with the epoch that their output node has announced, so none is lost in whatever order nodes change.
//!
//! Pure: no socket and no clock, so its rules are tested without either.

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;

use crate::message::{Contents, ENTRIES, Entry, Epochs, Message};

/// How long a daemon may send no message before it counts as gone.
const SILENT_NS: u64 = 1_000_000_000;
/// How long a refusal is shown after the last message that was refused.
const REFUSED_NS: u64 = 3_000_000_000;

/// Why messages of the node at the other end are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
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

/// One end of a link.
#[derive(Debug)]
pub struct Session {
    own: Node,
    name: String,
    peer: Node,
    epochs: Epochs,
    /// The epoch of frames to the peer.
    peer_epoch: Epoch,
    nonce: u64,
    sequence: u64,
    /// The nonce of the peer that has sent ours back, and the last sequence number that came with it.
    confirmed: Option<(u64, u64)>,
    /// A nonce of the peer that has not done so yet.
    candidate: Option<u64>,
    heard_ns: Option<u64>,
    /// Whether its program sends probes back, and whether it ever has.
    answers: bool,
    has_answered: bool,
    refused: Option<(Refused, u64)>,
    /// The version of our announcement that the peer has.
    peer_has: u64,
    version: u64,
    entries: Vec<Entry>,
    parts: Option<(u64, Vec<Option<Vec<Entry>>>)>,
    /// Messages that are not about the state of the peer.
    inbox: Vec<Contents>,
}

impl Session {
    /// A session that has heard nothing; `nonce` is random and not 0.
    pub fn new(own: Node, name: &str, peer: Node, epochs: Epochs, nonce: u64) -> Self {
        Self {
            own,
            name: name.into(),
            peer,
            epochs,
            peer_epoch: epochs.now,
            nonce,
            sequence: 0,
            confirmed: None,
            candidate: None,
            heard_ns: None,
            answers: false,
            has_answered: false,
            refused: None,
            peer_has: 0,
            version: 0,
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
    pub fn peer_epoch(&self) -> Epoch {
        self.peer_epoch
    }

    /// Whether the peer's daemon runs and does not have our epoch yet.
    pub fn is_behind(&self, now_ns: u64) -> bool {
        self.hears(now_ns) && self.peer_epoch != self.epochs.now
    }

    /// The epochs of this node have changed.
    pub fn set_epochs(&mut self, epochs: Epochs) {
        self.epochs = epochs;
    }

    /// Our nonce, which probes carry.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The next message.
    pub fn message(&mut self, contents: Contents) -> Message {
        self.sequence += 1;
        Message {
            epochs: self.epochs,
            sender: self.own.number(),
            receiver: self.peer.number(),
            own_nonce: self.nonce,
            peer_nonce: self.candidate.or(self.confirmed.map(|(nonce, _)| nonce)).unwrap_or(0),
            sequence: self.sequence,
            contents,
        }
    }

    /// The next hello; `version` is that of our announcement.
    pub fn hello(&mut self, version: u64) -> Message {
        let (has, name) = (self.version, self.name.clone());
        self.message(Contents::Hello { version, has, name })
    }

    /// All parts of our announcement, unless the peer has this version.
    pub fn announcement(&mut self, version: u64, entries: &[Entry], now_ns: u64) -> Vec<Message> {
        if self.peer_has == version || !self.hears(now_ns) || self.candidate.is_some() {
            return Vec::new();
        }
        let mut parts: Vec<_> = entries.chunks(ENTRIES).map(<[Entry]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len() as u16;
        let part = |(part, entries)| Contents::Part { version, part, parts: count, entries };
        (0..).zip(parts).map(part).map(|contents| self.message(contents)).collect()
    }

    /// Handles a message; returns whether the peer's state or announcement has changed.
    pub fn receive(&mut self, message: Message, now_ns: u64) -> bool {
        if let Some(refused) = self.refusal(&message) {
            self.refuse(refused, now_ns);
            return false;
        }
        if message.peer_nonce != self.nonce {
            if self.confirmed.map(|(nonce, _)| nonce) != Some(message.own_nonce) {
                self.candidate = Some(message.own_nonce);
            }
            return false;
        }
        match self.confirmed {
            // Replayed, or overtaken by a later one.
            Some((nonce, last)) if nonce == message.own_nonce && message.sequence <= last => return false,
            Some((nonce, _)) if nonce == message.own_nonce => {}
            // The peer was restarted: it has none of our entries, and its versions start again.
            _ => (self.version, self.parts, self.peer_has) = (0, None, 0),
        }
        let was_up = self.hears(now_ns);
        self.confirmed = Some((message.own_nonce, message.sequence));
        (self.candidate, self.heard_ns, self.refused) = (None, Some(now_ns), None);
        let had = std::mem::replace(&mut self.peer_epoch, message.epochs.now);
        self.apply(message.contents) || !was_up || had != self.peer_epoch
    }

    fn refusal(&self, message: &Message) -> Option<Refused> {
        let name = match &message.contents {
            Contents::Hello { name, .. } => name.clone(),
            _ => String::new(),
        };
        if message.sender != self.peer.number() {
            return Some(Refused::Peer(name, message.sender));
        }
        if message.receiver != self.own.number() {
            return Some(Refused::Receiver(name, message.receiver));
        }
        (!message.epochs.overlap(self.epochs)).then_some(Refused::Epoch(message.epochs.now))
    }

    /// Notes why a message was refused.
    pub fn refuse(&mut self, why: Refused, now_ns: u64) {
        self.refused = Some((why, now_ns));
    }

    fn apply(&mut self, contents: Contents) -> bool {
        match contents {
            Contents::Hello { version: _, has, name: _ } => {
                self.peer_has = has;
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
    pub fn take_inbox(&mut self) -> Vec<Contents> {
        std::mem::take(&mut self.inbox)
    }

    /// Notes whether probes come back; returns whether that has changed.
    pub fn set_answers(&mut self, answers: bool) -> bool {
        self.has_answered |= answers;
        std::mem::replace(&mut self.answers, answers) != answers
    }

    /// Whether the peer's daemon runs.
    pub fn hears(&self, now_ns: u64) -> bool {
        self.heard_ns.is_some_and(|at| now_ns.saturating_sub(at) < SILENT_NS)
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
    pub fn refused(&self, now_ns: u64) -> Option<&Refused> {
        self.refused.as_ref().filter(|(_, at)| now_ns.saturating_sub(*at) < REFUSED_NS).map(|(why, _)| why)
    }

    /// Whether the peer has announced anything yet.
    pub fn has_announced(&self) -> bool {
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
mod tests {
    use super::*;
    use std::net::IpAddr;

    const MS: u64 = 1_000_000;

    fn session(own: u16, peer: u16, nonce: u64) -> Session {
        let node = |number| Node::new(number).expect("small");
        Session::new(node(own), &format!("n{own}"), node(peer), Epochs::only(Epoch::new(1)), nonce)
    }

    /// Each sends a hello.
    fn exchange(one: &mut Session, two: &mut Session, now: u64) {
        let hello = one.hello(1);
        two.receive(hello, now);
        let hello = two.hello(1);
        one.receive(hello, now);
    }

    fn meet(one: &mut Session, two: &mut Session, now: u64) {
        for _ in 0..3 {
            exchange(one, two, now);
        }
        one.set_answers(true);
    }

    fn own(last: u8) -> Entry {
        Entry::Own(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn two_nodes_exchange_entries() {
        let (mut one, mut two) = (session(1, 2, 11), session(2, 1, 22));
        assert_eq!(one.state(0), State::Down);
        assert_eq!(one.announcement(1, &[own(1)], 0), []);
        meet(&mut one, &mut two, 5);
        assert_eq!((one.state(5), two.state(5)), (State::Up, State::NoProgram));
        assert!(!one.is_known() && !two.is_known());
        let many: Vec<_> = (0..=255).map(own).collect();
        let parts = two.announcement(7, &many, 6);
        assert!(parts.len() > 1);
        let changed: Vec<_> = parts.into_iter().rev().map(|part| one.receive(part, 6)).collect();
        // In reverse order: after the last part, the others have lower sequence numbers and are ignored.
        assert!(changed.iter().all(|changed| !changed));
        for part in two.announcement(7, &many, 6) {
            one.receive(part, 6);
        }
        assert_eq!((one.entries(), one.is_known()), (&many[..], true));
        let hello = one.hello(1);
        two.receive(hello, 7);
        assert_eq!(two.announcement(7, &many, 7), [], "it has them");
        assert_eq!(two.announcement(8, &[], 7).len(), 1, "an empty announcement is sent as well");
    }

    #[test]
    fn replayed_messages_are_ignored() {
        let (mut one, mut two) = (session(1, 2, 11), session(2, 1, 22));
        meet(&mut one, &mut two, 5);
        let old = two.announcement(7, &[own(1)], 6);
        let new = two.announcement(8, &[own(2)], 6);
        assert!(one.receive(new[0].clone(), 6));
        assert!(!one.receive(old[0].clone(), 6));
        assert_eq!(one.entries(), [own(2)]);
        // After a restart the first node has another nonce: earlier messages are ignored.
        let mut again = session(1, 2, 12);
        assert!(!again.receive(new[0].clone(), 7) && !again.has_announced());
    }

    #[test]
    fn a_restarted_daemon_keeps_its_entries() {
        let (mut one, mut two) = (session(1, 2, 11), session(2, 1, 22));
        meet(&mut one, &mut two, 0);
        for part in two.announcement(7, &[own(1)], 1) {
            one.receive(part, 1);
        }
        let later = 2 * SILENT_NS;
        assert_eq!((one.state(later), one.entries()), (State::NoDaemon, &[own(1)][..]));
        let mut two = session(2, 1, 33);
        for _ in 0..3 {
            exchange(&mut one, &mut two, later);
        }
        assert_eq!((one.state(later), one.entries()), (State::Up, &[own(1)][..]));
        for part in two.announcement(1, &[own(2)], later) {
            one.receive(part, later);
        }
        assert_eq!(one.entries(), [own(2)]);
        assert!(one.set_answers(false) && !one.set_answers(false));
        assert_eq!(one.entries(), [], "and no probe comes back");
        assert_eq!(one.state(later + SILENT_NS), State::Down);
    }

    #[test]
    fn reports_why_a_peer_is_rejected() {
        let mut one = session(1, 2, 11);
        let mut three = session(3, 1, 33);
        assert!(!one.receive(three.hello(1), 5));
        assert_eq!(one.refused(5), Some(&Refused::Peer("n3".into(), 3)));
        let mut two = session(2, 9, 22);
        one.receive(two.hello(1), 6);
        assert_eq!(one.refused(6), Some(&Refused::Receiver("n2".into(), 9)));
        let mut two = Session { epochs: Epochs::only(Epoch::new(2)), ..session(2, 1, 22) };
        one.receive(two.hello(1), 7);
        assert_eq!(one.refused(7), Some(&Refused::Epoch(Epoch::new(2))));
        assert_eq!(one.refused(7 + 4000 * MS), None);
        assert_eq!(one.state(7), State::Down);
    }

    #[test]
    fn nodes_may_change_their_epoch_one_after_the_other() {
        let (mut one, mut two) = (session(1, 2, 11), session(2, 1, 22));
        meet(&mut one, &mut two, 5);
        let (old, new) = (Epoch::new(1), Epoch::new(2));
        two.set_epochs(Epochs::only(old).change(new));
        let hello = two.hello(1);
        assert!(one.receive(hello, 6), "routes have to follow");
        assert_eq!((one.peer_epoch(), one.is_behind(6), one.refused(6)), (new, true, None));
        let hello = one.hello(1);
        assert!(!two.receive(hello, 6));
        assert_eq!((two.peer_epoch(), two.is_behind(6)), (old, true), "it gets what it accepts");
        one.set_epochs(Epochs::only(old).change(new));
        exchange(&mut one, &mut two, 7);
        assert_eq!((one.peer_epoch(), two.peer_epoch(), two.is_behind(7)), (new, new, false));
        // A second change before the first has reached all is one too many.
        let third = Epoch::new(3);
        two.set_epochs(Epochs::only(old).change(new).change(third));
        let mut late = session(3, 2, 33);
        late.peer = two.own;
        assert_eq!(late.refusal(&Message { receiver: 3, ..two.hello(1) }), Some(Refused::Epoch(third)));
    }
}
