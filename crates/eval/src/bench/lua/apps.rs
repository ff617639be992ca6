//! The apps of the cases in Rust, which process packet by packet, like those in Lua.

use bm_frame::{Frame, Freelist};
use bm_graph::{App, Io, Network};

use super::ROUND;

/// Packets that a source makes in a breath: Snabb's `pull_npackets`.
const PULL: usize = 102;

fn send(io: &mut Io<'_>, output: usize, frame: Frame) {
    if let Err(frame) = io.transmit(output, frame) {
        io.frames.free(frame);
    }
}

fn copy(frame: &Frame, frames: &mut Freelist) -> Frame {
    frames.allocate_with(frame.data()).expect("a breath frees what it takes")
}

/// Copies of one packet.
struct Source(Option<Frame>);

impl App for Source {
    fn pull(&mut self, io: &mut Io<'_>) {
        let Some(original) = &self.0 else { return };
        for _ in 0..PULL {
            let frame = copy(original, io.frames);
            send(io, 0, frame);
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.0.take().into_iter().for_each(|frame| io.frames.free(frame));
    }
}

/// Sends each packet to two outputs.
struct Tee;

impl App for Tee {
    fn push(&mut self, io: &mut Io<'_>) {
        for _ in 0..io.readable(0) {
            let Some(frame) = io.receive(0) else { break };
            let twin = copy(&frame, io.frames);
            send(io, 0, twin);
            send(io, 1, frame);
        }
    }
}

/// Frees what it receives.
struct Sink;

impl App for Sink {
    fn push(&mut self, io: &mut Io<'_>) {
        for input in 0..io.inputs() {
            for _ in 0..io.readable(input) {
                let Some(frame) = io.receive(input) else { break };
                io.frames.free(frame);
            }
        }
    }
}

/// Passes packets on. If it has frames, it sends these first.
#[derive(Default)]
struct Forward(Vec<Frame>);

impl App for Forward {
    fn push(&mut self, io: &mut Io<'_>) {
        for frame in self.0.drain(..) {
            send(io, 0, frame);
        }
        for _ in 0..io.readable(0) {
            let Some(frame) = io.receive(0) else { break };
            send(io, 0, frame);
        }
    }
}

/// Checks and decrements the TTL, and updates the checksum (RFC 1624).
#[derive(Default)]
struct Ttl {
    first: Vec<Frame>,
    breaths: u32,
    /// Whether it restores the packets' TTL every hundred breaths, so that they can circulate for ever.
    renews: bool,
}

const TYPE: usize = 12;
const TTL: usize = 14 + 8;
const SUM: usize = 14 + 10;

impl Ttl {
    fn decrement_ttl(data: &mut [u8]) -> bool {
        if data.len() < 34 || data[TYPE..TYPE + 2] != [8, 0] || data[TTL] <= 1 {
            return false;
        }
        let sum = u32::from(u16::from_be_bytes([data[SUM], data[SUM + 1]])) + 0x0100;
        let sum = (sum + u32::from(sum >= 0xffff)) as u16;
        data[SUM..SUM + 2].copy_from_slice(&sum.to_be_bytes());
        data[TTL] -= 1;
        true
    }
}

impl App for Ttl {
    fn push(&mut self, io: &mut Io<'_>) {
        for frame in self.first.drain(..) {
            send(io, 0, frame);
        }
        self.breaths += 1;
        let renews = self.renews && self.breaths.is_multiple_of(100);
        for _ in 0..io.readable(0) {
            let Some(mut frame) = io.receive(0) else { break };
            if renews {
                frame.data_mut()[TTL..SUM + 2].copy_from_slice(&[255, 17, 0xcf, 0x8d]);
            }
            if Self::decrement_ttl(frame.data_mut()) {
                send(io, 0, frame);
            } else {
                io.frames.free(frame);
            }
        }
    }
}

/// 192.0.2.1 > 198.51.100.7, UDP, 255 hops left.
fn packet() -> [u8; 60] {
    let mut packet = [0; 60];
    packet[..12].fill(2);
    let header = [8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 255, 17, 0xcf, 0x8d, 192, 0, 2, 1, 198, 51, 100, 7];
    packet[12..34].copy_from_slice(&header);
    packet
}

fn network(apps: Vec<(&str, Box<dyn App>)>, links: &[&str]) -> Network {
    let mut network = Network::new();
    for (name, app) in apps {
        network.app(name, app).expect("names are unique");
    }
    links.iter().for_each(|link| network.link(link).expect("links are well formed"));
    network
}

fn source(frames: &mut Freelist) -> Box<dyn App> {
    Box::new(Source(frames.allocate_with(&packet())))
}

/// Source, tee, sink.
pub fn basic1(frames: &mut Freelist) -> (Network, u64) {
    let apps: Vec<(&str, Box<dyn App>)> =
        vec![("source", source(frames)), ("tee", Box::new(Tee)), ("sink", Box::new(Sink))];
    let links = ["source.o -> tee.i", "tee.a -> sink.a", "tee.b -> sink.b"];
    (network(apps, &links), PULL as u64)
}

/// Packets made by one app and freed by another.
pub fn source_sink(frames: &mut Freelist) -> (Network, u64) {
    let apps: Vec<(&str, Box<dyn App>)> = vec![("source", source(frames)), ("sink", Box::new(Sink))];
    (network(apps, &["source.o -> sink.i"]), PULL as u64)
}

/// Source, eight apps that pass packets on, sink.
pub fn chain(frames: &mut Freelist) -> (Network, u64) {
    let names: Vec<String> = (1..=8).map(|n| format!("forward{n}")).collect();
    let mut apps: Vec<(&str, Box<dyn App>)> = vec![("source", source(frames))];
    names.iter().for_each(|name| apps.push((name, Box::new(Forward::default()))));
    apps.push(("sink", Box::new(Sink)));
    let links: Vec<String> =
        apps.windows(2).map(|pair| format!("{}.o -> {}.i", pair[0].0, pair[1].0)).collect();
    let links: Vec<_> = links.iter().map(String::as_str).collect();
    (network(apps, &links), PULL as u64)
}

fn round_trip(frames: &mut Freelist) -> Vec<Frame> {
    (0..ROUND).map(|_| frames.allocate_with(&packet()).expect("the region is fresh")).collect()
}

const RING: [&str; 2] = ["b.o -> a.i", "a.o -> b.i"];

/// Two apps that pass packets on, in a ring.
pub fn forward(frames: &mut Freelist) -> (Network, u64) {
    let first = Forward(round_trip(frames));
    let apps: Vec<(&str, Box<dyn App>)> = vec![("a", Box::new(first)), ("b", Box::new(Forward::default()))];
    (network(apps, &RING), 2 * ROUND as u64)
}

/// Two apps that decrement the TTL, in a ring.
pub fn ttl(frames: &mut Freelist) -> (Network, u64) {
    let first = Ttl { first: round_trip(frames), renews: true, ..Ttl::default() };
    let apps: Vec<(&str, Box<dyn App>)> = vec![("a", Box::new(first)), ("b", Box::new(Ttl::default()))];
    (network(apps, &RING), 2 * ROUND as u64)
}

/// Packets of a breath on the last link of a case, for its test.
#[cfg(test)]
pub fn last_link(case: &str, packets: u64) -> u64 {
    if matches!(case, "forward" | "ttl") { packets / 2 } else { packets }
}
