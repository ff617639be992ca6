//! Joins the record of a packet with that of its verdict.
//!
//! The two records of a packet come one after the other, except where a worker's system call moved to another CPU in
//! between. If the second one was lost (the buffer was full), the packet is shown without a verdict after a while.

use std::collections::HashMap;

use crate::record::{Kind, Record};

/// How long a packet waits for its verdict: the records of CPUs are read in turn.
const VERDICT_WITHIN_NS: u64 = 500_000_000;
/// The device was full, and the worker sends the packet again (`NETDEV_TX_BUSY`).
const BUSY: i32 = 0x10;

/// Who sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The program of the port on which it came in.
    KernelPath,
    /// A worker, through AF_XDP in copy mode.
    Worker,
    /// Linux, out of a queue of its own. This includes what programs at tc redirect.
    Linux,
}

/// What happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was received, and the port's program decided about it.
    Decided {
        /// What the program returned.
        verdict: i32,
        /// Which of the program's counters moved, from 0; `None` if none did.
        counter: Option<u16>,
        /// The interface that it was redirected to.
        to: Option<u32>,
        /// How long the program took.
        took_ns: u64,
        /// The frame as it leaves; empty if it was not redirected, or was not asked for.
        rewritten: Vec<u8>,
    },
    /// It was received, and the record of its verdict was lost.
    Unknown,
    /// It was sent.
    Sent(Sender),
    /// A worker sent it, and the device dropped it.
    Refused,
}

/// A packet that was received or sent at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Of the clock that starts with the machine.
    pub time_ns: u64,
    pub ifindex: u32,
    /// The hardware queue.
    pub queue: u32,
    /// Of the whole frame.
    pub length: u32,
    /// The frame, up to the snap length.
    pub frame: Vec<u8>,
    pub outcome: Outcome,
}

impl Packet {
    fn of(record: Record, outcome: Outcome) -> Self {
        let Record { time_ns, ifindex, queue, length, frame, .. } = record;
        Self { time_ns, ifindex, queue, length, frame, outcome }
    }

    /// Whether it came in, instead of being sent.
    pub fn is_received(&self) -> bool {
        matches!(self.outcome, Outcome::Decided { .. } | Outcome::Unknown)
    }
}

/// Packets whose verdict is still to come.
#[derive(Debug, Default)]
pub struct Join {
    waiting: HashMap<u64, Record>,
}

impl Join {
    /// Takes records in the order in which they were read; returns the packets that are complete, in the order of time.
    pub fn packets(&mut self, records: Vec<Record>, now_ns: u64) -> Vec<Packet> {
        let mut packets: Vec<Packet> = records.into_iter().filter_map(|record| self.take(record)).collect();
        let late =
            self.waiting.extract_if(|_, record| now_ns.saturating_sub(record.time_ns) > VERDICT_WITHIN_NS);
        packets.extend(late.map(|(_, record)| {
            let outcome = match record.kind {
                Kind::WorkerSends => Outcome::Sent(Sender::Worker),
                _ => Outcome::Unknown,
            };
            Packet::of(record, outcome)
        }));
        packets.sort_by_key(|packet| packet.time_ns);
        packets
    }

    fn take(&mut self, record: Record) -> Option<Packet> {
        match record.kind {
            Kind::Arrived | Kind::WorkerSends => {
                self.waiting.insert(record.id, record);
                None
            }
            Kind::Sent => Some(Packet::of(record, Outcome::Sent(Sender::KernelPath))),
            Kind::SentByLinux => Some(Packet::of(record, Outcome::Sent(Sender::Linux))),
            Kind::Decided => {
                let arrived = self.waiting.remove(&record.id)?;
                let outcome = Outcome::Decided {
                    verdict: record.verdict,
                    counter: record.counter.checked_sub(1),
                    to: Some(record.to).filter(|to| *to != 0),
                    took_ns: record.time_ns.saturating_sub(arrived.time_ns),
                    rewritten: record.frame,
                };
                Some(Packet::of(arrived, outcome))
            }
            Kind::WorkerSent => {
                let sent = self.waiting.remove(&record.id)?;
                match record.verdict {
                    BUSY => None,
                    0 => Some(Packet::of(sent, Outcome::Sent(Sender::Worker))),
                    _ => Some(Packet::of(sent, Outcome::Refused)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    fn outcomes(packets: &[Packet]) -> Vec<Outcome> {
        packets.iter().map(|packet| packet.outcome.clone()).collect()
    }

    #[test]
    fn a_verdict_completes_a_packet() {
        let mut decided = record(Kind::Decided, 1, &[5; 14]);
        (decided.time_ns, decided.to, decided.counter, decided.verdict) = (1401, 4, 1, 4);
        let records = vec![record(Kind::Arrived, 1, &[7; 20]), decided, record(Kind::Sent, 2, &[8; 20])];
        let packets = Join::default().packets(records, 2000);
        assert_eq!(packets.iter().map(|packet| packet.frame[0]).collect::<Vec<_>>(), [7, 8]);
        let decided = Outcome::Decided {
            verdict: 4,
            counter: Some(0),
            to: Some(4),
            took_ns: 400,
            rewritten: vec![5; 14],
        };
        assert_eq!(outcomes(&packets), [decided, Outcome::Sent(Sender::KernelPath)]);
    }

    #[test]
    fn a_packet_whose_verdict_is_lost_is_shown_without_it() {
        let mut join = Join::default();
        assert_eq!(join.packets(vec![record(Kind::Arrived, 1, &[7; 20])], 2000), []);
        assert_eq!(outcomes(&join.packets(Vec::new(), 2001 + VERDICT_WITHIN_NS)), [Outcome::Unknown]);
        assert_eq!(join.packets(vec![record(Kind::Decided, 1, &[])], 3000), [], "it is shown only once");
    }

    #[test]
    fn a_packet_that_a_worker_sends_again_is_one() {
        let mut join = Join::default();
        let result = |id, verdict| Record { verdict, ..record(Kind::WorkerSent, id, &[]) };
        let mut all = Vec::new();
        for (id, verdict) in [(1, BUSY), (2, 0), (3, 1)] {
            all.extend([record(Kind::WorkerSends, id, &[7; 20]), result(id, verdict)]);
        }
        assert_eq!(outcomes(&join.packets(all, 2000)), [Outcome::Sent(Sender::Worker), Outcome::Refused]);
    }
}
