//! sFlow version 5, as sflow.org specifies it: flow samples with the first bytes of packets, and counter samples.
//!
//! ```text
//! datagram ─┬─ version, agent, sequence, uptime
//!           └─ samples ─┬─ expanded flow sample: rate, pool, drops, input, output ── raw packet header
//!                       └─ expanded counter sample ── generic interface counters
//! ```
//!
//! Samples are of the expanded kind, since an interface's number in Linux may have more than 24 bits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::bytes::PutNumbers;
use crate::{DATAGRAM_MAX, DropCause, Encoder, ForwardingStatus, Now, PacketSample, PortCounters, Traffic};

const VERSION: u32 = 5;
/// Formats of samples and records, of enterprise 0.
const EXPANDED_FLOW: u32 = 3;
const EXPANDED_COUNTERS: u32 = 4;
const RAW_HEADER: u32 = 1;
const GENERIC_COUNTERS: u32 = 1;
const GENERIC_COUNTERS_LEN: u32 = 88;
const ETHERNET: u32 = 1;
/// Bytes of the check sequence, which counts as received and is not in the header.
const FCS: u32 = 4;
/// Bytes of a datagram in front of its samples, at most.
const HEADER_MAX: usize = 40;
/// Formats of an output interface: a number, or a reason why the packet was dropped.
const ONE_INTERFACE: u32 = 0;
const DISCARDED: u32 = 1;
const ETHERNET_CSMACD: u32 = 6;
const FULL_DUPLEX: u32 = 1;
/// A counter that is not known.
const UNKNOWN: u32 = u32::MAX;

/// Encodes sFlow datagrams of one agent.
pub struct Sflow {
    agent: IpAddr,
    sequence: u32,
    /// Samples of each interface so far: of packets, and of counters.
    sequences: BTreeMap<(u32, u32), u32>,
    /// Samples of the datagram that is not complete yet.
    open: Vec<u8>,
    count: u32,
    complete: Vec<Vec<u8>>,
}

impl Sflow {
    /// The agent is the address by which the collector knows this router.
    pub fn new(agent: IpAddr) -> Self {
        Self {
            agent,
            sequence: 0,
            sequences: BTreeMap::new(),
            open: Vec::new(),
            count: 0,
            complete: Vec::new(),
        }
    }

    /// Adds a sample: its format and length, its sequence number and interface, then `body`.
    fn add(&mut self, format: u32, ifindex: u32, body: &[u8], now: Now) {
        if HEADER_MAX + self.open.len() + 20 + body.len() > DATAGRAM_MAX {
            self.close(now);
        }
        let sequence = self.sequences.entry((format, ifindex)).or_default();
        *sequence = sequence.wrapping_add(1);
        self.open.put32(format);
        self.open.put32(12 + body.len() as u32);
        self.open.put32(*sequence);
        self.open.put32(0); // the source is an interface
        self.open.put32(ifindex);
        self.open.extend(body);
        self.count += 1;
    }

    fn close(&mut self, now: Now) {
        if self.count == 0 {
            return;
        }
        let mut datagram = Vec::with_capacity(DATAGRAM_MAX);
        datagram.put32(VERSION);
        match self.agent {
            IpAddr::V4(agent) => {
                datagram.put32(1);
                datagram.extend(agent.octets());
            }
            IpAddr::V6(agent) => {
                datagram.put32(2);
                datagram.extend(agent.octets());
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        datagram.put32(0); // of several agents with this address, the first
        datagram.put32(self.sequence);
        datagram.put32(now.uptime_ms);
        datagram.put32(self.count);
        datagram.append(&mut self.open);
        self.count = 0;
        self.complete.push(datagram);
    }
}

impl Encoder for Sflow {
    fn set_agent(&mut self, agent: IpAddr) {
        self.agent = agent;
    }

    fn add_packet(&mut self, sample: &PacketSample<'_>, now: Now) -> bool {
        let mut body = Vec::with_capacity(48 + 128);
        for number in [sample.one_in, sample.pool, sample.lost, ONE_INTERFACE, sample.ifindex] {
            body.put32(number);
        }
        let (format, output) = match sample.forwarding {
            ForwardingStatus::Sent(out) => (ONE_INTERFACE, out),
            ForwardingStatus::Dropped(cause) => (DISCARDED, drop_reason(cause)),
            ForwardingStatus::Unknown => (ONE_INTERFACE, 0),
        };
        body.put32(format);
        body.put32(output);
        body.put32(1); // record
        let padded = sample.header.len().next_multiple_of(4);
        body.put32(RAW_HEADER);
        body.put32(16 + padded as u32);
        body.put32(ETHERNET);
        body.put32(sample.length + FCS);
        body.put32(FCS);
        body.put32(sample.header.len() as u32);
        body.extend(sample.header);
        body.resize(body.len() + padded - sample.header.len(), 0);
        self.add(EXPANDED_FLOW, sample.ifindex, &body, now);
        true
    }

    fn add_counters(&mut self, counters: &PortCounters, now: Now) {
        let PortCounters { ifindex, status: [up, carrier], rx, tx } = *counters;
        let mut body = Vec::with_capacity(12 + GENERIC_COUNTERS_LEN as usize);
        body.put32(1); // record
        body.put32(GENERIC_COUNTERS);
        body.put32(GENERIC_COUNTERS_LEN);
        body.put32(ifindex);
        body.put32(ETHERNET_CSMACD);
        body.put64(0); // speed: not known
        body.put32(FULL_DUPLEX);
        body.put32(u32::from(up) | u32::from(carrier) << 1);
        add_direction(&mut body, &rx);
        body.put32(UNKNOWN); // protocols
        add_direction(&mut body, &tx);
        body.put32(0); // not promiscuous
        self.add(EXPANDED_COUNTERS, ifindex, &body, now);
    }

    fn take(&mut self, all: bool, now: Now) -> Vec<Vec<u8>> {
        if all {
            self.close(now);
        }
        std::mem::take(&mut self.complete)
    }
}

/// `drop_reason`, of sFlow version 5 and of "sFlow Dropped Packet Notification Structures" (2020).
fn drop_reason(cause: DropCause) -> u32 {
    match cause {
        DropCause::Filter => 258,      // acl
        DropCause::RateLimit => 261,   // traffic_shaping
        DropCause::Blackhole => 269,   // blackhole_route
        DropCause::ReversePath => 302, // uc_reverse_path_forwarding
    }
}

/// All packets count as unicast: Linux does not count the others apart in both directions.
fn add_direction(body: &mut Vec<u8>, traffic: &Traffic) {
    body.put64(traffic.bytes);
    body.put32(traffic.packets as u32);
    body.put32(UNKNOWN); // multicast
    body.put32(UNKNOWN); // broadcast
    body.put32(traffic.dropped as u32);
    body.put32(traffic.errors as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { uptime_ms: 1000, unix_ms: 0 };

    fn sample(header: &[u8], forwarding: ForwardingStatus) -> PacketSample<'_> {
        PacketSample { ifindex: 3, forwarding, length: 1514, header, one_in: 1024, pool: 5000, lost: 7 }
    }

    /// Words in network order.
    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_flow_sample_byte_by_byte() {
        let mut sflow = Sflow::new("192.0.2.9".parse().unwrap());
        assert!(sflow.add_packet(&sample(&[9, 8, 7, 6, 5], ForwardingStatus::Sent(4)), NOW));
        assert_eq!(sflow.take(false, NOW), Vec::<Vec<u8>>::new(), "it is not full yet");
        let datagram = words(&[
            5,
            1,
            0xc000_0209,
            0,
            1,
            1000,
            1, // version, agent, sub-agent, sequence, uptime, samples
            3,
            76,
            1,
            0,
            3, // expanded flow sample of this length, its sequence, source
            1024,
            5000,
            7,
            0,
            3,
            0,
            4,
            1, // rate, pool, drops, input, output, records
            1,
            24,
            1,
            1518,
            4,
            5,
            0x0908_0706,
            0x0500_0000, // raw header: Ethernet, frame, stripped, bytes
        ]);
        assert_eq!(sflow.take(true, NOW), [datagram]);
        assert_eq!(sflow.take(true, NOW), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_counter_sample_byte_by_byte() {
        let mut sflow = Sflow::new("2001:db8::9".parse().unwrap());
        let traffic = |packets| Traffic { packets, bytes: 1 << 32, errors: 1, dropped: 2 };
        let counters = PortCounters { ifindex: 3, status: [true, true], rx: traffic(10), tx: traffic(20) };
        sflow.add_counters(&counters, NOW);
        let none = u32::MAX;
        let datagram = words(&[
            5,
            2,
            0x2001_0db8,
            0,
            0,
            9,
            0,
            1,
            1000,
            1, //
            4,
            112,
            1,
            0,
            3,
            1, // expanded counter sample, records
            1,
            88,
            3,
            6,
            0,
            0,
            1,
            3, // generic: index, type, speed, direction, status
            1,
            0,
            10,
            none,
            none,
            2,
            1,
            none, // in
            1,
            0,
            20,
            none,
            none,
            2,
            1,
            0, // out, and not promiscuous
        ]);
        assert_eq!(sflow.take(true, NOW), [datagram]);
    }

    #[test]
    fn forwarding_statuses_are_told_apart() {
        let mut sflow = Sflow::new("192.0.2.9".parse().unwrap());
        let statuses = [
            (ForwardingStatus::Dropped(DropCause::Filter), [1, 258]),
            (ForwardingStatus::Dropped(DropCause::RateLimit), [1, 261]),
            (ForwardingStatus::Dropped(DropCause::Blackhole), [1, 269]),
            (ForwardingStatus::Dropped(DropCause::ReversePath), [1, 302]),
            (ForwardingStatus::Unknown, [0, 0]),
            (ForwardingStatus::Sent(9), [0, 9]),
        ];
        for (forwarding, output) in statuses {
            sflow.add_packet(&sample(&[1; 4], forwarding), NOW);
            let datagram = sflow.take(true, NOW).remove(0);
            assert_eq!(datagram[28 + 20 + 20..][..8], words(&output), "{forwarding:?}");
        }
    }

    #[test]
    fn datagrams_have_as_many_samples_as_fit_and_count_on() {
        let mut sflow = Sflow::new("192.0.2.9".parse().unwrap());
        for _ in 0..20 {
            sflow.add_packet(&sample(&[7; 128], ForwardingStatus::Unknown), NOW);
        }
        let datagrams = sflow.take(true, NOW);
        let word = |datagram: &[u8], at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
        let shown: Vec<_> =
            datagrams.iter().map(|datagram| [word(datagram, 16), word(datagram, 24)]).collect();
        assert_eq!(shown, [[1, 6], [2, 6], [3, 6], [4, 2]], "sequence and samples");
        assert!(datagrams.iter().all(|datagram| datagram.len() <= DATAGRAM_MAX));
        assert_eq!(word(&datagrams[1], 28 + 8), 7, "samples of an interface are numbered");
    }
}
