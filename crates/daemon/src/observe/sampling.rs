//! Sends samples and counters to collectors of sFlow and IPFIX: a thread that exists while there are collectors.
//!
//! ```text
//! programs of ports ─► ring ─► bm-samples ─┬─► Sflow, Ipfix ─► UDP, never waiting
//! Linux: RTM_GETSTATS of ports, now and then ┘
//! ```
//!
//! Nothing depends on this thread: if it is late, samples are lost and counted, and packets are forwarded as ever.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use bm_api::{Collector, Collectors};
use bm_control::config::Export;
use bm_export::Tallies;

use crate::lock;

mod exporter;
use exporter::Exporter;

/// What is known about all samples since the start of the daemon.
#[derive(Default)]
pub struct Totals {
    samples: AtomicU64,
    lost: AtomicU64,
}

/// Interfaces whose packets are sampled, with the names of their ports.
type SampledInterfaces = Arc<Mutex<BTreeMap<u32, String>>>;

/// The thread, if there are collectors.
#[derive(Default)]
pub struct Sampling {
    state: Mutex<State>,
    totals: Arc<Totals>,
    ports: SampledInterfaces,
}

#[derive(Default)]
struct State {
    export: Export,
    /// In the order of the configuration.
    tallies: Vec<Arc<Tallies>>,
    thread: Option<Thread>,
    /// Why there is no thread although there are collectors.
    trouble: Option<String>,
}

struct Thread {
    ends: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl Sampling {
    /// Samples for these collectors from now on. Whatever changes, all begins anew.
    pub fn apply(&self, export: &Export) {
        let state = &mut *lock(&self.state);
        state.check();
        let same = state.export == *export && state.trouble.is_none();
        if same && state.thread.is_some() != export.collectors.is_empty() {
            return;
        }
        state.end();
        state.export = export.clone();
        state.tallies = export.collectors.iter().map(|_| Arc::default()).collect();
        if export.collectors.is_empty() {
            return;
        }
        match self.start(state) {
            Ok(thread) => state.thread = Some(thread),
            Err(why) => {
                tracing::error!("nothing is sent to collectors of sFlow and IPFIX: {why}");
                state.trouble = Some(why);
            }
        }
    }

    fn start(&self, state: &State) -> Result<Thread, String> {
        let ends = Arc::new(AtomicBool::new(false));
        let (started, ready) = mpsc::channel();
        let (export, tallies) = (state.export.clone(), state.tallies.clone());
        let (totals, ports, ended) = (self.totals.clone(), self.ports.clone(), ends.clone());
        let spawned =
            std::thread::Builder::new().name("bm-samples".into()).spawn(move || {
                match Exporter::open(export, &tallies, totals, ports) {
                    Ok(mut exporter) => {
                        let _waits = started.send(Ok(()));
                        exporter.run(&ended);
                    }
                    Err(why) => {
                        let _waits = started.send(Err(why));
                    }
                }
            });
        let handle = spawned.map_err(|error| error.to_string())?;
        match ready.recv() {
            Ok(Ok(())) => Ok(Thread { ends, handle }),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("the thread bm-samples panicked".into()),
        }
    }

    /// The interfaces that are sampled now, with the names of their ports.
    pub fn follow(&self, ports: BTreeMap<u32, String>) {
        *lock(&self.ports) = ports;
    }

    /// Ends the thread.
    pub fn end(&self) {
        lock(&self.state).end();
    }

    /// What collectors have been told.
    pub fn collectors(&self) -> Collectors {
        let mut state = lock(&self.state);
        state.check();
        let has_any = !state.export.collectors.is_empty();
        let collectors = state.export.collectors.iter().zip(&state.tallies).map(|(collector, tallies)| {
            let tally = tallies.read();
            Collector {
                format: collector.format.name().into(),
                address: collector.address.to_string(),
                samples: tally.samples,
                unfit: tally.unfit,
                sent: tally.sent,
                refused: tally.refused,
                full: tally.full,
                failed: tally.failed,
            }
        });
        Collectors {
            one_in: if has_any { state.export.one_in } else { 0 },
            ports: if has_any { lock(&self.ports).values().cloned().collect() } else { Vec::new() },
            samples: self.totals.samples.load(Relaxed),
            lost: self.totals.lost.load(Relaxed),
            trouble: state.trouble.clone(),
            collectors: collectors.collect(),
        }
    }
}

impl State {
    /// Notices that the thread has ended by itself.
    fn check(&mut self) {
        if self.thread.as_ref().is_some_and(|thread| thread.handle.is_finished()) {
            self.end();
            self.trouble = Some("the thread bm-samples panicked; `brickmoon reload` starts it again".into());
        }
    }

    fn end(&mut self) {
        self.trouble = None;
        let Some(Thread { ends, handle }) = self.thread.take() else { return };
        ends.store(true, Relaxed);
        if handle.join().is_err() {
            tracing::error!("the thread bm-samples, which sends sFlow and IPFIX, has panicked");
        }
    }
}
