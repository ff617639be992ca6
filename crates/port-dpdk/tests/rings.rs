//! Frames through DPDK's virtual devices: they come back in the same slots, and in the end all of them do.
//!
//! A process has only one EAL, which the tests of this file share.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bm_frame::{AnyFrame, Burst, FramePool, Freelist, MbufFrame};
use bm_port::{Port, TransmittedFrames};
use bm_port_dpdk::{DpdkDevice, DpdkError, DpdkPort, Options, Spec};

const SLOTS: usize = 4096;

fn open(text: &str, frame_pool: &Arc<FramePool>) -> (DpdkDevice, DpdkPort) {
    let device = DpdkDevice::open(&Spec::new(text), frame_pool, Options::default()).unwrap();
    let port = device.queue(0).unwrap();
    (device, port)
}

fn frame_pool() -> Arc<FramePool> {
    FramePool::new(SLOTS, 2048).unwrap()
}

/// A frame to a multicast address, so that any device receives it, with `number` at its end.
fn packet(number: u8) -> [u8; 60] {
    let mut packet = [0; 60];
    packet[0] = 1;
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[59] = number;
    packet
}

fn addresses(burst: &Burst) -> Vec<*const u8> {
    burst.places().iter().flatten().map(|frame| frame.data().as_ptr()).collect()
}

#[test]
fn a_ring_returns_the_same_slots_and_bytes() {
    let frame_pool = frame_pool();
    let (device, mut port) = open("net_ring_same", &frame_pool);
    assert_eq!((device.driver(), device.queues()), ("net_ring", 1));
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    for round in 0..20u8 {
        (0..200u8).for_each(|n| burst.push(frames.allocate_with(&packet(n ^ round)).unwrap()).unwrap());
        let sent = addresses(&burst);
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        assert_eq!(burst.len(), 0);
        port.receive(&mut burst, &mut frames);
        assert_eq!(addresses(&burst), sent);
        let right = burst.drain().enumerate().all(|(n, frame)| {
            let right = frame.data() == packet(n as u8 ^ round);
            frames.free(frame);
            right
        });
        assert!(right, "round {round}");
    }
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}

#[test]
fn frames_that_a_full_ring_refuses_stay_in_the_burst() {
    let frame_pool = frame_pool();
    let (device, mut port) = open("net_ring_full", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    let mut sent = 0;
    while burst.frames() == 0 {
        burst.reset();
        (0..250).for_each(|n| burst.push(frames.allocate_with(&packet(n)).unwrap()).unwrap());
        frames.free(burst.take(7).unwrap());
        sent += 249;
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
    }
    sent -= burst.frames();
    assert_eq!(sent, 1023);
    // In order: what remains is the end of the burst.
    assert_eq!(burst.get(249).unwrap().data()[59], 249);
    assert!(burst.get(0).is_none());
    burst.free_all(&mut frames);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}

/// A frame that is refused is gone from its place, wherever that is: the others keep theirs.
#[test]
fn frames_that_wait_in_front_of_one_that_is_refused_are_kept() {
    let frame_pool = frame_pool();
    let (device, mut port) = open("net_ring_last", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    while burst.frames() == 0 {
        burst.reset();
        (0..250).for_each(|n| burst.push(frames.allocate_with(&packet(n)).unwrap()).unwrap());
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
    }
    burst.free_all(&mut frames);
    (0..3).for_each(|n| burst.push(frames.allocate_with(&packet(n)).unwrap()).unwrap());
    burst.push(frames.allocate_with(&[0; 13]).unwrap()).unwrap();
    assert_eq!(port.transmit(&mut burst, &mut frames), 1);
    assert_eq!((burst.len(), burst.frames()), (4, 3));
    assert!((0..3).all(|n| burst.get(n).unwrap().data()[59] == n as u8));
    burst.free_all(&mut frames);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}

#[test]
fn links_are_filled_and_emptied_in_place() {
    let frame_pool = frame_pool();
    let (device, mut port) = open("net_ring_places", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    // More than fit in one call.
    let mut places: Vec<_> = (0..300).map(|n| frames.allocate_with(&packet(n as u8)[..60 - n % 7])).collect();
    let sent: Vec<_> = places.iter().flatten().map(|frame| frame.data().as_ptr()).collect();
    let port_in_place = port.in_place().unwrap();
    assert_eq!(
        port_in_place.transmit_from(&mut places, &mut frames),
        TransmittedFrames { refused: 0, left: 44 }
    );
    assert!(places[..256].iter().all(Option::is_none));
    let left = port_in_place.transmit_from(&mut places[256..], &mut frames).left;
    assert_eq!((left, places.iter().flatten().count()), (0, 0));
    let received = port_in_place.receive_into(&mut places[..10], &mut frames);
    assert_eq!((received.count, received.bytes), (10, (0..10).map(|n| 60 - n % 7).sum()));
    let received = port_in_place.receive_into(&mut places[10..], &mut frames);
    assert_eq!((received.count, received.bytes), (256, (10..266).map(|n| 60 - n % 7).sum()));
    assert_eq!(port_in_place.receive_into(&mut places[266..], &mut frames).count, 34);
    let found: Vec<_> = places.iter().flatten().map(|frame| frame.data().as_ptr()).collect();
    assert_eq!(found, sent);
    places.into_iter().flatten().for_each(|frame| frames.free(frame));
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}

#[test]
fn frames_come_and_go_described_by_their_mbufs_only() {
    let frame_pool = frame_pool();
    let (device, mut port) = open("net_ring_mbufs", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let packets: Vec<_> = (0..300).map(|n| packet(n as u8)[..60 - n % 7].to_vec()).collect();
    let mut places: Vec<_> = packets.iter().map(|packet| frames.allocate_with(packet)).collect();
    let mut left = places.len();
    while left > 0 {
        let from = places.len() - left;
        left = port.in_place().unwrap().transmit_from(&mut places[from..], &mut frames).left;
    }
    let mut mbufs: Vec<Option<MbufFrame>> = (0..300).map(|_| None).collect();
    let driver = port.mbufs().unwrap();
    let received = driver.receive_into(&mut mbufs, &mut frames);
    assert_eq!((received.count, received.bytes), (256, (0..256).map(|n| 60 - n % 7).sum()));
    assert_eq!(driver.receive_into(&mut mbufs[256..], &mut frames).count, 44);
    for (number, (frame, packet)) in mbufs.iter_mut().flatten().zip(&packets).enumerate() {
        assert_eq!(frame.data(), packet);
        frame.data_mut()[20] = 0xee;
        frame.truncate(if number % 2 == 0 { 50 } else { 60 });
    }
    // What is behind a gap waits.
    let taken = mbufs[100].take().unwrap().into_frame();
    assert_eq!(taken.data()[..20], packets[100][..20]);
    frames.free(taken);
    assert_eq!(driver.transmit_from(&mut mbufs, &mut frames), TransmittedFrames { refused: 0, left: 199 });
    assert!(mbufs[..100].iter().all(Option::is_none));
    assert_eq!(driver.transmit_from(&mut mbufs[101..], &mut frames).left, 0);
    let mut burst = Burst::new();
    for number in (0..300).filter(|&number| number != 100) {
        if burst.is_empty() {
            port.receive(&mut burst, &mut frames);
        }
        let place = burst.places().iter().position(Option::is_some).unwrap();
        let frame = burst.take(place).unwrap();
        let mut expected = packets[number].clone();
        expected.truncate(if number % 2 == 0 { 50 } else { 60 });
        expected[20] = 0xee;
        assert_eq!(frame.data(), expected, "{number}");
        frames.free(frame);
        if burst.frames() == 0 {
            burst.reset();
        }
    }
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}

#[test]
fn frames_with_moved_data_are_sent_unchanged() {
    let frame_pool = frame_pool();
    let (_device, mut port) = open("net_ring_moved", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    for back in [0, 4, 100, usize::MAX] {
        for _ in 0..8 {
            let mut frame = frames.allocate_with(&packet(1)).unwrap();
            frame.prepend(back.min(frame.headroom())).unwrap();
            frame.data_mut()[0] = back as u8 | 1;
            frame.set_len(60).unwrap();
            burst.push(frame).unwrap();
        }
        let sent = addresses(&burst);
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        port.receive(&mut burst, &mut frames);
        assert_eq!(addresses(&burst), sent);
        assert!(burst.places().iter().flatten().all(|frame| frame.data()[0] == back as u8 | 1));
        burst.free_all(&mut frames);
    }
}

#[test]
fn invalid_frames_are_refused() {
    let frame_pool = frame_pool();
    let (_device, mut port) = open("net_ring_short", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    for length in [13, 14] {
        burst.push(frames.allocate_with(&packet(0)[..length]).unwrap()).unwrap();
    }
    assert_eq!(port.transmit(&mut burst, &mut frames), 1);
    port.receive(&mut burst, &mut frames);
    assert_eq!((burst.len(), burst.get(0).unwrap().len()), (1, 14));
    assert_eq!(port.device_counters().transmit_invalid, 0, "the device must not get it");
    burst.free_all(&mut frames);
    drop(frames);
    assert_eq!(frame_pool.available(), SLOTS);
}

/// net_null takes frames from our freelist and returns them there; when the freelist is empty, none are received.
#[test]
fn a_driver_allocates_from_our_freelist_and_frees_to_it() {
    let frame_pool = FramePool::new(300, 2048).unwrap();
    let (device, mut port) = open("net_null_take,size=100", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 64);
    let (mut one, mut two) = (Burst::new(), Burst::new());
    port.receive(&mut one, &mut frames);
    assert!(one.places().iter().flatten().all(|frame| frame.len() == 100));
    let taken = one.len();
    assert!(taken > 0 && frame_pool.available() + frames.held() == 300 - taken);
    port.receive(&mut two, &mut frames);
    let mut lines: Vec<_> = addresses(&one).iter().map(|&data| data as usize / 64 % 32).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 7, "packets must begin at seven different cache lines of their slots, in turn");
    assert_eq!(port.transmit(&mut one, &mut frames), 0);
    two.free_all(&mut frames);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), 300);
}

/// A driver that finds no free frame receives nothing, and goes on when there are some again.
#[test]
fn a_pool_without_free_frames_stops_a_driver_only_until_it_has_some() {
    let frame_pool = FramePool::new(256, 2048).unwrap();
    let (device, mut port) = open("net_null_empty,size=64", &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 64);
    let held: Vec<_> = std::iter::from_fn(|| frames.allocate()).collect();
    assert_eq!(held.len(), 256);
    let mut burst = Burst::new();
    for _ in 0..100 {
        port.receive(&mut burst, &mut frames);
        assert_eq!(burst.len(), 0, "there is no frame");
    }
    // This driver wants all frames of a burst or none.
    held.into_iter().for_each(|frame| frames.free(frame));
    port.receive(&mut burst, &mut frames);
    assert!(!burst.is_empty(), "there are frames again");
    burst.free_all(&mut frames);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(frame_pool.available(), 256);
}

/// Toeplitz hash of 12 bytes: addresses and ports of a flow over IPv4.
fn toeplitz(key: &[u8], input: [u8; 12]) -> u32 {
    let bit = |bytes: &[u8], index: usize| bytes[index / 8] >> (7 - index % 8) & 1;
    let window =
        |from: usize| (from..from + 32).fold(0u32, |word, index| word << 1 | u32::from(bit(key, index)));
    (0..96).filter(|&index| bit(&input, index) == 1).fold(0, |hash, index| hash ^ window(index))
}

/// net_null has no RSS hash and accepts no key, but stores the redirection table, in which all queues have their
/// share. The key is the one that the shim sets on devices that accept one.
#[test]
fn flows_are_spread_evenly_and_symmetrically() {
    let frame_pool = frame_pool();
    let options = Options { queues: 3, mtu: None };
    let device = DpdkDevice::open(&Spec::new("net_null_spread"), &frame_pool, options).unwrap();
    let spread = device.spread();
    assert!(spread.queues.len() >= 64, "{spread:?}");
    let key = [0x6d, 0x5a].repeat(20);
    assert!(spread.queues.iter().enumerate().all(|(value, &queue)| usize::from(queue) == value % 3));
    let mut seen = [0usize; 3];
    for flow in 0..3000u32 {
        let flow = flow.wrapping_mul(0x9e37_79b1).to_be_bytes();
        let (a, b, c, d) = ([10, flow[0], flow[1], 1], [192, 0, flow[2], 7], [4, flow[3]], [0, 80]);
        let [there, back] = [[a, b], [b, a]].map(|ends| ends.concat());
        let there: [u8; 12] = [there, [c, d].concat()].concat().try_into().unwrap();
        let back: [u8; 12] = [back, [d, c].concat()].concat().try_into().unwrap();
        assert_eq!(toeplitz(&key, there), toeplitz(&key, back));
        let value = toeplitz(&key, there) as usize % spread.queues.len();
        seen[usize::from(spread.queues[value])] += 1;
    }
    assert!(seen.iter().all(|&share| (500..1700).contains(&share)), "{seen:?}");
    let one = DpdkDevice::open(&Spec::new("net_ring_spread"), &frame_pool, Options::default()).unwrap();
    assert!(one.spread().queues.is_empty(), "net_ring has no table");
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bm-dpdk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn write_capture(file: &Path, packets: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for packet in packets {
        for word in [0, 0, packet.len() as u32, packet.len() as u32] {
            bytes.extend(u32::to_le_bytes(word));
        }
        bytes.extend(packet);
    }
    std::fs::write(file, bytes).unwrap();
}

fn read_capture(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while let Some((head, more)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        packets.push(more[..length].to_vec());
        rest = &more[length..];
    }
    packets
}

#[test]
fn capture_files_are_read_and_written_byte_by_byte() {
    let (frame_pool, folder) = (frame_pool(), Folder::new("pcap"));
    let packets: Vec<Vec<u8>> = (60..1500)
        .step_by(97)
        .map(|length| (0..length).map(|at| (at * 7 + length) as u8).collect())
        .collect();
    let (input, output) = (folder.0.join("in.pcap"), folder.0.join("out.pcap"));
    write_capture(&input, &packets);
    let (device, mut port) = open(
        &format!("net_pcap_files,rx_pcap={},tx_pcap={}", input.display(), output.display()),
        &frame_pool,
    );
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    let mut came = Vec::new();
    while came.len() < packets.len() {
        port.receive(&mut burst, &mut frames);
        assert!(!burst.is_empty());
        came.extend(burst.places().iter().flatten().map(|frame| frame.data().to_vec()));
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        assert_eq!(burst.len(), 0);
    }
    assert_eq!(came, packets);
    let counters = device.counters();
    let counted = |name: &str| counters.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!((counted("rx_good_packets"), counted("tx_good_packets")), (15, 15));
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(read_capture(&output), packets);
    assert_eq!(frame_pool.available(), SLOTS);
}

/// With slots of 16 KiB a device accepts an MTU of 9000, and frames of that size pass in one piece and without a copy.
/// With slots of 2 KiB the MTU is refused, and the error names the setting that helps.
#[test]
fn jumbo_frames_pass_if_slots_are_large_enough() {
    let (small, large, folder) = (frame_pool(), FramePool::new(1024, 16_384).unwrap(), Folder::new("9000"));
    let (input, output) = (folder.0.join("in.pcap"), folder.0.join("out.pcap"));
    let packets: Vec<Vec<u8>> = [9014, 60, 9018, 4097]
        .map(|length: usize| (0..length).map(|at| (at * 7 + at / 251) as u8).collect())
        .into();
    write_capture(&input, &packets);
    let text = format!("net_pcap_9000,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let options = Options { queues: 1, mtu: Some(9000) };
    let refused = DpdkDevice::open(&Spec::new(&text), &small, options).err().unwrap();
    assert!(matches!(refused, DpdkError::Mtu { mtu: 9000, mtu_max: 1514, .. }), "{refused}");
    assert!(refused.to_string().contains("set a larger `slot_size`"), "{refused}");
    let device = DpdkDevice::open(&Spec::new(&text), &large, options).unwrap();
    assert_eq!((device.mtu(), device.copied()), (9000, None));
    let (mut port, mut frames) = (device.queue(0).unwrap(), Freelist::new(large.clone(), 512));
    let mut burst = Burst::new();
    port.receive(&mut burst, &mut frames);
    let came: Vec<_> = burst.places().iter().flatten().map(|frame| frame.data().to_vec()).collect();
    assert_eq!(came, packets);
    assert_eq!(port.transmit(&mut burst, &mut frames), 0);
    port.close(&mut frames);
    drop((port, device, frames));
    assert_eq!(read_capture(&output), packets);
    assert_eq!(large.available(), 1024);
}

#[test]
fn frames_larger_than_a_slot_are_counted() {
    let (frame_pool, folder) = (frame_pool(), Folder::new("jumbo"));
    let input = folder.0.join("in.pcap");
    write_capture(&input, &[vec![1; 1536], vec![1; 2000], vec![1; 60]]);
    let (_device, mut port) = open(&format!("net_pcap_jumbo,rx_pcap={}", input.display()), &frame_pool);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut burst = Burst::new();
    port.receive(&mut burst, &mut frames);
    let lengths: Vec<_> = burst.places().iter().flatten().map(|frame| frame.len()).collect();
    assert_eq!(lengths, [1536, 60]);
    assert_eq!(port.device_counters().receive_other, 1);
    burst.free_all(&mut frames);
    drop(frames);
    assert_eq!(frame_pool.available(), SLOTS);
}

#[test]
fn errors_contain_the_message_of_dpdk() {
    let frame_pool = frame_pool();
    let refused =
        |text: &str| DpdkDevice::open(&Spec::new(text), &frame_pool, Options::default()).err().unwrap();
    let missing = refused("net_pcap_missing,rx_pcap=/nonexistent/in.pcap");
    assert!(missing.to_string().contains("/nonexistent/in.pcap"), "{missing}");
    let unknown = refused("net_nosuch0");
    assert!(unknown.to_string().starts_with("dpdk:net_nosuch0: no DPDK driver accepts it"), "{unknown}");
    assert_eq!(refused(",x"), DpdkError::Name { device: ",x".into() });
    let (device, _port) = open("net_ring_errors", &frame_pool);
    assert!(matches!(device.queue(1), Err(DpdkError::Queues { wanted: 2, has: 1, .. })));
    assert!(matches!(device.set_mtu(9000), Err(DpdkError::Mtu { mtu: 9000, mtu_max: 1514, .. })));
    assert!(device.link().up);
    // A name that was released can be used again.
    drop((device, _port));
    open("net_ring_errors", &frame_pool);
}

#[test]
fn many_queues_are_as_many_ports() {
    let frame_pool = frame_pool();
    let options = Options { queues: 4, mtu: None };
    let device = DpdkDevice::open(&Spec::new("net_ring_queues"), &frame_pool, options).unwrap();
    assert_eq!(device.queues(), 4);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    let mut ports: Vec<_> = (0..4).map(|queue| device.queue(queue).unwrap()).collect();
    let mut burst = Burst::new();
    for (queue, port) in ports.iter_mut().enumerate() {
        burst.push(frames.allocate_with(&packet(queue as u8)).unwrap()).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
    }
    for (queue, port) in ports.iter_mut().enumerate() {
        port.receive(&mut burst, &mut frames);
        assert_eq!((burst.len(), burst.get(0).unwrap().data()[59]), (1, queue as u8));
        burst.free_all(&mut frames);
        port.close(&mut frames);
    }
    drop((ports, device, frames));
    assert_eq!(frame_pool.available(), SLOTS);
}
