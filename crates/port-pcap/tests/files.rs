//! Reading and writing of capture files, byte by byte.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::Port;
use bm_port_pcap::PcapPort;

/// pcap with nanoseconds, little-endian: two packets of 14 and 15 bytes, at 1.000000001 s and 1.000000002 s.
const TWO: [u8; 24 + 16 + 14 + 16 + 15] = [
    0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0, //
    1, 0, 0, 0, 1, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0, //
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, //
    1, 0, 0, 0, 2, 0, 0, 0, 15, 0, 0, 0, 15, 0, 0, 0, //
    2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4, 8, 0, 7,
];
const FIRST: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
const SECOND: [u8; 15] = [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4, 8, 0, 7];
/// pcapng, big-endian: section header, an Ethernet interface, the first packet as an enhanced packet block, a block of
/// an unknown type, the second packet as a simple packet block.
const TWO_NG: [u8; 28 + 20 + 48 + 16 + 32] = [
    0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, //
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 28, //
    0, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 20, //
    0, 0, 0, 6, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 14, 0, 0, 0, 14, //
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 48, //
    0x40, 0, 0, 1, 0, 0, 0, 16, 1, 2, 3, 4, 0, 0, 0, 16, //
    0, 0, 0, 3, 0, 0, 0, 32, 0, 0, 0, 15, //
    2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4, 8, 0, 7, 0, 0, 0, 0, 32,
];

/// A file that is removed at the end of the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("bm-port-pcap-{}-{name}", std::process::id())))
    }

    fn holding(name: &str, bytes: &[u8]) -> Self {
        let file = Self::new(name);
        std::fs::write(&file.0, bytes).unwrap();
        file
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn frames() -> Freelist {
    Freelist::new(FramePool::new(512, 2048).unwrap(), 512)
}

/// Receives all packets of the port, in bursts.
fn received(port: &mut PcapPort, frames: &mut Freelist) -> Vec<Vec<u8>> {
    let (mut burst, mut packets) = (Burst::new(), Vec::new());
    while !port.is_done() {
        port.receive(&mut burst, frames);
        packets.extend(burst.places().iter().flatten().map(|frame| frame.data().to_vec()));
        burst.free_all(frames);
    }
    packets
}

fn error_of(bytes: &[u8]) -> String {
    let file = Temporary::holding("bad", bytes);
    let mut port = match PcapPort::new(Some(&file.0), None, false) {
        Ok(port) => port,
        Err(error) => return error.to_string().replace(file.0.to_str().unwrap(), "FILE"),
    };
    received(&mut port, &mut frames());
    port.error().unwrap().to_string().replace(file.0.to_str().unwrap(), "FILE")
}

#[test]
fn received_packets_are_written_byte_by_byte() {
    let (input, output) = (Temporary::holding("in", &TWO), Temporary::new("out"));
    let mut nanoseconds = 1_000_000_000;
    let clock = move || {
        nanoseconds += 1;
        Duration::from_nanos(nanoseconds)
    };
    let mut frames = frames();
    let mut port = PcapPort::with_clock(Some(&input.0), Some(&output.0), false, Box::new(clock)).unwrap();
    let mut burst = Burst::new();
    while !port.is_done() {
        port.receive(&mut burst, &mut frames);
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        assert!(burst.is_empty());
    }
    port.close(&mut frames);
    assert!(port.error().is_none());
    assert_eq!(std::fs::read(&output.0).unwrap(), TWO);
    let frame_pool = frames.frame_pool().clone();
    drop(frames);
    assert_eq!(frame_pool.available(), 512);
}

#[test]
fn sent_packets_are_in_the_file_while_the_port_is_open() {
    let output = Temporary::new("followed");
    let mut frames = frames();
    let mut port = PcapPort::new(None, Some(&output.0), false).unwrap();
    let file_bytes = || std::fs::metadata(&output.0).unwrap().len();
    assert_eq!(file_bytes(), 24, "the file's header");
    let mut burst = Burst::new();
    for sent in 1..=2 {
        burst.push(frames.allocate_with(&FIRST).unwrap()).unwrap();
        assert_eq!(port.transmit(&mut burst, &mut frames), 0);
        assert_eq!(file_bytes(), 24 + sent * (16 + FIRST.len() as u64));
    }
}

#[test]
fn packets_that_cannot_be_written_are_refused() {
    let mut frames = Freelist::new(FramePool::new(16, 10_816).unwrap(), 16);
    let mut port = PcapPort::new(None, Some(Path::new("/dev/full")), false).unwrap();
    let mut burst = Burst::new();
    (0..2).for_each(|_| burst.push(frames.allocate_with(&[7; 9000]).unwrap()).unwrap());
    assert_eq!(port.transmit(&mut burst, &mut frames), 2);
    assert!(burst.is_empty());
    assert!(port.error().is_some_and(|error| error.to_string().contains("/dev/full")), "{:?}", port.error());
    port.close(&mut frames);
    let mut port = PcapPort::new(None, Some(Path::new("/dev/full")), false).unwrap();
    burst.push(frames.allocate_with(&[7; 60]).unwrap()).unwrap();
    assert_eq!(port.transmit(&mut burst, &mut frames), 1, "a frame that only reached the buffer is refused");
    let frame_pool = frames.frame_pool().clone();
    drop(frames);
    assert_eq!(frame_pool.available(), 16);
}

#[test]
fn reads_both_formats() {
    for (name, bytes) in [("pcap", &TWO[..]), ("pcapng", &TWO_NG[..])] {
        let file = Temporary::holding(name, bytes);
        let mut port = PcapPort::new(Some(&file.0), None, false).unwrap();
        assert_eq!(received(&mut port, &mut frames()), [&FIRST[..], &SECOND[..]], "{name}");
        assert!(port.error().is_none(), "{name}");
    }
}

#[test]
fn a_loop_repeats_the_file() {
    let file = Temporary::holding("loop", &TWO);
    let mut port = PcapPort::new(Some(&file.0), None, true).unwrap();
    let (mut frames, mut burst) = (frames(), Burst::new());
    for _ in 0..3 {
        port.receive(&mut burst, &mut frames);
        assert!(burst.is_full() && !port.is_done());
        let alternate = |(index, frame): (usize, &Option<bm_frame::Frame>)| {
            frame.as_ref().unwrap().len() == [14, 15][index % 2]
        };
        assert!(burst.places().iter().enumerate().all(alternate));
        burst.free_all(&mut frames);
    }
    let empty = Temporary::holding("empty", &TWO[..24]);
    assert!(PcapPort::new(Some(&empty.0), None, true).unwrap().is_done());
}

#[test]
fn waits_for_frames_and_loses_none() {
    let file = Temporary::holding("wait", &TWO);
    let mut port = PcapPort::new(Some(&file.0), None, false).unwrap();
    let mut frames = Freelist::new(FramePool::new(1, 2048).unwrap(), 128);
    let mut burst = Burst::new();
    port.receive(&mut burst, &mut frames);
    assert_eq!((burst.len(), burst.get(0).unwrap().len()), (1, 14));
    burst.free_all(&mut frames);
    port.receive(&mut burst, &mut frames);
    assert_eq!((burst.len(), burst.get(0).unwrap().len()), (1, 15));
}

#[test]
fn a_packet_larger_than_a_slot_is_counted_and_skipped() {
    let mut bytes = TWO[..24].to_vec();
    bytes.extend([[0, 0, 0, 0], [0, 0, 0, 0], 1537u32.to_le_bytes(), 1537u32.to_le_bytes()].concat());
    bytes.extend([9; 1537]);
    bytes.extend(&TWO[24..]);
    let file = Temporary::holding("large", &bytes);
    let mut port = PcapPort::new(Some(&file.0), None, false).unwrap();
    assert_eq!(received(&mut port, &mut frames()), [&FIRST[..], &SECOND[..]]);
    assert_eq!(port.device_counters().receive_other, 1);
    assert!(port.error().is_none());
}

#[test]
fn errors_name_file_and_packet() {
    let changed = |at: usize, byte: u8| {
        let mut bytes = TWO;
        bytes[at] = byte;
        bytes
    };
    let missing = PcapPort::new(Some(Path::new("/nowhere/in.pcap")), None, false).map(drop).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/in.pcap: No such file"), "{missing}");
    let nowhere = PcapPort::new(None, Some(Path::new("/nowhere/out.pcap")), false).map(drop).unwrap_err();
    assert!(nowhere.to_string().starts_with("/nowhere/out.pcap: No such file"), "{nowhere}");
    assert!(
        error_of(b"hello, this is no capture").starts_with("FILE: not a capture file (pcap or pcapng): ")
    );
    assert!(error_of(&[]).starts_with("FILE: not a capture file"));
    assert_eq!(error_of(&TWO[..TWO.len() - 1]), "FILE, packet 2: the file ends in the middle of a packet");
    assert_eq!(error_of(&TWO[..24 + 7]), "FILE, packet 1: the file ends in the middle of a packet");
    assert_eq!(
        error_of(&changed(20, 101)),
        "FILE: link type 101 is not Ethernet (1): capture on an Ethernet interface"
    );
    let mut ng = TWO_NG;
    ng[28 + 9] = 101;
    assert_eq!(
        error_of(&ng),
        "FILE, packet 1: link type 101 is not Ethernet (1): capture on an Ethernet interface"
    );
}

/// Reading a file with any content ends, with packets or with an error.
#[test]
fn no_broken_file_breaks_the_port() {
    for bytes in [&TWO[..], &TWO_NG[..]] {
        for at in 0..bytes.len() {
            for change in [0x01, 0xff] {
                let mut broken = bytes.to_vec();
                broken[at] ^= change;
                let file = Temporary::holding("broken", &broken);
                if let Ok(mut port) = PcapPort::new(Some(&file.0), None, false) {
                    received(&mut port, &mut frames_once());
                }
            }
        }
    }
}

fn frames_once() -> Freelist {
    Freelist::new(FramePool::new(4, 2048).unwrap(), 128)
}
