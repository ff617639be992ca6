//! A case: what is sent, with which changes to the router, and the expected result.

use crate::exchange::Seen;
use crate::lab::Side;
use crate::packet::{self, Ip4, Ip6};

/// A packet of either family, as its bytes.
pub trait Packet {
    /// The bytes from the version on.
    fn into_bytes(self) -> Vec<u8>;
}

impl Packet for Ip4 {
    fn into_bytes(self) -> Vec<u8> {
        self.bytes()
    }
}

impl Packet for Ip6 {
    fn into_bytes(self) -> Vec<u8> {
        self.bytes()
    }
}

impl Packet for Vec<u8> {
    fn into_bytes(self) -> Vec<u8> {
        self
    }
}

/// A change to the router before the frames are sent, and how to undo it.
#[derive(Clone, Debug)]
pub enum Change {
    /// Lines for `ip` that make the change, and lines that undo it.
    Ip(String, String),
    /// A setting below `/proc/sys`, which is restored.
    Setting(String, String),
}

/// A check of docs/conformance.md, or an additional one (number 0), as packets to send.
#[derive(Clone, Debug)]
pub struct Case {
    /// Number in docs/conformance.md.
    pub check: u16,
    /// Name, unique among all cases.
    pub name: &'static str,
    /// Changes to the router, in order.
    pub changes: Vec<Change>,
    /// Frames to send, and the end that each is sent from.
    pub frames: Vec<(Side, Vec<u8>)>,
    /// What a router that follows the RFCs sends.
    pub expected: Vec<Seen>,
    /// What Linux does instead, with a description of it.
    pub linux: Option<(&'static str, Vec<Seen>)>,
    /// Whether a fence can pass with the changes in place.
    pub fenced: bool,
}

impl Case {
    /// A case without frames, that expects nothing.
    pub fn new(check: u16, name: &'static str) -> Self {
        let (changes, frames, expected) = (Vec::new(), Vec::new(), Vec::new());
        Self { check, name, changes, frames, expected, linux: None, fenced: true }
    }

    /// Makes this change to routes, rules, neighbors or links first; `undo` reverts it.
    pub fn after(mut self, lines: &str, undo: &str) -> Self {
        self.changes.push(Change::Ip(lines.into(), undo.into()));
        self
    }

    /// Changes a setting first.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.changes.push(Change::Setting(name.into(), value.into()));
        self
    }

    /// For changes that even the fence cannot pass: listens for a while instead.
    pub fn unfenced(mut self) -> Self {
        self.fenced = false;
        self
    }

    /// Sends a frame as it is.
    pub fn sends_frame(mut self, side: Side, frame: Vec<u8>) -> Self {
        self.frames.push((side, frame));
        self
    }

    /// Sends a packet to the router from a side.
    pub fn sends_from(self, side: Side, packet: impl Packet) -> Self {
        self.sends_frame(side, side.to_router(&packet.into_bytes()))
    }

    /// Sends a packet to the router from the source.
    pub fn sends(self, packet: impl Packet) -> Self {
        self.sends_from(Side::Src, packet)
    }

    /// Expects a frame.
    pub fn expects(mut self, side: Side, frame: Vec<u8>) -> Self {
        self.expected.push(Seen { side, frame });
        self
    }

    /// Sends a packet and expects it forwarded, at neighbor `n` of `side`.
    pub fn forwards(self, packet: impl Packet, side: Side, n: u8) -> Self {
        let packet = packet.into_bytes();
        let out = side.to_neighbor(n, &packet::routed(&packet));
        self.sends(packet).expects(side, out)
    }

    /// The same with the default next hop, neighbor 2 of the sink.
    pub fn passes(self, packet: impl Packet) -> Self {
        self.forwards(packet, Side::Snk, 2)
    }

    /// Expects the router itself to send a packet to the source.
    pub fn replies(self, packet: impl Packet) -> Self {
        self.expects(Side::Src, Side::Src.to_neighbor(2, &packet.into_bytes()))
    }

    /// Sends a packet and expects an answer to it.
    pub fn answers<P: Packet, A: Packet>(self, packet: P, answer: impl FnOnce(&[u8]) -> A) -> Self {
        let packet = packet.into_bytes();
        let answer = answer(&packet);
        self.sends(packet).replies(answer)
    }

    /// Linux behaves differently: it does exactly this.
    pub fn but_linux(mut self, words: &'static str, action: impl FnOnce(Self) -> Self) -> Self {
        let blank = Self { expected: Vec::new(), frames: Vec::new(), ..self.clone() };
        self.linux = Some((words, action(blank).expected));
        self
    }

    /// Linux behaves differently: it forwards everything that is sent, to neighbor 2 of the sink.
    pub fn but_linux_passes(self, words: &'static str) -> Self {
        let packets: Vec<_> = self.frames.iter().map(|(_, frame)| frame[14..].to_vec()).collect();
        self.but_linux(words, |case| packets.into_iter().fold(case, Self::passes))
    }

    /// What Linux is expected to send.
    pub fn expected_of_linux(&self) -> &[Seen] {
        self.linux.as_ref().map_or(&self.expected, |(_, expected)| expected)
    }
}
