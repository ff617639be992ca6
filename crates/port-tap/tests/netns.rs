//! TAP ports and host TAPs against Linux, in a network namespace.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::{HostPort, Port};
use bm_port_tap::{HostTap, TapDevice, TapError};
use bm_wire::checksum::Pseudo;

const SECOND: Duration = Duration::from_secs(1);
const MAC: [u8; 6] = [2, 0, 0, 0, 3, 1];
/// 10.0.3.2:2000 > 10.0.3.1:1000, UDP without checksum, payload "hi".
const TO_LINUX: [u8; 44] = [
    2, 0, 0, 0, 3, 1, 2, 0, 0, 0, 3, 2, 8, 0, 0x45, 0, 0, 30, 0, 1, 0x40, 0, 64, 17, 0x20, 0xcc, 10, 0, 3, 2,
    10, 0, 3, 1, 0x07, 0xd0, 0x03, 0xe8, 0, 10, 0, 0, b'h', b'i',
];

/// Deletes the namespace even if the test fails.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Runs `test` on a new thread in a new namespace.
fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    if bm_sys::effective_user() != 0 || !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: {name} needs root and /dev/net/tun");
        return;
    }
    // The process id separates namespaces of concurrent tests, and tells which of them may be removed.
    let namespace = Namespace(format!("bm-tap-{name}-p{}-r", std::process::id()));
    let _left_over = Command::new("ip").args(["netns", "del", &namespace.0]).output();
    ip(&format!("netns add {}", namespace.0));
    let path = format!("/run/netns/{}", namespace.0);
    let done = std::thread::spawn(move || {
        let file = File::open(path).unwrap();
        bm_sys::Namespace::Network.enter(&file).unwrap();
        test();
    });
    if let Err(panic) = done.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the thread's namespace, which a child inherits.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The first UDP packet to port 2000 that Linux sends.
fn first_udp(mut next: impl FnMut() -> Option<Vec<u8>>) -> Vec<u8> {
    let begin = Instant::now();
    while begin.elapsed() < SECOND {
        match next() {
            Some(frame) if frame.len() > 42 && frame[23] == 17 && frame[36..38] == [0x07, 0xd0] => {
                return frame;
            }
            _ => {}
        }
    }
    panic!("Linux sent no UDP packet");
}

/// Whether the UDP checksum is complete and correct: Linux leaves it to hardware if it can.
fn has_right_checksum(frame: &[u8]) -> bool {
    let pseudo = Pseudo::V4 { source: 0x0a00_0301, destination: 0x0a00_0302 };
    frame[40..42] != [0, 0] && pseudo.checksum(17, &frame[34..]) == 0
}

#[test]
fn a_port_carries_frames_in_both_directions() {
    in_namespace("port", || {
        let mut device = TapDevice::open("bm%d").unwrap();
        assert_eq!(device.name(), "bm0");
        ip("link set bm0 address 02:00:00:00:03:01");
        ip("addr add 10.0.3.1/24 dev bm0");
        ip("neigh add 10.0.3.2 lladdr 02:00:00:00:03:02 dev bm0");
        assert_eq!((device.mac().unwrap(), device.mtu().unwrap()), (MAC, 1500));
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut port = device.queue(frame_pool.memory().room()).unwrap();
        let socket = UdpSocket::bind("10.0.3.1:1000").unwrap();
        socket.set_read_timeout(Some(SECOND)).unwrap();
        let mut burst = Burst::new();
        burst.push(frames.allocate_with(&TO_LINUX).unwrap()).unwrap();
        burst.push(frames.allocate_with(&TO_LINUX[..10]).unwrap()).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 1, "a short frame");
        assert!(burst.is_empty());
        let mut buffer = [0; 100];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 2);
        socket.send_to(b"hello", "10.0.3.2:2000").unwrap();
        let frame = first_udp(|| {
            port.receive(&mut burst, &mut frames);
            let all: Vec<_> = burst.places().iter().flatten().map(|frame| frame.data().to_vec()).collect();
            burst.free_all(&mut frames);
            all.into_iter().find(|frame| frame.ends_with(b"hello"))
        });
        assert_eq!(frame[..14], [2, 0, 0, 0, 3, 2, 2, 0, 0, 0, 3, 1, 8, 0]);
        assert!(has_right_checksum(&frame));
        drop((port, device, frames));
        assert_eq!(frame_pool.available(), 512);
        assert!(!Command::new("ip").args(["link", "show", "bm0"]).output().unwrap().status.success());
    });
}

#[test]
fn a_frame_larger_than_a_slot_is_counted() {
    in_namespace("large", || {
        let mut device = TapDevice::open("bm0").unwrap();
        ip("addr add 10.0.3.1/24 dev bm0");
        ip("neigh add 10.0.3.2 lladdr 02:00:00:00:03:02 dev bm0");
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut port = device.queue(frame_pool.memory().room()).unwrap();
        ip("link set bm0 mtu 4000");
        let socket = UdpSocket::bind("10.0.3.1:1000").unwrap();
        // With 42 bytes of headers: 1536 in total, which just fits, and one more.
        socket.send_to(&[7; 1494], "10.0.3.2:2000").unwrap();
        socket.send_to(&[7; 1495], "10.0.3.2:2000").unwrap();
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        let lengths: Vec<_> = burst.places().iter().flatten().map(|frame| frame.len()).collect();
        assert!(lengths.contains(&1536) && !lengths.contains(&1537), "{lengths:?}");
        assert_eq!(port.device_counters().receive_other, 1);
        burst.free_all(&mut frames);
        let Err(error) = device.queue(frame_pool.memory().room()) else {
            panic!("an MTU of 4000 does not fit")
        };
        assert_eq!(
            error.to_string(),
            "bm0 has an MTU of 4000, but a slot has room for at most 1514: use larger slots, or lower the MTU with: \
             ip link set dev bm0 mtu 1514"
        );
    });
}

#[test]
fn flows_spread_over_queues() {
    in_namespace("queues", || {
        let mut device = TapDevice::open("bm0").unwrap();
        ip("addr add 10.0.3.1/24 dev bm0");
        ip("neigh add 10.0.3.2 lladdr 02:00:00:00:03:02 dev bm0");
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut ports = [0, 1].map(|_| device.queue(frame_pool.memory().room()).unwrap());
        for _ in 0..100 {
            UdpSocket::bind("10.0.3.1:0").unwrap().send_to(b"hello", "10.0.3.2:2000").unwrap();
        }
        let counts = ports.each_mut().map(|port| {
            let mut burst = Burst::new();
            port.receive(&mut burst, &mut frames);
            let udp = |frame: &&bm_frame::Frame| frame.data().ends_with(b"hello");
            let count = burst.places().iter().flatten().filter(udp).count();
            burst.free_all(&mut frames);
            count
        });
        assert!(counts.iter().all(|&count| count > 10) && counts[0] + counts[1] == 100, "{counts:?}");
    });
}

#[test]
fn a_host_tap_represents_its_port() {
    in_namespace("host_tap", || {
        let mut host_tap = HostTap::new("hosttap0", MAC, 1400).unwrap();
        ip("addr add 10.0.3.1/24 dev hosttap0");
        ip("neigh add 10.0.3.2 lladdr 02:00:00:00:03:02 dev hosttap0");
        let link = Command::new("ip").args(["link", "show", "hosttap0"]).output().unwrap();
        let link = String::from_utf8_lossy(&link.stdout).into_owned();
        assert!(
            link.contains("mtu 1400") && link.contains("02:00:00:00:03:01") && link.contains("UP"),
            "{link}"
        );
        let socket = UdpSocket::bind("10.0.3.1:1000").unwrap();
        socket.set_read_timeout(Some(SECOND)).unwrap();
        host_tap.deliver(&TO_LINUX).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(socket.recv_from(&mut buffer).unwrap(), (2, "10.0.3.2:2000".parse().unwrap()));
        socket.send_to(b"hello", "10.0.3.2:2000").unwrap();
        let mut room = [0; 1500];
        let frame = first_udp(|| host_tap.collect(&mut room).unwrap().map(<[u8]>::to_vec));
        assert!(frame.ends_with(b"hello") && has_right_checksum(&frame));
        assert!(host_tap.deliver(&[0; 5]).is_err());
    });
}

/// Whether a wait on it would end immediately.
fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd` that outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// An epoll on one descriptor, as a worker creates it at its start.
fn epoll_on(fd: BorrowedFd<'_>) -> OwnedFd {
    // SAFETY: passes a number; the descriptor is new and has no other owner.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event outlives the call.
    let added =
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
    assert_eq!(added, 0);
    epoll
}

#[test]
fn a_deleted_interface_wakes_no_worker() {
    in_namespace("deleted", || {
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let mut frames = Freelist::new(frame_pool.clone(), 128);
        let mut device = TapDevice::open("bm0").unwrap();
        let mut port = device.queue(frame_pool.memory().room()).unwrap();
        let mut host_tap = HostTap::new("hosttap0", MAC, 1500).unwrap();
        let waits = epoll_on(port.wait_on().unwrap());
        ip("link del bm0");
        ip("link del hosttap0");
        assert!(
            is_ready(waits.as_fd()) && is_ready(host_tap.wait_on().unwrap()),
            "Linux must report it by an error"
        );
        let mut burst = Burst::new();
        port.receive(&mut burst, &mut frames);
        assert!(burst.is_empty());
        // A process that another test has just forked keeps closed descriptors open until it calls exec.
        let until = Instant::now() + Duration::from_secs(10);
        while is_ready(waits.as_fd()) {
            assert!(Instant::now() < until, "a worker that waits on it must not spin");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_ready(port.wait_on().unwrap()), "it must not need polling either");
        burst.push(frames.allocate_with(&TO_LINUX).unwrap()).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 1, "the frame must not be sent");
        assert!(burst.is_empty());
        port.receive(&mut burst, &mut frames);
        assert!(burst.is_empty());
        let mut buffer = [0; 100];
        assert_eq!(host_tap.collect(&mut buffer).unwrap_err().raw_os_error(), Some(libc::EBADFD));
        assert!(host_tap.wait_on().is_none());
        assert!(host_tap.collect(&mut buffer).unwrap().is_none(), "it must be reported only once");
        assert!(host_tap.deliver(&TO_LINUX).is_err());
        drop((port, device, host_tap, frames));
        assert_eq!(frame_pool.available(), 512);
    });
}

#[test]
fn errors_say_how_to_fix_them() {
    in_namespace("errors", || {
        let error = |name: &str| TapDevice::open(name).map(drop).unwrap_err();
        assert!(matches!(error("a-name-that-is-too-long"), TapError::Name { .. }));
        assert!(matches!(error(""), TapError::Name { .. }));
        ip("link add veth0 type veth peer name veth1");
        let taken = error("veth0").to_string();
        assert!(
            taken.starts_with("TAP interface veth0: ") && taken.contains("the name is in use"),
            "{taken}"
        );
        // A persistent interface with one queue can be opened, but only once.
        ip("tuntap add dev stays mode tap");
        let _first = TapDevice::open("stays").unwrap();
        assert!(matches!(error("stays"), TapError::Taken { .. }));
    });
}
