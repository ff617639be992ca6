//! A port as an app: `output` has received frames, inputs (any number) take frames to send.

use std::os::fd::BorrowedFd;

use bm_frame::{BURST, Burst, Frame};
use bm_port::{Port, Transmitted};
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

    /// The same with up to `pulls` bursts received per breath, and at most `send_max` frames passed to the device at
    /// a time: for measuring the effect of batches.
    #[must_use]
    pub fn with_batches(mut self, pulls: usize, send_max: usize) -> Self {
        (self.pulls, self.send_max) = (pulls.max(1), send_max.clamp(1, BURST));
        self
    }

    /// Shows the device's own counters in `counters`, where what stands there is counted on.
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
            count_sent(&self.sent, waiting, Transmitted { refused, left: self.held });
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
        let Some(port) = self.port.in_place() else { return false };
        let link = &mut io.links[first];
        while self.held == 0 && !link.is_empty() {
            let waiting = link.waiting_mut();
            let count = waiting.len().min(self.send_max);
            let waiting = &mut waiting[..count];
            let done = port.transmit_from(waiting, io.frames);
            if done.left > 0 {
                // They wait here, so that the link has room and the other inputs their turn.
                waiting.iter_mut().filter_map(Option::take).for_each(|frame| {
                    let pushed = self.pending.push(frame);
                    debug_assert!(
                        pushed.is_ok(),
                        "nothing was pending, and a burst holds what is sent at a time"
                    );
                });
                self.held = self.pending.frames();
            }
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
        let port = self.port.in_place()?;
        let link = &mut io.links[*io.outputs.first()?];
        let (mut count, mut bytes) = (0, 0);
        // Once more if the end of the link's ring cut the first time short.
        for _ in 0..2 {
            let vacant = link.vacant_mut();
            let room = vacant.len().min(BURST - count);
            let received = port.receive_into(&mut vacant[..room], io.frames);
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

/// Counts what became of `count` frames.
fn count_sent(sent: &Account, count: usize, done: Transmitted) {
    sent.add(Entry::Sent, count - done.left - done.refused);
    if done.refused > 0 {
        sent.drop(Reason::TransmitError, done.refused);
    }
}

impl App for PortApp {
    fn is_port(&self) -> bool {
        true
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

    fn must_be_asked(&self) -> bool {
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
mod tests {
    use super::*;
    use bm_frame::{FramePool, Freelist};
    use bm_link::Link;
    use bm_port::{DeviceCounters, InPlace, Received};
    use bm_stats::{Registry, Scope};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    /// A device that takes so many frames between two times that it is tended, keeps their first bytes, and refuses
    /// what is shorter than an Ethernet header.
    struct Narrow {
        room: usize,
        left: usize,
        sent: Arc<Mutex<Vec<u8>>>,
        in_place: bool,
    }

    impl Narrow {
        fn new(room: usize, sent: &Arc<Mutex<Vec<u8>>>) -> Self {
            Self { room, left: 0, sent: Arc::clone(sent), in_place: false }
        }

        fn in_place(room: usize, sent: &Arc<Mutex<Vec<u8>>>) -> Self {
            Self { in_place: true, ..Self::new(room, sent) }
        }
    }

    impl Port for Narrow {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
            self.transmit_from(burst.places_mut(), frames).refused
        }
        fn in_place(&mut self) -> Option<&mut dyn InPlace> {
            self.in_place.then_some(self)
        }
        fn tend(&mut self, _frames: &mut Freelist) {
            self.left = self.room;
        }
    }

    impl InPlace for Narrow {
        fn receive_into(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> Received {
            Received::default()
        }
        fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> Transmitted {
            let mut refused = 0;
            for frame in places.iter_mut().filter_map(Option::take).take(self.left) {
                self.left -= 1;
                match frame.len() < 14 {
                    true => refused += 1,
                    false => self.sent.lock().unwrap().push(frame.data()[0]),
                }
                frames.free(frame);
            }
            Transmitted { refused, left: places.iter().flatten().count() }
        }
    }

    /// A port with links that lead to it.
    struct Busy {
        app: PortApp,
        links: Vec<Link>,
        inputs: Vec<usize>,
        frames: Freelist,
        now_ns: u64,
    }

    impl Busy {
        fn new(port: impl Port + 'static, inputs: usize) -> Self {
            let registry = Registry::anonymous(256).unwrap();
            let account = |name| Account::open(&registry, Scope::Other(name)).unwrap();
            let mut app = PortApp::new(Box::new(port), account("received"), account("sent"));
            let names: Vec<_> = (0..inputs).map(|input| input.to_string()).collect();
            app.connect(&names, &[]);
            let links = (0..inputs).map(|_| Link::new()).collect();
            let frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 1024);
            Self { app, links, inputs: (0..inputs).collect(), frames, now_ns: 0 }
        }

        /// Puts so many frames that begin with the input's number on it, or as many as fit.
        fn fill(&mut self, input: usize, count: usize) {
            for _ in 0..count.min(self.links[input].writable()) {
                let frame = self.frames.allocate_with(&[input as u8; 60]).unwrap();
                self.links[input].transmit(frame).unwrap();
            }
        }

        fn with(&mut self, job: fn(&mut PortApp, &mut Io<'_>)) {
            let Self { app, links, inputs, frames, now_ns } = self;
            job(app, &mut Io { links, inputs, outputs: &[], frames, now_ns: *now_ns });
        }

        fn breathe(&mut self) {
            self.with(|app, io| app.pull(io));
            self.with(|app, io| app.push(io));
        }
    }

    #[test]
    fn every_input_has_its_share_of_a_port_that_has_too_much_to_send() {
        shares(Narrow::new);
        shares(Narrow::in_place);
    }

    fn shares(narrow: fn(usize, &Arc<Mutex<Vec<u8>>>) -> Narrow) {
        let sent = Arc::default();
        let mut port = Busy::new(narrow(BURST, &sent), 3);
        port.fill(0, bm_link::CAPACITY);
        port.breathe();
        port.fill(1, 1);
        for _ in 0..2 {
            port.fill(0, bm_link::CAPACITY);
            port.breathe();
        }
        let of = |input| sent.lock().unwrap().iter().filter(|&&from| from == input).count();
        assert_eq!(of(1), 1, "the slow path's frame left within two breaths");
        assert_eq!(of(0), 3 * BURST - 1);
        // Where all inputs are full, none has less than its share.
        let before = [0, 1, 2].map(of);
        for _ in 0..10 {
            (0..3).for_each(|input| port.fill(input, bm_link::CAPACITY));
            port.breathe();
        }
        (0..3).for_each(|input| assert!(of(input) - before[usize::from(input)] >= 8 * BURST / 3));
    }

    #[test]
    fn inputs_are_served_though_the_device_gets_one_frame_at_a_time() {
        let sent = Arc::default();
        let mut port = Busy::new(Narrow::new(BURST, &sent), 2);
        port.app.send_max = 1;
        (0..2).for_each(|input| port.fill(input, 20));
        port.breathe();
        assert_eq!((sent.lock().unwrap().len(), port.app.held), (40, 0));
    }

    #[test]
    fn what_waits_at_the_end_is_counted_as_stopped() {
        let mut port = Busy::new(Narrow::new(10, &Arc::default()), 2);
        port.fill(0, 300);
        port.fill(1, 5);
        port.breathe();
        port.with(|app, io| app.stop(io));
        assert_eq!(port.links.iter().map(Link::readable).sum::<usize>(), 0);
        let sent = &port.app.sent;
        let counted = [sent.get(Entry::Received), sent.get(Entry::Sent), sent.dropped(Reason::Stopped)];
        assert_eq!((counted, sent.balance()), ([305, 10, 295], 0));
    }

    #[test]
    fn what_the_device_refuses_is_dropped_under_a_name_and_not_sent() {
        refuses(Narrow::new);
        refuses(Narrow::in_place);
    }

    fn refuses(narrow: fn(usize, &Arc<Mutex<Vec<u8>>>) -> Narrow) {
        let sent = Arc::default();
        let mut port = Busy::new(narrow(10, &sent), 1);
        // Every third is too short.
        for n in 0..25 {
            let frame = port.frames.allocate_with(&[n; 60][..if n % 3 == 0 { 13 } else { 60 }]).unwrap();
            port.links[0].transmit(frame).unwrap();
        }
        for (breath, counted) in [[6, 4, 15], [13, 7, 5], [16, 9, 0], [16, 9, 0]].into_iter().enumerate() {
            port.breathe();
            let account = &port.app.sent;
            let found =
                [account.get(Entry::Sent), account.dropped(Reason::TransmitError), account.get(Entry::Held)];
            assert_eq!((found, account.balance()), (counted, 0), "breath {breath}");
        }
        assert_eq!(port.app.sent.dropped_in_all(), 9);
        assert_eq!(*sent.lock().unwrap(), (0..25).filter(|n| n % 3 != 0).collect::<Vec<_>>());
    }

    #[test]
    fn a_port_in_place_sends_in_order_whatever_room_there_is() {
        let sent = Arc::default();
        let mut port = Busy::new(Narrow::in_place(100, &sent), 1);
        let mut put = 0u8;
        for breath in 0..200 {
            // Now more than the device takes, now less, round the end of the link's ring.
            for _ in 0..[150, 10, 290][breath % 3].min(port.links[0].writable()) {
                let frame = port.frames.allocate_with(&[put; 60]).unwrap();
                port.links[0].transmit(frame).unwrap();
                put = put.wrapping_add(1);
            }
            port.breathe();
            let waiting = port.links[0].readable() + port.app.held;
            let account = &port.app.sent;
            assert_eq!(account.balance(), 0, "breath {breath}");
            assert_eq!(account.get(Entry::Held) as usize, port.app.held);
            assert_eq!(
                port.links[0].stats().txpackets as usize,
                sent.lock().unwrap().len() + waiting + account.dropped_in_all() as usize
            );
        }
        let sent = sent.lock().unwrap();
        let skipped = sent.windows(2).filter(|pair| pair[1] != pair[0].wrapping_add(1)).count();
        // Order is kept; what does not follow is what was shed.
        assert!(sent.len() > 15_000, "{}", sent.len());
        assert!(skipped == 0 || port.app.sent.dropped(Reason::TransmitFull) > 0, "{skipped}");
        assert_eq!(port.app.sent.dropped_in_all(), port.app.sent.dropped(Reason::TransmitFull));
    }

    /// A device that gives numbered frames of growing length: so many a breath, and in one call as many as asked for.
    struct Numbered {
        room: usize,
        left: usize,
        next: u32,
    }

    impl Port for Numbered {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {
            unreachable!("it receives in place");
        }
        fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
            0
        }
        fn in_place(&mut self) -> Option<&mut dyn InPlace> {
            Some(self)
        }
        fn tend(&mut self, _frames: &mut Freelist) {
            self.left = self.room;
        }
    }

    impl InPlace for Numbered {
        fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> Received {
            let mut received = Received::default();
            for place in places.iter_mut().take(self.left) {
                assert!(place.is_none(), "a place in use");
                let bytes = &[self.next.to_be_bytes(), [0; 4]].concat()[..4 + self.next as usize % 4];
                *place = frames.allocate_with(bytes);
                received.count += 1;
                received.bytes += bytes.len() as u64;
                self.next += 1;
            }
            self.left -= received.count;
            received
        }
        fn transmit_from(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> Transmitted {
            Transmitted::default()
        }
    }

    #[test]
    fn a_port_in_place_receives_whole_bursts_round_the_end_of_the_ring() {
        let registry = Registry::anonymous(256).unwrap();
        let account = |name| Account::open(&registry, Scope::Other(name)).unwrap();
        let port = Numbered { room: 200, left: 0, next: 0 };
        let mut app = PortApp::new(Box::new(port), account("received"), account("sent"));
        let mut links = [Link::new()];
        let mut frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 1024);
        let (mut expected, mut bytes) = (0u32, 0);
        for breath in 0..60 {
            app.pull(&mut Io {
                links: &mut links,
                inputs: &[],
                outputs: &[0],
                frames: &mut frames,
                now_ns: 0,
            });
            // The app behind is slow at first: a link that is nearly full gets no more.
            if breath < 5 {
                let all = [200, 400, 600, 800, 800][breath];
                assert_eq!(links[0].readable(), all);
                continue;
            }
            while let Some(frame) = links[0].receive() {
                assert_eq!(frame.data()[..4], expected.to_be_bytes());
                bytes += frame.len() as u64;
                expected += 1;
                frames.free(frame);
            }
        }
        // Each breath after the sixth gave a whole burst, wherever the ring's end was.
        assert_eq!(expected, 800 + 54 * 200);
        let received = &app.received;
        let counted = [Entry::Received, Entry::Passed, Entry::ReceivedBytes].map(|entry| received.get(entry));
        assert_eq!(counted, [u64::from(expected), u64::from(expected), bytes]);
        assert_eq!((links[0].stats().rxpackets, links[0].stats().rxbytes), (u64::from(expected), bytes));
    }

    /// A device that says how often it was asked for its counters.
    struct Looked(Arc<AtomicU64>);
    impl Port for Looked {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
            0
        }
        fn device_counters(&self) -> DeviceCounters {
            let receive_other = self.0.fetch_add(1, Ordering::Relaxed);
            DeviceCounters { receive_other, ..DeviceCounters::default() }
        }
    }

    #[test]
    fn a_device_is_asked_for_its_counters_ten_times_a_second_at_most() {
        let asked = Arc::<AtomicU64>::default();
        let mut port = Busy::new(Looked(Arc::clone(&asked)), 1);
        let scope = Scope::PortDevice { port: "eth0", queue: 0 };
        let counters = Counters::open(&Registry::anonymous(256).unwrap(), scope).unwrap();
        port.app.device = Some(CountedDevice::new(counters, &DeviceCounters::default()));
        // A second of sleeps.
        for sleep in 0..13_333 {
            port.now_ns = sleep * 75_000;
            port.breathe();
            assert!(port.app.before_sleep());
        }
        assert_eq!((asked.load(Ordering::Relaxed), counters.get(DeviceCounter::ReceiveOther)), (10, 9));
    }

    /// A device that has lost as many frames as it says.
    struct Lossy(u64);
    impl Port for Lossy {
        fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}
        fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
            0
        }
        fn device_counters(&self) -> DeviceCounters {
            DeviceCounters { receive_ring_full: self.0, ..DeviceCounters::default() }
        }
    }

    #[test]
    fn a_devices_counters_go_on_though_the_port_is_opened_again() {
        let registry = Registry::anonymous(256).unwrap();
        let opened = |lost| {
            let (port, queue) = ("eth0", 0);
            let account = Account::open(&registry, Scope::PortReceive { port, queue }).unwrap();
            let device = Counters::open(&registry, Scope::PortDevice { port, queue }).unwrap();
            (PortApp::new(Box::new(Lossy(lost)), account, account).with_device(device), device)
        };
        let (mut app, device) = opened(7);
        app.look_at_device();
        assert_eq!(device.get(DeviceCounter::ReceiveRingFull), 0, "what the device lost before is not ours");
        app.port = Box::new(Lossy(10));
        app.look_at_device();
        assert_eq!(device.get(DeviceCounter::ReceiveRingFull), 3);
        // One begins at zero again, another goes on.
        for (at_first, then) in [(0, 2), (10, 12)] {
            let before = device.get(DeviceCounter::ReceiveRingFull);
            let (mut app, device) = opened(at_first);
            app.port = Box::new(Lossy(then));
            app.look_at_device();
            assert_eq!(device.get(DeviceCounter::ReceiveRingFull), before + 2);
        }
    }
}
