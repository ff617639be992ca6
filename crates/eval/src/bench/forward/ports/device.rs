//! The device of `bench ports`: a DPDK port that restores the TTL of packets, and can record what it sends.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bm_frame::{AnyFrame, Burst, FramePool, Freelist, MbufFrame};
use bm_port::{InPlace, Port, ReceivedFrames, TransmittedFrames};
use bm_port_dpdk::DpdkPort;
use bm_sys::Mutex;
use bm_wire::checksum;

use super::super::packet::port_mac;

/// Bytes of the smallest frame (64 with the frame check sequence).
pub(super) const LEAST: usize = 60;
/// Headers of Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// MAC of the hosts that send to us.
pub(super) const SENDER: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// TTL of a new packet.
const HOPS: u8 = 255;
/// Number of laps after which a packet in a ring gets its TTL back.
const LAPS: usize = 200;
const IPV4: std::ops::Range<usize> = 14..34;

/// A UDP datagram to `to` as it arrives at the router's port, in a frame of `length` bytes, from 198.18.0.1 (for
/// benchmarks, RFC 2544).
pub(super) fn frame(to: u32, from_mac: [u8; 6], ttl: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.max(LEAST)];
    let [ip, udp] = [14, 34].map(|before| ((bytes.len() - before) as u16).to_be_bytes());
    bytes[..6].copy_from_slice(&port_mac(0));
    bytes[6..12].copy_from_slice(&from_mac);
    bytes[12..14].copy_from_slice(&[0x08, 0]);
    bytes[IPV4]
        .copy_from_slice(&[0x45, 0, ip[0], ip[1], 0, 1, 0x40, 0, ttl, 17, 0, 0, 198, 18, 0, 1, 0, 0, 0, 0]);
    bytes[30..34].copy_from_slice(&to.to_be_bytes());
    bytes[34..42].copy_from_slice(&[4, 0, 4, 0, udp[0], udp[1], 0, 0]);
    // Different from place to place, so that bytes that were moved are noticed.
    bytes[HEADERS..].iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
    sum(&mut bytes);
    bytes
}

/// Computes and writes the IPv4 checksum.
fn sum(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let sum = checksum::ipv4_header(&bytes[IPV4]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Copies of what a port sends, while they are wanted.
#[derive(Clone, Default)]
pub(super) struct SentFrames(Arc<(AtomicBool, Mutex<Vec<Vec<u8>>>)>);

impl SentFrames {
    /// Begins to keep copies.
    pub fn begin(&self) {
        self.0.0.store(true, Ordering::Relaxed);
    }

    /// Ends that, and returns the copies.
    pub fn end(&self) -> Vec<Vec<u8>> {
        self.0.0.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.0.1.lock())
    }

    #[cold]
    fn keep<F: AnyFrame>(&self, places: &[Option<F>]) {
        let copies = places.iter().flatten().map(|frame| frame.data().to_vec());
        self.0.1.lock().extend(copies);
    }
}

/// The port.
pub(super) struct Looped {
    port: DpdkPort,
    /// Number of frames that circulate in the ring, if any, and if their TTL is decremented.
    running: usize,
    /// Frames received since the last of them got its TTL back, and how many still have to get it.
    seen: usize,
    due: usize,
    sent: SentFrames,
}

impl Looped {
    /// A port with this many frames in its ring, whose TTL is decremented if they are routed.
    pub fn new(
        mut port: DpdkPort,
        frame_pool: &Arc<FramePool>,
        destinations: &[u32],
        lengths: &[u16],
        in_ring: usize,
        routed: bool,
    ) -> Self {
        let mut frames = Freelist::new(frame_pool.clone(), 0);
        let mut burst = Burst::new();
        for index in 0..in_ring {
            let length = usize::from(lengths[index % lengths.len()]);
            let bytes = frame(destinations[index % destinations.len()], SENDER, HOPS, length);
            if let Some(fresh) = frames.allocate_with(&bytes)
                && let Err(fresh) = burst.push(fresh)
            {
                frames.free(fresh);
            }
            if burst.is_full() || index + 1 == in_ring {
                let refused = port.transmit(&mut burst, &mut frames);
                debug_assert_eq!(refused, 0, "frames of at least 60 bytes");
            }
        }
        burst.free_all(&mut frames);
        let running = if routed { in_ring } else { 0 };
        Self { port, running, seen: 0, due: 0, sent: SentFrames::default() }
    }

    /// Records what it sends, on request.
    pub fn sent(&self) -> SentFrames {
        self.sent.clone()
    }

    /// After this many laps, each frame gets its TTL back in one lap.
    #[cold]
    fn renew<F: AnyFrame>(&mut self, places: &mut [Option<F>]) {
        if self.due == 0 {
            (self.due, self.seen) = (self.running, 0);
        }
        let here = self.due.min(places.len());
        places[..here].iter_mut().flatten().for_each(restore);
        self.due -= here;
    }
}

fn restore<F: AnyFrame>(frame: &mut F) {
    let bytes = frame.data_mut();
    if bytes.len() >= IPV4.end {
        bytes[22] = HOPS;
        sum(bytes);
    }
}

impl Looped {
    fn arrived<F: AnyFrame>(&mut self, places: &mut [Option<F>]) {
        self.seen += places.len();
        if self.running > 0 && (self.due > 0 || self.seen > LAPS * self.running) {
            self.renew(places);
        }
    }

    fn leaving<F: AnyFrame>(&self, places: &[Option<F>]) {
        if self.sent.0.0.load(Ordering::Relaxed) {
            self.sent.keep(places);
        }
    }
}

impl Port for Looped {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        self.port.receive(burst, frames);
        self.arrived(burst.places_mut());
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        self.leaving(burst.places());
        self.port.transmit(burst, frames)
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(self)
    }

    fn mbufs(&mut self) -> Option<&mut dyn InPlace<MbufFrame>> {
        self.port.mbufs().is_some().then_some(self)
    }

    fn close(&mut self, frames: &mut Freelist) {
        self.port.close(frames);
    }
}

impl<F: AnyFrame> InPlace<F> for Looped
where
    DpdkPort: InPlace<F>,
{
    fn receive_into(&mut self, places: &mut [Option<F>], frames: &mut Freelist) -> ReceivedFrames {
        let received = self.port.receive_into(places, frames);
        self.arrived(&mut places[..received.count]);
        received
    }

    fn transmit_from(&mut self, places: &mut [Option<F>], frames: &mut Freelist) -> TransmittedFrames {
        self.leaving(places);
        self.port.transmit_from(places, frames)
    }
}

/// A capture file with a packet to each destination, deleted when this is dropped.
pub(super) struct Capture(PathBuf);

impl Capture {
    /// Writes it, with frames of these lengths in turn: to each destination once, in whole periods.
    pub fn write(destinations: &[u32], lengths: &[u16]) -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("bm-bench-{}-{number}.pcap", std::process::id()));
        let mut bytes = Vec::new();
        // Magic, version 2.4, time zone, precision, longest packet, Ethernet (draft-ietf-opsawg-pcap 4).
        let words = [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        // In whole periods, so that the proportions of a mix are right.
        let count = destinations.len().next_multiple_of(lengths.len());
        for (&to, &length) in destinations.iter().cycle().take(count).zip(lengths.iter().cycle()) {
            let length = u32::from(length);
            bytes.extend([0, 0, length, length].iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(frame(to, SENDER, 64, length as usize));
        }
        fs::write(&file, bytes)?;
        Ok(Self(file))
    }

    /// Its name.
    pub fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Somebody may have deleted it before.
        let _gone = fs::remove_file(&self.0);
    }
}
