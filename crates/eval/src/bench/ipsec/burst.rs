//! A burst of packets in slots, and an SA in both directions.

use std::array;
use std::net::IpAddr;
use std::ops::Range;

use bm_ipsec::{
    BURST, Buffer, Direction, Esp, Failure, Inbound, Lanes, Located, Numbers, Outbound, Sa, SaId, Secret,
    Suite, locate,
};
use bm_wire::ipv4::Ipv4Header;

use super::BenchError;
use super::bare::Bare;

/// Packets of a burst, as the router has them.
pub const PACKETS: usize = 256;
/// Size of the slots, and where packets begin in them.
const SLOT: usize = 2048;
const START: usize = 256;

/// The packets and the SA.
pub struct Burst {
    memory: Vec<u8>,
    packets: Vec<Packet>,
    outbound: Outbound,
    inbound: Inbound,
    sealing: Lanes,
    opening: Lanes,
    failed: Option<Failure>,
}

struct Packet {
    header: [u8; 20],
    length: usize,
    /// Where the packet is in its slot.
    now: Range<usize>,
}

impl Packet {
    fn new(length: usize) -> Self {
        Self { header: header(length), length, now: START..START + length }
    }
}

impl Burst {
    /// Packets of these sizes, in turn.
    pub fn new(suite: Suite, sizes: &[usize]) -> Self {
        let sa = sa(suite);
        let numbers = Numbers::new(sa.esn).reserve_all().expect("none is used");
        Self {
            memory: (0..PACKETS * SLOT).map(|at| (at * 7) as u8).collect(),
            packets: sizes.iter().cycle().take(PACKETS).map(|&length| Packet::new(length)).collect(),
            outbound: Outbound::new(&sa, numbers, 0, 0).expect("the SA has no problems"),
            inbound: Inbound::new(&sa, 0).expect("the SA has no problems"),
            sealing: Lanes::new(Direction::Out),
            opening: Lanes::new(Direction::In),
            failed: None,
        }
    }

    /// Restores the plain packets.
    pub fn reset(&mut self) {
        for (slot, packet) in self.memory.as_chunks_mut::<SLOT>().0.iter_mut().zip(&mut self.packets) {
            packet.now = START..START + packet.length;
            slot[START..START + packet.header.len()].copy_from_slice(&packet.header);
        }
    }

    /// Encrypts the burst as the router's app does: several packets at once if the library is faster then.
    pub fn encrypt(&mut self) {
        let together = if self.outbound.takes_bursts(&mut self.sealing) { BURST } else { 1 };
        let slots = self.memory.as_chunks_mut::<SLOT>().0.chunks_mut(together);
        for (slots, packets) in slots.zip(self.packets.chunks_mut(together)) {
            if let ([slot], [packet]) = (&mut *slots, &mut *packets) {
                let Some(mut buffer) = Buffer::new(slot, packet.now.clone()) else { continue };
                self.failed = self.outbound.encrypt(&mut buffer, 0).err().or(self.failed);
                packet.now = buffer.range();
                continue;
            }
            let mut all = slots.iter_mut().zip(&*packets);
            let mut buffers: [(Buffer<'_>, ()); BURST] = array::from_fn(|_| (next(&mut all), ()));
            let mut outcomes = [Ok(()); BURST];
            self.outbound.encrypt_burst(&mut self.sealing, &mut buffers[..packets.len()], &mut outcomes, 0);
            for ((packet, (buffer, ())), outcome) in packets.iter_mut().zip(&buffers).zip(outcomes) {
                packet.now = buffer.range();
                self.failed = outcome.err().or(self.failed);
            }
        }
    }

    /// Decrypts the burst, as it was received.
    pub fn decrypt(&mut self) {
        let together = if self.inbound.takes_bursts(&mut self.opening) { BURST } else { 1 };
        let slots = self.memory.as_chunks_mut::<SLOT>().0.chunks_mut(together);
        for (slots, packets) in slots.zip(self.packets.chunks_mut(together)) {
            if let ([slot], [packet]) = (&mut *slots, &mut *packets) {
                let Some(mut buffer) = Buffer::new(slot, packet.now.clone()) else { continue };
                let outcome = esp(&buffer).and_then(|esp| self.inbound.decrypt(&mut buffer, &esp, 0));
                self.failed = outcome.err().or(self.failed);
                packet.now = buffer.range();
                continue;
            }
            let mut all = slots.iter_mut().zip(&*packets);
            let buffers: [Buffer<'_>; BURST] = array::from_fn(|_| next(&mut all));
            let Ok(first) = esp(&buffers[0]) else {
                self.failed = Some(Failure::NotEsp);
                return;
            };
            let mut buffers = buffers.map(|buffer| {
                let esp = esp(&buffer).unwrap_or(first);
                (buffer, esp)
            });
            let mut outcomes = [Ok(()); BURST];
            self.inbound.decrypt_burst(&mut self.opening, &mut buffers[..packets.len()], &mut outcomes, 0);
            for ((packet, (buffer, _)), outcome) in packets.iter_mut().zip(&buffers).zip(outcomes) {
                packet.now = buffer.range();
                self.failed = outcome.err().or(self.failed);
            }
        }
    }

    /// Encrypts with a library alone.
    pub fn seal(&mut self, bare: &mut Bare) {
        let length = bare.lengths();
        bare.seal(self.slots(length));
    }

    /// Decrypts what that has encrypted.
    pub fn open(&mut self, bare: &mut Bare) {
        let length = bare.lengths();
        bare.open(self.slots(length));
    }

    /// The packets with room for what the cipher adds to them: `length` says how many bytes that makes.
    fn slots(&mut self, length: impl Fn(usize) -> usize) -> impl Iterator<Item = &mut [u8]> {
        let slots = self.memory.as_chunks_mut::<SLOT>().0.iter_mut().zip(&self.packets);
        slots.map(move |(slot, packet)| &mut slot[START..START + length(packet.length)])
    }

    /// Whether decrypting returns the original packets.
    pub fn check(&mut self, case: &str) -> Result<(), BenchError> {
        self.reset();
        let before = self.plain();
        self.encrypt();
        if self.plain() == before {
            return Err(BenchError::Lost { case: case.into(), counters: "nothing was encrypted".into() });
        }
        self.decrypt();
        self.check_none_failed(case)?;
        let wrong = before.into_iter().zip(self.plain()).find(|(before, after)| before != after);
        wrong
            .map_or(Ok(()), |(expected, found)| Err(BenchError::Wrong { case: case.into(), expected, found }))
    }

    /// Whether any packet has failed so far.
    pub fn check_none_failed(&self, case: &str) -> Result<(), BenchError> {
        let failed =
            |failure: Failure| BenchError::Lost { case: case.into(), counters: failure.name().into() };
        self.failed.map_or(Ok(()), |failure| Err(failed(failure)))
    }

    fn plain(&self) -> Vec<Vec<u8>> {
        let slots = self.memory.as_chunks::<SLOT>().0.iter().zip(&self.packets);
        slots.map(|(slot, packet)| slot[packet.now.clone()].to_vec()).collect()
    }
}

/// The next packet, or an empty one behind the last.
fn next<'a, 'b>(packets: &mut impl Iterator<Item = (&'a mut [u8; SLOT], &'b Packet)>) -> Buffer<'a> {
    packets.next().and_then(|(slot, packet)| Buffer::new(slot, packet.now.clone())).unwrap_or_default()
}

fn esp(buffer: &Buffer<'_>) -> Result<Esp, Failure> {
    match locate(buffer.data())? {
        Located::Esp(esp) => Ok(esp),
        Located::Ike | Located::Keepalive => Err(Failure::NotEsp),
    }
}

/// An SA in tunnel mode, with ESN and a replay window.
pub fn sa(suite: Suite) -> Sa {
    let id = SaId { spi: 0x1000, destination: IpAddr::from([192, 0, 2, 2]) };
    Sa {
        encryption_key: Secret::new(&vec![1; suite.encryption_key_len()]),
        integrity_key: Secret::new(&vec![2; suite.integrity_key_len()]),
        esn: true,
        replay_window: 1024,
        ..Sa::new(Direction::Out, id, IpAddr::from([192, 0, 2, 1]), suite)
    }
}

fn header(length: usize) -> [u8; 20] {
    let mut header = [0; 20];
    let fields = Ipv4Header {
        total_len: length as u16,
        ttl: 64,
        protocol: bm_wire::protocol::UDP,
        source: 0x0a01_0001,
        destination: 0x0a02_0001,
        ..Ipv4Header::default()
    };
    fields.emit(&mut header).expect("there is room for a header");
    header
}
