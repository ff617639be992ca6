//! Makes a finding small: repeats its steps in new labs, without some of them.

use crate::model::beds::{self, Bed};
use crate::model::run::{Difference, Finding, Run};
use crate::model::step::Step;
use bm_tests::subject::Subject;
use std::time::{Duration, Instant};

/// How long a change may take that the kernel does not announce: less than in `run`, where the difference lasted longer.
const UNANNOUNCED: Duration = Duration::from_millis(2500);

/// Repeats steps in new labs; what then differs.
pub fn replay(subject: &Subject, steps: &[Step], probed: bool) -> Option<Difference> {
    let subjects = [Subject::Linux, subject.clone()];
    beds::with(&subjects, |beds: &mut [Bed]| {
        let mut run = Run::new(beds, 0x4000, UNANNOUNCED);
        for (index, step) in steps.iter().enumerate() {
            let last = index + 1 == steps.len();
            if last {
                run.look();
            }
            match run.take(step) {
                Err(difference) if last => return Some(difference),
                // It differs earlier, and differently.
                Err(_) => return None,
                Ok(_) if last || probed => {
                    let difference = run.probe(Some(step.kind));
                    if difference.is_some() {
                        return difference;
                    }
                }
                Ok(_) => {}
            }
        }
        None
    })
}

/// A smaller list of steps after which the subject still differs, and how; `None` if it does not when repeated.
pub fn shrink(finding: &Finding, until: Instant) -> Option<Finding> {
    let mut probed = false;
    let mut best = finding.clone();
    best.what = match replay(&finding.subject, &finding.steps, false) {
        Some((_, what)) => what,
        None => {
            probed = true;
            replay(&finding.subject, &finding.steps, true)?.1
        }
    };
    let mut size = best.steps.len() / 2;
    // The last step has shown it, perhaps because it was given more time.
    while best.steps.len() > 1 && Instant::now() < until {
        let fewer = best.steps[..best.steps.len() - 1].to_vec();
        if !better(&mut best, fewer, probed) {
            break;
        }
    }
    while size > 0 && Instant::now() < until {
        let mut at = 0;
        // The last step shows the difference.
        while at + 1 < best.steps.len() && Instant::now() < until {
            let end = (at + size).min(best.steps.len() - 1);
            let fewer = [&best.steps[..at], &best.steps[end..]].concat();
            if !better(&mut best, fewer, probed) {
                at = end;
            }
        }
        size /= 2;
    }
    let mut at = 0;
    while at < best.steps.len() && Instant::now() < until {
        let simpler = best.steps[at].simpler().into_iter().find(|simpler| {
            let mut steps = best.steps.clone();
            steps[at] = simpler.clone();
            Instant::now() < until && replay(&best.subject, &steps, probed).is_some()
        });
        match simpler {
            Some(simpler) => best.steps[at] = simpler,
            None => at += 1,
        }
    }
    Some(best)
}

/// Whether the subject still differs after these steps; keeps them if so.
fn better(best: &mut Finding, steps: Vec<Step>, probed: bool) -> bool {
    let Some((_, what)) = replay(&best.subject, &steps, probed) else { return false };
    *best = Finding { steps, what, ..best.clone() };
    true
}
