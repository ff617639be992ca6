//! A steady stream through the router, and its losses while something happens.
//!
//! ```text
//!   sender thread ── one packet each tick, numbered ──► router ──► receiver thread
//! ```
//!
//! Both threads have their own sockets, so the test may use the lab's meanwhile. Losses are counted by sequence
//! number, not by time: a busy machine delays the sender, and that must not look like the router's fault.

use crate::lab::{Lab, SIDES, Side};
use crate::packet::{Ip4, Ip6};
use crate::sys::{self, PacketSocket};
use crate::usage;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Marks a packet of a stream; its number and the time of sending follow.
const MARK: &[u8; 8] = b"bm-flow:";
/// How long the stream continues after the event, so that late losses are noticed.
const TAIL: Duration = Duration::from_millis(300);
/// How long stragglers are waited for.
const STRAGGLERS: Duration = Duration::from_millis(300);

/// What to send from the source.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Destinations, used in turn; IPv4 or IPv6 according to their text.
    pub destinations: Vec<String>,
    /// Packets a second.
    pub rate: u32,
}

/// The result of a stream.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Packets sent.
    pub sent: u32,
    /// Numbers that arrived, each once.
    pub received: u32,
    /// Packets that arrived again.
    pub twice: u32,
    /// Packets that arrived after a later one to the same destination.
    pub out_of_order: u32,
    /// Longest run of numbers missing.
    pub longest_loss: u32,
    /// Time of sending from the last packet before the first loss to the first after the last loss.
    pub loss_span: Duration,
    /// Longest time between two arrivals, less the sender's own delay there.
    pub longest_gap: Duration,
    /// Packets that arrived at each end.
    pub at: [u32; 3],
    /// Frames that this machine lost meanwhile, by its own counters: in the full backlog of a processor, or in the socket
    /// of a receiver that had no time to read it. Some may have been others'.
    pub lost_by_machine: u32,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, twice, out_of_order, longest_loss, longest_gap, lost_by_machine, .. } =
            self;
        write!(
            f,
            "{sent} sent, {} lost (longest run {longest_loss}, {lost_by_machine} by the machine), {twice} twice, {out_of_order} out of order, longest gap {:.1} ms",
            sent - received,
            longest_gap.as_secs_f64() * 1e3,
        )
    }
}

impl Outcome {
    /// Packets that did not arrive.
    pub fn lost(&self) -> u32 {
        self.sent - self.received
    }

    /// Packets that did not arrive and that the machine cannot have lost.
    pub fn lost_by_router(&self) -> u32 {
        self.lost().saturating_sub(self.lost_by_machine)
    }
}

/// A packet's arrival.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its number: packets are counted from zero.
    pub number: u32,
    /// When it was sent: time since 1970.
    pub sent: Duration,
    /// When it arrived.
    pub at: Duration,
    /// At which end.
    pub side: Side,
}

impl Stream {
    /// A stream to one destination.
    pub fn to(destination: &str, rate: u32) -> Self {
        Self::to_all(&[destination], rate)
    }

    /// A stream to several destinations in turn.
    pub fn to_all(destinations: &[&str], rate: u32) -> Self {
        Self { destinations: destinations.iter().map(ToString::to_string).collect(), rate }
    }

    /// Sends while `action` runs, and a little longer.
    pub fn during<T>(&self, lab: &Lab, action: impl FnOnce() -> T) -> (T, Outcome) {
        let before = usage::backlog_drops();
        let (done, sent, (arrivals, overflowed)) = self.arrivals_during(lab, action);
        let mut outcome = evaluate(sent, arrivals, self.destinations.len() as u32);
        outcome.lost_by_machine = overflowed + (usage::backlog_drops() - before) as u32;
        (done, outcome)
    }

    /// The same. Returns the number of each packet that arrived, and when it was sent (time since 1970): in order, each
    /// once.
    pub fn passed_during<T>(&self, lab: &Lab, action: impl FnOnce() -> T) -> (T, Vec<(u32, Duration)>) {
        let (done, _, (arrivals, _)) = self.arrivals_during(lab, action);
        let mut passed: Vec<_> = arrivals.iter().map(|arrival| (arrival.number, arrival.sent)).collect();
        passed.sort_unstable();
        passed.dedup();
        (done, passed)
    }

    /// Also returns how many were sent, and, beside the arrivals, how many the receivers' sockets had no room for.
    fn arrivals_during<T>(&self, lab: &Lab, action: impl FnOnce() -> T) -> (T, u32, (Vec<Arrival>, u32)) {
        let sender = lab.src.packet_socket(Side::Src.host());
        let receivers = SIDES.map(|side| lab.host(side).packet_socket(side.host()));
        let (frames, began) = (self.frames(), sys::wall_clock());
        let [stop_sending, stop_receiving] = [AtomicBool::new(false), AtomicBool::new(false)];
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&receivers, &stop_receiving));
            let sending = scope.spawn(|| send(|frame| sender.send(frame), frames, self.rate, &stop_sending));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
            std::thread::sleep(TAIL);
            stop_sending.store(true, Ordering::Relaxed);
            let sent = sending.join().expect("the sender does not panic");
            std::thread::sleep(STRAGGLERS);
            stop_receiving.store(true, Ordering::Relaxed);
            let mut arrivals = receiving.join().expect("the receiver does not panic");
            // Packets of an earlier stream may have waited somewhere, such as in a queue of a process that was stopped.
            arrivals.retain(|arrival| arrival.sent >= began);
            let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let overflowed =
                receivers.iter().map(|socket| socket.overflowed().expect("a packet socket")).sum();
            (done, sent, (arrivals, overflowed))
        })
    }

    /// A frame for each destination, for [`send`].
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.destinations.iter().map(|to| template(to)).collect()
    }

    /// Sends for this time, while nothing else happens.
    pub fn for_a_while(&self, lab: &Lab, time: Duration) -> Outcome {
        self.during(lab, || std::thread::sleep(time)).1
    }
}

/// A frame of a stream; the last 12 bytes get number and time.
fn template(destination: &str) -> Vec<u8> {
    let data = [&MARK[..], &[0; 12]].concat();
    // No checksum over what changes in each packet: zero means none in IPv4. IPv6 does not allow that, so there the
    // stream uses a protocol without a checksum.
    let packet = if destination.contains(':') {
        Ip6::new(&Side::Src.v6(2), destination, 253, data).bytes()
    } else {
        let mut packet = Ip4::udp_ports(&Side::Src.v4(2), destination, 4000, 5000, &data);
        packet.payload[6..8].fill(0);
        packet.bytes()
    };
    Side::Src.to_router(&packet)
}

/// Sends by the clock: after a pause, everything that was due in it. Returns how many packets were accepted.
pub fn send(
    take: impl Fn(&[u8]) -> std::io::Result<()>,
    mut frames: Vec<Vec<u8>>,
    rate: u32,
    stop: &AtomicBool,
) -> u32 {
    let start = Instant::now();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        while number < due {
            let index = number as usize % frames.len();
            let frame = &mut frames[index];
            let at = frame.len() - 12;
            frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
            let now = sys::wall_clock().as_nanos() as u64;
            frame[at + 4..].copy_from_slice(&now.to_be_bytes());
            // A full queue at our own end is not the router's loss: try again.
            while take(frame).is_err() {
                if stop.load(Ordering::Relaxed) {
                    return number;
                }
                std::thread::yield_now();
            }
            number += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    number
}

fn receive(sockets: &[PacketSocket; 3], stop: &AtomicBool) -> Vec<Arrival> {
    let all = sockets.each_ref();
    let mut arrivals = Vec::new();
    let mut stopped = false;
    while !stopped {
        // Checked first: a thread that was delayed until after the stop still receives what came before it.
        stopped = stop.load(Ordering::Relaxed);
        // An error shows as loss.
        let _ = sys::wait_readable(&all, Duration::from_millis(50));
        for side in SIDES {
            while let Ok(Some(captured)) = sockets[side as usize].receive() {
                arrivals.extend(arrival(&captured.frame, captured.at, side));
            }
        }
    }
    arrivals
}

/// The content of a captured frame, if it belongs to a stream.
pub fn arrival(frame: &[u8], at: Duration, side: Side) -> Option<Arrival> {
    let start = frame.len().checked_sub(20)?;
    let (mark, rest) = frame[start..].split_at(8);
    let (number, sent) = rest.split_at(4);
    let number = u32::from_be_bytes(number.try_into().ok()?);
    let sent = Duration::from_nanos(u64::from_be_bytes(sent.try_into().ok()?));
    (mark == MARK).then_some(Arrival { number, sent, at, side })
}

fn evaluate(sent: u32, mut arrivals: Vec<Arrival>, destinations: u32) -> Outcome {
    let mut outcome = Outcome { sent, ..Outcome::default() };
    arrivals.sort_by_key(|arrival| arrival.at);
    let mut latest: HashMap<u32, u32> = HashMap::new();
    let mut seen = vec![false; sent as usize];
    for arrival in &arrivals {
        outcome.at[arrival.side as usize] += 1;
        let last = latest.entry(arrival.number % destinations).or_default();
        outcome.out_of_order += u32::from(arrival.number < *last);
        *last = (*last).max(arrival.number);
        if let Some(seen) = seen.get_mut(arrival.number as usize) {
            outcome.twice += u32::from(std::mem::replace(seen, true));
        }
    }
    outcome.received = seen.iter().filter(|seen| **seen).count() as u32;
    outcome.loss_span = loss_span(&seen, &arrivals);
    let runs = seen.split(|seen| *seen).map(<[bool]>::len);
    outcome.longest_loss = runs.max().unwrap_or_default() as u32;
    outcome.longest_gap = arrivals.windows(2).map(gap).max().unwrap_or_default();
    outcome
}

/// How long packets were being lost, by the times of sending of the packets around them.
fn loss_span(seen: &[bool], arrivals: &[Arrival]) -> Duration {
    let (Some(first), Some(last)) = (seen.iter().position(|seen| !seen), seen.iter().rposition(|seen| !seen))
    else {
        return Duration::ZERO;
    };
    let before =
        arrivals.iter().filter(|arrival| (arrival.number as usize) < first).map(|arrival| arrival.sent);
    let behind = arrivals.iter().filter(|arrival| arrival.number as usize > last).map(|arrival| arrival.sent);
    match (before.max(), behind.min()) {
        (Some(before), Some(behind)) => behind.saturating_sub(before),
        _ => Duration::MAX,
    }
}

/// Time between two arrivals, without the sender's own pause. If packets between the two were lost, only the delay of
/// the second against an even pace is subtracted.
fn gap(pair: &[Arrival]) -> Duration {
    let [first, second] = pair else { return Duration::ZERO };
    let apart = second.at.saturating_sub(first.at);
    if second.number == first.number + 1 {
        apart.saturating_sub(second.sent.saturating_sub(first.sent))
    } else {
        apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(list: &[(u32, u64, u64)]) -> Vec<Arrival> {
        let one = |&(number, sent, at): &(u32, u64, u64)| Arrival {
            number,
            sent: Duration::from_millis(sent),
            at: Duration::from_millis(at),
            side: Side::Snk,
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn counts_only_packets_that_were_accepted() {
        let (stop, tries) = (AtomicBool::new(false), std::cell::Cell::new(0));
        let full = |_: &[u8]| {
            tries.set(tries.get() + 1);
            stop.store(tries.get() >= 8, Ordering::Relaxed);
            if tries.get() <= 5 { Ok(()) } else { Err(std::io::ErrorKind::WouldBlock.into()) }
        };
        assert_eq!(send(full, vec![template("192.0.2.1")], 100_000, &stop), 5);
    }

    #[test]
    fn receives_what_arrived_before_the_stop() {
        if !sys::is_root() {
            return crate::report::skip("flow", "needs root for a network namespace");
        }
        let namespace = crate::netns::Namespace::new("flow", "lo");
        namespace.ip("link set lo up");
        let sockets = [0; 3].map(|_| namespace.packet_socket("lo"));
        let frame = template("192.0.2.1");
        (0..10).for_each(|_| sockets[0].send(&frame).expect("a frame on lo"));
        let arrivals = receive(&sockets, &AtomicBool::new(true));
        assert_eq!(arrivals.len(), 30, "ten at each end");
    }

    #[test]
    fn counts_missing_packets() {
        let outcome = evaluate(7, arrivals(&[(0, 0, 1), (1, 1, 2), (4, 4, 9), (3, 3, 10), (4, 4, 11)]), 1);
        assert_eq!((outcome.received, outcome.lost(), outcome.longest_loss), (4, 3, 2));
        assert_eq!((outcome.twice, outcome.out_of_order), (1, 1));
        assert_eq!(outcome.longest_gap, Duration::from_millis(7));
        assert_eq!(outcome.loss_span, Duration::MAX, "the last ones are missing");
        let outcome = evaluate(6, arrivals(&[(0, 0, 1), (1, 1, 2), (3, 3, 4), (5, 5, 6)]), 1);
        assert_eq!(outcome.loss_span, Duration::from_millis(4));
    }

    #[test]
    fn a_pause_of_the_sender_is_not_blamed_on_the_router() {
        let outcome = evaluate(3, arrivals(&[(0, 0, 1), (1, 100, 101), (2, 101, 105)]), 1);
        assert_eq!(outcome.longest_gap, Duration::from_millis(3));
    }
}
