//! Which neighbors this node announces: those that have answered its own question, and that no other node has.
//!
//! ```text
//! Linux has it, on-link ─► asked ─ a reply ─► confirmed ─ no other node has it ─► held: announced
//!                            │                    └─ another node has it ─► claimed ─► that node asks its own port:
//!                            └─ no reply: forgotten, by Linux too               a reply: it keeps it; none: it lets go
//! ```
//!
//! Linux takes whatever MAC a request or an unsolicited message names. So a new MAC is asked for, too, and one that was
//! confirmed stays as long as it answers. No rule depends on the numbers of nodes.
//!
//! Pure: no socket and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bm_vlb::address::Node;

use crate::local::LocalPort;
use crate::neighbor::{Candidate, LocalNeighbor};

/// How often a host is asked, how long it has to answer each time, and when it may be asked again.
const TRIES: u8 = 4;
const TRY_NS: u64 = 75_000_000;
const PAUSE_NS: u64 = 500_000_000;
/// How old an answer may be when the host is announced for it.
const FRESH_NS: u64 = 2_000_000_000;
/// Questions at a time: a flood of made-up neighbors must not become one of questions.
const QUESTIONS: usize = 32;

/// What other nodes that can be asked announce.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// Addresses of the nodes themselves, and permanent neighbors of their ports: this node announces none of them.
    pub fixed: BTreeSet<IpAddr>,
    /// Neighbors of their ports.
    pub held: BTreeMap<IpAddr, Node>,
    /// Neighbors of this node that have answered there, too.
    pub claimed: BTreeSet<IpAddr>,
}

/// A neighbor that Linux has.
#[derive(Clone, Copy, Debug)]
struct Confirmation {
    /// As Linux has it.
    candidate: Candidate,
    /// The MAC that has answered, and when.
    answered: Option<([u8; 6], u64)>,
    question: Option<Question>,
    /// When the last question ended.
    asked_ns: Option<u64>,
    /// Whether it is announced.
    is_held: bool,
    /// Whether it has to be asked.
    must_answer: bool,
}

/// A question that is being asked.
#[derive(Clone, Copy, Debug)]
struct Question {
    tries: u8,
    next_ns: u64,
    /// A MAC that has answered instead of the confirmed one.
    other: Option<[u8; 6]>,
}

/// What a question leads to: interfaces and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// Hosts to ask.
    pub questions: Vec<(u32, IpAddr)>,
    /// Hosts that have not answered: Linux has to resolve them again before it sends them anything.
    pub silent: Vec<(u32, IpAddr)>,
    /// Whether a question has ended.
    pub has_ended: bool,
}

/// All neighbors of external ports.
#[derive(Debug)]
pub(crate) struct Confirmations {
    own: Node,
    of: BTreeMap<(u32, IpAddr), Confirmation>,
    /// Neighbors that are not announced because a port or a MAC has too many.
    pub over_limit: usize,
}

impl Confirmations {
    /// With the neighbors that an earlier daemon of this node has announced.
    pub fn new(own: Node, announced: impl IntoIterator<Item = LocalNeighbor>) -> Self {
        let known = announced.into_iter().map(|neighbor| {
            let known = Confirmation {
                candidate: Candidate { neighbor, is_static: false },
                answered: Some((neighbor.to, 0)),
                question: None,
                asked_ns: None,
                is_held: true,
                must_answer: false,
            };
            ((neighbor.ifindex, neighbor.address), known)
        });
        Self { own, of: known.collect(), over_limit: 0 }
    }

    /// Takes what Linux and other nodes have now. `is_ready`: it is known what other nodes announce.
    pub fn update(
        &mut self,
        candidates: &[Candidate],
        ports: &[LocalPort],
        others: &Others,
        is_ready: bool,
        now_ns: u64,
    ) {
        let admitted = self.admit(candidates, ports);
        self.of.retain(|key, _| admitted.contains_key(key));
        for (key, candidate) in admitted {
            let new = Confirmation {
                candidate,
                answered: None,
                question: None,
                asked_ns: None,
                is_held: false,
                must_answer: false,
            };
            let known = self.of.entry(key).or_insert(new);
            known.candidate = candidate;
            if candidate.is_static {
                (known.answered, known.question) = (Some((candidate.neighbor.to, now_ns)), None);
            }
            known.decide(self.own, others, is_ready, now_ns);
            known.must_answer = known.is_doubted(others);
        }
        self.begin_questions(now_ns);
    }

    /// Those within the limits of ports and MACs: first those that are announced already.
    fn admit(&mut self, candidates: &[Candidate], ports: &[LocalPort]) -> BTreeMap<(u32, IpAddr), Candidate> {
        let mut ranked: Vec<_> = candidates.iter().collect();
        ranked.sort_by_key(|candidate| {
            let is_held = self.of.get(&candidate.key()).is_some_and(|known| known.is_held);
            (!candidate.is_static, !is_held)
        });
        let (mut of_port, mut of_mac) = (BTreeMap::new(), BTreeMap::new());
        let (mut admitted, mut over_limit) = (BTreeMap::new(), 0);
        for candidate in ranked {
            let Some(port) = ports.iter().find(|port| port.ifindex == candidate.neighbor.ifindex) else {
                continue;
            };
            let on_port: &mut u32 = of_port.entry(port.ifindex).or_default();
            let at_mac: &mut u32 = of_mac.entry((port.ifindex, candidate.neighbor.to)).or_default();
            let fits = *on_port < port.limits.neighbors && *at_mac < port.limits.addresses_per_mac;
            if !candidate.is_static && (!port.limits.learns || !fits) {
                over_limit += usize::from(port.limits.learns);
                continue;
            }
            (*on_port, *at_mac) = (*on_port + 1, *at_mac + 1);
            admitted.insert(candidate.key(), *candidate);
        }
        self.over_limit = over_limit;
        admitted
    }

    fn begin_questions(&mut self, now_ns: u64) {
        let running = self.of.values().filter(|known| known.question.is_some()).count();
        let mut waiting: Vec<_> = self.of.values_mut().filter(|known| known.may_be_asked(now_ns)).collect();
        waiting.sort_by_key(|known| known.asked_ns);
        for known in waiting.into_iter().take(QUESTIONS.saturating_sub(running)) {
            known.question = Some(Question { tries: 0, next_ns: now_ns, other: None });
        }
    }

    /// What is to be done now. If a question has ended, [`Self::update`] is due.
    pub fn ask(&mut self, now_ns: u64) -> Asking {
        let mut asking = Asking::default();
        for (key, known) in &mut self.of {
            let Some(question) = known.question.as_mut().filter(|question| question.next_ns <= now_ns) else {
                continue;
            };
            if question.tries < TRIES {
                (question.tries, question.next_ns) = (question.tries + 1, now_ns + TRY_NS);
                asking.questions.push(*key);
            } else {
                let other = question.other;
                known.end_question(other, now_ns);
                asking.has_ended = true;
                asking.silent.extend(other.is_none().then_some(*key));
            }
        }
        asking
    }

    /// Notes a reply on an interface; returns whether [`Self::update`] is due.
    pub fn replied(&mut self, ifindex: u32, address: IpAddr, mac: [u8; 6], now_ns: u64) -> bool {
        let Some(known) = self.of.get_mut(&(ifindex, address)) else { return false };
        // Nobody has asked.
        let Some(question) = known.question.as_mut().filter(|question| question.tries > 0) else {
            return false;
        };
        if known.answered.is_some_and(|(confirmed, _)| confirmed != mac) {
            // The confirmed one may still answer.
            question.other.get_or_insert(mac);
            return false;
        }
        known.end_question(Some(mac), now_ns);
        true
    }

    /// When [`Self::ask`] is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.of.values().filter_map(|known| known.question.map(|question| question.next_ns)).min()
    }

    /// When [`Self::update`] is due, although nothing has happened.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        let waits = self.of.values().filter(|known| known.question.is_none() && known.must_answer);
        waits.map(Confirmation::next_ns).min()
    }

    /// The neighbors that this node announces.
    pub fn held(&self) -> Vec<LocalNeighbor> {
        let held = self.of.values().filter(|known| known.is_held);
        held.filter_map(|known| Some(LocalNeighbor { to: known.answered?.0, ..known.candidate.neighbor }))
            .collect()
    }

    /// Neighbors that have answered here while another node has them.
    pub fn claims(&self) -> impl Iterator<Item = IpAddr> {
        let claimed = self.of.values().filter(|known| !known.is_held && known.answered.is_some());
        claimed.map(|known| known.candidate.neighbor.address)
    }

    /// Permanent neighbors.
    pub fn bound(&self) -> impl Iterator<Item = IpAddr> {
        let bound = self.of.values().filter(|known| known.candidate.is_static);
        bound.map(|known| known.candidate.neighbor.address)
    }
}

impl Confirmation {
    /// Whether it is announced, with the MAC that Linux has.
    fn is_settled(&self) -> bool {
        self.is_held && self.answered.map(|(mac, _)| mac) == Some(self.candidate.neighbor.to)
    }

    fn is_fresh(&self, now_ns: u64) -> bool {
        self.answered.is_some_and(|(_, at)| now_ns.saturating_sub(at) < FRESH_NS)
    }

    /// Whether it has to answer: it is not announced, has another MAC in Linux, or has answered at another node.
    fn is_doubted(&self, others: &Others) -> bool {
        let address = &self.candidate.neighbor.address;
        let is_doubted = !self.is_settled() || others.claimed.contains(address);
        is_doubted && !self.candidate.is_static && !others.fixed.contains(address)
    }

    fn may_be_asked(&self, now_ns: u64) -> bool {
        self.must_answer && self.question.is_none() && now_ns >= self.next_ns()
    }

    /// When it may be asked again.
    fn next_ns(&self) -> u64 {
        self.asked_ns.map_or(0, |at| at + PAUSE_NS)
    }

    /// Ends the question with the MAC that has answered, if any has.
    fn end_question(&mut self, mac: Option<[u8; 6]>, now_ns: u64) {
        (self.question, self.asked_ns) = (None, Some(now_ns));
        self.answered = mac.map(|mac| (mac, now_ns));
        self.is_held &= mac.is_some();
    }

    fn decide(&mut self, own: Node, others: &Others, is_ready: bool, now_ns: u64) {
        let address = self.candidate.neighbor.address;
        self.is_held = match others.held.get(&address) {
            _ if self.candidate.is_static => true,
            _ if others.fixed.contains(&address) || self.answered.is_none() => false,
            // Both have announced it at once: one of them asks for it again.
            Some(other) => self.is_held && precedes(address, own, *other),
            None => self.is_held || is_ready && self.is_fresh(now_ns),
        };
    }
}

/// Which of two nodes that have announced an address at the same time keeps it: by a hash, so that no node is preferred.
fn precedes(address: IpAddr, one: Node, other: Node) -> bool {
    (hash(address, one), one) < (hash(address, other), other)
}

/// FNV-1a.
fn hash(address: IpAddr, node: Node) -> u64 {
    let octets = match address {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    };
    let bytes = octets.into_iter().chain(node.number().to_be_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Limits;

    const MS: u64 = 1_000_000;
    const PORT: u32 = 3;
    const STEP: u64 = 5 * MS;

    fn node(number: u16) -> Node {
        Node::new(number).expect("small")
    }

    fn mac(last: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0, last]
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn candidate(last: u8, to: [u8; 6]) -> Candidate {
        let neighbor = LocalNeighbor { ifindex: PORT, port: 0, address: ip(last), to, from: mac(0xff) };
        Candidate { neighbor, is_static: false }
    }

    fn ports(limits: Limits) -> [LocalPort; 1] {
        [LocalPort { number: 0, ifindex: PORT, mac: mac(0xff), mtu: 1500, limits }]
    }

    /// A port with hosts that answer, and what its Linux believes.
    struct Segment {
        of: Confirmations,
        now: u64,
        linux: BTreeMap<IpAddr, Candidate>,
        /// Who answers for an address.
        answers: Vec<(u8, [u8; 6])>,
        others: Others,
        asked: usize,
    }

    impl Segment {
        fn new(own: u16) -> Self {
            Self {
                of: Confirmations::new(node(own), []),
                now: 0,
                linux: BTreeMap::new(),
                answers: Vec::new(),
                others: Others::default(),
                asked: 0,
            }
        }

        /// What Linux takes from any message.
        fn hears_of(&mut self, last: u8, to: [u8; 6]) {
            self.linux.insert(ip(last), candidate(last, to));
        }

        fn update(&mut self) {
            let candidates: Vec<_> = self.linux.values().copied().collect();
            self.of.update(&candidates, &ports(Limits::default()), &self.others, true, self.now);
        }

        /// After something has changed: an update follows whenever it is due, and never otherwise.
        fn run(&mut self, ms: u64) {
            self.update();
            for _ in 0..ms * MS / STEP {
                self.now += STEP;
                let asking = self.of.ask(self.now);
                self.asked += asking.questions.len();
                let mut is_due = asking.has_ended || self.of.again_ns().is_some_and(|at| at <= self.now);
                for (_, address) in asking.questions {
                    for (last, mac) in self.answers.clone() {
                        is_due |= ip(last) == address && self.of.replied(PORT, address, mac, self.now);
                    }
                }
                self.linux.retain(|address, _| !asking.silent.contains(&(PORT, *address)));
                if is_due {
                    self.update();
                }
            }
        }

        fn claims(&self) -> Vec<IpAddr> {
            self.of.claims().collect()
        }

        fn held(&self) -> Vec<(IpAddr, [u8; 6])> {
            self.of.held().iter().map(|neighbor| (neighbor.address, neighbor.to)).collect()
        }
    }

    #[test]
    fn only_who_answers_is_announced() {
        let mut segment = Segment::new(1);
        segment.hears_of(9, mac(9));
        segment.hears_of(10, mac(9));
        segment.answers.push((9, mac(9)));
        segment.run(50);
        assert_eq!(segment.held(), [(ip(9), mac(9))]);
        segment.run(1000);
        assert_eq!(segment.held(), [(ip(9), mac(9))]);
        assert!(!segment.linux.contains_key(&ip(10)), "forgotten");
        assert_eq!(segment.asked, 1 + usize::from(TRIES));
        // A reply that nobody has asked for.
        assert!(!segment.of.replied(PORT, ip(9), mac(66), segment.now));
    }

    #[test]
    fn a_mac_stays_as_long_as_it_answers() {
        let mut segment = Segment::new(1);
        segment.answers = vec![(9, mac(66)), (9, mac(9))];
        segment.of = Confirmations::new(node(1), [candidate(9, mac(9)).neighbor]);
        segment.hears_of(9, mac(66));
        segment.run(3000);
        assert_eq!(segment.held(), [(ip(9), mac(9))], "the attacker answers first, the host as well");
        segment.answers.pop();
        segment.run(2000);
        assert_eq!(segment.held(), [(ip(9), mac(66))], "it has changed its MAC");
    }

    #[test]
    fn an_address_that_another_node_has_is_claimed() {
        let mut segment = Segment::new(1);
        segment.others.held.insert(ip(9), node(2));
        segment.answers.push((9, mac(66)));
        segment.hears_of(9, mac(66));
        segment.run(1000);
        assert_eq!((segment.held(), segment.claims()), (vec![], vec![ip(9)]));
        // That node has asked in vain.
        segment.others.held.clear();
        segment.run(20);
        assert_eq!((segment.held(), segment.claims()), (vec![(ip(9), mac(66))], vec![]));
        // An address of another node itself is nobody's neighbor.
        segment.hears_of(1, mac(66));
        segment.answers.push((1, mac(66)));
        segment.others.fixed.insert(ip(1));
        segment.run(1000);
        assert_eq!((segment.held(), segment.claims()), (vec![(ip(9), mac(66))], vec![]));
    }

    #[test]
    fn who_is_claimed_is_asked_again() {
        let mut segment = Segment::new(1);
        segment.answers.push((9, mac(9)));
        segment.hears_of(9, mac(9));
        segment.run(1000);
        segment.others.claimed.insert(ip(9));
        segment.run(5000);
        assert_eq!(segment.held(), [(ip(9), mac(9))], "it is still there");
        assert!((8..16).contains(&segment.asked), "{}", segment.asked);
        segment.answers.clear();
        segment.run(1500);
        assert_eq!(segment.held(), [], "it has gone");
    }

    #[test]
    fn of_two_nodes_at_once_exactly_one_keeps_it() {
        let mut of_first = 0;
        for last in 0..=255 {
            let held = [1, 2].map(|own| {
                let mut segment = Segment::new(own);
                segment.answers.push((last, mac(9)));
                segment.hears_of(last, mac(9));
                segment.run(50);
                segment.others.held.insert(ip(last), node(3 - own));
                segment.run(50);
                segment.held().len()
            });
            assert_eq!(held[0] + held[1], 1);
            of_first += held[0];
        }
        assert!((64..192).contains(&of_first), "{of_first} of 256: neither is preferred");
    }

    #[test]
    fn limits_keep_those_that_are_announced() {
        let limits = Limits { learns: true, neighbors: 3, addresses_per_mac: 2 };
        let mut of = Confirmations::new(node(1), [candidate(200, mac(9)).neighbor]);
        let all: Vec<_> = [1, 2, 3, 200].map(|last| candidate(last, mac(9))).into();
        let permanent = Candidate { is_static: true, ..candidate(100, mac(9)) };
        let all = [&all[..], &[permanent]].concat();
        of.update(&all, &ports(limits), &Others::default(), true, 1);
        assert_eq!(of.held().iter().map(|held| held.address).collect::<Vec<_>>(), [ip(100), ip(200)]);
        assert_eq!(of.over_limit, 3);
        // Another node cannot take a permanent one.
        let mut others = Others::default();
        others.fixed.extend([ip(100), ip(200)]);
        of.update(&all, &ports(limits), &others, true, 1);
        assert_eq!(of.held().iter().map(|held| held.address).collect::<Vec<_>>(), [ip(100)]);
        assert_eq!(of.bound().collect::<Vec<_>>(), [ip(100)]);
        of.update(&all, &ports(Limits { learns: false, ..limits }), &Others::default(), true, 1);
        assert_eq!(of.held().iter().map(|held| held.address).collect::<Vec<_>>(), [ip(100)]);
    }

    #[test]
    fn a_flood_of_neighbors_is_not_one_of_questions() {
        let mut segment = Segment::new(1);
        for host in 0..64 {
            (0..4).for_each(|at| segment.hears_of(host * 4 + at, mac(host)));
        }
        segment.run(1000);
        // Each of them three quarters of a second apart, no more than so many at a time.
        assert!(segment.asked <= QUESTIONS * usize::from(TRIES) * 4, "{}", segment.asked);
        assert_eq!(segment.held(), []);
    }
}
