//! AF_XDP ports without a router: frames from one leave on the other, to one next hop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::{Port, Steering};
use bm_port_xdp::{Checksums, Options, Shared, XdpDevice, XdpPort};
use bm_testbed::testbed::napi::POLLING_PRIORITY;
use bm_testbed::testbed::{Testbed, TestbedError, cores, mac};
use bm_wire::ethernet::ethertype;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::gettid;

use crate::bench::BenchError;

/// Frames of its memory: as many as wait in the rings of both ports, and more.
const FRAMES: usize = 65_536;
const SLEEP_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The running thread.
pub struct Floor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    number: Arc<AtomicI32>,
}

struct Ports {
    near: XdpPort,
    far: XdpPort,
    frames: Freelist,
    header: [u8; 12],
    // Dropping them takes the programs off.
    _devices: [XdpDevice; 2],
}

impl Floor {
    /// Opens the ports on the router's interfaces, with rings of this many entries, and starts.
    pub fn start(testbed: &Testbed, core: usize, ring: u32) -> Result<Self, BenchError> {
        let (stop, number) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let (stops, its_number) = (Arc::clone(&stop), Arc::clone(&number));
        let (router, names) = (testbed.router.handle()?, testbed.interfaces.clone());
        let (opened, result) = channel();
        let thread = std::thread::Builder::new().name("bm-floor".into()).spawn(move || {
            let entered: Result<(), Box<dyn std::error::Error>> =
                router.join_this_thread().map_err(Into::into);
            let mut ports = match entered.and_then(|()| open(&names.router_in, &names.router_out, ring)) {
                Ok(ports) => ports,
                Err(error) => return drop(opened.send(Err(error.to_string()))),
            };
            its_number.store(gettid().as_raw_pid(), Ordering::Relaxed);
            let _refused = cores::pin(0, core);
            let _refused = cores::prioritise(0, POLLING_PRIORITY + 1);
            if opened.send(Ok(())).is_ok() {
                ports.run(&stops);
            }
        });
        let thread = thread.map_err(TestbedError::system("start a thread"))?;
        let floor = Self { stop, thread: Some(thread), number };
        match result.recv() {
            Ok(Ok(())) => Ok(floor),
            Ok(Err(error)) => Err(BenchError::build("ports without a router")(error)),
            Err(_) => Err(BenchError::build("ports without a router")("their thread has panicked")),
        }
    }

    /// Nanoseconds of core that the thread has used.
    pub fn core_ns(&self) -> u64 {
        cores::core_ns(self.number.load(Ordering::Relaxed))
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<(), BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        ended
            .then_some(())
            .ok_or_else(|| BenchError::build("ports without a router")("their thread has panicked"))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn open(near: &str, far: &str, ring: u32) -> Result<Ports, Box<dyn std::error::Error>> {
    let pool = FramePool::new(FRAMES, 2048)?;
    let shared = Shared::new(&pool)?;
    let options =
        Options { complete_checksums: Checksums::Off, ring, transmit_ring: ring, ..Options::default() };
    let near = XdpDevice::attach(near, &shared, options.clone())?;
    let far = XdpDevice::attach(far, &shared, options)?;
    let (near_port, far_port) = (near.queue(0)?, far.queue(0)?);
    near.steering()?.set_active(true)?;
    let mut header = [0; 12];
    header[..6].copy_from_slice(&mac::next_hop(1));
    header[6..].copy_from_slice(&mac::ROUTER_OUT);
    let frames = Freelist::new(pool, 512);
    Ok(Ports { near: near_port, far: far_port, frames, header, _devices: [near, far] })
}

impl Ports {
    fn run(&mut self, stop: &AtomicBool) {
        let Self { near, far, frames, header, .. } = self;
        let mut burst = Burst::new();
        while !stop.load(Ordering::Relaxed) {
            near.receive(&mut burst, frames);
            far.tend(frames);
            if burst.is_empty() {
                sleep(near);
                continue;
            }
            burst.places_mut().iter_mut().flatten().for_each(|frame| spend_hop(frame.data_mut(), header));
            let _refused = far.transmit(&mut burst, frames);
            burst.free_all(frames);
        }
        near.close(frames);
        far.close(frames);
    }
}

/// Until a frame comes in.
fn sleep(port: &impl Port) {
    let Some(fd) = port.wait_on() else { return };
    let _woken = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&SLEEP_MAX));
}

/// New addresses, and one hop less.
fn spend_hop(packet: &mut [u8], header: &[u8; 12]) {
    let Some(head) = packet.first_chunk_mut::<34>() else { return };
    head[..12].copy_from_slice(header);
    if head[12..14] == ethertype::IPV4.to_be_bytes() {
        head[22] = head[22].wrapping_sub(1);
        let sum = u32::from(u16::from_be_bytes([head[24], head[25]])) + 0x0100;
        head[24..26].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    } else {
        head[21] = head[21].wrapping_sub(1);
    }
}
