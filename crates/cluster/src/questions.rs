//! Questions to other nodes, and answers in parts: how `--node` gets what another node shows.
//!
//! ```text
//! asks for part 0 and on ──►  computes the answer, keeps it
//!                        ◄──  as many parts as fit into a socket
//! asks for the first that is missing ──►  …
//! ```
//!
//! What is lost is asked for again. Answers are computed once, and kept for a while.
//!
//! Pure.

use crate::message::BYTES;

/// How many parts are sent at a time.
pub const WINDOW: usize = 64;
/// The longest answer.
pub const ANSWER_MAX: usize = 4 << 20;
/// How many answers are kept, and for how long.
const KEPT: usize = 8;
const KEPT_NS: u64 = 30_000_000_000;

/// An answer that is on its way here.
#[derive(Clone, Debug, Default)]
pub struct Question {
    parts: Vec<Option<Vec<u8>>>,
}

impl Question {
    /// Adds a part.
    pub fn add(&mut self, part: u16, parts: u16, bytes: Vec<u8>) {
        let (part, parts) = (usize::from(part), usize::from(parts));
        if self.parts.len() != parts {
            self.parts = vec![None; parts];
        }
        if let Some(place) = self.parts.get_mut(part) {
            *place = Some(bytes);
        }
    }

    /// The first part that is missing.
    pub(crate) fn first_missing(&self) -> u16 {
        self.parts.iter().position(Option::is_none).unwrap_or(0) as u16
    }

    /// The answer, if all of it is there.
    pub fn whole(&self) -> Option<Vec<u8>> {
        let parts: Option<Vec<&Vec<u8>>> = self.parts.iter().map(Option::as_ref).collect();
        parts.filter(|parts| !parts.is_empty()).map(|parts| parts.into_iter().flatten().copied().collect())
    }
}

/// Answers to other nodes.
#[derive(Debug, Default)]
pub struct Answers(Vec<StoredAnswer>);

#[derive(Debug)]
struct StoredAnswer {
    /// Who asks, and the number of the question.
    of: (u16, u64),
    since_ns: u64,
    /// `None` while it is computed.
    bytes: Option<Vec<u8>>,
}

/// What to do about a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is new: compute the answer.
    Compute,
    /// That is going on, or there are too many others.
    Wait,
    /// Send these parts: the number of each, how many there are, the bytes.
    Send(Vec<(u16, u16, Vec<u8>)>),
}

impl Answers {
    pub fn asked(&mut self, node: u16, id: u64, first: u16, now_ns: u64) -> Next {
        self.0.retain(|kept| now_ns.saturating_sub(kept.since_ns) < KEPT_NS);
        match self.0.iter().find(|kept| kept.of == (node, id)) {
            Some(StoredAnswer { bytes: Some(bytes), .. }) => Next::Send(window(bytes, first)),
            Some(_) => Next::Wait,
            None => {
                let done = self.0.iter().position(|kept| kept.bytes.is_some());
                match done.filter(|_| self.0.len() >= KEPT) {
                    Some(oldest) => drop(self.0.remove(oldest)),
                    None if self.0.len() >= KEPT => return Next::Wait,
                    None => {}
                }
                self.0.push(StoredAnswer { of: (node, id), since_ns: now_ns, bytes: None });
                Next::Compute
            }
        }
    }

    /// Keeps the answer; returns the parts to send first.
    pub(crate) fn computed(&mut self, node: u16, id: u64, bytes: Vec<u8>) -> Vec<(u16, u16, Vec<u8>)> {
        let Some(kept) = self.0.iter_mut().find(|kept| kept.of == (node, id)) else { return Vec::new() };
        window(kept.bytes.insert(bytes), 0)
    }
}

fn window(bytes: &[u8], first: u16) -> Vec<(u16, u16, Vec<u8>)> {
    let parts = bytes.len().div_ceil(BYTES).max(1) as u16;
    (first..parts)
        .take(WINDOW)
        .map(|part| {
            let from = (usize::from(part) * BYTES).min(bytes.len());
            (part, parts, bytes[from..(from + BYTES).min(bytes.len())].to_vec())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_windows_and_what_is_lost_again() {
        let long: Vec<u8> = (0..WINDOW * BYTES + 7).map(|at| at as u8).collect();
        let (mut answers, mut question) = (Answers::default(), Question::default());
        assert_eq!(answers.asked(1, 9, 0, 0), Next::Compute);
        assert_eq!(answers.asked(1, 9, 0, 0), Next::Wait);
        let parts = answers.computed(1, 9, long.clone());
        assert_eq!((parts.len(), question.first_missing()), (WINDOW, 0));
        for (part, all, bytes) in parts.into_iter().filter(|(part, ..)| *part != 3) {
            question.add(part, all, bytes);
        }
        assert_eq!((question.first_missing(), question.whole()), (3, None));
        let Next::Send(parts) = answers.asked(1, 9, 3, 1) else { panic!("it is there") };
        assert_eq!(parts.last().map(|(part, all, bytes)| (*part, *all, bytes.len())), Some((64, 65, 7)));
        parts.into_iter().for_each(|(part, all, bytes)| question.add(part, all, bytes));
        assert_eq!(question.whole(), Some(long));
        assert_eq!(answers.asked(2, 9, 0, 1), Next::Compute, "another node's");
        assert_eq!(answers.asked(1, 9, 0, KEPT_NS), Next::Compute, "it is forgotten");
    }

    #[test]
    fn few_answers_are_kept() {
        let mut answers = Answers::default();
        (0..KEPT as u64).for_each(|id| assert_eq!(answers.asked(1, id, 0, 0), Next::Compute));
        assert_eq!(answers.asked(1, 99, 0, 0), Next::Wait);
        assert_eq!(answers.computed(1, 3, b"x".to_vec()), [(0, 1, b"x".to_vec())]);
        assert_eq!(answers.asked(1, 99, 0, 0), Next::Compute);
        assert_eq!(answers.asked(1, 3, 0, 0), Next::Wait, "it has made room");
        assert_eq!(answers.computed(1, 3, Vec::new()), []);
    }
}
