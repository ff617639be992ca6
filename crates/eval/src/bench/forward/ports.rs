//! `bench ports`: how long does a packet take on a DPDK port, on one core, with the router and without?
//!
//! ```text
//! net_ring   what is sent is received again: no allocation, no copy   ring -> [router ->] ring
//! net_pcap   allocates and fills a frame for each packet, drops what is sent
//! net_null   allocates a frame for each packet, frees what is sent
//! ```
//!
//! DPDK's own testpmd runs in turn with it, on the same core and the same virtual device: it passes frames on
//! (`testpmd-io`), or writes their MACs (`testpmd-mac`). Beside the router runs DPDK's l3fwd with the same routes.
//!
//! Frames have 60 bytes (64 with the frame check sequence) or the selected sizes; those of a mix have a fixed order.
//!
//! Frames that circulate in a ring would use up their TTL, so the bench's port sets it to 255 again in time: one write
//! in 200 laps. Figures count only if all accounts close and what leaves is correct byte by byte.

mod child;
mod device;
mod l3fwd;
mod testpmd;

use std::time::{Duration, Instant};

use bm_frame::{BURST, FramePool};
use bm_port_dpdk::{BUILT, DpdkDevice, DpdkError, Options as DeviceOptions, Spec};
use bm_testbed::addresses::{Pattern, Sizes};
use bm_testbed::tables::{self, TableOptions};

use super::bed::{Bed, NEXT_HOPS};
use super::packet::port_mac;
use super::running::RunningEngine;
use super::{
    BREATHS, BenchError, BreathCount, CountOptions, LEAST, SAMPLE_BREATHS, breathe, cores, count_breaths,
    routable,
};
use crate::alternate::{Sample, Series, Turns, alternate_samples, repeat};
use crate::bench::{Options, SMALLEST, size_suffix};
use crate::report::Row;
use device::{Capture, Looped, frame};
use l3fwd::L3fwd;
use testpmd::Testpmd;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 40;
/// Number of destinations, used in turn.
const DESTINATIONS: usize = 4096;
/// Number of frames in a ring with 1,024 places.
const RING_FRAMES: usize = 1023;
const SLOTS: usize = 16_384;

/// The rows, and notes about them.
#[derive(Default)]
pub struct PortsFound {
    /// The figures.
    pub rows: Vec<Row>,
    /// Such as: testpmd is not installed.
    pub notes: Vec<String>,
}

/// Which device, and whether the router is between receiving and sending.
#[derive(Clone, Copy)]
struct Case {
    routed: bool,
    vdev: &'static str,
    sizes: Sizes,
}

impl Case {
    const ALL: [Self; 5] = {
        const fn case(routed: bool, vdev: &'static str) -> Case {
            Case { routed, vdev, sizes: SMALLEST }
        }
        [
            case(true, "net_ring"),
            case(true, "net_pcap"),
            case(false, "net_ring"),
            case(false, "net_pcap"),
            case(false, "net_null"),
        ]
    };

    /// All cases with frames of one size.
    fn all(sizes: Sizes) -> impl Iterator<Item = Self> {
        // net_null's frames are all of one size.
        Self::ALL
            .into_iter()
            .filter(move |case| case.vdev != "net_null" || sizes != Sizes::Imix)
            .map(move |case| Self { sizes, ..case })
    }

    fn name(&self) -> String {
        let what = if self.routed { "ipv4-full-prefix" } else { "minimal" };
        format!("{what}{}-{}", size_suffix(self.sizes), self.vdev)
    }

    /// Size of the frames that testpmd puts in a ring: all the same, the mean of a mix. Only their number matters,
    /// since nobody reads more than the first cache line.
    fn mean_bytes(&self) -> usize {
        let lengths = self.lengths();
        lengths.iter().map(|&length| usize::from(length)).sum::<usize>() / lengths.len()
    }

    /// Sizes of frames in memory in bytes, one period.
    fn lengths(&self) -> Vec<u16> {
        self.sizes.in_memory(device::LEAST as u16)
    }

    /// How l3fwd runs beside it: only a ring can have marked frames.
    fn l3fwd_modes(&self) -> &'static [&'static str] {
        match (self.routed, self.vdev) {
            (true, "net_ring") => &l3fwd::MODES,
            (true, _) => &l3fwd::MODES[..1],
            _ => &[],
        }
    }

    /// The name of the device for our process, and for testpmd's.
    fn device(&self, capture: &Capture) -> String {
        let name = format!("{}_{}", self.vdev, if self.routed { "routed" } else { "minimal" });
        match self.vdev {
            "net_pcap" => format!("{name},rx_pcap={},infinite_rx=1", capture.path()),
            "net_null" => format!("{name},size={}", self.mean_bytes()),
            _ => name,
        }
    }
}

/// Measures all selected cases.
///
/// # Errors
/// [`BenchError::Dpdk`] in a build without DPDK; otherwise see [`BenchError`].
pub fn ports(options: &Options) -> Result<PortsFound, BenchError> {
    let begin = Instant::now();
    let cases = options.sizes().into_iter().flat_map(Case::all);
    let cases: Vec<_> = cases.filter(|case| options.wants(&case.name())).collect();
    if cases.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    if !BUILT {
        return Err(BenchError::Dpdk(DpdkError::NotBuilt { device: cases[0].vdev.into() }));
    }
    let core = cores::allowed().last().copied().unwrap_or(0);
    // A thread that moves between cores starts with cold caches. If pinning is refused, measure without.
    let _refused = cores::pin(0, core);
    let frame_pool = FramePool::new(SLOTS, 2048).map_err(BenchError::build("frame memory"))?;
    let table = options.table(NEXT_HOPS)?;
    // What is sent is received again, so it must be to the port's own MAC.
    let bed = Bed::with_hops(table, frame_pool, |_| (0, port_mac(0)))?;
    let destinations = routable(Pattern::Prefix, &bed.ipv4);
    let destinations = &destinations[..destinations.len().min(DESTINATIONS)];
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let measurements = cases.iter().map(|case| 1 + testpmd::MODES.len() + case.l3fwd_modes().len()).sum();
    let left = whole.saturating_sub(begin.elapsed()).max(LEAST * measurements as u32);
    let turns = Turns::within(left, measurements);
    let mut found = PortsFound::default();
    let l3fwd = cases.iter().any(|case| case.routed).then(|| l3fwd::L3fwdProgram::new(&bed.ipv4.routes));
    let l3fwd = l3fwd.and_then(|built| built.map_err(|why| found.notes.push(why)).ok());
    for case in cases {
        let capture = Capture::write(destinations, &case.lengths());
        let capture = capture.map_err(BenchError::build("capture file"))?;
        let setup = Setup { bed: &bed, destinations, l3fwd: l3fwd.as_ref(), core, turns };
        let measured = measure(case, &setup, &capture, &mut found.notes)?;
        found.rows.extend(measured.iter().map(|measured| row(&case, &bed, measured)));
    }
    Ok(found)
}

/// Runs a number of breaths on a device's ring with a small table, for [`forward_counted`](super::forward_counted).
pub(super) fn counted(case: &str, options: CountOptions) -> Result<BreathCount, BenchError> {
    let routed = match case {
        "net_ring" => true,
        "net_ring-minimal" => false,
        other => return Err(BenchError::NoCase { wanted: other.into() }),
    };
    let case = Case { routed, vdev: "net_ring", sizes: SMALLEST };
    // Instructions are counted under valgrind.
    bm_port_dpdk::start_on_plain_pages().map_err(BenchError::Dpdk)?;
    let CountOptions { breaths, routes, .. } = options;
    let table = TableOptions { ipv4: routes, ipv6: 10, next_hops: NEXT_HOPS, ..TableOptions::default() };
    let table = tables::generate(&table).map_err(BenchError::Table)?;
    let frame_pool = FramePool::new(SLOTS, 2048).map_err(BenchError::build("frame memory"))?;
    let bed = Bed::with_hops(table, frame_pool, |_| (0, port_mac(0)))?;
    let destinations = routable(Pattern::Prefix, &bed.ipv4);
    let destinations = &destinations[..destinations.len().min(DESTINATIONS)];
    let ((mut running, _sent), _device) = run(case, &bed, destinations, case.vdev)?;
    let counted = count_breaths(&mut running, breaths, RunningEngine::sent);
    running.check_accounts().map_err(|counters| BenchError::Lost { case: case.name(), counters })?;
    Ok(counted)
}

fn row(case: &Case, bed: &Bed, measured: &Series) -> Row {
    let row = Row::mpps("ports", &case.name(), measured);
    let row = row.with("sizes", case.sizes.to_string()).with("frame_bytes", case.mean_bytes());
    let version = bm_port_dpdk::version().unwrap_or_default();
    let row = row.with("dpdk", version).with("frames", RING_FRAMES).with("destinations", DESTINATIONS);
    match (case.routed, measured.subject.as_str()) {
        (true, "brickmoon") => row
            .with("routes", bed.ipv4.routes.len())
            .with("structure", bed.ipv4.structure)
            .with("burst", BURST),
        (false, "brickmoon") => row.with("burst", BURST),
        (true, peer) if peer.starts_with("l3fwd") => {
            row.with("routes", bed.ipv4.routes.len()).with("burst", l3fwd::BURST)
        }
        _ => row.with("burst", testpmd::BURST),
    }
}

/// What all cases are measured with.
struct Setup<'a> {
    bed: &'a Bed,
    destinations: &'a [u32],
    l3fwd: Option<&'a l3fwd::L3fwdProgram>,
    core: usize,
    turns: Turns,
}

fn measure(
    case: Case,
    setup: &Setup<'_>,
    capture: &Capture,
    notes: &mut Vec<String>,
) -> Result<Vec<Series>, BenchError> {
    let &Setup { bed, destinations, l3fwd, core, turns } = setup;
    let device = case.device(capture);
    let (mut running, device_kept) = run(case, bed, destinations, &device)?;
    check(&case, &mut running.0, &running.1, destinations)?;
    let mut peers = Vec::new();
    let mut add = |name: String, peer: Result<Peer, String>| match peer {
        Ok(peer) => peers.push((name, peer)),
        Err(why) if notes.contains(&why) => {}
        Err(why) => notes.push(why),
    };
    for mode in testpmd::MODES {
        let peer = Testpmd::start(mode, &device, core, case.mean_bytes());
        add(format!("testpmd-{mode}"), peer.map(Peer::Testpmd));
    }
    for mode in case.l3fwd_modes() {
        if let Some(l3fwd) = l3fwd {
            let peer = L3fwd::start(mode, l3fwd, &device, &capture.path(), core);
            add(format!("l3fwd-{mode}"), peer.map(Peer::L3fwd));
        }
    }
    let names = std::iter::once("brickmoon".to_string()).chain(peers.iter().map(|(name, _)| name.clone()));
    let names: Vec<_> = names.collect();
    let measured = alternate_samples(turns.runs, names, |index| match index {
        0 => {
            let work = &mut || breathe(&mut running.0);
            repeat(turns.warm_up, work);
            Ok(repeat(turns.slot, work))
        }
        peer => {
            peers[peer - 1].1.turn(turns.slot + turns.warm_up).map_err(BenchError::build("DPDK's program"))
        }
    })?;
    check(&case, &mut running.0, &running.1, destinations)?;
    drop((running, device_kept));
    Ok(measured)
}

/// A program of DPDK that forwards in turn with ours.
enum Peer {
    Testpmd(Testpmd),
    L3fwd(L3fwd),
}

impl Peer {
    fn turn(&mut self, time: Duration) -> Result<Sample, String> {
        match self {
            Self::Testpmd(peer) => peer.turn(time),
            Self::L3fwd(peer) => peer.turn(time),
        }
    }
}

type EngineWithCopies = (RunningEngine, device::SentFrames);

/// Our engine on the device, with frames in its ring.
fn run(
    case: Case,
    bed: &Bed,
    destinations: &[u32],
    text: &str,
) -> Result<(EngineWithCopies, DpdkDevice), BenchError> {
    let device = DpdkDevice::open(&Spec::new(text), bed.frames(), DeviceOptions::default());
    let device = device.map_err(BenchError::Dpdk)?;
    let port = device.queue(0).map_err(BenchError::Dpdk)?;
    let in_ring = if case.vdev == "net_ring" { RING_FRAMES } else { 0 };
    let port = Looped::new(port, bed.frames(), destinations, &case.lengths(), in_ring, case.routed);
    let sent = port.sent();
    let running = if case.routed { bed.router_over(Box::new(port)) } else { bed.loop_over(Box::new(port)) }?;
    Ok(((running, sent), device))
}

/// Runs for a while and compares what is sent, byte by byte, with what is expected.
fn check(
    case: &Case,
    running: &mut RunningEngine,
    sent: &device::SentFrames,
    destinations: &[u32],
) -> Result<(), BenchError> {
    sent.begin();
    (0..SAMPLE_BREATHS.min(BREATHS)).for_each(|_| _ = running.engine.breathe());
    running.check_accounts().map_err(|counters| BenchError::Lost { case: case.name(), counters })?;
    let frames = sent.end();
    if frames.is_empty() {
        let counters = "no frame was sent".into();
        return Err(BenchError::Lost { case: case.name(), counters });
    }
    if case.vdev == "net_null" {
        return Ok(());
    }
    let (from, lengths) = (if case.routed { port_mac(0) } else { device::SENDER }, case.lengths());
    for found in frames {
        // Destination and TTL are the packet's own; the rest follows from them.
        let to = found.get(30..34).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let ttl = found.get(22).copied().unwrap_or(0);
        let known = to.filter(|to| destinations.contains(to) && ttl > 0);
        let known = known.filter(|_| lengths.contains(&(found.len() as u16)));
        let expected = known.map(|to| frame(to, from, ttl, found.len())).unwrap_or_default();
        if expected != found {
            return Err(BenchError::Wrong { case: case.name(), expected, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_end_in_their_device() {
        assert_eq!(Case::ALL[0].name(), "ipv4-full-prefix-net_ring");
        assert_eq!(Case::ALL[4].name(), "minimal-net_null");
        let names: Vec<_> = Sizes::ALL.into_iter().flat_map(Case::all).map(|case| case.name()).collect();
        assert_eq!(names.len(), 7 * 5 - 1);
        assert!(names.contains(&"ipv4-full-prefix-imix-net_ring".into()), "{names:?}");
        assert!(names.contains(&"minimal-1518-net_null".into()), "{names:?}");
    }

    #[test]
    fn reports_what_is_missing() {
        let nothing = Options { case: Some("net_nosuch".into()), ..Options::default() };
        assert!(matches!(ports(&nothing), Err(BenchError::NoCase { .. })));
        if !BUILT {
            assert!(matches!(ports(&Options::default()), Err(BenchError::Dpdk(_))));
        }
    }

    /// Each case forwards every frame as it should, before and after its turns.
    #[cfg(feature = "dpdk")]
    #[test]
    fn every_case_forwards_correctly() {
        let table = tables::generate(&TableOptions {
            ipv4: 1000,
            ipv6: 10,
            next_hops: NEXT_HOPS,
            ..TableOptions::default()
        });
        let frame_pool = FramePool::new(SLOTS, 2048).expect("memory");
        let bed =
            Bed::with_hops(table.expect("a table"), frame_pool.clone(), |_| (0, port_mac(0))).expect("a bed");
        let destinations = routable(Pattern::Prefix, &bed.ipv4);
        let destinations = &destinations[..256];
        let sizes = [SMALLEST, Sizes::Fixed(1518), Sizes::Imix];
        for case in sizes.into_iter().flat_map(Case::all) {
            let capture = Capture::write(destinations, &case.lengths()).expect("a file");
            let (mut running, kept) =
                run(case, &bed, destinations, &case.device(&capture)).unwrap_or_else(|e| panic!("{e}"));
            for _ in 0..3 {
                // Far more laps than a packet's TTL.
                (0..2000).for_each(|_| _ = running.0.engine.breathe());
                check(&case, &mut running.0, &running.1, destinations).unwrap_or_else(|e| panic!("{e}"));
            }
            assert!(running.0.sent() > 10_000);
            drop((running, kept));
            assert_eq!(frame_pool.available(), SLOTS, "{}", case.name());
        }
    }
}
