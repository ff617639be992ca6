//! Steps in lock-step: taken by all labs, waited for, probed, compared.

use crate::beds::{self, Bed};
use crate::compare::{describe, is_about_neighbor, lacking, sorted};
use crate::generate::Generator;
use crate::probes;
use crate::step::{Kind, Step, Tool};
use bm_tests::exchange::Seen;
use bm_tests::reassembly;
use bm_tests::subject::Subject;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How long frames that are missing may take on a busy machine, once they are known to be missing.
const LATE: Duration = Duration::from_millis(700);
/// How long errors may take about neighbors that do not answer: workers give up after three seconds like Linux by
/// default, whatever the settings of neighbors say.
const GIVES_UP: Duration = Duration::from_millis(4500);
/// How long a change may take to have effect that the kernel does not announce, or completes later: settings are read
/// every 200 ms, the firewall every 90 ms, Linux itself notices a carrier within a second, and a removal that was not
/// announced is looked for after a second.
const UNANNOUNCED: Duration = Duration::from_secs(6);
/// Frames of each sort that a report shows.
const SHOWN: usize = 3;

/// A difference between a subject and Linux.
#[derive(Clone, Debug)]
pub struct Finding {
    pub seed: u64,
    /// What had been done, the last step included.
    pub steps: Vec<Step>,
    /// The subject.
    pub subject: Subject,
    /// What differs.
    pub what: String,
    /// Round of the packets that showed it.
    pub round: u32,
}

/// What a run has done.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub steps: u64,
    pub refused: u64,
    pub rounds: u64,
    pub probes: u64,
    pub frames: u64,
    /// Rounds in which a subject differed at first, and no longer when it was tried again.
    pub transient: u64,
    /// Frames that each subject has sent itself.
    pub sent: Vec<(String, u64)>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.refused += other.refused;
        self.rounds += other.rounds;
        self.probes += other.probes;
        self.frames += other.frames;
        self.transient += other.transient;
        for (name, sent) in &other.sent {
            match self.sent.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += sent,
                None => self.sent.push((name.clone(), *sent)),
            }
        }
    }
}

/// Rounds of a run.
pub struct Run<'b, 'a> {
    pub beds: &'b mut [Bed<'a>],
    pub round: u32,
    pub counts: Counts,
    /// How long a change may take to have effect that the kernel does not announce.
    pub unannounced: Duration,
}

/// Who differs, and how.
pub type Difference = (Subject, String);

impl Run<'_, '_> {
    /// Takes a step in all labs and waits until all daemons know it. `Ok(false)` if Linux refuses it.
    pub fn take(&mut self, step: &Step) -> Result<bool, Difference> {
        let messages = beds::each(self.beds, |bed| bed.take(step));
        let lagging = beds::each(self.beds, Bed::in_step);
        for (bed, lags) in self.beds.iter().zip(lagging) {
            lags.map_err(|why| (bed.subject.clone(), why))?;
        }
        self.counts.steps += 1;
        for (bed, message) in self.beds.iter().zip(&messages).skip(1) {
            if step.tool == Tool::Verify && !message.is_empty() {
                return Err((bed.subject.clone(), format!("verify: {message}")));
            }
            if message != &messages[0] {
                let what = format!("Linux alone says {:?}, and beside it {message:?}", messages[0]);
                return Err((bed.subject.clone(), what));
            }
        }
        let lines = step.text.lines().count();
        // `nft` takes in all lines or none.
        let refused = match step.tool {
            Tool::Nft => !messages[0].is_empty(),
            _ => messages[0].matches("failed").count() >= lines,
        };
        self.counts.refused += u64::from(refused);
        Ok(!refused)
    }

    /// Sends a round of packets and compares what comes of them; again while a change may not have had its effect.
    pub fn probe(&mut self, last: Option<Kind>) -> Option<Difference> {
        let bound = if last.is_some_and(Kind::is_announced) { Duration::ZERO } else { self.unannounced };
        let begin = Instant::now();
        loop {
            let difference = self.compare();
            if difference.is_none() || begin.elapsed() > bound {
                return difference;
            }
            self.counts.transient += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// One round.
    fn compare(&mut self) -> Option<Difference> {
        self.round += 1;
        let (token, probes) = (probes::token(self.round), probes::of_round(self.round));
        self.counts.rounds += 1;
        self.counts.probes += probes.len() as u64;
        let mut heard = beds::each(self.beds, |bed| bed.exchange(&probes, token));
        let begin = Instant::now();
        let mut deadline = begin + LATE;
        loop {
            let difference = self.difference(&heard);
            let waits = Instant::now() < deadline || lacks_late_errors(&heard) && begin.elapsed() < GIVES_UP;
            if difference.is_none() || !waits {
                self.counts.frames += heard[0].len() as u64;
                return difference;
            }
            for (bed, seen) in self.beds.iter().zip(&mut heard) {
                if bed.listen(Duration::from_millis(20), token, seen) {
                    deadline = Instant::now() + LATE;
                }
            }
        }
    }

    /// The first subject that differs from Linux.
    fn difference(&self, heard: &[Vec<Seen>]) -> Option<Difference> {
        let mut heard: Vec<_> = heard.iter().map(|seen| sorted(seen)).collect();
        let equal = heard.iter().skip(1).all(|seen| *seen == heard[0]);
        if equal {
            return None;
        }
        if self.beds.iter().any(Bed::has_reassembled) {
            heard = heard.iter().map(|seen| reassembly::datagrams(seen)).collect();
        }
        let mut pairs = self.beds.iter().zip(&heard).skip(1);
        let (bed, seen) = pairs.find(|(_, seen)| **seen != heard[0])?;
        let others: String = pairs
            .filter(|(_, seen)| **seen != heard[0])
            .map(|(bed, _)| format!(", {} differs too", bed.name()))
            .collect();
        let mut text =
            format!("Linux alone sends {} frames, and it sends {}{others}", heard[0].len(), seen.len());
        for (words, list) in [("only Linux", lacking(&heard[0], seen)), ("only it", lacking(seen, &heard[0]))]
        {
            for seen in list.iter().take(SHOWN) {
                let _ = write!(text, "\n  {words}: {}", describe(seen));
            }
            if list.len() > SHOWN {
                let _ = write!(text, "\n  {words}: {} more", list.len() - SHOWN);
            }
        }
        Some((bed.subject.clone(), text))
    }
}

/// Whether nothing differs but that errors about neighbors are missing, in any lab.
fn lacks_late_errors(heard: &[Vec<Seen>]) -> bool {
    let heard: Vec<_> = heard.iter().map(|seen| sorted(seen)).collect();
    let all_late = |list: &[Seen], other: &[Seen]| lacking(list, other).into_iter().all(is_about_neighbor);
    heard.iter().skip(1).all(|seen| all_late(&heard[0], seen) && all_late(seen, &heard[0]))
}

/// Takes steps of a seed until there are `count` of them, time is over, or something differs.
pub fn run(subjects: &[Subject], seed: u64, count: u64, until: Instant) -> (Counts, Option<Finding>) {
    beds::with(subjects, |beds| {
        let mut run = Run { beds, round: 0, counts: Counts::default(), unannounced: UNANNOUNCED };
        let mut steps = Vec::new();
        let found = follow(&mut run, seed, count, until, &mut steps);
        if found.is_some() {
            run.beds.iter().for_each(|bed| bed.write_state(seed));
        }
        run.counts.sent = run.beds.iter().map(|bed| (bed.name(), bed.router.sent())).collect();
        let round = run.round;
        let finding = found.map(|(subject, what)| Finding { seed, steps, subject, what, round });
        (run.counts, finding)
    })
}

fn follow(run: &mut Run, seed: u64, count: u64, until: Instant, steps: &mut Vec<Step>) -> Option<Difference> {
    let mut generator = Generator::new(seed);
    if let Some(difference) = run.probe(None) {
        return Some(difference);
    }
    for _ in 0..count {
        if Instant::now() > until {
            break;
        }
        let step = generator.next();
        let kind = step.kind;
        match run.take(&step) {
            Ok(false) => continue,
            Ok(true) => steps.push(step),
            Err(difference) => {
                steps.push(step);
                return Some(difference);
            }
        }
        if kind != Kind::Verify
            && let Some(difference) = run.probe(Some(kind))
        {
            return Some(difference);
        }
    }
    None
}
