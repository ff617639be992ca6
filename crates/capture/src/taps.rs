//! All that is attached for one command: follows the ports' programs, and reads what comes.

use std::sync::Arc;
use std::time::Duration;

use bm_sys::Mutex;
use libbpf_rs::{MapCore, MapFlags, PerfBuffer, PerfBufferBuilder};

use crate::error::CaptureError;
use crate::options::Options;
use crate::port::{Port, Program};
use crate::record::Record;
use crate::tap::{SharedMaps, Tap};

/// Pages of all buffers together: 16 MiB.
const PAGES: usize = 4096;
/// Pages of one CPU's buffer.
const PAGES_EACH: std::ops::RangeInclusive<usize> = 64..=1024;
/// Records that have been read from the buffer and not been returned yet.
type Inbox = Arc<Mutex<Vec<Record>>>;

/// The programs of a capture, attached until this is dropped.
pub struct Taps {
    options: Options,
    ports: Vec<Port>,
    taps: Vec<(Program, Tap)>,
    /// The name of each port's program.
    programs: Vec<(u32, String)>,
    senders: Tap,
    shared: SharedMaps,
    buffer: PerfBuffer<'static>,
    inbox: Inbox,
    /// Records lost by programs that are no longer attached.
    lost_before: u64,
}

impl Taps {
    /// Attaches the programs that show the packets of these ports.
    ///
    /// # Errors
    /// If a port has no program, or the kernel refused.
    pub fn attach(options: Options, ports: Vec<Port>) -> Result<Self, CaptureError> {
        let senders = Tap::of_senders(&options)?;
        let shared = SharedMaps { ports: senders.map("ports")?, events: senders.map("events")? };
        let inbox = Inbox::default();
        let to = inbox.clone();
        let pages = (PAGES / cpus()).next_power_of_two().clamp(*PAGES_EACH.start(), *PAGES_EACH.end());
        let buffer = PerfBufferBuilder::new(&shared.events).pages(pages);
        let buffer = buffer.sample_cb(move |_cpu: i32, bytes: &[u8]| {
            to.lock().extend(Record::parse(bytes));
        });
        let buffer = buffer.build().map_err(CaptureError::at("creating the buffer of a capture"))?;
        let mut taps = Self {
            options,
            ports,
            taps: Vec::new(),
            programs: Vec::new(),
            senders,
            shared,
            buffer,
            inbox,
            lost_before: 0,
        };
        taps.follow()?;
        for port in &taps.ports {
            let key = port.ifindex.to_ne_bytes();
            let added = taps.shared.ports.update(&key, &port.value(), MapFlags::ANY);
            added.map_err(CaptureError::at("adding a port to a capture"))?;
        }
        Ok(taps)
    }

    /// Attaches to programs that ports have got meanwhile, because a daemon was started or a port moved to tc.
    ///
    /// # Errors
    /// As for [`Self::attach`]. What is attached stays.
    pub fn follow(&mut self) -> Result<(), CaptureError> {
        let mut wanted: Vec<Program> = Vec::new();
        for port in &self.ports {
            let programs = port.programs()?;
            self.programs.retain(|(ifindex, _)| *ifindex != port.ifindex);
            self.programs.extend(programs.first().map(|program| (port.ifindex, program.name.clone())));
            for program in programs {
                if !wanted.contains(&program) {
                    wanted.push(program);
                }
            }
        }
        for program in &wanted {
            if self.taps.iter().all(|(watched, _)| watched != program) {
                self.options.tap = (self.options.tap + 1) % 256;
                let tap = Tap::of_program(&self.options, program, &self.shared)?;
                self.taps.push((program.clone(), tap));
            }
        }
        let gone = self.taps.extract_if(.., |(watched, _)| !wanted.contains(watched));
        self.lost_before += gone.map(|(_, tap)| lost(&tap)).sum::<u64>();
        Ok(())
    }

    /// The name of the program that the port's packets meet, which says what its counters are called.
    pub fn program(&self, ifindex: u32) -> Option<&str> {
        self.programs.iter().find(|(of, _)| *of == ifindex).map(|(_, name)| name.as_str())
    }

    /// Waits for records, at most for this time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn poll(&self, longest: Duration) -> Result<Vec<Record>, CaptureError> {
        match self.buffer.poll(longest) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                return Err(CaptureError::at("reading the packets")(error));
            }
            _ => {}
        }
        Ok(std::mem::take(&mut *self.inbox.lock()))
    }

    /// Records that found no room in the buffer: packets, or their verdicts.
    pub fn lost(&self) -> u64 {
        self.lost_before + lost(&self.senders) + self.taps.iter().map(|(_, tap)| lost(tap)).sum::<u64>()
    }
}

/// CPUs of the machine.
fn cpus() -> usize {
    libbpf_rs::num_possible_cpus().unwrap_or(1).max(1)
}

/// The place of `lost` in `struct cpu` of the programs.
const LOST: usize = 256 + 2 * 8;

/// Records that the programs of an object file lost.
fn lost(tap: &Tap) -> u64 {
    let values =
        tap.map("cpus").ok().and_then(|cpus| cpus.lookup_percpu(&[0; 4], MapFlags::ANY).ok().flatten());
    let lost = values.iter().flatten().filter_map(|value| value.get(LOST..)?.first_chunk());
    lost.map(|bytes| u64::from_ne_bytes(*bytes)).sum()
}
