//! IPFIX (RFC 7011): each sampled packet is a flow record of its own, which collectors of flows accept as they are.
//!
//! ```text
//! message ─┬─ templates, once a minute: IPv4, IPv6, and how packets are sampled
//!          ├─ how packets are sampled, likewise: collectors multiply by this
//!          └─ records of IPv4 packets, then of IPv6 packets: one packet each, with its bytes
//! ```

use std::net::IpAddr;

use crate::bytes::PutNumbers;
use crate::headers::Headers;
use crate::{DATAGRAM_MAX, DropCause, Encoder, ForwardingStatus, Now, PacketSample};

const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
/// Sets with templates, and those with data by their templates.
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
const IPV4: u16 = 256;
const IPV6: u16 = 257;
const SAMPLING: u16 = 258;
/// UDP loses templates, so they are sent again and again (RFC 7011, 8.4).
const TEMPLATES_EVERY_MS: u64 = 60_000;
/// Elements of IANA's registry, with their lengths: in front of the addresses, and behind them.
const BEFORE: [(u16, u16); 6] = [
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (10, 4),  // ingressInterface
    (14, 4),  // egressInterface
    (1, 8),   // octetDeltaCount
    (2, 8),   // packetDeltaCount
];
const ADDRESSES_IPV4: [(u16, u16); 2] = [(8, 4), (12, 4)];
const ADDRESSES_IPV6: [(u16, u16); 2] = [(27, 16), (28, 16)];
const BEHIND: [(u16, u16); 10] = [
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (5, 1),   // ipClassOfService
    (6, 2),   // tcpControlBits
    (192, 1), // ipTTL
    (89, 1),  // forwardingStatus
    (56, 6),  // sourceMacAddress
    (80, 6),  // destinationMacAddress
    (58, 2),  // vlanId
];
/// The scope is the observation domain.
const OPTIONS: [(u16, u16); 5] = [
    (149, 4), // observationDomainId
    (34, 4),  // samplingInterval, for collectors of NetFlow
    (35, 1),  // samplingAlgorithm
    (304, 2), // selectorAlgorithm
    (311, 8), // samplingProbability, the parameter of that algorithm
];
/// samplingAlgorithm: random.
const RANDOM: u8 = 2;
/// selectorAlgorithm: uniform probabilistic sampling (RFC 5477, 8.2.1). The distances of samples are not geometrically
/// distributed, but each packet is as likely to be sampled as any other.
const UNIFORM_PROBABILISTIC: u16 = 4;
/// forwardingStatus (RFC 7270, 4.12): not known, and forwarded.
const UNKNOWN: u8 = 0;
const FORWARDED: u8 = 64;
/// Bytes of templates and options in a message.
const TEMPLATES_LEN: usize = 200 + 32;

/// Encodes IPFIX messages.
pub struct Ipfix {
    one_in: u32,
    domain: u32,
    /// Records sent so far.
    sequence: u32,
    /// When templates were sent last.
    templates_at: Option<u64>,
    records: [Vec<u8>; 2],
    count: u32,
    complete: Vec<Vec<u8>>,
}

impl Ipfix {
    /// Of one packet in `one_in`.
    pub fn new(one_in: u32) -> Self {
        Self {
            one_in,
            domain: 1,
            sequence: 0,
            templates_at: None,
            records: Default::default(),
            count: 0,
            complete: Vec::new(),
        }
    }

    fn close(&mut self, now: Now) {
        if self.count == 0 {
            return;
        }
        let mut message = Vec::with_capacity(DATAGRAM_MAX);
        message.put16(VERSION);
        message.put16(0); // its length, below
        message.put32((now.unix_ms / 1000) as u32);
        message.put32(self.sequence);
        message.put32(self.domain);
        if self.templates_at.is_none_or(|last| now.unix_ms.abs_diff(last) >= TEMPLATES_EVERY_MS) {
            self.templates_at = Some(now.unix_ms);
            self.add_templates(&mut message);
            self.count += 1;
        }
        for (set, records) in [IPV4, IPV6].into_iter().zip(&mut self.records) {
            if !records.is_empty() {
                add_set(&mut message, set, records);
                records.clear();
            }
        }
        let length = message.len() as u16;
        message[2..4].copy_from_slice(&length.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(std::mem::take(&mut self.count));
        self.complete.push(message);
    }

    /// The templates, and the one record by [`SAMPLING`].
    fn add_templates(&self, message: &mut Vec<u8>) {
        let mut templates = Vec::new();
        for (template, addresses) in [(IPV4, ADDRESSES_IPV4), (IPV6, ADDRESSES_IPV6)] {
            templates.put16(template);
            templates.put16((BEFORE.len() + addresses.len() + BEHIND.len()) as u16);
            add_fields(&mut templates, BEFORE.iter().chain(&addresses).chain(&BEHIND));
        }
        add_set(message, TEMPLATES, &templates);
        let mut options = Vec::new();
        options.put16(SAMPLING);
        options.put16(OPTIONS.len() as u16);
        options.put16(1); // of which the first is the scope
        add_fields(&mut options, OPTIONS.iter());
        add_set(message, OPTIONS_TEMPLATES, &options);
        let mut sampling = Vec::new();
        sampling.put32(self.domain);
        sampling.put32(self.one_in);
        sampling.put8(RANDOM);
        sampling.put16(UNIFORM_PROBABILISTIC);
        sampling.put64((1.0 / f64::from(self.one_in)).to_bits());
        add_set(message, SAMPLING, &sampling);
    }
}

fn add_fields<'a>(to: &mut Vec<u8>, fields: impl Iterator<Item = &'a (u16, u16)>) {
    for (element, length) in fields {
        to.put16(*element);
        to.put16(*length);
    }
}

fn add_set(message: &mut Vec<u8>, set: u16, content: &[u8]) {
    message.put16(set);
    message.put16((SET_HEADER + content.len()) as u16);
    message.extend(content);
}

/// forwardingStatus of a packet that was dropped.
fn dropped(cause: DropCause) -> u8 {
    match cause {
        DropCause::Filter => 129,      // ACL deny
        DropCause::Blackhole => 131,   // unroutable
        DropCause::RateLimit => 138,   // policer
        DropCause::ReversePath => 140, // RPF
    }
}

/// A packet as a flow that began and ended with it.
fn record(sample: &PacketSample<'_>, headers: &Headers, now: Now) -> Vec<u8> {
    let (out, status) = match sample.forwarding {
        ForwardingStatus::Sent(out) => (out, FORWARDED),
        ForwardingStatus::Dropped(cause) => (0, dropped(cause)),
        ForwardingStatus::Unknown => (0, UNKNOWN),
    };
    let mut record = Vec::with_capacity(96);
    record.put64(now.unix_ms);
    record.put64(now.unix_ms);
    record.put32(sample.ifindex);
    record.put32(out);
    record.put64(headers.length.into());
    record.put64(1);
    for address in headers.addresses {
        match address {
            IpAddr::V4(address) => record.extend(address.octets()),
            IpAddr::V6(address) => record.extend(address.octets()),
        }
    }
    headers.ports.iter().for_each(|port| record.put16(*port));
    record.put8(headers.protocol);
    record.put8(headers.tos);
    record.put16(headers.tcp_flags.into());
    record.put8(headers.ttl);
    record.put8(status);
    let [destination, source] = headers.macs;
    record.extend(source);
    record.extend(destination);
    record.put16(headers.vlan);
    record
}

impl Encoder for Ipfix {
    fn add_packet(&mut self, sample: &PacketSample<'_>, now: Now) -> bool {
        let Some(headers) = Headers::of(sample.header) else { return false };
        let record = record(sample, &headers, now);
        let open: usize = self.records.iter().map(|records| SET_HEADER + records.len()).sum();
        if HEADER + TEMPLATES_LEN + open + record.len() > DATAGRAM_MAX {
            self.close(now);
        }
        self.records[usize::from(headers.addresses[0].is_ipv6())].extend(record);
        self.count += 1;
        true
    }

    fn take(&mut self, all: bool, now: Now) -> Vec<Vec<u8>> {
        if all {
            self.close(now);
        }
        std::mem::take(&mut self.complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::{TCP4, icmp6};

    const NOW: Now = Now { uptime_ms: 1000, unix_ms: 1_700_000_000_123 };

    fn sample(header: &[u8]) -> PacketSample<'_> {
        let forwarding = ForwardingStatus::Sent(4);
        PacketSample { ifindex: 3, forwarding, length: 74, header, one_in: 1024, pool: 5000, lost: 7 }
    }

    /// The sets of a message: their ids with their content.
    fn sets(message: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let half = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        assert_eq!((half(0), usize::from(half(2))), (10, message.len()));
        let (mut at, mut sets) = (HEADER, Vec::new());
        while at < message.len() {
            let length = usize::from(half(at + 2));
            sets.push((half(at), message[at + 4..at + length].to_vec()));
            at += length;
        }
        sets
    }

    #[test]
    fn a_message_byte_by_byte() {
        let mut ipfix = Ipfix::new(1024);
        assert!(ipfix.add_packet(&sample(&TCP4), NOW));
        let message = ipfix.take(true, NOW).remove(0);
        let seconds = 1_700_000_000u32.to_be_bytes();
        assert_eq!(message[4..16], [seconds, [0; 4], [0, 0, 0, 1]].concat(), "time, sequence, domain");
        let sets = sets(&message);
        assert_eq!(sets.iter().map(|(set, _)| *set).collect::<Vec<_>>(), [2, 3, 258, 256]);
        assert_eq!(sets[0].1[..8], [1, 0, 0, 18, 0, 152, 0, 8], "template 256 has 18 fields");
        assert_eq!(sets[0].1.len(), 2 * (4 + 18 * 4));
        let options = [1, 2, 0, 5, 0, 1, 0, 149, 0, 4, 0, 34, 0, 4, 0, 35, 0, 1, 1, 48, 0, 2, 1, 55, 0, 8];
        assert_eq!(sets[1].1, options, "template 258 has five fields, the first is the scope");
        // Domain 1, one in 1,024, random; uniform probabilistic with a probability of 2^-10.
        let sampling = [0, 0, 0, 1, 0, 0, 4, 0, 2, 0, 4, 0x3f, 0x50, 0, 0, 0, 0, 0, 0];
        assert_eq!(sets[2].1, sampling);
        let time = 1_700_000_000_123u64.to_be_bytes();
        let record = [
            &time[..],
            &time,
            &[0, 0, 0, 3, 0, 0, 0, 4],
            &60u64.to_be_bytes(),
            &1u64.to_be_bytes(),
            &[192, 0, 2, 1, 198, 51, 100, 2, 4, 0, 0, 80, 6, 0x10, 0, 2, 63, 64],
            &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0, 0],
        ];
        assert_eq!(sets[3].1, record.concat());
        let lengths = |fields: &[(u16, u16)]| fields.iter().map(|(_, length)| *length).sum::<u16>();
        assert_eq!(sets[3].1.len(), usize::from(lengths(&[&BEFORE[..], &ADDRESSES_IPV4, &BEHIND].concat())));
        assert!(message.len() <= HEADER + TEMPLATES_LEN + SET_HEADER + record.concat().len());
    }

    #[test]
    fn forwarding_statuses_are_told_apart() {
        let statuses = [
            (ForwardingStatus::Sent(4), [4, 64]),
            (ForwardingStatus::Unknown, [0, 0]),
            (ForwardingStatus::Dropped(DropCause::Filter), [0, 129]),
            (ForwardingStatus::Dropped(DropCause::Blackhole), [0, 131]),
            (ForwardingStatus::Dropped(DropCause::RateLimit), [0, 138]),
            (ForwardingStatus::Dropped(DropCause::ReversePath), [0, 140]),
        ];
        for (forwarding, expected) in statuses {
            let mut ipfix = Ipfix::new(1024);
            ipfix.add_packet(&PacketSample { forwarding, ..sample(&TCP4) }, NOW);
            let records = sets(&ipfix.take(true, NOW).remove(0)).remove(3).1;
            // The last byte of egressInterface, and forwardingStatus.
            assert_eq!([records[23], records[57]], expected, "{forwarding:?}");
        }
    }

    #[test]
    fn both_families_have_sets_of_their_own_and_other_frames_none() {
        let mut ipfix = Ipfix::new(2);
        let icmp6 = icmp6();
        assert!(ipfix.add_packet(&sample(&icmp6), NOW) && ipfix.add_packet(&sample(&TCP4), NOW));
        assert!(!ipfix.add_packet(&sample(&[0xff; 60]), NOW), "not IP");
        let sets = sets(&ipfix.take(true, NOW).remove(0));
        assert_eq!(sets.iter().map(|(set, _)| *set).collect::<Vec<_>>(), [2, 3, 258, 256, 257]);
        let lengths = |fields: &[(u16, u16)]| fields.iter().map(|(_, length)| *length).sum::<u16>();
        assert_eq!(sets[4].1.len(), usize::from(lengths(&[&BEFORE[..], &ADDRESSES_IPV6, &BEHIND].concat())));
        assert_eq!(sets[4].1[72..78], [0, 0, 0x80, 0, 58, 0], "ports, protocol, class");
    }

    #[test]
    fn templates_are_repeated_and_records_numbered() {
        let mut ipfix = Ipfix::new(2);
        let mut message = |now: Now| {
            ipfix.add_packet(&sample(&TCP4), now);
            ipfix.take(true, now).remove(0)
        };
        let later = Now { unix_ms: NOW.unix_ms + TEMPLATES_EVERY_MS, ..NOW };
        let messages = [message(NOW), message(NOW), message(later)];
        let numbers = messages.each_ref().map(|message| message[11]);
        assert_eq!(numbers, [0, 2, 3], "the record about sampling counts, too");
        assert_eq!(messages.map(|message| sets(&message).len()), [4, 1, 4]);
    }

    #[test]
    fn messages_fit_into_a_datagram() {
        let mut ipfix = Ipfix::new(2);
        let icmp6 = icmp6();
        (0..50).for_each(|at| {
            ipfix.add_packet(&sample(if at % 2 == 0 { &icmp6 } else { &TCP4 }), NOW);
        });
        let messages = ipfix.take(true, NOW);
        assert!(messages.len() > 3 && messages.iter().all(|message| message.len() <= DATAGRAM_MAX));
    }
}
