//! A burst of packets in slots, and an SA in both directions.

use std::net::IpAddr;
use std::ops::Range;

use bm_ipsec::{
    Buffer, Direction, Esp, Failure, Inbound, Located, Numbers, Outbound, Sa, SaId, Secret, Suite, locate,
};
use bm_wire::ipv4::Ipv4Header;

use super::BenchError;
use super::bare::TAG_MAX;

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
    failed: Option<Failure>,
}

struct Packet {
    header: [u8; 20],
    length: usize,
    /// Where the packet is in its slot.
    now: Range<usize>,
}

impl Burst {
    /// Packets of these sizes, in turn.
    pub fn new(suite: Suite, sizes: &[usize]) -> Self {
        let packet =
            |length: &usize| Packet { header: header(*length), length: *length, now: START..START + length };
        let sa = sa(suite);
        let numbers = Numbers::new(sa.esn).reserve_all().expect("none is used");
        Self {
            memory: (0..PACKETS * SLOT).map(|at| (at * 7) as u8).collect(),
            packets: sizes.iter().cycle().take(PACKETS).map(packet).collect(),
            outbound: Outbound::new(&sa, numbers, 0, 0).expect("the SA has no problems"),
            inbound: Inbound::new(&sa, 0).expect("the SA has no problems"),
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

    /// Encrypts the burst.
    pub fn encrypt(&mut self) {
        for (slot, packet) in self.memory.as_chunks_mut::<SLOT>().0.iter_mut().zip(&mut self.packets) {
            let Some(mut buffer) = Buffer::new(slot, packet.now.clone()) else { continue };
            if let Err(failure) = self.outbound.encrypt(&mut buffer, 0) {
                self.failed = Some(failure);
            }
            packet.now = buffer.range();
        }
    }

    /// Decrypts the burst, as it was received.
    pub fn decrypt(&mut self) {
        for (slot, packet) in self.memory.as_chunks_mut::<SLOT>().0.iter_mut().zip(&mut self.packets) {
            let Some(mut buffer) = Buffer::new(slot, packet.now.clone()) else { continue };
            let outcome = esp(&buffer).and_then(|esp| self.inbound.decrypt(&mut buffer, &esp, 0));
            if let Err(failure) = outcome {
                self.failed = Some(failure);
            }
            packet.now = buffer.range();
        }
    }

    /// Calls a function with the bytes of each packet and room for a tag behind them.
    pub fn bare(&mut self, cipher: impl Fn(&mut [u8])) {
        for (slot, packet) in self.memory.as_chunks_mut::<SLOT>().0.iter_mut().zip(&self.packets) {
            cipher(&mut slot[START..START + packet.length + TAG_MAX]);
        }
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

fn esp(buffer: &Buffer<'_>) -> Result<Esp, Failure> {
    match locate(buffer.data())? {
        Located::Esp(esp) => Ok(esp),
        Located::Ike | Located::Keepalive => Err(Failure::NotEsp),
    }
}

fn sa(suite: Suite) -> Sa {
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
