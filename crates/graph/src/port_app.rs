//! A port as an app: `output` carries what came in, inputs (any number) what shall go out.

use std::os::fd::BorrowedFd;

use bm_frame::{BURST, Burst};
use bm_port::{DeviceCounters, Port};
use bm_stats::{Account, Block, Entry, Reason};

use crate::app::{App, Io};

/// Breaths between two looks at the device's own counters, which may cost a system call.
const LOOK_EVERY: u32 = 1 << 14;

/// A port in the network.
pub struct PortApp {
    port: Box<dyn Port>,
    received: Account,
    sent: Account,
    /// Frames that the device had no room for yet, and how many they are.
    pending: Burst,
    held: usize,
    arrived: Burst,
    /// Where the device's own counters are shown, and what stood there at the start beyond them.
    device: Option<(Block, [u64; 4])>,
    breaths: u32,
    /// Bursts received in a breath, and frames handed to the device at a time.
    pulls: usize,
    send_max: usize,
}

impl PortApp {
    /// `received` closes over what comes in, `sent` over what goes out.
    pub fn new(port: Box<dyn Port>, received: Account, sent: Account) -> Self {
        Self {
            port,
            received,
            sent,
            pending: Burst::new(),
            held: 0,
            arrived: Burst::new(),
            device: None,
            breaths: 0,
            pulls: 1,
            send_max: BURST,
        }
    }

    /// The same with up to `pulls` bursts received in a breath, and at most `send_max` frames handed to the device at
    /// a time: for measuring what batches bring.
    #[must_use]
    pub fn with_batches(mut self, pulls: usize, send_max: usize) -> Self {
        (self.pulls, self.send_max) = (pulls.max(1), send_max.clamp(1, BURST));
        self
    }

    /// Names of the device's own counters, in the order of the block for [`with_device`](Self::with_device).
    pub const DEVICE_COUNTERS: [&'static str; 4] =
        ["receive_ring_full", "receive_no_frame", "receive_other", "transmit_invalid"];

    /// Shows the device's own counters in `block`, where what stands there is counted on.
    #[must_use]
    pub fn with_device(mut self, block: Block) -> Self {
        let now = self.device_counters();
        // Both wrap: a device that is opened again may begin at zero, or go on.
        let before = std::array::from_fn(|index| block.get(index).wrapping_sub(now[index]));
        self.device = Some((block, before));
        self
    }

    fn look_at_device(&mut self) {
        let Some((block, before)) = self.device else { return };
        for (index, (value, before)) in self.device_counters().into_iter().zip(before).enumerate() {
            block.set(index, before.wrapping_add(value));
        }
    }

    /// The device's own counters in the order of [`DEVICE_COUNTERS`](Self::DEVICE_COUNTERS).
    fn device_counters(&self) -> [u64; 4] {
        let DeviceCounters { receive_ring_full, receive_no_frame, receive_other, transmit_invalid } =
            self.port.device_counters();
        [receive_ring_full, receive_no_frame, receive_other, transmit_invalid]
    }

    /// Sends what is pending, then what waits on the inputs, until the device has no more room.
    fn send(&mut self, io: &mut Io<'_>) {
        loop {
            let mut waiting = self.held;
            if waiting == 0 {
                if (0..io.inputs()).all(|input| io.readable(input) == 0) {
                    return;
                }
                for input in 0..io.inputs() {
                    waiting += io.receive_some(input, &mut self.pending, self.send_max - waiting);
                }
                self.sent.add(Entry::Received, waiting);
            }
            self.port.transmit(&mut self.pending, io.frames);
            self.held = self.pending.frames();
            self.sent.add(Entry::Sent, waiting - self.held);
            if self.held > 0 {
                return;
            }
            self.pending.reset();
        }
    }

    /// The device has no room and frames keep coming: those that the link will not hold are lost here,
    /// under a name, rather than in the app before.
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
    /// Passes on a burst of what came in; whether there may be more.
    fn pull_burst(&mut self, io: &mut Io<'_>) -> bool {
        if io.outputs() > 0 && io.writable(0) < BURST {
            // The next app is behind: what stays in the device is the device's to count.
            return false;
        }
        self.port.receive(&mut self.arrived, io.frames);
        if self.arrived.is_empty() {
            return false;
        }
        let count = self.arrived.len();
        self.received.add(Entry::Received, count);
        let passed = io.transmit_burst(0, &mut self.arrived);
        self.received.add(Entry::Passed, passed);
        if !self.arrived.is_empty() {
            let reason = if io.outputs() == 0 { Reason::NoOutput } else { Reason::LinkFull };
            self.received.drop(reason, self.arrived.free_all(io.frames));
        }
        true
    }
}

impl App for PortApp {
    fn pull(&mut self, io: &mut Io<'_>) {
        self.breaths = self.breaths.wrapping_add(1);
        if self.breaths.is_multiple_of(LOOK_EVERY) {
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

    fn must_be_asked(&self) -> bool {
        self.port.wait_on().is_none()
    }

    fn before_sleep(&mut self) -> bool {
        self.look_at_device();
        self.held == 0
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        let left = self.pending.free_all(io.frames);
        self.held = 0;
        self.sent.set_held(0);
        self.sent.drop(Reason::Stopped, left);
        self.look_at_device();
        self.port.close(io.frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::Freelist;
    use bm_stats::Registry;

    /// A device that has lost as many frames as it says.
    struct Lossy(u64);
    impl Port for Lossy {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn device_counters(&self) -> DeviceCounters {
            DeviceCounters { receive_ring_full: self.0, ..DeviceCounters::default() }
        }
    }

    #[test]
    fn a_devices_counters_go_on_though_the_port_is_opened_again() {
        let registry = Registry::anonymous(256).unwrap();
        let opened = |lost| {
            let account = Account::open(&registry, "port/eth0/0/receive").unwrap();
            let device = registry.block("port/eth0/0/device", &PortApp::DEVICE_COUNTERS).unwrap();
            (PortApp::new(Box::new(Lossy(lost)), account, account).with_device(device), device)
        };
        let (mut app, device) = opened(7);
        app.look_at_device();
        assert_eq!(device.get(0), 0, "what the device lost before is not ours");
        app.port = Box::new(Lossy(10));
        app.look_at_device();
        assert_eq!(device.get(0), 3);
        // One begins at zero again, another goes on.
        for (at_first, then) in [(0, 2), (10, 12)] {
            let before = device.get(0);
            let (mut app, device) = opened(at_first);
            app.port = Box::new(Lossy(then));
            app.look_at_device();
            assert_eq!(device.get(0), before + 2);
        }
    }
}
