//! A loopback port: the frames that it sends come in again, each as a new packet.
//!
//! ```text
//! transmit -> [ waiting, first in first out ] -> header rewritten -> receive
//! ```
//!
//! Frames pass through their slots as through the rings of a NIC, so the caches behave as they would there. Only the
//! header is rewritten, which stands for the work of a NIC. What is written is what the router may have changed or what
//! differs from packet to packet; the rest is left as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bm_frame::{Burst, Frame, Freelist, swap_places};
use bm_port::{InPlace, Port, ReceivedFrames, TransmittedFrames};
use bm_sys::Mutex;

use super::packet::{FRAME, Packet, Template, port_mac};

/// The frames that left a port while they were recorded, with the index of the port.
#[derive(Default)]
pub(super) struct Sample {
    wanted: AtomicBool,
    taken: Mutex<Vec<(usize, Vec<u8>)>>,
}

impl Sample {
    /// Begins to keep copies of the frames that leave.
    pub fn begin(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Ends that, and returns the copies.
    pub fn end(&self) -> Vec<(usize, Vec<u8>)> {
        self.wanted.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.taken.lock())
    }

    /// Keeps a copy of what leaves through a port, if it is recording.
    pub fn look(&self, port: usize, frames: &[Option<Frame>]) {
        if self.wanted.load(Ordering::Relaxed) {
            self.take(port, frames);
        }
    }

    #[cold]
    fn take(&self, port: usize, frames: &[Option<Frame>]) {
        let copies = frames.iter().flatten().map(|frame| (port, frame.data().to_vec()));
        self.taken.lock().extend(copies);
    }
}

/// Number of places in the ring that frames wait in: a power of two.
const PLACES: usize = 1024;

/// Number of frames whose headers are prefetched together.
const AHEAD: usize = 32;

/// The packets that come in, again and again.
pub(super) struct Arrivals<A: Packet> {
    each: Arc<[A::Arrival]>,
    /// Sizes of their frames in bytes, used in turn.
    lengths: Arc<[u16]>,
}

impl<A: Packet> Arrivals<A> {
    /// One packet to each destination; these lengths are used in turn.
    pub fn new(destinations: &[A], lengths: &[u16]) -> Self {
        let templates: Vec<_> = lengths.iter().map(|&length| A::template([0; 6], length)).collect();
        let each = destinations.iter().zip(templates.iter().cycle());
        let each = each.map(|(&to, template)| A::arrival(template, to)).collect();
        Self { each, lengths: lengths.into() }
    }

    pub fn len(&self) -> usize {
        self.each.len()
    }
}

impl<A: Packet> Clone for Arrivals<A> {
    fn clone(&self) -> Self {
        Self { each: self.each.clone(), lengths: self.lengths.clone() }
    }
}

/// A port whose sent frames arrive again.
pub(super) struct LoopPort<A: Packet> {
    ring: Box<[Option<Frame>; PLACES]>,
    /// Number of frames that were ever taken out of the ring, and that were ever put in.
    read: usize,
    write: usize,
    template: Template,
    arrivals: Arrivals<A>,
    next: usize,
    index: usize,
    sample: Arc<Sample>,
    /// Maximum number of frames received at a time.
    burst: usize,
}

impl<A: Packet> LoopPort<A> {
    /// Maximum number of frames that may circulate.
    pub const ROOM: usize = PLACES;

    /// The port with this index and these frames, at most `burst` of them at a time. It sends `arrivals` again and
    /// again, beginning with `next`.
    pub fn new(
        index: usize,
        frames: Vec<Frame>,
        burst: usize,
        arrivals: Arrivals<A>,
        next: usize,
        sample: Arc<Sample>,
    ) -> Self {
        let mut ring = Box::new([const { None }; PLACES]);
        let (write, template) = (frames.len(), A::template(port_mac(index), arrivals.lengths[0]));
        let longest = arrivals.lengths.iter().max().copied().unwrap_or_default();
        let bytes = template.whole(longest.into());
        for (place, mut frame) in ring.iter_mut().zip(frames) {
            frame.copy_from(&bytes).expect("every slot has room for it");
            *place = Some(frame);
        }
        Self { ring, read: 0, write, template, arrivals, next, index, sample, burst }
    }
}

impl<A: Packet> LoopPort<A> {
    /// Moves the frames from `at` on to `to`, as the packets from `next` on. Neither range wraps around the ring's end.
    #[inline(always)]
    fn arrive(&mut self, to: &mut [Option<Frame>], at: usize, next: usize) {
        swap_places(to, &mut self.ring[at..at + to.len()]);
        let arrivals = &self.arrivals.each[next..next + to.len()];
        match &*self.arrivals.lengths {
            [length] => renew_all::<A>(&self.template, to, arrivals, usize::from(*length)),
            lengths => renew_mixed::<A>(&self.template, to, arrivals, lengths, next % lengths.len()),
        }
    }
}

/// Makes frames of this many bytes that went out before the packets of `arrivals`, one each.
#[inline(always)]
pub(super) fn renew_all<A: Packet>(
    template: &Template,
    to: &mut [Option<Frame>],
    arrivals: &[A::Arrival],
    length: usize,
) {
    // Separate code for the smallest frames, whose headers need no check.
    if length == FRAME {
        renew::<A>(template, to, arrivals, FRAME);
    } else {
        renew::<A>(template, to, arrivals, length);
    }
}

#[inline(always)]
fn renew<A: Packet>(template: &Template, to: &mut [Option<Frame>], arrivals: &[A::Arrival], length: usize) {
    for (frames, arrivals) in to.chunks_mut(AHEAD).zip(arrivals.chunks(AHEAD)) {
        // A device writes without waiting for the headers of frames.
        frames.iter().flatten().for_each(Frame::prefetch_header);
        for (place, arrival) in frames.iter_mut().zip(arrivals) {
            let Some(frame) = place else { continue };
            if frame.len() != length {
                frame.set_len(length).expect("every slot has room for it");
            }
            let bytes = frame.data_mut().first_chunk_mut().expect("it was just made this long");
            A::renew(template, bytes, arrival);
        }
    }
}

/// Renews frames of different lengths, used in turn beginning at `turn`. A device writes the length of each.
#[inline(never)]
fn renew_mixed<A: Packet>(
    template: &Template,
    to: &mut [Option<Frame>],
    arrivals: &[A::Arrival],
    lengths: &[u16],
    mut turn: usize,
) {
    for (frames, arrivals) in to.chunks_mut(AHEAD).zip(arrivals.chunks(AHEAD)) {
        frames.iter().flatten().for_each(Frame::prefetch_header);
        for (place, arrival) in frames.iter_mut().zip(arrivals) {
            let length = lengths[turn];
            turn = if turn + 1 == lengths.len() { 0 } else { turn + 1 };
            let Some(frame) = place else { continue };
            frame.set_len(length.into()).expect("every slot has room for it");
            let bytes = frame.data_mut().first_chunk_mut().expect("no length is less");
            A::renew(template, bytes, arrival);
            A::set_length(bytes, length);
        }
    }
}

impl<A: Packet> InPlace for LoopPort<A> {
    fn receive_into(&mut self, places: &mut [Option<Frame>], _frames: &mut Freelist) -> ReceivedFrames {
        let count = places.len().min(self.write - self.read).min(self.burst);
        let mut to = &mut places[..count];
        while !to.is_empty() {
            let (at, next) = (self.read % PLACES, self.next % self.arrivals.len());
            let part = to.len().min(PLACES - at).min(self.arrivals.len() - next);
            let (now, later) = to.split_at_mut(part);
            self.arrive(now, at, next);
            (self.read, self.next, to) = (self.read + part, next + part, later);
        }
        let bytes = match &*self.arrivals.lengths {
            [length] => count as u64 * u64::from(*length),
            _ => places[..count].iter().flatten().map(|frame| frame.len() as u64).sum(),
        };
        ReceivedFrames { count, bytes }
    }

    fn transmit_from(&mut self, places: &mut [Option<Frame>], _frames: &mut Freelist) -> TransmittedFrames {
        self.sample.look(self.index, places);
        let mut from = places;
        while !from.is_empty() {
            let at = self.write % PLACES;
            let (now, later) = from.split_at_mut(from.len().min(PLACES - at));
            swap_places(now, &mut self.ring[at..at + now.len()]);
            (self.write, from) = (self.write + now.len(), later);
        }
        TransmittedFrames::default()
    }
}

impl<A: Packet> Port for LoopPort<A> {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        let received = self.receive_into(burst.vacant_mut(), frames);
        burst.occupy(received.count);
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let done = self.transmit_from(burst.places_mut(), frames);
        burst.reset();
        done.refused
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(self)
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.ring.iter_mut().filter_map(Option::take).for_each(|frame| frames.free(frame));
    }
}
