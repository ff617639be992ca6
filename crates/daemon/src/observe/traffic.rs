//! Packets and bytes of every port as the wire sees them, and how many a second.
//!
//! ```text
//! Linux: RTM_GETSTATS ─┐
//! DPDK: xstats ────────┼─► Meter: a sample each second ─► answers: now, less the sample of one to two seconds ago
//! own counters ────────┘
//! ```
//!
//! The thread that supervises the data path takes the samples; workers know nothing of it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bm_api::{CountedBy, PortMode, Traffic};
use bm_netlink::{LinkCounters, LinkCountersReader};
use bm_serve::report::Counters;
use bm_stats::{Entry, Scope};

use crate::lock;
use crate::workers::data_path::PortInfo;

/// How often samples are taken.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// A rate over less than this would jump with single packets.
const RATE_OVER: Duration = Duration::from_millis(200);

/// What is counted in both directions.
pub type Both = [Traffic; 2];

/// What the ports had counted at one time, by name.
struct Sample {
    at: Instant,
    ports: BTreeMap<String, Both>,
}

/// Counts what ports receive and send.
#[derive(Default)]
pub struct Meter(Mutex<State>);

#[derive(Default)]
struct State {
    reader: Option<LinkCountersReader>,
    /// The last two samples, the older one first.
    samples: [Option<Sample>; 2],
}

impl Meter {
    /// Takes a sample if it is time for one. `own` is called for ports whose device counts nothing.
    pub fn supervise(&self, ports: &[PortInfo], own: impl FnOnce() -> Counters) {
        let mut state = lock(&self.0);
        let now = Instant::now();
        if state.samples[1].as_ref().is_some_and(|last| now - last.at < SAMPLE_EVERY) {
            return;
        }
        let own = if ports.iter().any(counts_itself) { own() } else { Counters::new() };
        let counted = ports.iter().filter_map(|port| Some((port.name.clone(), state.count(port, &own)?.1)));
        let sample = Sample { at: now, ports: counted.collect() };
        state.samples.rotate_left(1);
        state.samples[1] = Some(sample);
    }

    /// What a port has received and sent, with rates, and who counts it; `None` without an interface.
    pub fn read(&self, port: &PortInfo, own: &Counters) -> Option<(CountedBy, Both)> {
        let mut state = lock(&self.0);
        let (by, mut now) = state.count(port, own)?;
        let earlier = state.samples.iter().flatten().find(|sample| sample.at.elapsed() >= RATE_OVER);
        if let Some(Sample { at, ports }) = earlier
            && let Some(before) = ports.get(&port.name)
        {
            add_rates(&mut now, before, at.elapsed());
        }
        Some((by, now))
    }
}

impl State {
    fn count(&mut self, port: &PortInfo, own: &Counters) -> Option<(CountedBy, Both)> {
        match port.mode {
            PortMode::ZeroCopy | PortMode::Copy | PortMode::Kernel => {
                let counters = self.of_interface(port.presence.ifindex()?)?;
                Some((CountedBy::Linux, of_linux(&counters)))
            }
            PortMode::Dpdk => {
                let hardware = port.hardware.as_ref().map(|hardware| of_driver(&hardware()));
                hardware.flatten().map(|both| (CountedBy::Driver, both)).or_else(|| Some(itself(port, own)))
            }
            PortMode::Tap | PortMode::Memory => Some(itself(port, own)),
        }
    }

    fn of_interface(&mut self, ifindex: u32) -> Option<LinkCounters> {
        if self.reader.is_none() {
            self.reader = LinkCountersReader::open()
                .inspect_err(|error| tracing::debug!(%error, "cannot read the counters of interfaces"))
                .ok();
        }
        let read = self.reader.as_mut()?.read(ifindex);
        read.inspect_err(|error| {
            tracing::debug!(%error, ifindex, "cannot read the counters of an interface");
            // Answers that are still to come belong to this request.
            self.reader = None;
        })
        .ok()
        .flatten()
    }
}

/// Whether brickmoon has to count what a port receives and sends.
fn counts_itself(port: &PortInfo) -> bool {
    matches!(port.mode, PortMode::Tap | PortMode::Memory | PortMode::Dpdk)
}

fn itself(port: &PortInfo, own: &Counters) -> (CountedBy, Both) {
    (CountedBy::Brickmoon, of_brickmoon(&port.name, own))
}

fn of_linux(counters: &LinkCounters) -> Both {
    [counters.rx, counters.tx].map(|direction| Traffic {
        packets: direction.packets,
        bytes: direction.bytes,
        errors: direction.errors,
        dropped: direction.dropped,
        ..Traffic::default()
    })
}

/// The counters that all drivers of DPDK have; `None` from one that lacks them.
fn of_driver(counters: &[(String, u64)]) -> Option<Both> {
    let named = |name: &str| Some(counters.iter().find(|(other, _)| other == name)?.1);
    let rx = Traffic {
        packets: named("rx_good_packets")?,
        bytes: named("rx_good_bytes")?,
        errors: named("rx_errors").unwrap_or(0),
        dropped: named("rx_missed_errors").unwrap_or(0) + named("rx_mbuf_allocation_errors").unwrap_or(0),
        ..Traffic::default()
    };
    let tx = Traffic {
        packets: named("tx_good_packets")?,
        bytes: named("tx_good_bytes")?,
        errors: named("tx_errors").unwrap_or(0),
        ..Traffic::default()
    };
    Some([rx, tx])
}

/// What the apps of a port have counted.
fn of_brickmoon(port: &str, own: &Counters) -> Both {
    let [mut rx, mut tx] = Both::default();
    let input = format!(" -> {port}.");
    for (name, &value) in own {
        match Scope::parse(name) {
            (Scope::PortReceive { port: of, .. }, name) if of == port => match Entry::named(name) {
                Some(Entry::Received) => rx.packets += value,
                Some(Entry::ReceivedBytes) => rx.bytes += value,
                _ => {}
            },
            (Scope::PortTransmit { port: of, .. }, name) if of == port => match Entry::named(name) {
                Some(Entry::Sent) => tx.packets += value,
                _ if name == "drop/transmit_error" => tx.errors += value,
                _ if name.starts_with("drop/") => tx.dropped += value,
                _ => {}
            },
            // What the port took to send.
            (Scope::Link { link, .. }, "rxbytes") if link.contains(&input) => tx.bytes += value,
            (Scope::PortDevice { port: of, .. }, name) if of == port => {
                let direction = if name.starts_with("transmit") { &mut tx } else { &mut rx };
                direction.dropped += value;
            }
            _ => {}
        }
    }
    [rx, tx]
}

/// Adds the rates since `before`. The counters of a new interface start at 0: then there is no rate yet.
fn add_rates(now: &mut Both, before: &Both, elapsed: Duration) {
    let per_second = |now: u64, before: u64| {
        let grown = now.checked_sub(before)?;
        Some((grown as f64 / elapsed.as_secs_f64()).round() as u64)
    };
    for (now, before) in now.iter_mut().zip(before) {
        now.packets_per_s = per_second(now.packets, before.packets);
        now.bits_per_s = per_second(8 * now.bytes, 8 * before.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_absent_after_a_reset() {
        let traffic = |packets, bytes| Traffic { packets, bytes, ..Traffic::default() };
        let before = [traffic(100, 1_000), traffic(50, 500)];
        let mut now = [traffic(400, 4_000), traffic(10, 100)];
        add_rates(&mut now, &before, Duration::from_millis(1500));
        assert_eq!((now[0].packets_per_s, now[0].bits_per_s), (Some(200), Some(16_000)));
        assert_eq!((now[1].packets_per_s, now[1].bits_per_s), (None, None));
    }

    #[test]
    fn a_port_without_a_device_is_counted_by_its_apps() {
        let own = [
            ("port/tap0/0/receive/received", 3),
            ("port/tap0/1/receive/received", 4),
            ("port/tap0/0/receive/received_bytes", 700),
            ("port/tap0/0/transmit/received", 6),
            ("port/tap0/0/transmit/sent", 5),
            ("port/tap0/0/transmit/drop/transmit_error", 1),
            ("port/tap0/0/transmit/drop/transmit_full", 2),
            ("port/tap0/0/device/receive_no_frame", 8),
            ("link/0/router.eth0 -> tap0.router/rxbytes", 500),
            ("link/0/router.eth0 -> tap01.router/rxbytes", 90),
            ("port/tap01/0/receive/received", 99),
        ];
        let own = own.map(|(name, value)| (name.to_string(), value)).into();
        let [rx, tx] = of_brickmoon("tap0", &own);
        assert_eq!((rx.packets, rx.bytes, rx.errors, rx.dropped), (7, 700, 0, 8));
        assert_eq!((tx.packets, tx.bytes, tx.errors, tx.dropped), (5, 500, 1, 2));
    }

    #[test]
    fn a_driver_counts_both_directions_or_none() {
        let names = ["rx_good_packets", "rx_good_bytes", "tx_good_packets", "tx_good_bytes", "rx_errors"];
        let all: Vec<_> = names.iter().zip(1..).map(|(name, value)| ((*name).to_string(), value)).collect();
        let [rx, tx] = of_driver(&all).unwrap();
        assert_eq!((rx.packets, rx.bytes, rx.errors, tx.packets, tx.bytes), (1, 2, 5, 3, 4));
        assert_eq!(of_driver(&all[1..]), None);
    }
}
