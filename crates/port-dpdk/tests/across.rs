//! Frames cross between DPDK and other kinds of ports without being copied: the address of the data stays the same.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::{Port, Steering as _};
use bm_port_dpdk::{DpdkDevice, DpdkPort, Options, Spec};
use bm_port_tap::TapDevice;
use bm_port_xdp::{Shared, XdpDevice};

const PATIENCE: Duration = Duration::from_secs(20);

fn packet(number: u8) -> Vec<u8> {
    let mut packet = vec![number; 100];
    // To a multicast address and with an experimental EtherType, so that nothing answers.
    packet[..14].copy_from_slice(&[3, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    packet
}

/// Moves only this thread to a new network namespace, which ends with it. `false` if this fails without root.
fn alone() -> bool {
    bm_sys::Namespace::Network.unshare().is_ok()
}

fn ip(line: &str) {
    assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
}

/// A socket that sends and receives whole frames on an interface.
struct Wire(OwnedFd);

impl Wire {
    fn on(name: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let name = std::ffi::CString::new(name).unwrap();
        // SAFETY: plain system calls; the address is complete and outlives its call.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, i32::from(protocol));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let bound = libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32);
            assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
            Self(OwnedFd::from_raw_fd(fd))
        }
    }

    fn send(&self, packet: &[u8]) {
        // SAFETY: as many bytes as are named.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) };
        assert_eq!(sent, packet.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Waits until this packet arrives; ignores others.
    fn expect(&self, packet: &[u8]) {
        let begin = Instant::now();
        let mut buffer = [0u8; 2048];
        while begin.elapsed() < PATIENCE {
            // SAFETY: as many bytes as the buffer has.
            let got = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            if got == packet.len() as isize && buffer[..packet.len()] == *packet {
                return;
            }
            std::thread::yield_now();
        }
        panic!("the packet did not arrive");
    }
}

/// Receives until this packet arrives; frees all others.
fn receive(port: &mut dyn Port, frames: &mut Freelist, wanted: &[u8]) -> Burst {
    let begin = Instant::now();
    let mut burst = Burst::new();
    while begin.elapsed() < PATIENCE {
        port.tend(frames);
        port.receive(&mut burst, frames);
        for place in burst.places_mut() {
            if let Some(frame) = place.take_if(|frame| frame.data() != wanted) {
                frames.free(frame);
            }
        }
        burst.compact();
        if !burst.is_empty() {
            return burst;
        }
    }
    panic!("the packet did not arrive");
}

fn ring(name: &str, frame_pool: &Arc<FramePool>) -> DpdkPort {
    let device = DpdkDevice::open(&Spec::new(name), frame_pool, Options::default()).unwrap();
    device.queue(0).unwrap()
}

/// From `outside` to `port`, through a DPDK ring, and back the same way: the frame must never be copied.
fn there_and_back(port: &mut dyn Port, ring: &mut DpdkPort, frames: &mut Freelist, outside: &Wire) {
    for number in 0..5 {
        let bytes = packet(number);
        // AF_XDP delivers packets only while the port is polled.
        let mut early = Burst::new();
        port.receive(&mut early, frames);
        early.free_all(frames);
        outside.send(&bytes);
        let mut burst = receive(port, frames, &bytes);
        let address = burst.get(0).unwrap().data().as_ptr();
        assert_eq!(ring.transmit(&mut burst, frames), 0);
        assert!(burst.is_empty());
        let mut burst = receive(ring, frames, &bytes);
        assert_eq!(burst.get(0).unwrap().data().as_ptr(), address, "the frame was copied");
        burst.get_mut(0).unwrap().data_mut()[20] = 0xee;
        assert_eq!(port.transmit(&mut burst, frames), 0);
        assert!(burst.is_empty());
        let mut changed = bytes;
        changed[20] = 0xee;
        outside.expect(&changed);
    }
}

fn whole(frame_pool: &Arc<FramePool>, mut frames: Freelist, mut port: Box<dyn Port>, mut ring: DpdkPort) {
    port.close(&mut frames);
    ring.close(&mut frames);
    drop((port, ring, frames));
    assert_eq!(frame_pool.available(), frame_pool.memory().slots(), "every frame must be free again");
}

#[test]
fn frames_of_af_xdp_and_dpdk_are_the_same() {
    if !alone() {
        return eprintln!("skipped: a network namespace needs root");
    }
    ip("link add x0 type veth peer name x1");
    ip("link set x0 up");
    ip("link set x1 up");
    let frame_pool = FramePool::new(8192, 2048).unwrap();
    let shared = Shared::new(&frame_pool).unwrap();
    let options = bm_port_xdp::Options { everything: true, ..bm_port_xdp::Options::default() };
    let device = XdpDevice::attach("x0", &shared, options).unwrap();
    let mut port: Box<dyn Port> = Box::new(device.queue(0).unwrap());
    device.steering().unwrap().set_active(true).unwrap();
    let (mut ring, mut frames) = (ring("net_ring_xdp", &frame_pool), Freelist::new(frame_pool.clone(), 1024));
    there_and_back(&mut *port, &mut ring, &mut frames, &Wire::on("x1"));
    whole(&frame_pool, frames, port, ring);
}

#[test]
fn frames_of_tap_and_dpdk_are_the_same() {
    if !alone() {
        return eprintln!("skipped: a network namespace needs root");
    }
    let frame_pool = FramePool::new(4096, 2048).unwrap();
    let mut device = TapDevice::open("t0").unwrap();
    let mut port: Box<dyn Port> = Box::new(device.queue(frame_pool.memory().room()).unwrap());
    let (mut ring, mut frames) = (ring("net_ring_tap", &frame_pool), Freelist::new(frame_pool.clone(), 1024));
    there_and_back(&mut *port, &mut ring, &mut frames, &Wire::on("t0"));
    whole(&frame_pool, frames, port, ring);
}

/// VLAN tags that a device strips are restored, as on packet sockets.
#[test]
fn a_tag_stripped_by_the_device_is_restored() {
    if !alone() {
        return eprintln!("skipped: a network namespace needs root");
    }
    ip("link add y0 type veth peer name y1");
    ip("link set y0 up");
    ip("link set y1 up");
    let frame_pool = FramePool::new(4096, 4096).unwrap();
    let device =
        DpdkDevice::open(&Spec::new("net_af_packet_tag,iface=y0"), &frame_pool, Options::default()).unwrap();
    assert_eq!(device.copied(), None, "the driver must be able to use slots of 4096 bytes");
    let (mut port, mut frames) = (device.queue(0).unwrap(), Freelist::new(frame_pool.clone(), 1024));
    let outside = Wire::on("y1");
    let mut tagged = packet(7);
    tagged.splice(12..12, [0x81, 0x00, 0x20, 0x2a]);
    outside.send(&tagged);
    let mut burst = receive(&mut port, &mut frames, &tagged);
    burst.free_all(&mut frames);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), 4096);
}

/// A frame that is too long for a port that copies must not block the frames behind it.
#[test]
fn a_frame_that_never_fits_a_copying_port_is_dropped() {
    if !alone() {
        return eprintln!("skipped: a network namespace needs root");
    }
    ip("link add w0 type veth peer name w1");
    ip("link set w0 up");
    ip("link set w1 up");
    let frame_pool = FramePool::new(4096, 4096).unwrap();
    let device =
        DpdkDevice::open(&Spec::new("net_af_xdp_long,iface=w0"), &frame_pool, Options::default()).unwrap();
    assert!(device.copied().is_some());
    let (mut port, mut frames) = (device.queue(0).unwrap(), Freelist::new(frame_pool.clone(), 1024));
    let outside = Wire::on("w1");
    let before = port.device_counters().transmit_invalid;
    let mut burst = Burst::new();
    for bytes in [&[7; 3000][..], &packet(9)] {
        burst.push(frames.allocate_with(bytes).unwrap()).unwrap();
    }
    assert_eq!(port.transmit(&mut burst, &mut frames), 1);
    assert_eq!((burst.frames(), port.device_counters().transmit_invalid - before), (0, 0));
    outside.expect(&packet(9));
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), 4096);
}

/// Flow rules and additional MAC addresses, on a driver that supports rules (net_tap, by tc) and one that does not.
#[test]
fn settings_of_control_are_applied_or_ignored() {
    if !alone() {
        return eprintln!("skipped: a network namespace needs root");
    }
    let frame_pool = FramePool::new(8192, 4096).unwrap();
    for text in ["net_tap_rules,iface=z0", "net_ring_rules"] {
        let options = Options { queues: 2, mtu: None };
        let device = DpdkDevice::open(&Spec::new(text), &frame_pool, options).unwrap();
        assert_eq!(device.queues(), 2, "{text}");
        let mut steering = device.steering();
        let addresses = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        steering.set_macs(&[device.mac(), [2, 0, 0, 0, 0, 9]]).unwrap();
        steering.set_local(&addresses).unwrap();
        steering.set_local(&addresses[1..]).unwrap();
        steering.set_macs(&[device.mac()]).unwrap();
        steering.set_active(true).unwrap();
        drop(steering);
        let mut frames = Freelist::new(frame_pool.clone(), 1024);
        for queue in 0..2 {
            let mut port = device.queue(queue).unwrap();
            let mut burst = Burst::new();
            burst.push(frames.allocate_with(&packet(queue as u8)).unwrap()).unwrap();
            assert_eq!(port.transmit(&mut burst, &mut frames), 0);
            assert!(burst.is_empty());
            port.close(&mut frames);
        }
        drop((device, frames));
        assert_eq!(frame_pool.available(), 8192, "{text}");
    }
}
