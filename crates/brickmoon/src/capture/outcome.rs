//! Describes what happened to a packet, as lines, comments of capture files and JSON have it.

use bm_capture::{Outcome, Packet, Sender};
use bm_fastpath::COUNTERS;
use bm_port_xdp::STEER_COUNTERS;

use super::session::{STEER, Session, counter_of, target};

/// The names of programs that drop what filters might drop, until the filters are in place.
const HOLD: &str = "bm_hold";

/// Results of programs: XDP's, then those of tc.
const XDP_DROP: i32 = 1;
const XDP_ABORTED: i32 = 0;
const TC_DROP: i32 = 2;

/// What happened to a packet, and the reason where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOutcome {
    /// Such as `forwarded to r1`, `left to Linux`, `dropped`, `sent by a worker`.
    pub what: String,
    /// Such as `no_worker`: a name of `show drops --explain`, except where no counter says why.
    pub reason: Option<String>,
}

impl PacketOutcome {
    fn without_reason(what: impl Into<String>) -> Self {
        Self { what: what.into(), reason: None }
    }

    fn because(what: &str, reason: &str) -> Self {
        Self { what: what.into(), reason: Some(reason.into()) }
    }
}

impl std::fmt::Display for PacketOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        self.reason.iter().try_for_each(|reason| write!(f, ": {reason}"))
    }
}

/// Describes what happened to a packet.
pub fn described(session: &Session, packet: &Packet) -> PacketOutcome {
    let to = target(packet).map(|to| session.name(to));
    describe(session.program(packet), packet, to)
}

fn describe(program: &str, packet: &Packet, to: Option<&str>) -> PacketOutcome {
    match &packet.outcome {
        Outcome::Sent(Sender::KernelPath) => PacketOutcome::without_reason("sent by the kernel path"),
        Outcome::Sent(Sender::Worker) => PacketOutcome::without_reason("sent by a worker"),
        Outcome::Sent(Sender::Linux) => PacketOutcome::without_reason("sent through Linux"),
        Outcome::Refused => PacketOutcome::because("dropped", "the device did not accept it"),
        Outcome::Unknown => PacketOutcome::because("received", "the record of its verdict was lost"),
        Outcome::Decided { verdict, .. } => {
            let is_tc = program.ends_with("_tc");
            let counted = match program {
                STEER => counter_of(packet, &STEER_COUNTERS).map(steered),
                _ if program.starts_with(HOLD) => None,
                _ => counter_of(packet, &COUNTERS).map(|counter| forwarded(counter, to)),
            };
            counted.unwrap_or_else(|| by_verdict(*verdict, is_tc, to))
        }
    }
}

/// By the counter of the program that steers to workers.
fn steered(counter: &str) -> PacketOutcome {
    match counter {
        "steered" => PacketOutcome::without_reason("handed to a worker"),
        "held" => PacketOutcome::because("dropped", "filter_not_ready"),
        "too_large_dropped" => PacketOutcome::because("dropped", "too_large"),
        reason => PacketOutcome::because("left to Linux", reason),
    }
}

/// By the counter of the kernel path.
fn forwarded(counter: &str, to: Option<&str>) -> PacketOutcome {
    let (linux, dropped) = (counter.strip_prefix("linux_"), counter.strip_prefix("drop_"));
    match (counter, linux, dropped) {
        ("claimed", ..) => PacketOutcome::without_reason("handed to a worker"),
        (_, Some(reason), _) => PacketOutcome::because("left to Linux", reason),
        (_, _, Some(reason)) => PacketOutcome::because("dropped", reason),
        _ => redirected(to),
    }
}

fn redirected(to: Option<&str>) -> PacketOutcome {
    PacketOutcome::without_reason(to.map_or_else(|| "forwarded".into(), |to| format!("forwarded to {to}")))
}

/// Without a counter: the interface does not forward, or its filters are not in place.
fn by_verdict(verdict: i32, is_tc: bool, to: Option<&str>) -> PacketOutcome {
    let is_dropped = if is_tc { verdict == TC_DROP } else { verdict == XDP_DROP || verdict == XDP_ABORTED };
    match to {
        Some(_) => redirected(to),
        None if is_dropped => PacketOutcome::because("dropped", "filter_not_ready"),
        None => PacketOutcome::without_reason("left to Linux"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(program: &str, names: &[&str], counter: &str, verdict: i32, to: Option<&str>) -> String {
        let counter = names.iter().position(|name| *name == counter).map(|at| at as u16);
        let outcome =
            Outcome::Decided { verdict, counter, to: to.map(|_| 4), took_ns: 0, rewritten: Vec::new() };
        let packet = Packet { time_ns: 0, ifindex: 3, queue: 0, length: 0, frame: Vec::new(), outcome };
        describe(program, &packet, to).to_string()
    }

    #[test]
    fn the_counter_that_moved_says_why() {
        let kernel = |counter, verdict, to| text("bm_forward_7", &COUNTERS, counter, verdict, to);
        assert_eq!(kernel("forwarded", 4, Some("r1")), "forwarded to r1");
        assert_eq!(kernel("linux_other_type", 2, None), "left to Linux: other_type");
        assert_eq!(kernel("drop_rate_limit", 1, None), "dropped: rate_limit");
        assert_eq!(kernel("claimed", 4, None), "handed to a worker");
        assert_eq!(kernel("none", 2, None), "left to Linux");
        let steer = |counter, verdict| text("steer", &STEER_COUNTERS, counter, verdict, None);
        assert_eq!(steer("steered", 4), "handed to a worker");
        assert_eq!(steer("local", 2), "left to Linux: local");
        assert_eq!(steer("held", 1), "dropped: filter_not_ready");
    }

    #[test]
    fn without_a_counter_the_verdict_says_what() {
        assert_eq!(text("bm_hold", &[], "", 1, None), "dropped: filter_not_ready");
        assert_eq!(text("bm_hold", &[], "", 2, None), "left to Linux");
        assert_eq!(text("bm_hold_tc", &[], "", 2, None), "dropped: filter_not_ready");
        assert_eq!(text("bm_forward_7_tc", &[], "", -1, None), "left to Linux");
    }
}
