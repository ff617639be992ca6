//! Connections through Linux's firewall: the rules, the packets that establish them, and the wait until the daemon has
//! learned them.
//!
//! ```text
//! one packet to each destination ─► Linux: new, accepted, masqueraded
//! one answer from each           ─► Linux: established
//! 2 s later, packets to each     ─► Linux: a stream, not a request with its answer ─► the daemon learns a flow
//! ```

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use bm_testbed::addresses::{Pattern, Sizes, destinations};
use bm_testbed::interrupt;
use bm_testbed::oracle::Oracle;
use bm_testbed::testbed::namespace::{Namespace, command};
use bm_testbed::testbed::{ROUTER_OUT_IPV4, Testbed, TestbedError};
use bm_testbed::traffic::host::{self, Pace};
use bm_testbed::traffic::{DESTINATIONS_MAX, Programs, Sink, SinkMode, Stream, Traffic};
use serde_json::Value;

use super::super::bed::status;
use super::super::{KernelOptions, SEED, check_arrived, one_route};
use crate::bench::BenchError;
use crate::demo::daemon::Daemon;
use crate::measure::Flow;

/// Packets a second while connections are established: Linux forwards that many new ones without a loss.
const PER_SECOND: f64 = 200_000.0;
/// Even for a single connection a pass of learning takes as long as this many packets.
const PASS_MIN: u32 = 20_000;
/// After that time UDP that has been answered is a stream (`nf_conntrack_udp_packet` in the kernel), which only counts once
/// a further packet passes.
const STREAM: Duration = Duration::from_millis(2100);
/// How long packets may take to arrive.
const ARRIVE: Duration = Duration::from_secs(5);
/// How long the daemon may learn nothing before this is as much as it learns.
const PATIENCE: Duration = Duration::from_secs(20);
/// Timeout of all connections in seconds, so that none of those ends that have no packet for a while.
const TIMEOUT: &str = "3600";
/// Limits of connection tracking on the whole machine.
const LIMITS: [&str; 2] =
    ["/proc/sys/net/netfilter/nf_conntrack_max", "/proc/sys/net/netfilter/nf_conntrack_buckets"];

/// A stateful firewall with masquerade on the router. The source's host has no sockets for what comes back, and shall not
/// answer with errors.
pub(super) fn set_rules(testbed: &Testbed) -> Result<(), TestbedError> {
    let (inside, outside) = (&testbed.interfaces.router_in, &testbed.interfaces.router_out);
    let rules = format!(
        "table ip bench {{
             chain forward {{
                 type filter hook forward priority filter; policy drop;
                 ct state established,related accept
                 ct state invalid drop
                 iifname \"{inside}\" oifname \"{outside}\" accept
             }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat; policy accept;
                 oifname \"{outside}\" masquerade
             }}
         }}"
    );
    nft(&testbed.router, &rules)?;
    let closed = "table ip bench {
        chain input {
            type filter hook input priority filter; policy accept;
            meta l4proto udp drop
        }
    }";
    nft(&testbed.source, closed)
}

fn nft(namespace: &Namespace, rules: &str) -> Result<(), TestbedError> {
    let mut nft = Command::new("nft");
    namespace.confine(&mut nft)?;
    command(&mut nft, &["-f", "-"], rules).map(|_| ())
}

/// Limits of connection tracking that were raised for the whole machine, since Linux has them for all namespaces together;
/// restored when this is dropped.
pub struct Limits {
    /// Files and what they held.
    before: Vec<(&'static str, String)>,
}

impl Limits {
    /// Makes room for so many connections: as many buckets as connections, as Linux has by default. To be called once rules
    /// have loaded connection tracking.
    pub fn raise(testbed: &Testbed, connections: usize) -> Result<Self, TestbedError> {
        let mut limits = Self { before: Vec::new() };
        let wanted = (connections + connections / 64).next_power_of_two();
        for file in LIMITS {
            let was = fs::read_to_string(file).map_err(TestbedError::system(file))?;
            if was.trim().parse().is_ok_and(|was: usize| was >= wanted) {
                continue;
            }
            fs::write(file, wanted.to_string()).map_err(TestbedError::system(format!("raise {file}")))?;
            limits.before.push((file, was));
        }
        // Some kernels have a limit for each namespace as well, which others only show.
        let own = wanted.to_string();
        let _only_shown = testbed.router.sysctl(&[("net/netfilter/nf_conntrack_max", &own)]);
        testbed.router.sysctl(&[
            ("net/netfilter/nf_conntrack_udp_timeout", TIMEOUT),
            ("net/netfilter/nf_conntrack_udp_timeout_stream", TIMEOUT),
        ])?;
        Ok(limits)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for (file, was) in &self.before {
            if let Err(error) = fs::write(file, was) {
                eprintln!("{file} was {} before, and cannot be restored: {error}", was.trim());
            }
        }
    }
}

/// Frames of 60 bytes to so many destinations in turn.
pub fn stream(connections: usize) -> Stream {
    let routes = one_route().ipv4;
    let mut addresses = destinations::<u32>(Pattern::Uniform, SEED, 2 * DESTINATIONS_MAX, &routes);
    let mut known = HashSet::new();
    addresses.retain(|&address| address.is_forwardable() && known.insert(address));
    addresses.truncate(connections);
    u32::stream(&addresses, Sizes::Fixed(64), &Oracle::new(&routes))
}

/// Has every connection established: a packet to each destination, an answer from each, and the time that makes it a
/// stream.
pub(super) fn establish(
    testbed: &Testbed,
    programs: &Programs,
    case: &str,
    stream: &Stream,
) -> Result<(), BenchError> {
    let sink = Sink::attach(programs, testbed, SinkMode::Skbs)?;
    let frames = stream.destinations() as u32;
    let pace = Pace::Rate { frames, per_second: PER_SECOND };
    host::send(testbed, stream, pace)?;
    let began = Instant::now();
    let mut arrived = sink.arrived()?;
    while arrived.good < u64::from(frames) && began.elapsed() < ARRIVE {
        interrupt::sleep(Duration::from_millis(10)).map_err(TestbedError::from)?;
        arrived = sink.arrived()?;
    }
    // A connection that has lost its first packet has none to be answered.
    check_arrived(case, "linux", &Flow { sent: frames.into(), arrived, ..Flow::default() })?;
    host::answer(testbed, stream, ROUTER_OUT_IPV4, pace)?;
    interrupt::sleep(STREAM).map_err(TestbedError::from)?;
    Ok(())
}

/// Sends to all destinations again and again until the daemon has a flow for each, or learns no more; returns how many it
/// has.
pub fn learn(
    options: &KernelOptions,
    daemon: &Daemon,
    testbed: &Testbed,
    programs: &Programs,
    stream: &Stream,
) -> Result<u64, BenchError> {
    let _sink = Sink::attach(programs, testbed, SinkMode::Skbs)?;
    let connections = stream.destinations() as u32;
    let pace = Pace::Rate { frames: connections.max(PASS_MIN), per_second: PER_SECOND };
    let (mut learned, mut grew) = (0, Instant::now());
    while learned < u64::from(connections) && grew.elapsed() < PATIENCE {
        host::send(testbed, stream, pace)?;
        let flows = flows(options, daemon)?;
        if flows["flows"].as_u64() > Some(learned) {
            (learned, grew) = (flows["flows"].as_u64().unwrap_or(0), Instant::now());
        }
        if let Some(why) = flows["why_not"].as_str() {
            return Err(BenchError::build("packets do not go by flow")(why));
        }
    }
    match learned {
        0 => Err(BenchError::build("brickmoon")("has learned no flow: `brickmoon status` may say why")),
        _ => Ok(learned),
    }
}

/// The state of flows as the daemon reports it: `flows` is their number, `families` those that go by flow, `why_not` why
/// none does.
pub fn flows(options: &KernelOptions, daemon: &Daemon) -> Result<Value, BenchError> {
    Ok(status(options, daemon)?["flows"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_destinations_as_connections() {
        for connections in [1, 10_000, 1_000_000] {
            assert_eq!(stream(connections).destinations(), connections);
        }
    }
}
