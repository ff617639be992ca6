//! `brickmoon verify`: compares the kernel's tables, the mirror, the compiled tables and the programs on ports.

use std::sync::mpsc::Sender;
use std::time::Instant;

use bm_api::{Area, Verify};
use bm_netlink::Audit;

use super::Control;

/// Maximum number of differences in a reply.
const LISTED: usize = 1000;

/// A request that waits for a comparison.
pub(in crate::control_thread) struct VerifyRequest {
    answer: Sender<Verify>,
    since: Instant,
}

impl VerifyRequest {
    pub fn new(answer: Sender<Verify>) -> Self {
        Self { answer, since: Instant::now() }
    }
}

impl Control {
    pub(in crate::control_thread) fn request_verify(&mut self, pending: VerifyRequest) {
        self.verifying.push(pending);
        self.watch.request_audit(Instant::now());
    }

    /// Answers requests from before the comparison began; later ones wait for the next.
    pub(super) fn answer_verify(&mut self, audit: &Audit) {
        let began = Instant::now() - audit.took;
        let (answered, waiting) =
            std::mem::take(&mut self.verifying).into_iter().partition(|pending| pending.since <= began);
        self.verifying = waiting;
        if !self.verifying.is_empty() {
            self.watch.request_audit(Instant::now());
        }
        let answered: Vec<VerifyRequest> = answered;
        if answered.is_empty() {
            return;
        }
        let verify = self.compared(audit);
        for pending in answered {
            let took_ms = pending.since.elapsed().as_millis() as u64;
            let _gone = pending.answer.send(Verify { took_ms, ..verify.clone() });
        }
    }

    /// Differences in the mirror, the tables and the settings of programs. They are corrected after this.
    fn compared(&mut self, audit: &Audit) -> Verify {
        let began = Instant::now();
        let compiled = self.compiler.verify(self.watch.mirror());
        let programs = [self.steering_differences(), self.kernel_differences()].concat();
        // Entries that find no room are tried again anyway; everything else is compiled again at once.
        if !programs.is_empty() || compiled.differences.iter().any(|(area, _)| *area == Area::Compiled) {
            self.last_steering = None;
            self.retry_at = Some(began);
        }
        let total = audit.findings.count + compiled.count + programs.len();
        let mirror = audit.findings.list.iter().map(|found| (Area::Mirror, found.to_string()));
        let programs = programs.into_iter().map(|found| (Area::Programs, found));
        let all = mirror.chain(compiled.differences).chain(programs).take(LISTED);
        Verify {
            notes: self.compiler.notes(self.watch.mirror()),
            differences: all.map(|(area, message)| bm_api::Difference { area, message }).collect(),
            differences_total: total,
            equal: total == 0,
            compared: compiled.compared as u64,
            ..Verify::default()
        }
    }
}
