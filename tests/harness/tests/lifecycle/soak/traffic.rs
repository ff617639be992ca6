//! A stream that runs for hours, in which every packet is tracked with little memory.
//!
//! A packet that has not arrived [`WINDOW`] packets later is lost. Sender and receiver have threads of their own.

use bm_tests::flow::{self, Stream};
use bm_tests::lab::{Lab, Side};
use bm_tests::sys::{self, PacketSocket};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many packets late one may arrive before it counts as lost: a minute and a half at 10,000 a second.
const WINDOW: usize = 1 << 20;
/// How many runs of lost packets are recorded.
const RUNS: usize = 1000;
/// How long to wait for stragglers at the end.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// The rate is measured in steps of this length.
const STEP: Duration = Duration::from_secs(1);

/// Packets with consecutive numbers that were lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Number of the first packet.
    pub first: u32,
    /// How many packets.
    pub length: u32,
}

/// What has happened to the packets of a stream so far.
#[derive(Debug, Default)]
pub struct Ledger {
    /// For each number from `base` on, whether it has arrived.
    window: VecDeque<bool>,
    base: u32,
    /// Packets that arrived, each once.
    pub received: u64,
    /// Packets that arrived again.
    pub twice: u64,
    /// Packets that arrived after they had been counted as lost.
    pub late: u64,
    /// Packets that did not arrive.
    pub lost: u64,
    /// The first runs of lost packets.
    pub runs: Vec<Run>,
    /// Longest delay, from the sender's call to the receiver's interface.
    pub slowest: Duration,
    /// Packets that arrived in each [`STEP`].
    pub rates: Vec<u32>,
    /// Packets for which the receiver's own socket had no room.
    pub overflowed: u64,
}

impl Ledger {
    fn arrived(&mut self, number: u32) {
        let Some(place) = number.checked_sub(self.base).map(|place| place as usize) else {
            self.late += 1;
            return;
        };
        if place >= self.window.len() {
            self.window.resize(place + 1, false);
        }
        if std::mem::replace(&mut self.window[place], true) {
            self.twice += 1;
        } else {
            self.received += 1;
        }
        self.settle(self.window.len().saturating_sub(WINDOW));
    }

    /// Counts the oldest packets of the window as received or lost.
    fn settle(&mut self, count: usize) {
        for seen in self.window.drain(..count) {
            if !seen {
                self.lost += 1;
                let kept = self.runs.len();
                match self.runs.last_mut() {
                    Some(run) if run.first + run.length == self.base => run.length += 1,
                    _ if kept < RUNS => self.runs.push(Run { first: self.base, length: 1 }),
                    _ => {}
                }
            }
            self.base += 1;
        }
    }

    /// Counts all of the `sent` packets that have not arrived as lost.
    fn close(&mut self, sent: u32) {
        self.window.resize((sent - self.base) as usize, false);
        self.settle(self.window.len());
    }
}

/// Result of a stream.
#[derive(Debug)]
pub struct Outcome {
    /// Packets that the sender's interface accepted.
    pub sent: u32,
    /// How many times it refused a packet, which was then sent again.
    pub refused: u64,
    /// What happened to them.
    pub ledger: Ledger,
}

/// Sends while `action` runs.
pub fn during<T>(stream: &Stream, lab: &Lab, action: impl FnOnce() -> T) -> (T, Outcome) {
    let sender = lab.src.packet_socket(Side::Src.host());
    let receiver = lab.snk.packet_socket(Side::Snk.host());
    let [stop_sending, stop_receiving] = [AtomicBool::new(false), AtomicBool::new(false)];
    let refused = AtomicU64::new(0);
    let count = |_: &std::io::Error| {
        refused.fetch_add(1, Ordering::Relaxed);
    };
    let take = |frame: &[u8]| sender.send(frame).inspect_err(count);
    let (done, sent, ledger) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, &stop_sending, &stop_receiving));
        let sending = scope.spawn(|| flow::send(take, stream.frames(), stream.rate, &stop_sending));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        stop_sending.store(true, Ordering::Relaxed);
        let sent = sending.join().expect("the sender does not panic");
        std::thread::sleep(STRAGGLERS);
        stop_receiving.store(true, Ordering::Relaxed);
        let mut ledger = receiving.join().expect("the receiver does not panic");
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ledger.close(sent);
        (done, sent, ledger)
    });
    (done, Outcome { sent, refused: refused.load(Ordering::Relaxed), ledger })
}

fn receive(socket: &PacketSocket, is_last: &AtomicBool, stop: &AtomicBool) -> Ledger {
    let mut ledger = Ledger::default();
    let mut step = (Instant::now(), 0);
    let mut stopped = false;
    while !stopped {
        // Checked first: a thread that was delayed until after the stop still receives what came before it.
        stopped = stop.load(Ordering::Relaxed);
        // An error shows as loss.
        let _ = sys::wait_readable(&[socket], Duration::from_millis(50));
        while let Ok(Some(captured)) = socket.receive() {
            let Some(arrival) = flow::arrival(&captured.frame, captured.at, Side::Snk) else { continue };
            ledger.slowest = ledger.slowest.max(arrival.at.saturating_sub(arrival.sent));
            ledger.arrived(arrival.number);
        }
        if step.0.elapsed() >= STEP {
            let rate = (ledger.received - step.1) as f64 / step.0.elapsed().as_secs_f64();
            // Packets that arrive after the end of sending are not part of the rate.
            ledger.rates.extend((!is_last.load(Ordering::Relaxed)).then_some(rate as u32));
            step = (Instant::now(), ledger.received);
            ledger.overflowed += u64::from(socket.overflowed().unwrap_or_default());
        }
    }
    ledger.overflowed += u64::from(socket.overflowed().unwrap_or_default());
    ledger
}

#[test]
fn a_ledger_counts_missing_packets() {
    let mut ledger = Ledger::default();
    let count = WINDOW as u32 + 1000;
    let is_lost = |number: &u32| [5, 6, 7, 900].contains(number) || *number == count - 1;
    (0..count).filter(|number| !is_lost(number)).for_each(|number| ledger.arrived(number));
    // A packet that was counted as lost, and one that arrives twice.
    ledger.arrived(6);
    ledger.arrived(count - 2);
    assert_eq!((ledger.lost, ledger.late, ledger.twice), (4, 1, 1));
    ledger.close(count);
    assert_eq!((ledger.received + ledger.lost, ledger.lost), (u64::from(count), 5));
    let runs: Vec<_> = ledger.runs.iter().map(|run| (run.first, run.length)).collect();
    assert_eq!(runs, [(5, 3), (900, 1), (count - 1, 1)]);
}
