//! The report of a state on request: its apps, its links, its compiler.
//!
//! ```text
//! control thread: ReportSlots::ask ─► ReportSlot.asked ··· the engine sees it between two breaths ─► core.report ─► ReportSlot.answer
//! ```
//!
//! Nothing is collected until it is requested, so the packet path pays only an occasional load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use bm_sys::Mutex;
use serde::Deserialize;

/// A worker of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// Its number, from 0.
    pub worker: usize,
    /// Whether its thread runs: false once it has panicked.
    #[serde(skip)]
    pub alive: bool,
    /// Rounds through its apps.
    pub breaths: u64,
    /// Packets that went into its links.
    pub moves: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// Its apps in Lua, by name.
    pub apps: Vec<AppReport>,
    /// Its links, by name.
    pub links: Vec<LinkReport>,
    /// Its compiler and its garbage.
    pub jit: JitReport,
}

/// The account of an app: received + originated = sent + held + consumed + dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AppReport {
    pub name: String,
    /// Packets that it took from links.
    pub received: u64,
    /// Packets allocated, beyond those freed.
    pub originated: u64,
    /// Packets sent to links.
    pub sent: u64,
    /// Packets held.
    pub held: u64,
    /// Packets freed, beyond those allocated, without those dropped.
    pub consumed: u64,
    /// Packets dropped because a link was full.
    pub dropped: u64,
}

/// A link between two apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LinkReport {
    /// As `app.output -> app.input`.
    pub name: String,
    /// Packets sent into the link.
    pub txpackets: u64,
    /// Bytes sent into the link.
    pub txbytes: u64,
    /// Packets received from the link.
    pub rxpackets: u64,
    /// Bytes received from the link.
    pub rxbytes: u64,
    /// Packets that found it full.
    pub txdrop: u64,
}

/// Statistics of LuaJIT in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct JitReport {
    /// Traces compiled.
    pub traces: u64,
    /// Aborted trace recordings.
    pub aborts: u64,
    /// Times that all traces were thrown away.
    pub flushes: u64,
    /// Bytes of machine code of the traces that there are.
    pub code_bytes: u64,
    /// Bytes managed by the garbage collector.
    pub heap_bytes: u64,
}

/// Where a worker's report is requested.
#[derive(Default)]
pub(crate) struct ReportSlot {
    asked: AtomicI32,
    answer: Mutex<Answer>,
    answered: Condvar,
    /// The thread of the worker has panicked: there will be no further answer.
    panicked: AtomicBool,
}

/// A requested report.
struct Request {
    worker: usize,
    slot: Arc<ReportSlot>,
    /// The number of answers before this one.
    answers_before: u64,
}

impl Request {
    fn new(worker: usize, slot: Arc<ReportSlot>) -> Self {
        let answers_before = slot.answer.lock().count;
        slot.asked.store(1, Ordering::Relaxed);
        Self { worker, slot, answers_before }
    }

    /// The answer, or the last one if there is none in time; `None` if there has never been one.
    fn wait_until(self, end: Instant) -> Option<Report> {
        let slot = &self.slot;
        let mut answer = slot.answer.lock();
        loop {
            if slot.panicked.load(Ordering::Acquire) {
                return Some(Report { worker: self.worker, alive: false, ..answer.last.clone() });
            }
            let left = end.saturating_duration_since(Instant::now());
            if answer.count > self.answers_before || left.is_zero() {
                return (answer.count > 0).then(|| Report { alive: true, ..answer.last.clone() });
            }
            answer = slot.answered.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The answers of a worker.
#[derive(Default)]
struct Answer {
    count: u64,
    last: Report,
}

impl ReportSlot {
    /// The flag that Lua checks.
    pub(crate) fn request_flag(&self) -> *const AtomicI32 {
        &self.asked
    }

    /// Called by the worker.
    pub fn answer(&self, report: Report) {
        let mut answer = self.answer.lock();
        *answer = Answer { count: answer.count + 1, last: report };
        self.asked.store(0, Ordering::Relaxed);
        self.answered.notify_all();
    }
}

/// Where reports of a program's workers are requested.
#[derive(Clone, Default)]
pub struct ReportSlots(Arc<Mutex<BTreeMap<usize, Arc<ReportSlot>>>>);

impl ReportSlots {
    pub(crate) fn open(&self, worker: usize, report_slot: &Arc<ReportSlot>) {
        self.0.lock().insert(worker, report_slot.clone());
    }

    /// The worker ends. One that ends by a panic stays in the reports, as no longer alive, until another takes its
    /// place.
    pub(crate) fn close(&self, worker: usize, report_slot: &Arc<ReportSlot>) {
        if std::thread::panicking() {
            report_slot.panicked.store(true, Ordering::Release);
            report_slot.answered.notify_all();
            return;
        }
        let mut report_slots = self.0.lock();
        if report_slots.get(&worker).is_some_and(|open| Arc::ptr_eq(open, report_slot)) {
            report_slots.remove(&worker);
        }
    }

    /// The reports of all workers, by number. For a worker that does not answer within `patience`, because it is busy
    /// with something other than packets, this is its last answer; one that never answered is left out.
    pub fn ask(&self, patience: Duration) -> Vec<Report> {
        let report_slots = self.0.lock().clone();
        let requests: Vec<Request> =
            report_slots.into_iter().map(|(worker, slot)| Request::new(worker, slot)).collect();
        let end = Instant::now() + patience;
        requests.into_iter().filter_map(|request| request.wait_until(end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_reports_of_workers_that_do_not_answer() {
        let (report_slots, here, away) =
            (ReportSlots::default(), Arc::new(ReportSlot::default()), Arc::new(ReportSlot::default()));
        let breaths = |reports: &[Report]| reports.iter().map(|report| report.breaths).collect::<Vec<_>>();
        report_slots.open(0, &here);
        let answering = here.clone();
        let worker = std::thread::spawn(move || {
            while answering.asked.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            answering.answer(Report { breaths: 3, ..Report::default() });
        });
        assert_eq!(breaths(&report_slots.ask(Duration::from_secs(600))), [3]);
        worker.join().unwrap();
        report_slots.open(1, &away);
        assert_eq!(breaths(&report_slots.ask(Duration::ZERO)), [3], "one has never answered");
        away.answer(Report { worker: 1, breaths: 7, ..Report::default() });
        assert_eq!(breaths(&report_slots.ask(Duration::ZERO)), [3, 7], "as they were");
        report_slots.close(1, &here);
        report_slots.close(0, &here);
        assert_eq!(breaths(&report_slots.ask(Duration::ZERO)), [7]);
    }

    #[test]
    fn a_worker_that_panicked_is_reported_until_another_takes_its_place() {
        let (report_slots, slot) = (ReportSlots::default(), Arc::new(ReportSlot::default()));
        report_slots.open(2, &slot);
        slot.answer(Report { worker: 2, breaths: 7, ..Report::default() });
        let state = |reports: &[Report]| {
            reports.iter().map(|report| (report.worker, report.alive, report.breaths)).collect::<Vec<_>>()
        };
        assert_eq!(state(&report_slots.ask(Duration::ZERO)), [(2, true, 7)]);
        struct Ends(ReportSlots, Arc<ReportSlot>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.close(2, &self.1);
            }
        }
        let ends = Ends(report_slots.clone(), slot);
        let thread = std::thread::spawn(move || {
            let _ends = ends;
            std::panic::resume_unwind(Box::new("without a message"));
        });
        assert!(thread.join().is_err());
        assert_eq!(state(&report_slots.ask(Duration::from_secs(600))), [(2, false, 7)]);
        report_slots.open(2, &Arc::new(ReportSlot::default()));
        assert_eq!(state(&report_slots.ask(Duration::ZERO)), []);
    }
}
