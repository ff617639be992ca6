//! Steps in lock-step: taken by all labs, waited for, probed, compared.

use crate::model::beds::{self, Bed};
use crate::model::compare::{
    describe, is_answer_of_route, is_anycast, is_from_broadcast, is_multipath, lacking, sorted, trace,
};
use crate::model::generate::Generator;
use crate::model::probes;
use crate::model::step::{Kind, Place, Step, Tool};
use bm_tests::exchange::Seen;
use bm_tests::lab::SIDES;
use bm_tests::normalise::is_own_icmp;
use bm_tests::reassembly;
use bm_tests::subject::Subject;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How long frames that are missing may take on a busy machine, once they are known to be missing.
const LATE: Duration = Duration::from_millis(700);
/// How long a change may take to have effect that the kernel does not announce, or completes later: settings are read
/// every 200 ms, the firewall every 90 ms, Linux itself notices a carrier within a second, and a removal that was not
/// announced is looked for after a second.
const UNANNOUNCED: Duration = Duration::from_secs(6);
/// How long after a setting the change of another kind may have to wait for it, if nothing showed the setting before.
const SETTING: Duration = Duration::from_secs(1);
/// How often a round with a difference is repeated since this machine has lost frames.
const LOSSY: u32 = 10;
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
    /// Packets sent while steps were made, to all routers.
    pub during: u64,
    /// Rounds in which a subject differed at first, and no longer when it was tried again.
    pub transient: u64,
    /// Rounds with a difference that were repeated since this machine had lost frames.
    pub lossy: u64,
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
        self.during += other.during;
        self.transient += other.transient;
        self.lossy += other.lossy;
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
    unannounced: Duration,
    /// What Linux has sent in the last round.
    before: Vec<Seen>,
    /// What each router has sent while the last step was made.
    during: Vec<Vec<Seen>>,
    /// Links without neighbors, ends of links that are down, so that the router's have no carrier, and addresses of the
    /// router, which next hops may then lead to.
    dark: BTreeSet<String>,
    /// When all settings have been read.
    settings_read: Instant,
    /// Rules of nftables count packets, of which a stream sends each router another number.
    limited: bool,
    /// Brickmoon has filters. What is for this machine passes them, and Linux then does with it what a step has just
    /// made of it: it may forward a packet that is no longer for this machine.
    filtered: bool,
    /// Anycast addresses are the same in all labs.
    anycast: bool,
    /// A route has had a realm.
    realms: bool,
    /// Linux has failed to send an ICMPv6 error in one of the labs, in the last step or a round next to it.
    has_failed_to_tell: bool,
}

/// Who differs, and how.
pub type Difference = (Subject, String);

impl<'b, 'a> Run<'b, 'a> {
    /// Rounds from this number on.
    pub fn new(beds: &'b mut [Bed<'a>], round: u32, unannounced: Duration) -> Self {
        Self {
            beds,
            round,
            counts: Counts::default(),
            unannounced,
            before: Vec::new(),
            during: Vec::new(),
            dark: BTreeSet::new(),
            settings_read: Instant::now(),
            limited: false,
            filtered: false,
            anycast: true,
            realms: false,
            has_failed_to_tell: false,
        }
    }

    /// Takes a step in all labs and waits until all daemons know it. `Ok(false)` if Linux refuses it.
    pub fn take(&mut self, step: &Step) -> Result<bool, Difference> {
        self.note_dark(step);
        if step.tool == Tool::Filter {
            self.filtered = !step.text.is_empty();
        }
        // Packets during a step would show a setting that has not been read yet.
        let are_settings_read = Instant::now() >= self.settings_read;
        let is_judged = are_settings_read && !self.limited && !self.filtered;
        let taken = if step.is_atomic() && !self.before.is_empty() && is_judged {
            self.take_during(step)
        } else {
            beds::each(self.beds, |bed| bed.take(step))
        };
        let mut messages = Vec::new();
        for (bed, taken) in self.beds.iter().zip(taken) {
            messages.push(taken.map_err(|why| (bed.subject.clone(), why))?);
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
            // No filters are no lines.
            _ => lines > 0 && messages[0].matches("failed").count() >= lines,
        };
        self.counts.refused += u64::from(refused);
        if step.tool == Tool::Set {
            self.settings_read = Instant::now() + SETTING;
        }
        if step.kind == Kind::Ruleset && !refused {
            self.limited = ["limit", "quota"].iter().any(|word| step.text.contains(word));
        }
        Ok(!refused)
    }

    fn note_dark(&mut self, step: &Step) {
        self.realms |= step.attributes.iter().any(|attribute| attribute.starts_with("realm "));
        let is_ours = step.place == Place::Router;
        for line in step.text.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                // Linux counts the users of an anycast address wrongly where a link has no ARP, and then leaves out its
                // route; it also forgets the neighbors.
                ["link", "set", name, "arp", "off"] if is_ours => {
                    self.anycast = false;
                    self.dark.insert(name.to_owned());
                }
                // Linux forgets the neighbors of a link with another MAC, or without ARP.
                ["link", "set", name, "address", ..] | ["link", "set", name, "arp", ..] if is_ours => {
                    self.dark.insert(name.to_owned());
                }
                ["addr", "add", prefix, "dev", "lo", ..] if is_ours => {
                    self.dark.insert(prefix.to_owned());
                }
                ["addr", "del", prefix, "dev", "lo", ..] if is_ours => drop(self.dark.remove(prefix)),
                // Linux ignores a gateway that was local when the route was added, and then asks for the destination.
                ["addr", "add" | "replace", local @ "198.51.100.9/24", ..]
                | ["route", _, "local", local @ "default", ..]
                    if is_ours =>
                {
                    self.dark.insert(local.to_owned());
                }
                // Linux forgets the neighbors of IPv6, which routes of IPv4 may lead to, too.
                [file, "0"] if file.starts_with("net/ipv6/") && file.ends_with("/forwarding") => {
                    self.anycast = false;
                }
                [file, "1"] if file.ends_with("/disable_ipv6") => {
                    let names = SIDES.iter().map(|side| side.router());
                    let off = names.filter(|name| [name, "all"].iter().any(|of| file.contains(of)));
                    self.dark.extend(off.map(str::to_owned));
                }
                ["link", "set", name, "down", ..] => drop(self.dark.insert(name.to_owned())),
                // The lines of a port that comes up contain its neighbors.
                ["link", "set", name, "up", ..] => drop(self.dark.remove(name)),
                _ => {}
            }
        }
    }

    /// Whether what comes of a frame is compared.
    fn is_compared(&self, seen: &Seen) -> bool {
        (self.dark.is_empty() || !is_multipath(seen))
            && (self.anycast || !is_anycast(&seen.frame))
            && !(self.realms && is_from_broadcast(&seen.frame))
            && !(self.filtered && is_answer_of_route(&seen.frame))
    }

    /// Takes a step while packets pass, and keeps what comes of them until Linux's state after the step is known.
    fn take_during(&mut self, step: &Step) -> Vec<Result<String, String>> {
        self.round += 1;
        let (token, probes) = (probes::token(self.round), probes::of_stream(self.round));
        let taken = beds::each(self.beds, |bed| bed.take_during(step, &probes, token));
        self.has_failed_to_tell = self.beds.iter().any(Bed::has_failed_to_tell);
        self.during.clear();
        let mut messages = Vec::new();
        for taken in taken {
            match taken {
                Ok(taken) => {
                    self.counts.during += taken.sent;
                    self.during.push(taken.seen);
                    messages.push(Ok(taken.message));
                }
                Err(why) => messages.push(Err(why)),
            }
        }
        // Between two lines there are states that a packet need not meet in each lab.
        if step.text.lines().count() > 1 {
            self.during.clear();
        }
        messages
    }

    /// What a subject has sent while the last step was made, and Linux would have sent neither before nor after it.
    fn difference_during(&mut self, before: &[Seen], last: Option<Kind>) -> Option<Difference> {
        let during = std::mem::take(&mut self.during);
        let of_linux = during.first()?.iter().chain(before).chain(&self.before);
        let possible: HashSet<_> = of_linux.filter_map(trace).collect();
        // Linux looks up the way of a packet, and then that of the error about it: a rule may come in between, or a route go
        // that it still finds for one of them. And when the first rule is added, it takes local routes out of the main table
        // before it looks into another one.
        let rules_change = last == Some(Kind::Rule);
        let routes_change = matches!(last, Some(Kind::Route4 | Kind::Route6 | Kind::Multipath));
        for (bed, seen) in self.beds.iter().zip(&during).skip(1) {
            let wrong = seen.iter().filter(|seen| self.is_compared(seen)).find(|seen| {
                trace(seen).is_some_and(|trace| {
                    let may_be_between = (rules_change && trace.is_to(probes::OWN4))
                        || ((rules_change || routes_change) && trace.is_no_route());
                    // Only Linux sends port unreachable, about packets that were left to it; in the middle of a step its
                    // tables may be in a state that neither round shows.
                    let may_be_untold = self.has_failed_to_tell && is_own_icmp(&seen.frame);
                    !possible.contains(&trace)
                        && !may_be_between
                        && !may_be_untold
                        && !trace.is_port_unreachable()
                })
            });
            if let Some(wrong) = wrong {
                let what = format!(
                    "while the step was made it sent what Linux sends neither before nor after it\n  only it: {}",
                    describe(wrong)
                );
                return Some((bed.subject.clone(), what));
            }
        }
        None
    }

    /// Sends a round of packets and compares what comes of them; again while a change may not have had its effect.
    pub fn probe(&mut self, last: Option<Kind>) -> Option<Difference> {
        let begin = Instant::now();
        let bound = match last {
            // Which packets a limit takes depends on the order in which those of the sides come, as long as it takes any.
            Some(kind) if kind.is_announced() && !self.limited => {
                self.settings_read.saturating_duration_since(begin)
            }
            _ => self.unannounced,
        };
        let before = std::mem::take(&mut self.before);
        let mut lossy = 0;
        loop {
            let Some((subject, what)) = self.compare() else {
                return self.difference_during(&before, last);
            };
            if begin.elapsed() > bound {
                if lossy == LOSSY || self.beds.iter().map(Bed::lost).sum::<u64>() == 0 {
                    return Some((subject.clone(), what + &self.counters_of(&subject)));
                }
                lossy += 1;
                self.counts.lossy += 1;
            }
            self.counts.transient += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// How Linux's counters have grown in the lab of a subject, where that differs from Linux alone.
    fn counters_of(&self, subject: &Subject) -> String {
        let bed = self.beds.iter().find(|bed| bed.subject == subject);
        bed.map(|bed| format!("\n  counters here/there:{}", bed.counters_beside(&self.beds[0])))
            .unwrap_or_default()
    }

    /// One round whose differences do not matter: it shows what Linux does.
    pub fn look(&mut self) {
        let _before = self.compare();
    }

    /// One round.
    fn compare(&mut self) -> Option<Difference> {
        self.round += 1;
        let (token, probes) = (probes::token(self.round), probes::of_round(self.round));
        self.counts.rounds += 1;
        self.counts.probes += probes.len() as u64;
        let mut heard = beds::each(self.beds, |bed| bed.exchange(&probes, token));
        let mut deadline = Instant::now() + LATE;
        loop {
            let difference = self.difference(&heard);
            if difference.is_none() || Instant::now() > deadline {
                self.has_failed_to_tell |= self.beds.iter().any(Bed::has_failed_to_tell);
                self.counts.frames += heard[0].len() as u64;
                self.before = heard.swap_remove(0);
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
        heard.iter_mut().for_each(|heard| heard.retain(|seen| self.is_compared(seen)));
        let equal = heard.iter().skip(1).all(|seen| *seen == heard[0]);
        if equal {
            return None;
        }
        if self.beds.iter().any(Bed::has_failed_to_tell) {
            heard.iter_mut().for_each(|heard| heard.retain(|seen| !is_own_icmp(&seen.frame)));
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

/// Takes steps of a seed until there are `count` of them, time is over, or something differs.
pub fn run(subjects: &[Subject], seed: u64, count: u64, until: Instant) -> (Counts, Option<Finding>) {
    beds::with(subjects, |beds| {
        let mut run = Run::new(beds, 0, UNANNOUNCED);
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
