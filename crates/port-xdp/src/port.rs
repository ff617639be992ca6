//! One queue of an interface, used by one worker.
//!
//! ```text
//!  freelist ──► fill ──► kernel ──► receive ──► burst ──► transmit ──► kernel ──► completion ──► freelist
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_frame::{BURST, Burst, Frame, FramePool, Freelist};
use bm_port::{DeviceCounters, InPlace, Port, ReceivedFrames, TransmittedFrames};
use bm_wire::ethernet::Ethernet;
use bm_wire::offload;

use crate::heartbeat::QueueHeartbeat;
use crate::in_flight::InFlight;
use crate::socket::{self, Binding, Rings};

/// The most send calls for one burst: old kernels send 32 frames per call.
const KICKS_MAX: usize = BURST / 32 + 1;
/// Length of an Ethernet header; shorter frames are invalid.
const ETHERNET_HEADER: u32 = 14;
/// How long closing waits for frames on their way out.
const CLOSE_WAIT: Duration = Duration::from_millis(50);

/// An AF_XDP port.
pub struct XdpPort {
    /// `None` once closed.
    bound: Option<BoundSocket>,
    binding: Binding,
    /// Takes the frames if the port is dropped without being closed.
    frame_pool: Arc<FramePool>,
    in_flight: InFlight,
    /// Free frames that the driver has; at most the size of the ring.
    filled: u32,
    /// Frames sent and not returned yet.
    sending: u32,
    /// The kernel could not send all of them just now: another attempt is due soon.
    is_stuck: bool,
    /// There were too few free frames for the driver.
    is_starved: bool,
    complete_checksums: bool,
    /// In the middle of a frame in several buffers, which is being dropped.
    in_large: bool,
    /// Frames dropped because they were in several buffers, or at invalid addresses.
    dropped: u64,
    /// The device's counters when it was closed.
    last: DeviceCounters,
}

struct BoundSocket {
    socket: Arc<OwnedFd>,
    rings: Rings,
    heartbeat: QueueHeartbeat,
}

impl XdpPort {
    pub(crate) fn new(
        socket: Arc<OwnedFd>,
        rings: Rings,
        heartbeat: QueueHeartbeat,
        frame_pool: &Arc<FramePool>,
        binding: Binding,
        complete_checksums: bool,
    ) -> Self {
        Self {
            bound: Some(BoundSocket { socket, rings, heartbeat }),
            binding,
            frame_pool: frame_pool.clone(),
            in_flight: InFlight::new(frame_pool.memory()),
            filled: 0,
            sending: 0,
            is_stuck: false,
            is_starved: false,
            complete_checksums,
            in_large: false,
            dropped: 0,
            last: DeviceCounters::default(),
        }
    }

    /// Whether zero-copy mode is used.
    pub fn is_zero_copy(&self) -> bool {
        self.binding.copy_flag == libc::XDP_ZEROCOPY
    }

    /// Which queue of the interface this is.
    pub fn queue(&self) -> u32 {
        self.binding.queue
    }

    /// Its AF_XDP socket, to which another program can send frames; none once it is closed.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|bound| bound.socket.as_fd())
    }

    /// Frames that the kernel has now, to receive into or to send.
    pub fn in_kernel(&self) -> usize {
        self.in_flight.count()
    }

    /// Gives free frames to the driver, up to the size of its ring.
    fn refill(&mut self, frames: &mut Freelist) {
        let Some(bound) = &mut self.bound else { return };
        let fill = &mut bound.rings.fill;
        let count = fill.free(self.binding.ring - self.filled);
        let mut filled = 0;
        while filled < count {
            let Some(frame) = frames.allocate() else { break };
            fill.write(self.in_flight.lend(frame));
            filled += 1;
        }
        if filled > 0 {
            fill.submit();
            self.filled += filled;
        }
        self.is_starved = filled < count;
        if fill.needs_wakeup() {
            socket::poll_driver(&bound.socket);
        }
    }

    /// The frame of a receive descriptor, unless it is part of a frame in several buffers, or invalid.
    fn received(&mut self, descriptor: libc::xdp_desc, frames: &mut Freelist) -> Option<Frame> {
        let (mut frame, offset) = self.in_flight.take_back(descriptor.addr)?;
        self.filled -= 1;
        let goes_on = descriptor.options & libc::XDP_PKT_CONTD != 0;
        let whole = !goes_on && !self.in_large;
        self.in_large = goes_on;
        // SAFETY: the kernel has written the packet there, and the slot was zeroed memory before.
        if whole && unsafe { frame.place(offset, descriptor.len as usize) }.is_ok() {
            return Some(frame);
        }
        // Counted once per frame, at its last buffer.
        self.dropped += u64::from(!goes_on);
        frames.free(frame);
        None
    }

    /// Takes back sent frames.
    fn reclaim(&mut self, frames: &mut Freelist) {
        let Some(bound) = &mut self.bound else { return };
        if self.sending == 0 {
            return;
        }
        let completion = &mut bound.rings.completion;
        let count = completion.available(self.sending);
        for _ in 0..count {
            if let Some((frame, _)) = self.in_flight.take_back(completion.read()) {
                frames.free(frame);
                self.sending -= 1;
            }
        }
        if count > 0 {
            completion.release();
        }
    }

    /// Makes the kernel send frames from the ring, as many as possible now.
    fn kick(&mut self) {
        let Some(bound) = &self.bound else { return };
        let transmit = &bound.rings.transmit;
        let mut pending = transmit.pending();
        self.is_stuck = false;
        for _ in 0..KICKS_MAX {
            if pending == 0 || !transmit.needs_wakeup() && self.binding.need_wakeup {
                return;
            }
            let error = socket::send(&bound.socket).err().and_then(|error| error.raw_os_error());
            let left = transmit.pending();
            // EAGAIN with fewer left: the call has sent its share, the next call sends more. EBUSY: the other end
            // drops what it has no room for, so it is better to wait. No progress: likewise, for lack of room or
            // memory. If the interface is down, waiting does not help.
            if error == Some(libc::EBUSY) || left == pending {
                self.is_stuck = left > 0 && error != Some(libc::ENETDOWN);
                return;
            }
            pending = left;
        }
        self.is_stuck = pending > 0;
    }

    /// Waits a short time for frames that are being sent: the interface may be down.
    fn drain(&mut self, frames: &mut Freelist) {
        let begin = Instant::now();
        while self.sending > 0 && begin.elapsed() < CLOSE_WAIT {
            self.kick();
            self.reclaim(frames);
            std::thread::yield_now();
        }
    }
}

impl InPlace for XdpPort {
    fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> ReceivedFrames {
        let Some(bound) = &mut self.bound else { return ReceivedFrames::default() };
        bound.heartbeat.beat();
        if self.binding.busy_poll.is_some() {
            socket::poll_driver(&bound.socket);
        }
        let count = bound.rings.receive.available(places.len() as u32);
        let mut received = ReceivedFrames::default();
        for _ in 0..count {
            let Some(bound) = &mut self.bound else { break };
            let descriptor = bound.rings.receive.read();
            let Some(mut frame) = self.received(descriptor, frames) else { continue };
            if self.complete_checksums {
                complete(frame.data_mut());
            }
            received.bytes += frame.len() as u64;
            places[received.count] = Some(frame);
            received.count += 1;
        }
        if let Some(bound) = &mut self.bound {
            bound.rings.receive.release();
        }
        self.refill(frames);
        received
    }

    fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> TransmittedFrames {
        self.reclaim(frames);
        let mut done = TransmittedFrames::default();
        let Some(bound) = &mut self.bound else {
            done.left = places.iter().flatten().count();
            return done;
        };
        let transmit = &mut bound.rings.transmit;
        let room = transmit.free(places.len() as u32);
        let mut sent = 0;
        for place in places {
            if sent == room {
                done.left += usize::from(place.is_some());
                continue;
            }
            let Some(frame) = place.take() else { continue };
            let len = frame.len() as u32;
            // The kernel skips an empty descriptor without ever returning the slot, and no driver expects a frame
            // shorter than its header.
            if len < ETHERNET_HEADER {
                frames.free(frame);
                done.refused += 1;
                continue;
            }
            transmit.write(libc::xdp_desc { addr: self.in_flight.lend(frame), len, options: 0 });
            sent += 1;
        }
        if sent > 0 {
            transmit.submit();
            self.sending += sent;
        }
        self.kick();
        done
    }
}

impl Port for XdpPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let received = self.receive_into(burst.vacant_mut(), frames);
        burst.occupy(received.count);
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let done = self.transmit_from(burst.places_mut(), frames);
        if done.left == 0 {
            burst.reset();
        }
        done.refused
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(self)
    }

    fn tend(&mut self, frames: &mut Freelist) {
        if self.sending > 0 {
            self.kick();
            self.reclaim(frames);
        }
        self.refill(frames);
    }

    /// Also `None` while frames wait to be sent, or the driver waits for free ones: no descriptor would become
    /// readable for that.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        let bound = self.bound.as_ref().filter(|_| !self.is_stuck && !self.is_starved)?;
        Some(bound.socket.as_fd())
    }

    /// In copy mode the kernel counts a frame without a slot twice, as dropped and as "fill ring empty"; in zero-copy
    /// mode the latter counts failed attempts of the driver, which need not lose a frame.
    fn device_counters(&self) -> DeviceCounters {
        let Some(bound) = &self.bound else { return self.last };
        let Ok(counts) = socket::statistics(&bound.socket) else { return self.last };
        let no_frame = if self.is_zero_copy() { 0 } else { counts.rx_fill_ring_empty_descs };
        DeviceCounters {
            receive_ring_full: counts.rx_ring_full,
            receive_no_frame: no_frame,
            receive_other: counts.rx_dropped.saturating_sub(no_frame) + self.dropped,
            transmit_invalid: counts.tx_invalid_descs,
        }
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.drain(frames);
        self.last = self.device_counters();
        let Some(bound) = self.bound.take() else { return };
        drop(bound);
        if socket::wait_unbound(&self.binding).is_err() {
            // The kernel may still write into its frames: losing them is better than sharing them.
            return;
        }
        // SAFETY: the socket is closed, and its queue is free for others or the interface is down or gone:
        // the kernel has let go of the memory.
        for frame in unsafe { self.in_flight.take_all() } {
            frames.free(frame);
        }
        (self.filled, self.sending) = (0, 0);
    }
}

/// Frees the frames of a port that was not closed: no worker has run it, or its worker has panicked.
impl Drop for XdpPort {
    fn drop(&mut self) {
        if self.bound.is_some() {
            self.close(&mut Freelist::new(self.frame_pool.clone(), 0));
        }
    }
}

/// Completes the transport checksum of a frame, if it is partial.
fn complete(frame: &mut [u8]) {
    let Ok(ethernet) = Ethernet::parse(&*frame) else { return };
    let Ok(network) = ethernet.network() else { return };
    offload::complete_partial(&mut frame[network.offset..]);
}
