//! Whether the fabric program at the other end of a link is alive: it has to send back probes, which go out every few
//! milliseconds.
//!
//! ```text
//! probes    |    |    |    |    |    |    |
//! answers    |    |    |
//!                      └── silent ────────► longer than the timeout: dead
//! ```
//!
//! The timeout follows the slowest answers lately: [`PROBES_LOST`] intervals and twice the longest round trip of the last
//! half to one minute. So the answers of a busy machine, which are late, are not taken for missing ones. Time in which
//! this node itself did not run does not count as silence: who does not send probes gets no answers.
//!
//! Pure: time is an argument.

use bm_vlb::spread::DelaySpread;

/// Probes in a row that may be lost.
const PROBES_LOST: u64 = 3;
/// Bounds of the timeout.
const TIMEOUT_MIN_NS: u64 = 25_000_000;
pub(crate) const TIMEOUT_MAX_NS: u64 = 1_000_000_000;
/// How long a round trip counts, at least.
const WINDOW_NS: u64 = 30_000_000_000;
/// The longest silence of a node that was only slow.
const PAUSE_NS: u64 = 500_000_000;
/// Answers in a row after which a link is alive.
const ANSWERS: u32 = 3;

/// One link.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    interval_ns: u64,
    is_alive: bool,
    /// How long there was no answer, while this node ran.
    silent_ns: u64,
    /// Answers since the link was found dead, or since the start.
    answers: u32,
    /// When the last probe was sent that was answered.
    answered_ns: u64,
    round_trips: DelaySpread,
    failures: u64,
}

impl Liveness {
    /// A link that has not answered yet, on which a probe is sent in each interval.
    pub fn new(interval_ns: u64) -> Self {
        Self {
            interval_ns,
            is_alive: false,
            silent_ns: 0,
            answers: 0,
            answered_ns: 0,
            round_trips: DelaySpread::new(WINDOW_NS),
            failures: 0,
        }
    }

    /// Another number of links may need another interval.
    pub(crate) fn set_interval(&mut self, interval_ns: u64) {
        self.interval_ns = interval_ns;
    }

    /// Notes the answer to a probe that was sent at `sent_ns`; earlier and repeated ones are ignored.
    pub fn answered(&mut self, sent_ns: u64, now_ns: u64) {
        if sent_ns <= self.answered_ns {
            return;
        }
        let round_trip_ns = now_ns.saturating_sub(sent_ns);
        if !self.is_alive {
            // After such a silence it was perhaps only slow: the next time it is waited for longer.
            if self.failures > 0 && self.silent_ns < PAUSE_NS {
                self.round_trips.add(self.silent_ns / 2, now_ns);
            }
            self.answers += 1;
            self.is_alive = self.answers >= ANSWERS;
        }
        self.round_trips.add(round_trip_ns, now_ns);
        (self.answered_ns, self.silent_ns) = (sent_ns, 0);
    }

    /// Notes that this node has waited for so long since the last call, after all answers that had arrived were noted.
    pub fn waited(&mut self, waited_ns: u64) {
        // A longer wait than that was no wait: this node did not run, and sent nothing.
        self.silent_ns += waited_ns.min(2 * self.interval_ns);
        if self.silent_ns > self.timeout_ns() {
            self.failures += u64::from(self.is_alive);
            (self.is_alive, self.answers) = (false, 0);
        }
    }

    /// Whether frames reach the other end.
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// How long there may be no answer.
    pub fn timeout_ns(&self) -> u64 {
        let slowest = self.round_trips.longest_ns();
        (PROBES_LOST * self.interval_ns + 2 * slowest).clamp(TIMEOUT_MIN_NS, TIMEOUT_MAX_NS)
    }

    /// How often the link was found dead.
    pub fn failures(&self) -> u64 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const INTERVAL: u64 = 5 * MS;

    /// Probes are answered after `round_trip_ns` each, from one time to another.
    fn answer(link: &mut Liveness, from_ms: u64, to_ms: u64, round_trip_ns: u64) {
        for sent in (from_ms * MS..to_ms * MS).step_by(INTERVAL as usize) {
            link.answered(sent + 1, sent + 1 + round_trip_ns);
            link.waited(INTERVAL);
        }
    }

    /// The silence after which the link is found dead.
    fn detected_after(link: &Liveness) -> u64 {
        let mut link = link.clone();
        while link.is_alive() {
            link.waited(INTERVAL);
        }
        link.silent_ns / MS
    }

    #[test]
    fn a_quiet_link_is_found_dead_within_thirty_milliseconds() {
        let mut link = Liveness::new(INTERVAL);
        assert!(!link.is_alive());
        answer(&mut link, 0, 10, MS / 5);
        assert!(!link.is_alive(), "two answers are not enough");
        answer(&mut link, 10, 1000, MS / 5);
        assert!(link.is_alive());
        assert_eq!(detected_after(&link), 30);
        assert_eq!(link.failures(), 0);
    }

    #[test]
    fn slow_answers_make_the_timeout_longer_for_a_while() {
        let mut link = Liveness::new(INTERVAL);
        answer(&mut link, 0, 1000, MS / 5);
        answer(&mut link, 1000, 1005, 18 * MS);
        assert_eq!(link.timeout_ns(), 51 * MS);
        answer(&mut link, 1005, 30_000, MS / 5);
        assert_eq!(link.timeout_ns(), 51 * MS);
        answer(&mut link, 30_000, 90_000, MS / 5);
        assert_eq!(link.timeout_ns(), TIMEOUT_MIN_NS);
    }

    #[test]
    fn a_link_that_was_only_slow_is_waited_for_longer_the_next_time() {
        let mut link = Liveness::new(INTERVAL);
        answer(&mut link, 0, 1000, MS / 5);
        (0..16).for_each(|_| link.waited(INTERVAL));
        assert!(!link.is_alive() && link.failures() == 1);
        answer(&mut link, 1080, 1100, MS / 5);
        assert!(link.is_alive() && link.timeout_ns() >= 90 * MS, "{}", link.timeout_ns());
        (0..16).for_each(|_| link.waited(INTERVAL));
        assert!(link.is_alive() && link.failures() == 1);
    }

    #[test]
    fn a_node_that_did_not_run_blames_nobody() {
        let mut link = Liveness::new(INTERVAL);
        answer(&mut link, 0, 1000, MS / 5);
        link.waited(10_000 * MS);
        assert!(link.is_alive(), "stopped for ten seconds");
        link.waited(10_000 * MS);
        assert!(link.is_alive());
        link.waited(10_000 * MS);
        assert!(!link.is_alive(), "it has sent two probes since, and three intervals are over");
    }

    #[test]
    fn old_and_repeated_answers_are_ignored() {
        let mut link = Liveness::new(INTERVAL);
        answer(&mut link, 0, 1000, MS / 5);
        (0..4).for_each(|_| link.waited(INTERVAL));
        link.answered(500 * MS, 1020 * MS);
        link.answered(995 * MS + 1, 1020 * MS);
        link.waited(2 * INTERVAL);
        assert!(!link.is_alive());
    }
}
