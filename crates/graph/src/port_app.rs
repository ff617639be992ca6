//! A port as an app: `output` has received frames, inputs (any number) take frames to send.

use std::os::fd::BorrowedFd;

use bm_frame::{AnyFrame, BURST, Burst, Frame, Freelist};
use bm_port::{InPlace, Port, ReceivedFrames, TransmittedFrames};
use bm_stats::{Account, Counters, Entry, Reason};

use crate::app::{App, Io};
use crate::counters::{CountedDevice, DeviceCounter};

/// Nanoseconds between two reads of the device's own counters, which may cost a system call.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// A port in the network.
pub struct PortApp {
    port: Box<dyn Port>,
    /// Whether the port can use slots of links directly.
    in_place: bool,
    /// Whether it can leave frames described by their mbufs there.
    mbufs: bool,
    received: Account,
    sent: Account,
    /// Frames for which the device had no room yet, and their number.
    pending: Burst,
    held: usize,
    arrived: Burst,
    /// Where the device's own counters are published, and the values there before the start.
    device: Option<CountedDevice>,
    /// When to read them next.
    look_at_ns: u64,
    /// Bursts received per breath, and frames passed to the device at a time.
    pulls: usize,
    send_max: usize,
    /// The part of these that each input may fill, whatever waits on the others.
    share: usize,
}

impl PortApp {
    /// `received` is the account of received frames, `sent` that of sent ones.
    pub fn new(mut port: Box<dyn Port>, received: Account, sent: Account) -> Self {
        Self {
            in_place: port.in_place().is_some(),
            mbufs: port.mbufs().is_some(),
            port,
            received,
            sent,
            pending: Burst::new(),
            held: 0,
            arrived: Burst::new(),
            device: None,
            look_at_ns: 0,
            pulls: 1,
            send_max: BURST,
            share: BURST,
        }
    }

    /// Receives up to `pulls` bursts per breath, and passes at most `send_max` frames to the device at a time: for
    /// measuring the effect of batches.
    #[must_use]
    pub fn with_batches(mut self, pulls: usize, send_max: usize) -> Self {
        (self.pulls, self.send_max) = (pulls.max(1), send_max.clamp(1, BURST));
        self
    }

    /// Shows the device's own counters in `counters`, and continues from the values there.
    #[must_use]
    pub fn with_device(mut self, counters: Counters<DeviceCounter>) -> Self {
        self.device = Some(CountedDevice::new(counters, &self.port.device_counters()));
        self
    }

    fn look_at_device(&mut self) {
        if let Some(device) = &self.device {
            device.publish(&self.port.device_counters());
        }
    }

    /// Sends what is pending, then what waits on the inputs, until the device has no more room.
    fn send(&mut self, io: &mut Io<'_>) {
        if self.in_place && self.send_in_place(io) {
            return;
        }
        loop {
            let mut waiting = self.held;
            if waiting == 0 {
                // The first input, usually the router's, gets what the others leave of the burst: if it came first,
                // nothing of the others would ever be sent by a port that has more to send than it can.
                for input in (1..io.inputs()).rev() {
                    if io.readable(input) > 0 {
                        let most = self.share.min(self.send_max - waiting);
                        waiting += io.receive_some(input, &mut self.pending, most);
                    }
                }
                if io.readable(0) > 0 {
                    waiting += io.receive_some(0, &mut self.pending, self.send_max - waiting);
                }
                if waiting == 0 {
                    return;
                }
                self.sent.add(Entry::Received, waiting);
            }
            let refused = self.port.transmit(&mut self.pending, io.frames);
            self.held = self.pending.frames();
            count_sent(&self.sent, waiting, TransmittedFrames { refused, left: self.held });
            if self.held > 0 {
                return;
            }
            self.pending.reset();
        }
    }

    /// If all that waits is on the first input: sends it straight from the link, until the device has no more room.
    /// `false` if nothing was done.
    #[inline(never)]
    fn send_in_place(&mut self, io: &mut Io<'_>) -> bool {
        let alone = self.held == 0 && (1..io.inputs()).all(|input| io.readable(input) == 0);
        let Some(&first) = io.inputs.first().filter(|_| alone) else { return false };
        let link = &mut io.links[first];
        while self.held == 0 && !link.is_empty() {
            let (count, done) = if let Some(waiting) = link.waiting_mbufs_mut()
                && let Some(port) = self.port.mbufs()
            {
                send_some(port, waiting, io.frames, self.send_max, &mut self.pending)
            } else if let Some(port) = self.port.in_place() {
                send_some(port, link.waiting_mut(), io.frames, self.send_max, &mut self.pending)
            } else {
                return false;
            };
            self.held = done.left;
            link.release(count);
            self.sent.add(Entry::Received, count);
            count_sent(&self.sent, count, done);
        }
        true
    }

    /// The device has no room and frames keep coming: those that the link cannot hold are dropped here, with a
    /// reason, rather than in the previous app.
    fn shed(&mut self, io: &mut Io<'_>) {
        for input in 0..io.inputs() {
            while io.readable(input) > bm_link::CAPACITY - BURST {
                let Some(frame) = io.receive(input) else { break };
                self.sent.add(Entry::Received, 1);
                self.sent.drop(Reason::TransmitFull, 1);
                io.frames.free(frame);
            }
        }
    }
}

impl PortApp {
    /// Passes on a burst of received frames; returns whether there may be more.
    fn pull_burst(&mut self, io: &mut Io<'_>) -> bool {
        if io.outputs() > 0 && io.writable(0) < BURST {
            // The next app is behind: what stays in the device is counted by the device.
            return false;
        }
        if self.in_place
            && let Some(count) = self.receive_in_place(io)
        {
            return count > 0;
        }
        self.port.receive(&mut self.arrived, io.frames);
        if self.arrived.is_empty() {
            return false;
        }
        let (count, before) = (self.arrived.len(), io.sent_bytes());
        self.received.add(Entry::Received, count);
        let passed = io.transmit_burst(0, &mut self.arrived);
        self.received.add(Entry::Passed, passed);
        self.received.add(Entry::ReceivedBytes, (io.sent_bytes() - before) as usize);
        if !self.arrived.is_empty() {
            let left = self.arrived.places_mut().iter().flatten();
            self.received.add(Entry::ReceivedBytes, left.map(Frame::len).sum());
            let reason = if io.outputs() == 0 { Reason::NoOutput } else { Reason::LinkFull };
            self.received.drop(reason, self.arrived.free_all(io.frames));
        }
        true
    }
}

impl PortApp {
    /// Receives straight into the link to the next app, and returns how many frames; `None` if there is no such link.
    #[inline(never)]
    fn receive_in_place(&mut self, io: &mut Io<'_>) -> Option<usize> {
        let link = &mut io.links[*io.outputs.first()?];
        let (mut count, mut bytes) = (0, 0);
        // Once more if the end of the link's ring cut the first time short.
        for _ in 0..2 {
            let most = BURST - count;
            let (room, received) = if self.mbufs
                && let Some(vacant) = link.vacant_mbufs_mut()
                && let Some(port) = self.port.mbufs()
            {
                receive_some(port, vacant, io.frames, most)
            } else {
                receive_some(self.port.in_place()?, link.vacant_mut(), io.frames, most)
            };
            link.occupy(received.count, received.bytes);
            count += received.count;
            bytes += received.bytes;
            if received.count < room || count == BURST {
                break;
            }
        }
        if count > 0 {
            self.received.add(Entry::Received, count);
            self.received.add(Entry::Passed, count);
            self.received.add(Entry::ReceivedBytes, bytes as usize);
        }
        Some(count)
    }
}

/// Receives at most `most` frames into slots; returns for how many there was room.
fn receive_some<F>(
    port: &mut dyn InPlace<F>,
    vacant: &mut [Option<F>],
    frames: &mut Freelist,
    most: usize,
) -> (usize, ReceivedFrames) {
    let room = vacant.len().min(most);
    (room, port.receive_into(&mut vacant[..room], frames))
}

/// Sends at most `most` of the waiting frames, and leaves their slots empty: frames for which the device has no room
/// become `pending`, so that the link has room and other inputs have their turn. Returns the number of these slots.
fn send_some<F: AnyFrame>(
    port: &mut dyn InPlace<F>,
    waiting: &mut [Option<F>],
    frames: &mut Freelist,
    most: usize,
    pending: &mut Burst,
) -> (usize, TransmittedFrames) {
    let count = waiting.len().min(most);
    let waiting = &mut waiting[..count];
    let done = port.transmit_from(waiting, frames);
    if done.left > 0 {
        waiting.iter_mut().filter_map(Option::take).for_each(|frame| {
            let pushed = pending.push(frame.into_frame());
            debug_assert!(pushed.is_ok(), "nothing was pending, and a burst holds what is sent at a time");
        });
    }
    (count, done)
}

/// Counts what became of `count` frames.
fn count_sent(sent: &Account, count: usize, done: TransmittedFrames) {
    sent.add(Entry::Sent, count - done.left - done.refused);
    if done.refused > 0 {
        sent.drop(Reason::TransmitError, done.refused);
    }
}

impl App for PortApp {
    fn is_port(&self) -> bool {
        true
    }

    fn takes_mbufs(&mut self) -> bool {
        self.mbufs
    }

    fn connect(&mut self, inputs: &[String], _outputs: &[String]) {
        self.share = (self.send_max / inputs.len().max(1)).max(1);
    }

    fn pull(&mut self, io: &mut Io<'_>) {
        if io.now_ns >= self.look_at_ns {
            self.look_at_ns = io.now_ns + LOOK_EVERY_NS;
            self.look_at_device();
        }
        self.port.tend(io.frames);
        for _ in 0..self.pulls {
            if !self.pull_burst(io) {
                break;
            }
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        let held = self.held;
        self.send(io);
        if self.held > 0 {
            self.shed(io);
        }
        if held != self.held {
            self.sent.set_held(self.held);
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_on()
    }

    fn wakeups<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>)) {
        self.port.wakeup().map(add);
    }

    fn must_be_polled(&self) -> bool {
        self.port.wait_on().is_none()
    }

    fn before_sleep(&mut self) -> bool {
        self.held == 0
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        let mut left = self.pending.free_all(io.frames);
        for input in 0..io.inputs() {
            while let Some(frame) = io.receive(input) {
                self.sent.add(Entry::Received, 1);
                io.frames.free(frame);
                left += 1;
            }
        }
        self.held = 0;
        self.sent.set_held(0);
        self.sent.drop(Reason::Stopped, left);
        self.look_at_device();
        self.port.close(io.frames);
    }
}

#[cfg(test)]
mod tests;
