//! `brickmoon trace`: follows each packet that matches, from where it is received to where it is sent.
//!
//! ```text
//! received at r0 ─► the program of r0 decides ─► sent at r1
//!       │                                            │
//!       └── the same packet but for MACs, tag, TTL ──┘
//! ```
//!
//! What XDP redirects is known to leave as its program left it. Packets that workers or Linux send are recognized by
//! their bytes; one that is not sent within a second was dropped, consumed or was for this machine.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::io::{ErrorKind, Write as _, stdout};
use std::time::Duration;

use bm_capture::{Options, Outcome, Packet, Sender, summary};
use bm_cli::Failure;
use bm_daemon::log;
use serde::Serialize;

use super::outcome::described;
use super::output::clock;
use super::points;
use super::session::{self, Session};
use crate::args::{Direction, Trace};

/// How long a packet may take from its program to where it is sent.
const SENT_WITHIN: Duration = Duration::from_secs(1);
/// How long records are kept to sort them by time: those of another CPU may be read later.
const SORTED_WITHIN: Duration = Duration::from_millis(300);
/// The bytes of each packet that are shown and compared.
const SNAP_LENGTH: u32 = 2048;

/// A step of a packet through the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Step {
    /// Since the packet was received.
    after_ns: u64,
    interface: String,
    /// `received`, `decided` or `sent`.
    step: &'static str,
    /// Headers of the frame, or what was decided.
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A packet with its steps so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct TracedPacket {
    /// Since 1970.
    time_ns: u64,
    summary: String,
    steps: Vec<Step>,
    #[serde(skip)]
    began_ns: u64,
    #[serde(skip)]
    key: Option<u64>,
    /// Whether no further step is to be expected.
    #[serde(skip)]
    is_complete: bool,
}

/// `brickmoon trace`.
pub fn run(trace: &Trace) -> Result<(), Failure> {
    let filter = points::filter(&trace.filter)?;
    let ports = points::ports(&trace.socket)?;
    let chosen = points::chosen(&ports, Some("any"), Direction::Inout)?;
    points::hints(&ports, &chosen).iter().for_each(|hint| log::say(hint));
    let mut session = Session::start(Options::new(filter, SNAP_LENGTH, 1, true), chosen)?;
    let mut left = trace.count.unwrap_or(u64::MAX);
    let mut traces = Traces::default();
    while !bm_lua::interrupted() && left > 0 {
        traces.keep(session.next()?);
        traces.add_settled(&session, session::clock_of_packets());
        for traced in
            traces.complete(session::clock_of_packets()).take(usize::try_from(left).unwrap_or(usize::MAX))
        {
            left -= 1;
            match print(&traced, trace.json) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                done => done.map_err(Failure::failed)?,
            }
        }
    }
    if session.lost() > 0 {
        log::say(&format!(
            "{} records were lost because the buffer was full; use a narrower filter",
            session.lost()
        ));
    }
    Ok(())
}

/// Packets that may have further steps.
#[derive(Debug, Default)]
struct Traces {
    /// In the order of time; an earlier one may still come.
    recent: Vec<Packet>,
    incomplete: VecDeque<TracedPacket>,
}

impl Traces {
    fn keep(&mut self, packets: Vec<Packet>) {
        self.recent.extend(packets);
        self.recent.sort_by_key(|packet| packet.time_ns);
    }

    /// Adds the packets before which no other one can come any more.
    fn add_settled(&mut self, session: &Session, now_ns: u64) {
        let until = now_ns.saturating_sub(SORTED_WITHIN.as_nanos() as u64);
        let count = self.recent.partition_point(|packet| packet.time_ns < until);
        let ready: Vec<_> = self.recent.drain(..count).collect();
        ready.iter().for_each(|packet| self.add(session, packet));
    }

    fn add(&mut self, session: &Session, packet: &Packet) {
        if let Outcome::Decided { took_ns, rewritten, to, .. } = &packet.outcome {
            let described = described(session, packet);
            let name = session.name(packet.ifindex).to_string();
            let mut traced = begin(session, packet);
            // What a program at tc redirects leaves through a queue of Linux, where it is seen once more.
            let leaves = !rewritten.is_empty() && !session.program(packet).ends_with("_tc");
            traced.is_complete = described.what.starts_with("dropped") || leaves;
            let (what, reason) = (described.what, described.reason);
            traced.steps.push(Step { after_ns: *took_ns, interface: name, step: "decided", what, reason });
            if let (Some(to), true) = (to, leaves) {
                traced.steps.push(sent(session.name(*to), *took_ns, rewritten, "kernel path"));
            }
            return self.incomplete.push_back(traced);
        }
        self.add_sent(session, packet);
    }

    fn add_sent(&mut self, session: &Session, packet: &Packet) {
        let by = match packet.outcome {
            Outcome::Sent(Sender::Worker) => "a worker",
            Outcome::Sent(Sender::Linux) => "Linux",
            Outcome::Refused => "a worker; the device dropped it",
            // What the kernel path sent is shown with its verdict. Without a verdict there is nothing to follow.
            _ => return,
        };
        let key = key(&packet.frame);
        let name = session.name(packet.ifindex);
        let mut began = self.incomplete.iter_mut().filter(|traced| traced.began_ns <= packet.time_ns);
        let Some(traced) = began.find(|traced| key.is_some() && traced.key == key) else {
            let mut traced = begin(session, packet);
            traced.steps = vec![sent(name, 0, &packet.frame, by)];
            traced.is_complete = true;
            return self.incomplete.push_back(traced);
        };
        if traced.steps.iter().all(|step| step.step != "sent") {
            traced.steps.push(sent(name, packet.time_ns - traced.began_ns, &packet.frame, by));
        }
        traced.is_complete = true;
    }

    /// Those that are complete, or have waited long enough.
    fn complete(&mut self, now_ns: u64) -> impl Iterator<Item = TracedPacket> {
        let longest = SENT_WITHIN.as_nanos() as u64;
        let (done, waiting) =
            std::mem::take(&mut self.incomplete).into_iter().partition::<VecDeque<_>, _>(|traced| {
                traced.is_complete || now_ns.saturating_sub(traced.began_ns) > longest
            });
        self.incomplete = waiting;
        done.into_iter()
    }
}

/// A packet at the port where it is seen first.
fn begin(session: &Session, packet: &Packet) -> TracedPacket {
    let step = Step {
        after_ns: 0,
        interface: session.name(packet.ifindex).into(),
        step: "received",
        what: format!("{}, queue {}", headers(&packet.frame), packet.queue),
        reason: None,
    };
    TracedPacket {
        time_ns: session.time(packet),
        summary: summary(&packet.frame),
        steps: vec![step],
        began_ns: packet.time_ns,
        key: key(&packet.frame),
        is_complete: false,
    }
}

fn sent(interface: &str, after_ns: u64, frame: &[u8], by: &str) -> Step {
    let what = format!("by {by}, {}", headers(frame));
    Step { after_ns, interface: interface.into(), step: "sent", what, reason: None }
}

/// The part of a frame that a router changes: MACs, tag, TTL or hop limit.
fn headers(frame: &[u8]) -> String {
    let (at, tag) = network(frame);
    let tag = tag.map_or_else(String::new, |tag| format!(", vlan {tag}"));
    let hops = match frame.get(at).map(|first| first >> 4) {
        Some(4) => frame.get(at + 8).map(|ttl| format!(", ttl {ttl}")),
        Some(6) => frame.get(at + 7).map(|limit| format!(", hlim {limit}")),
        _ => None,
    };
    format!("{} > {}{tag}{}", mac(frame, 6), mac(frame, 0), hops.unwrap_or_default())
}

/// The MAC address at this place of a frame.
fn mac(frame: &[u8], at: usize) -> String {
    let bytes = frame.get(at..at + 6).unwrap_or_default();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// Where the network header begins, and the VLAN of the last tag.
fn network(frame: &[u8]) -> (usize, Option<u16>) {
    let (mut at, mut tag) = (12, None);
    while matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8])) {
        tag = frame.get(at + 2..at + 4).map(|id| u16::from_be_bytes([id[0] & 15, id[1]]));
        at += 4;
    }
    (at + 2, tag)
}

/// A hash of the bytes of a packet without those that change on its way, so that it is equal before and after the router.
fn key(frame: &[u8]) -> Option<u64> {
    let mut packet = frame.get(network(frame).0..)?.to_vec();
    let length = match packet.first()? >> 4 {
        4 => {
            packet.get_mut(8..12)?.fill(0);
            let length = u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]);
            // The TTL and the checksum are gone; the protocol is not.
            packet[9] = frame[network(frame).0 + 9];
            usize::from(length)
        }
        6 => {
            *packet.get_mut(7)? = 0;
            usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?])) + 40
        }
        _ => return None,
    };
    packet.truncate(length);
    let mut hasher = DefaultHasher::new();
    hasher.write(&packet);
    Some(hasher.finish())
}

fn print(traced: &TracedPacket, json: bool) -> std::io::Result<()> {
    let mut out = stdout().lock();
    if json {
        serde_json::to_writer(&mut out, traced)?;
        writeln!(out)?;
        return out.flush();
    }
    writeln!(out, "{} {}", clock(traced.time_ns), traced.summary)?;
    for step in &traced.steps {
        let reason = step.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let after = step.after_ns as f64 / 1000.0;
        writeln!(out, "  {after:>+10.3} us  {:<8} {:<10} {}{reason}", step.step, step.interface, step.what)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: [u8; 28] =
        [0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 9, 9, 192, 0, 2, 2, 198, 51, 100, 2, 4, 210, 0, 53, 0, 8, 0, 0];

    fn frame(macs: u8, tag: &[u8], packet: &[u8]) -> Vec<u8> {
        [&[macs; 12], tag, &[8, 0], packet].concat()
    }

    #[test]
    fn a_packet_is_recognized_behind_the_router() {
        let mut routed = PACKET;
        (routed[8], routed[10]) = (63, 10);
        let arrived = [frame(1, &[], &PACKET), vec![0; 18]].concat();
        assert_eq!(key(&arrived), key(&frame(2, &[0x81, 0, 0, 5], &routed)));
        for at in [1, 5, 9, 13, 27] {
            let mut other = PACKET;
            other[at] ^= 1;
            assert_ne!(key(&arrived), key(&frame(1, &[], &other)), "byte {at}");
        }
        assert_eq!(key(&frame(1, &[], &[0x45])), None);
    }

    #[test]
    fn headers_say_what_a_router_changes() {
        let text = headers(&frame(2, &[0x81, 0, 0x20, 5], &PACKET));
        assert_eq!(text, "02:02:02:02:02:02 > 02:02:02:02:02:02, vlan 5, ttl 64");
        assert_eq!(headers(&[1; 3]), " > ");
    }
}
