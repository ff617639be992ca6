use super::*;
use bm_frame::FramePool;
use bm_link::Link;
use bm_port::DeviceCounters;
use bm_stats::{Registry, Scope};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A device that accepts a number of frames between two calls of `tend`, keeps their first bytes, and refuses
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
    fn receive_into(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> ReceivedFrames {
        ReceivedFrames::default()
    }
    fn transmit_from(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> TransmittedFrames {
        let mut refused = 0;
        for frame in places.iter_mut().filter_map(Option::take).take(self.left) {
            self.left -= 1;
            match frame.len() < 14 {
                true => refused += 1,
                false => self.sent.lock().unwrap().push(frame.data()[0]),
            }
            frames.free(frame);
        }
        TransmittedFrames { refused, left: places.iter().flatten().count() }
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
        let registry = Registry::anonymous(512).unwrap();
        let account = |name| Account::open(&registry, Scope::Other(name)).unwrap();
        let mut app = PortApp::new(Box::new(port), account("received"), account("sent"));
        let names: Vec<_> = (0..inputs).map(|input| input.to_string()).collect();
        app.connect(&names, &[]);
        let links = (0..inputs).map(|_| Link::new()).collect();
        let frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 1024);
        Self { app, links, inputs: (0..inputs).collect(), frames, now_ns: 0 }
    }

    /// Puts frames on it that begin with the input's number, as many as fit up to `count`.
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
    // If all inputs are full, each gets at least its share.
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
fn frames_that_wait_at_the_end_are_counted_as_stopped() {
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
fn refused_frames_are_dropped_with_a_reason_and_not_sent() {
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

/// A device that receives numbered frames of growing length: a number of them per breath.
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
    fn receive_into(&mut self, places: &mut [Option<Frame>], frames: &mut Freelist) -> ReceivedFrames {
        let mut received = ReceivedFrames::default();
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
    fn transmit_from(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> TransmittedFrames {
        TransmittedFrames::default()
    }
}

#[test]
fn a_port_in_place_receives_whole_bursts_round_the_end_of_the_ring() {
    let registry = Registry::anonymous(512).unwrap();
    let account = |name| Account::open(&registry, Scope::Other(name)).unwrap();
    let port = Numbered { room: 200, left: 0, next: 0 };
    let mut app = PortApp::new(Box::new(port), account("received"), account("sent"));
    let mut links = [Link::new()];
    let mut frames = Freelist::new(FramePool::new(4096, 2048).unwrap(), 1024);
    let (mut expected, mut bytes) = (0u32, 0);
    for breath in 0..60 {
        app.pull(&mut Io { links: &mut links, inputs: &[], outputs: &[0], frames: &mut frames, now_ns: 0 });
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
    let counters = Counters::open(&Registry::anonymous(512).unwrap(), scope).unwrap();
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
    let registry = Registry::anonymous(512).unwrap();
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
