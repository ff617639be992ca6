//! The thread's work: reads samples and counters, and sends what collectors are told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bm_bpf::samples::{Sample, SampleDrop, SampleReader};
use bm_control::config::{Export, ExportFormat};
use bm_export::{
    Collector, DropCause, Encoder, ForwardingStatus, Ipfix, Now, PacketSample, PortCounters, Sflow, Tallies,
    Traffic,
};
use bm_netlink::{Direction, LinkCountersReader};
use bm_sys::{Flag, Interfaces};

use super::{SampledInterfaces, Totals};
use crate::lock;

/// How long samples wait for others in their datagram: sFlow allows a second.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Pause after an error of the ring, which is not expected.
const PAUSE: Duration = Duration::from_millis(200);

/// A collector with its format.
struct Destination {
    encoder: Box<dyn Encoder>,
    collector: Collector,
    tallies: Arc<Tallies>,
}

/// What was counted on an interface since the thread started; wraps around, as in datagrams.
#[derive(Clone, Copy, Default)]
struct Source {
    pool: u32,
    lost: u32,
}

/// Everything that the thread has.
pub struct Exporter {
    export: Export,
    reader: SampleReader,
    destinations: Vec<Destination>,
    sources: BTreeMap<u32, Source>,
    totals: Arc<Totals>,
    ports: SampledInterfaces,
    counters: Option<LinkCountersReader>,
    started: Instant,
    flushed: Instant,
    counted: Option<Instant>,
}

impl Exporter {
    /// # Errors
    /// Why samples cannot be read.
    pub fn open(
        export: Export,
        tallies: &[Arc<Tallies>],
        totals: Arc<Totals>,
        ports: SampledInterfaces,
    ) -> Result<Self, String> {
        let reader = SampleReader::open();
        let reader = reader.map_err(|error| format!("cannot use a BPF ring buffer for samples: {error}"))?;
        let destinations = export.collectors.iter().zip(tallies).map(|(configured, tallies)| {
            let collector = Collector::open(configured.address, tallies.clone());
            let agent = export.agent.or_else(|| collector.source());
            let encoder: Box<dyn Encoder> = match configured.format {
                ExportFormat::Sflow => {
                    Box::new(Sflow::new(agent.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
                }
                ExportFormat::Ipfix => Box::new(Ipfix::new(export.one_in)),
            };
            Destination { encoder, collector, tallies: tallies.clone() }
        });
        Ok(Self {
            destinations: destinations.collect(),
            export,
            reader,
            sources: BTreeMap::new(),
            totals,
            ports,
            counters: None,
            started: Instant::now(),
            flushed: Instant::now(),
            counted: None,
        })
    }

    /// Works until `ends` is set.
    pub fn run(&mut self, ends: &AtomicBool) {
        while !ends.load(Relaxed) {
            match self.reader.poll(FLUSH_EVERY) {
                Ok(samples) => samples.iter().for_each(|sample| self.tell(sample)),
                Err(error) => {
                    tracing::debug!(%error, "cannot read samples");
                    std::thread::sleep(PAUSE);
                }
            }
            if self.counters_are_due() {
                self.tell_counters();
            }
            self.send(self.flushed.elapsed() >= FLUSH_EVERY);
        }
        self.send(true);
    }

    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { uptime_ms: self.started.elapsed().as_millis() as u32, unix_ms: unix.as_millis() as u64 }
    }

    fn tell(&mut self, sample: &Sample) {
        self.totals.samples.fetch_add(1, Relaxed);
        self.totals.lost.fetch_add(sample.missed.into(), Relaxed);
        let source = self.sources.entry(sample.ifindex).or_default();
        source.pool = source.pool.wrapping_add(sample.frames);
        source.lost = source.lost.wrapping_add(sample.missed);
        let packet = PacketSample {
            ifindex: sample.ifindex,
            forwarding: forwarding_status(sample),
            length: sample.length,
            header: &sample.header,
            one_in: self.export.one_in,
            pool: source.pool,
            lost: source.lost,
        };
        let now = self.now();
        for Destination { encoder, tallies, .. } in &mut self.destinations {
            tallies.add(encoder.add_packet(&packet, now));
        }
    }

    fn counters_are_due(&self) -> bool {
        let every = self.export.counters;
        !every.is_zero() && self.counted.is_none_or(|last| last.elapsed() >= every)
    }

    /// Adds the counters of all ports.
    fn tell_counters(&mut self) {
        self.counted = Some(Instant::now());
        let now = self.now();
        let ports = lock(&self.ports).clone();
        for (ifindex, name) in ports {
            let Some(counters) = self.read(ifindex, &name) else { continue };
            for destination in &mut self.destinations {
                destination.encoder.add_counters(&counters, now);
            }
        }
    }

    fn read(&mut self, ifindex: u32, name: &str) -> Option<PortCounters> {
        if self.counters.is_none() {
            self.counters = LinkCountersReader::open().ok();
        }
        let read = self.counters.as_mut()?.read(ifindex);
        let read = read.inspect_err(|error| {
            tracing::debug!(%error, ifindex, "cannot read the counters of an interface");
            self.counters = None;
        });
        let counters = read.ok()??;
        let flags = Interfaces::open().ok();
        let flag = |flag| flags.as_ref().is_some_and(|all| all.flag(name, flag).unwrap_or(false));
        let status = [flag(Flag::Up), flag(Flag::Running)];
        Some(PortCounters { ifindex, status, rx: traffic(counters.rx), tx: traffic(counters.tx) })
    }

    /// Sends complete datagrams, and with `all` also those that have room left.
    fn send(&mut self, all: bool) {
        let now = self.now();
        let is_automatic = self.export.agent.is_none();
        for Destination { encoder, collector, .. } in &mut self.destinations {
            // There may have been no route when the thread started.
            if let Some(agent) = collector.source().filter(|_| all && is_automatic) {
                encoder.set_agent(agent);
            }
            encoder.take(all, now).iter().for_each(|datagram| collector.send(datagram));
        }
        if all {
            self.flushed = Instant::now();
        }
    }
}

fn forwarding_status(sample: &Sample) -> ForwardingStatus {
    match (sample.out, sample.drop) {
        (0, None) => ForwardingStatus::Unknown,
        (0, Some(SampleDrop::Filter | SampleDrop::TinyFragment)) => {
            ForwardingStatus::Dropped(DropCause::Filter)
        }
        (0, Some(SampleDrop::ReversePath)) => ForwardingStatus::Dropped(DropCause::ReversePath),
        (0, Some(SampleDrop::RateLimit)) => ForwardingStatus::Dropped(DropCause::RateLimit),
        (0, Some(SampleDrop::Blackhole)) => ForwardingStatus::Dropped(DropCause::Blackhole),
        (out, _) => ForwardingStatus::Sent(out),
    }
}

fn traffic(direction: Direction) -> Traffic {
    let Direction { packets, bytes, errors, dropped, .. } = direction;
    Traffic { packets, bytes, errors, dropped }
}
