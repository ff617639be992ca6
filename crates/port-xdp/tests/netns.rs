//! AF_XDP ports between real Linux hosts in network namespaces.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::{HostPort, LinuxRoute, Port, Steering};
use bm_port_xdp::{Attach, Bind, Options, Shared, XdpDevice, XdpError, XdpHost, XdpPort};
use common::{MAC_A, MAC_B, MAC_R0, MAC_R1, Net, in_net, udp4};

const SLOTS: usize = 16_384;
const SECOND: Duration = Duration::from_secs(1);
const A: [u8; 4] = [10, 0, 1, 2];
/// An address behind host b, which does not answer packets to it.
const B: [u8; 4] = [10, 0, 9, 9];
/// The router's own addresses.
const LOCAL: [&str; 4] = ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"];

fn local() -> Vec<IpAddr> {
    LOCAL.iter().map(|address| address.parse().unwrap()).collect()
}

/// Both ports of the router, with what a worker does.
struct Router {
    frame_pool: Arc<FramePool>,
    frames: Freelist,
    devices: [XdpDevice; 2],
    ports: [Vec<XdpPort>; 2],
    steering: [bm_port_xdp::XdpSteering; 2],
}

impl Router {
    fn open(options: &Options) -> Self {
        let frame_pool = FramePool::new(SLOTS, 2048).unwrap();
        let shared = Shared::new(&frame_pool).unwrap();
        let devices = ["r0", "r1"].map(|name| XdpDevice::attach(name, &shared, options.clone()).unwrap());
        let steering = [0, 1].map(|i| {
            let mut steering = devices[i].steering().unwrap();
            steering.set_local(&local()).unwrap();
            steering.set_active(true).unwrap();
            steering
        });
        let frames = Freelist::new(frame_pool.clone(), 512);
        let ports = [0, 1].map(|i: usize| {
            let queues = 0..devices[i].queues();
            queues.map(|queue| devices[i].queue(queue).unwrap()).collect::<Vec<_>>()
        });
        Self { frame_pool, frames, devices, ports, steering }
    }

    /// Moves frames from r0 to r1 and back, addressed to the host there, for `time` or until `enough` have moved.
    fn forward(&mut self, time: Duration, enough: usize, until: impl Fn() -> bool) -> [usize; 2] {
        let begin = Instant::now();
        let mut moved = [0; 2];
        let mut burst = Burst::new();
        while begin.elapsed() < time && moved[0] + moved[1] < enough && !until() {
            for from in [0, 1] {
                for queue in 0..self.ports[from].len() {
                    self.ports[from][queue].receive(&mut burst, &mut self.frames);
                    for frame in burst.places_mut().iter_mut().flatten() {
                        let (to, own) = [(MAC_B, MAC_R1), (MAC_A, MAC_R0)][from];
                        frame.data_mut()[..6].copy_from_slice(&to);
                        frame.data_mut()[6..12].copy_from_slice(&own);
                    }
                    moved[from] += burst.len();
                    let to = &mut self.ports[1 - from][queue];
                    while !burst.is_empty() {
                        assert_eq!(to.transmit(&mut burst, &mut self.frames), 0);
                    }
                    to.tend(&mut self.frames);
                }
            }
        }
        moved
    }

    /// Closes everything; returns how many frames are not free.
    fn close(mut self) -> usize {
        for port in self.ports.iter_mut().flatten() {
            port.close(&mut self.frames);
            assert_eq!(port.in_kernel(), 0);
        }
        drop(self.frames);
        SLOTS - self.frame_pool.available()
    }
}

fn is_udp_to(port: u16) -> impl Fn(&[u8]) -> bool {
    move |frame| frame.len() >= 42 && frame[23] == 17 && frame[36..38] == port.to_be_bytes()
}

fn forwards_byte_by_byte(options: Options, net: &Net, generic: bool) {
    let mut router = Router::open(&options);
    assert!(router.devices.iter().all(|device| device.is_generic() == generic));
    let (a, b) = (net.wire("a", "a0"), net.wire("b", "b0"));
    for length in (60..=1514).step_by(5) {
        let sent = udp4(MAC_R0, A, B, (1000, 2000), length);
        a.send(&sent);
        assert_eq!(router.forward(SECOND, 1, || false), [1, 0], "length {length}");
        let mut expected = sent.clone();
        expected[..6].copy_from_slice(&MAC_B);
        expected[6..12].copy_from_slice(&MAC_R1);
        let received = b.receive(SECOND, is_udp_to(2000));
        assert_eq!(received.as_deref(), Some(&*expected), "length {length}");
    }
    assert_eq!(router.devices[0].counters().unwrap().get("steered"), 291);
    assert_eq!(router.close(), 0);
}

#[test]
fn forwards_every_length_byte_by_byte() {
    in_net("fwd", 1, |net| forwards_byte_by_byte(Options::default(), net, false));
}

#[test]
fn forwards_in_generic_mode() {
    let options = Options { attach: Attach::Generic, ..Options::default() };
    in_net("gen", 1, |net| forwards_byte_by_byte(options, net, true));
}

#[test]
fn linux_still_answers_for_its_addresses() {
    in_net("ping", 1, |net| {
        let router = Router::open(&Options::default());
        for address in LOCAL.iter().filter(|address| address.contains("1.1") || address.contains("1::1")) {
            assert!(net.succeeds("a", &format!("ping -c 2 -i 0.1 -W 1 {address}")), "{address}");
        }
        assert!(net.succeeds("b", "ping -c 1 -W 1 10.0.1.1"), "the router's other address");
        let counters = router.devices[0].counters().unwrap();
        assert!(counters.get("local") >= 4 && counters.get("group") > 0, "{counters:?}");
        assert_eq!(router.close(), 0);
    });
}

#[test]
fn without_a_worker_linux_forwards() {
    in_net("pass", 1, |net| {
        net.settle();
        let ping =
            || net.succeeds("a", "ping -c 1 -W 1 10.0.2.2") && net.succeeds("a", "ping -c 1 -W 1 fd00:2::2");
        let frame_pool = FramePool::new(SLOTS, 2048).unwrap();
        let shared = Shared::new(&frame_pool).unwrap();
        let device = XdpDevice::attach("r0", &shared, Options::default()).unwrap();
        assert!(ping(), "steering off");
        let mut steering = device.steering().unwrap();
        steering.set_local(&local()).unwrap();
        steering.set_active(true).unwrap();
        assert!(ping(), "no socket");
        let mut frames = Freelist::new(frame_pool.clone(), 512);
        let mut port = device.queue(0).unwrap();
        assert!(!ping(), "the worker must get it");
        assert!(ping(), "the worker does not fetch it");
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        burst.free_all(&mut frames);
        assert!(!ping(), "the worker has polled");
        steering.set_active(false).unwrap();
        assert!(ping(), "steering off again");
        steering.set_active(true).unwrap();
        port.close(&mut frames);
        assert!(ping(), "socket closed");
        let counters = device.counters().unwrap();
        assert!(counters.get("unattended") > 0, "{counters:?}");
        for kind in ["inactive", "no_worker", "steered"] {
            assert!(counters.get(kind) > 0, "{counters:?}");
        }
        drop((device, frames));
        assert!(ping(), "program detached");
        assert_eq!(frame_pool.available(), SLOTS);
    });
}

#[test]
fn frames_that_arrive_before_the_worker_wait_for_it() {
    in_net("before", 1, |net| {
        let frame_pool = FramePool::new(SLOTS, 2048).unwrap();
        let shared = Shared::new(&frame_pool).unwrap();
        let device = XdpDevice::attach("r0", &shared, Options::default()).unwrap();
        device.steering().unwrap().set_active(true).unwrap();
        let mut port = device.queue(0).unwrap();
        let a = net.wire("a", "a0");
        let sent: Vec<_> = (0..32).map(|n| udp4(MAC_R0, A, B, (1000, n), 60 + n as usize)).collect();
        sent.iter().for_each(|frame| a.send(frame));
        let (mut frames, mut burst, begin) =
            (Freelist::new(frame_pool.clone(), 512), Burst::new(), Instant::now());
        while burst.len() < sent.len() && begin.elapsed() < SECOND {
            port.receive(&mut burst, &mut frames);
        }
        let received: Vec<_> = burst.places().iter().flatten().map(|frame| frame.data().to_vec()).collect();
        assert_eq!(received, sent);
        burst.free_all(&mut frames);
        // Without a close: frames in the fill ring must come back, too.
        drop((port, frames));
        assert_eq!(frame_pool.available(), SLOTS);
    });
}

/// Echoes one TCP connection and one UDP packet, then ends.
fn echo(net: &Net, address: &'static str) {
    let (tcp, udp) =
        net.inside("b", move || (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap()));
    std::thread::spawn(move || {
        let (mut stream, _) = tcp.accept().unwrap();
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..count]).unwrap();
        }
        let (length, from) = udp.recv_from(&mut buffer).unwrap();
        udp.send_to(&buffer[..length], from).unwrap();
    });
}

/// Whether `bytes` are echoed by TCP, and then some of them by UDP.
fn is_echoed(from: &str, to: &str, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(to).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let length = bytes.len();
    let back = std::thread::spawn(move || {
        let mut back = vec![0; length];
        reader.read_exact(&mut back).map(|()| back)
    });
    stream.write_all(bytes).unwrap();
    if back.join().unwrap().unwrap() != bytes {
        return false;
    }
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let udp = UdpSocket::bind((from, 0)).unwrap();
    udp.set_read_timeout(Some(SECOND)).unwrap();
    udp.send_to(&bytes[..1000], to).unwrap();
    let mut buffer = [0; 1500];
    udp.recv(&mut buffer).is_ok_and(|length| buffer[..length] == bytes[..1000])
}

/// TCP and UDP between hosts whose veths offload checksums and segmentation, although there is no hardware.
#[test]
fn tcp_and_udp_work_with_offloads_on() {
    in_net("offl", 1, |net| {
        net.settle();
        let mut router = Router::open(&Options::default());
        assert!(router.devices[0].completes_checksums());
        for part in ["a", "b"] {
            assert!(net.succeeds(part, &format!("ethtool -K {part}0 tx on tso on gro on")));
        }
        for (from, to) in [("10.0.1.2", "10.0.2.2:7"), ("fd00:1::2", "[fd00:2::2]:7")] {
            echo(net, to);
            let bytes: Vec<u8> =
                (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let done = Arc::new(AtomicBool::new(false));
            let (namespace, flag) = (net.namespace("a"), done.clone());
            let client = std::thread::spawn(move || {
                common::enter(&namespace);
                let echoed = is_echoed(from, to, &bytes);
                flag.store(true, Ordering::Relaxed);
                echoed
            });
            router.forward(10 * SECOND, usize::MAX, || done.load(Ordering::Relaxed) || client.is_finished());
            assert!(client.join().unwrap(), "{from} to {to}");
        }
        assert_eq!(router.close(), 0);
    });
}

#[test]
fn each_queue_has_its_own_port() {
    in_net("queues", 2, |net| {
        // This thread has used `setns`: /sys shows another namespace.
        assert_eq!(["r0", "lo", "nowhere"].map(bm_port_xdp::queues), [2, 1, 1]);
        let mut router = Router::open(&Options::default());
        assert_eq!(router.ports.each_ref().map(Vec::len), [2, 2]);
        let (a, b) = (net.wire("a", "a0"), net.wire("b", "b0"));
        let mut by_queue = [0; 2];
        for flow in 0..100 {
            a.send(&udp4(MAC_R0, A, B, (3000 + flow, 2000), 100));
            let mut burst = Burst::new();
            let begin = Instant::now();
            while burst.is_empty() && begin.elapsed() < SECOND {
                for queue in 0..2 {
                    router.ports[0][queue].receive(&mut burst, &mut router.frames);
                    by_queue[queue] += burst.len();
                    assert_eq!(router.ports[1][queue].transmit(&mut burst, &mut router.frames), 0);
                    if !burst.is_empty() || by_queue.iter().sum::<usize>() > usize::from(flow) {
                        break;
                    }
                }
                if by_queue.iter().sum::<usize>() > usize::from(flow) {
                    break;
                }
            }
            assert!(b.receive(SECOND, is_udp_to(2000)).is_some(), "flow {flow}");
        }
        assert!(by_queue.iter().all(|&count| count > 10), "flows must be spread: {by_queue:?}");
        assert_eq!(router.close(), 0);
    });
}

#[test]
fn differences_in_the_programs_settings_are_found() {
    in_net("readback", 1, |_| {
        let frame_pool = FramePool::new(SLOTS, 2048).unwrap();
        let shared = Shared::new(&frame_pool).unwrap();
        let device = XdpDevice::attach("r0", &shared, Options::default()).unwrap();
        let [mut ours, mut other] = [0; 2].map(|_| device.steering().unwrap());
        ours.set_active(true).unwrap();
        ours.set_linux_only([false, true]).unwrap();
        assert_eq!(ours.differences().unwrap(), [""; 0]);
        other.set_linux_only([true, false]).unwrap();
        let found = ours.differences().unwrap();
        let tells = |text: &str| found.iter().any(|found| found.contains(text));
        assert!(found.len() == 1 && tells("linux_only: 1,") && tells("linux_only: 2,"), "{found:?}");
        other.set_macs(&[MAC_R0, [2, 0, 0, 0, 7, 7]]).unwrap();
        assert_eq!(ours.differences().unwrap().len(), 2, "another MAC");
        ours.set_macs(&[MAC_R0, [2, 0, 0, 0, 7, 7]]).unwrap();
        assert_eq!(ours.differences().unwrap(), [""; 0]);
    });
}

/// Delivers frames of all lengths at once: they must arrive unchanged and in order, except those that are too long.
fn many_are_delivered(host: &mut XdpHost, socket: &UdpSocket) {
    // Fewer than the socket has room for, but more than fit in one call.
    let lengths = (42..1515).step_by(41).chain([1514, 3300]);
    let frames: Vec<_> = lengths.map(|length| udp4(MAC_R0, A, [10, 0, 1, 1], (1000, 9), length)).collect();
    let short = vec![0; 13];
    let long = vec![0; 3501];
    let packets: Vec<&[u8]> =
        [&short, &frames[0], &long].into_iter().chain(&frames[1..]).map(Vec::as_slice).collect();
    assert_eq!(host.deliver_all(&packets), [0, 2]);
    let mut buffer = [0; 4000];
    for frame in &frames {
        let (got, _) = socket.recv_from(&mut buffer).expect("it must be delivered");
        assert!(buffer[..got] == frame[42..], "{} bytes", frame.len());
    }
}

fn is_delivered(attach: Attach) {
    let frame_pool = FramePool::new(SLOTS, 2048).unwrap();
    let shared = Shared::new(&frame_pool).unwrap();
    let device = XdpDevice::attach("r0", &shared, Options { attach, ..Options::default() }).unwrap();
    let mut steering = device.steering().unwrap();
    steering.set_active(true).unwrap();
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut port = device.queue(0).unwrap();
    let mut host = device.host().unwrap();
    let socket = UdpSocket::bind("10.0.1.1:9").unwrap();
    socket.set_read_timeout(Some(SECOND)).unwrap();
    // The router's address is not configured as local here, so steering would take the frame again.
    for length in [60, 42 + 1200, 1514] {
        let frame = udp4(MAC_R0, A, [10, 0, 1, 1], (1000, 9), length);
        host.deliver(&frame).unwrap();
        let mut buffer = [0; 2000];
        let (got, from) = socket.recv_from(&mut buffer).expect("it must be delivered");
        assert_eq!((&buffer[..got], from.to_string().as_str()), (&frame[42..], "10.0.1.2:1000"));
    }
    many_are_delivered(&mut host, &socket);
    let frame = udp4(MAC_R0, A, [10, 0, 1, 1], (1000, 10), 100);
    let begin = Instant::now();
    (0..1000).for_each(|_| host.deliver(&frame).unwrap());
    let one_by_one = begin.elapsed();
    let begin = Instant::now();
    (0..1024 / 32).for_each(|_| assert!(host.deliver_all(&[&frame[..]; 32]).is_empty()));
    let together = begin.elapsed();
    println!("{attach:?}: a delivery takes {:?}, one of 32 {:?}", one_by_one / 1000, together / 1024);
    let mut burst = Burst::new();
    port.receive(&mut burst, &mut frames);
    assert!(burst.is_empty(), "delivered frames must not come back");
    assert_eq!(host.deliver(&[0; 4000]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    assert!(host.deliver(&[0; 13]).is_err());
    port.close(&mut frames);
}

#[test]
fn linux_gets_frames_that_are_handed_back() {
    in_net("host", 1, |_| is_delivered(Attach::Native));
}

#[test]
fn linux_gets_frames_that_are_handed_back_in_generic_mode() {
    in_net("hostgen", 1, |_| is_delivered(Attach::Generic));
}

/// With RPS, another CPU gets the frames that were handed back.
#[test]
fn linux_gets_frames_that_are_handed_back_on_another_cpu() {
    if std::thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        eprintln!("skipped: needs two CPUs");
        return;
    }
    in_net("hostrps", 1, |net| {
        // Only the second CPU gets them, and the first one hands them back.
        assert!(net.succeeds("r", "sh -c echo${IFS}2>/sys/class/net/r0/queues/rx-0/rps_cpus"));
        // SAFETY: a set of numbers that outlives the calls.
        unsafe {
            let mut first: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut first);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&first), &first), 0);
        }
        is_delivered(Attach::Generic);
    });
}

/// Frames in the fill ring, received but not fetched, sent but not completed: all must be free after the close.
#[test]
fn closing_loses_no_frame() {
    in_net("close", 1, |net| {
        let mut router = Router::open(&Options::default());
        assert_eq!(router.ports[0][0].in_kernel(), bm_port_xdp::RING as usize);
        let a = net.wire("a", "a0");
        for _ in 0..200 {
            a.send(&udp4(MAC_R0, A, B, (1000, 2000), 500));
        }
        router.forward(SECOND, 64, || false);
        net.ip("r", "link set r1 down");
        let mut burst = Burst::new();
        for _ in 0..10 {
            let mut frame = router.frames.allocate().unwrap();
            frame.copy_from(&udp4(MAC_B, A, B, (1000, 2000), 500)).unwrap();
            burst.push(frame).unwrap();
        }
        assert_eq!(router.ports[1][0].transmit(&mut burst, &mut router.frames), 0);
        assert!(router.ports[1][0].in_kernel() >= 512 + 10, "they must still be in the kernel");
        assert_eq!(router.close(), 0);
    });
}

/// The kernel would skip an empty frame without returning its slot.
#[test]
fn frames_shorter_than_a_header_are_refused_and_freed() {
    in_net("short", 1, |net| {
        let mut router = Router::open(&Options::default());
        let b = net.wire("b", "b0");
        let whole = udp4(MAC_B, A, B, (1000, 2000), 500);
        let mut burst = Burst::new();
        for length in [0, 13, whole.len(), 1] {
            burst.push(router.frames.allocate_with(&whole[..length]).unwrap()).unwrap();
        }
        let port = &mut router.ports[1][0];
        assert_eq!(port.transmit(&mut burst, &mut router.frames), 3);
        assert!(burst.is_empty());
        assert_eq!(b.receive(SECOND, is_udp_to(2000)), Some(whole));
        assert_eq!(port.device_counters().transmit_invalid, 0, "the kernel must not get them");
        assert_eq!(router.close(), 0);
    });
}

#[test]
fn a_port_opens_again_after_it_closed() {
    in_net("again", 1, |net| {
        for _ in 0..3 {
            let mut router = Router::open(&Options::default());
            let (a, b) = (net.wire("a", "a0"), net.wire("b", "b0"));
            a.send(&udp4(MAC_R0, A, B, (1000, 2000), 100));
            assert_eq!(router.forward(SECOND, 1, || false)[0], 1);
            assert!(b.receive(SECOND, is_udp_to(2000)).is_some());
            assert_eq!(router.close(), 0);
        }
    });
}

#[test]
fn lost_frames_are_counted_by_the_device() {
    in_net("lost", 1, |net| {
        let options = Options { ring: 64, ..Options::default() };
        let mut router = Router::open(&options);
        let a = net.wire("a", "a0");
        for _ in 0..100 {
            a.send(&udp4(MAC_R0, A, B, (1000, 2000), 100));
        }
        std::thread::sleep(SECOND / 10);
        let counters = router.ports[0][0].device_counters();
        // On a busy machine the sender may be so slow that Linux gets the last frames.
        let lost = 36 - router.devices[0].counters().unwrap().get("unattended");
        assert_eq!((counters.receive_no_frame, counters.receive_other), (lost, 0));
        router.forward(SECOND, 64, || false);
        // Too large for a slot, although the sender's MTU allows it.
        net.ip("a", "link set a0 mtu 2000");
        net.ip("r", "link set r0 mtu 2000");
        a.send(&udp4(MAC_R0, A, B, (1000, 2000), 1537));
        std::thread::sleep(SECOND / 10);
        let counters = router.ports[0][0].device_counters();
        assert_eq!((counters.receive_no_frame, counters.receive_other), (lost, 0), "not taken");
        assert_eq!(router.devices[0].counters().unwrap().get("too_large"), 1);
        assert_eq!(router.close(), 0);
    });
}

/// The MTU of a port and that of a veth's other end may be raised while the port is open.
#[test]
fn linux_gets_frames_that_fit_into_no_slot() {
    in_net("large", 1, |net| {
        net.settle();
        let mut router = Router::open(&Options::default());
        for (part, link) in [("a", "a0"), ("r", "r0"), ("r", "r1"), ("b", "b0")] {
            net.ip(part, &format!("link set {link} mtu 9000"));
        }
        let is_answered = |size: u32| net.succeeds("a", &format!("ping -c 1 -W 1 -M do -s {size} 10.0.2.2"));
        // In one buffer and in several.
        assert!(is_answered(1600) && is_answered(8900));
        let counted = |router: &Router| {
            let counters = router.devices.each_ref().map(|device| device.counters().unwrap());
            counters.map(|counters| (counters.get("too_large"), counters.get("too_large_dropped")))
        };
        assert_eq!(counted(&router), [(2, 0), (2, 0)]);
        router.steering[0].set_filters_drop(true).unwrap();
        assert!(!is_answered(8900), "Linux does not have the filters of workers");
        assert_eq!(counted(&router), [(2, 1), (2, 0)]);
        assert_eq!(router.close(), 0);
    });
}

#[test]
fn errors_say_how_to_fix_them() {
    in_net("errors", 1, |net| {
        let frame_pool = FramePool::new(256, 2048).unwrap();
        let shared = Shared::new(&frame_pool).unwrap();
        let attach = |name: &str, options: Options| XdpDevice::attach(name, &shared, options);
        let error = |result: Result<XdpDevice, XdpError>| result.map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            error(attach("r7", Options::default())),
            "there is no interface \"r7\" in this network namespace"
        );
        assert_eq!(
            error(attach("a-name-that-is-too-long", Options::default())),
            "there is no interface \"a-name-that-is-too-long\" in this network namespace"
        );
        let first = attach("r0", Options::default()).unwrap();
        let taken = error(attach("r0", Options::default()));
        assert!(
            taken.starts_with("another XDP program (steer, id ") && taken.contains("is attached to r0: "),
            "{taken}"
        );
        assert!(taken.contains("detach it with `bpftool link detach id "), "{taken}");
        let none = first.queue(1).map(|_| ()).unwrap_err().to_string();
        assert_eq!(none, "r0 has no queue 1: the number of queues is 1, counted from 0");
        let port = first.queue(0).unwrap();
        assert!(!port.is_zero_copy());
        let busy = first.queue(0).map(|_| ()).unwrap_err().to_string();
        assert!(busy.contains("another AF_XDP socket uses this queue"), "{busy}");
        drop((port, first));
        let zero_copy = Options { bind: Bind::ZeroCopy, ..Options::default() };
        let refused = attach("r0", zero_copy).unwrap().queue(0).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("AF_XDP socket of r0, queue 0: binding it: "), "{refused}");
        net.ip("r", "link set r1 mtu 2000");
        assert!(attach("r1", Options::default()).is_ok(), "Linux gets larger frames");
        assert!(XdpDevice::beside("r1", &shared, Options::default()).is_ok());
        assert_eq!(
            bm_port_xdp::check_mtu("r1", 2000, 2048).unwrap_err().to_string(),
            "r1 has an MTU of 2000, but a slot of 2048 bytes has room for at most 1514: set slot_size = 4096 in [daemon], or \
             lower the MTU with `ip link set dev r1 mtu 1514`"
        );
    });
}

/// Frames that are taken and frames that are left to Linux, kind by kind.
#[test]
fn steers_frames_for_the_fast_path() {
    in_net("steer", 1, |net| {
        let mut router = Router::open(&Options { tagged: true, ..Options::default() });
        let quiet = ["a", "r"];
        assert!(quiet.iter().all(|part| net.succeeds(part, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")));
        std::thread::sleep(SECOND / 10);
        let a = net.wire("a", "a0");
        let plain = udp4(MAC_R0, A, B, (1000, 2000), 100);
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = plain.clone();
            change(&mut frame);
            frame
        };
        let v6 = |destination: [u8; 16], next: u8, first: u8| {
            let mut frame = changed(&|frame| frame[12..14].copy_from_slice(&[0x86, 0xdd]));
            frame[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 46, next, 64]);
            frame[38..54].copy_from_slice(&destination);
            frame[54] = first;
            frame
        };
        let far = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let own = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let with = |at: usize, byte: u8, mut address: [u8; 16]| {
            address[at] = byte;
            address
        };
        let tagged = changed(&|frame| drop(frame.splice(12..12, [0x81, 0, 0, 5])));
        let twice = changed(&|frame| drop(frame.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6])));
        let cases = [
            ("steered", plain.clone()),
            ("steered", changed(&|frame| frame[14] = 0x41)),
            ("steered", changed(&|frame| frame[24] ^= 1)),
            ("steered", changed(&|frame| frame.truncate(20))),
            ("steered", v6(far, 17, 0)),
            ("steered", v6(far, 58, 128)),
            ("steered", tagged.clone()),
            ("steered", twice),
            ("other_mac", changed(&|frame| frame[5] = 9)),
            ("group", changed(&|frame| frame[..6].copy_from_slice(&[0xff; 6]))),
            ("group", changed(&|frame| frame[30..34].copy_from_slice(&[224, 0, 0, 5]))),
            ("group", changed(&|frame| frame[30..34].copy_from_slice(&[255; 4]))),
            ("group", v6(with(0, 0xff, far), 17, 0)),
            ("local", changed(&|frame| frame[30..34].copy_from_slice(&[10, 0, 2, 1]))),
            ("local", v6(own, 17, 0)),
            ("local", v6(with(1, 0x80, with(0, 0xfe, far)), 17, 0)),
            ("neighbor", v6(far, 58, 135)),
            ("other_type", changed(&|frame| frame[12..14].copy_from_slice(&[8, 6]))),
            ("other_type", changed(&|frame| frame[12..14].copy_from_slice(&[0x88, 0x47]))),
        ];
        let mut burst = Burst::new();
        for (kind, frame) in &cases {
            let before = router.devices[0].counters().unwrap();
            a.send(frame);
            let steered = router.forward(SECOND / 20, 1, || false)[0] == 1;
            let after = router.devices[0].counters().unwrap();
            let kinds = ["steered", "other_mac", "group", "local", "neighbor", "other_type"];
            let seen: Vec<_> = kinds.into_iter().filter(|kind| after.get(kind) > before.get(kind)).collect();
            assert_eq!((seen, steered), (vec![*kind], *kind == "steered"), "{frame:02x?}");
        }
        // Adds another MAC address of ours, and removes it.
        for (macs, taken) in [(&[MAC_R0, [2, 0, 0, 0, 1, 9]][..], 1), (&[MAC_R0][..], 0)] {
            router.steering[0].set_macs(macs).unwrap();
            a.send(&changed(&|frame| frame[5] = 9));
            assert_eq!(router.forward(SECOND / 20, 1, || false)[0], taken);
        }
        // Routes that lead where only Linux can send, a shorter and a longer one, and one within it that does not.
        let route = |address: &str, length, to_linux| LinuxRoute {
            address: address.parse().unwrap(),
            length,
            to_linux,
        };
        let routes = [
            route("10.0.0.0", 16, true),
            route("10.0.9.8", 29, false),
            route("2001:db8::", 32, true),
            route("2001:db8::", 64, false),
        ];
        router.steering[1].set_linux_routes(&routes).unwrap();
        router.steering[0].set_linux_routes(&routes).unwrap();
        for (frame, taken) in [
            (plain.clone(), 1),
            (changed(&|frame| frame[33] = 16), 0),
            (changed(&|frame| frame[31] = 1), 1),
            (v6(far, 17, 0), 1),
            (v6(with(6, 1, far), 17, 0), 0),
            (v6(with(3, 1, far), 17, 0), 1),
        ] {
            let before = router.devices[0].counters().unwrap().get("route");
            a.send(&frame);
            assert_eq!(router.forward(SECOND / 20, 1, || false)[0], taken, "{frame:02x?}");
            assert_eq!(router.devices[0].counters().unwrap().get("route") - before, 1 - taken as u64);
        }
        router.steering[0].set_linux_routes(&[]).unwrap();
        a.send(&changed(&|frame| frame[33] = 16));
        assert_eq!(router.forward(SECOND / 20, 1, || false)[0], 1);
        // An address that is no longer local.
        router.steering[1].set_local(&["10.0.9.2".parse().unwrap()]).unwrap();
        for (last, taken) in [(1, 1), (2, 0)] {
            a.send(&changed(&|frame| frame[33] = last));
            assert_eq!(router.forward(SECOND / 20, 1, || false)[0], taken, "10.0.9.{last}");
        }
        burst.free_all(&mut router.frames);
        assert_eq!(router.close(), 0);
    });
}
