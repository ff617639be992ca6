//! An outbound SA: takes an IP packet, and makes an ESP packet of it in place.
//!
//! ```text
//! tunnel                       | IP packet |
//!       | outer IP (UDP) | ESP | IP packet | padding, trailer | ICV |
//! transport    | IP header |       payload |
//!       | IP header (UDP) | ESP |  payload | padding, trailer | ICV |
//! ```
//!
//! Everything that can fail is checked before a sequence number is taken, so a packet that fails changes nothing.

use std::fmt;

use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::protocol;
use bm_wire::udp;

use crate::buffer::Buffer;
use crate::choice;
use crate::cipher::Cipher;
use crate::failure::Failure;
use crate::header::{self, Inner, Outer};
use crate::lifetime::{Expiry, Limits, SaUsage};
use crate::multi::{BURST, Lanes, Seal};
use crate::problem::{self, Problem};
use crate::sa::{Direction, Mode, Sa, SaId, UdpPorts};
use crate::sequence::{Block, Empty};
use crate::suite::{ESP_HEADER, Suite};

/// An SA that encrypts. It owns its sequence numbers, so it cannot be cloned.
pub struct Outbound {
    id: SaId,
    suite: Suite,
    cipher: Cipher,
    esn: bool,
    numbers: Block,
    iv_mask: u64,
    front: Front,
    path_mtu: usize,
    limits: Limits,
    /// Most SAs have none.
    has_limits: bool,
    used: SaUsage,
}

/// What is put in front of ESP.
enum Front {
    Tunnel(Outer),
    Transport(Option<UdpPorts>),
}

/// What is to be encrypted, and what was found in its IP header.
struct Plain {
    /// Bytes of the packet.
    length: usize,
    /// Bytes that stay in front of ESP: the IP header in transport mode.
    header: usize,
    next_header: u8,
    /// Where the protocol of what follows the header is.
    next_header_at: usize,
    inner: Inner,
}

/// A packet that only needs its cipher and the headers in front of ESP.
struct PreparedPacket {
    plain: Plain,
    number: u64,
    /// Where ESP begins.
    esp_at: usize,
}

impl Outbound {
    /// An SA that uses the numbers of `numbers`. IVs are these numbers, exclusive or `iv_mask`: all senders with the
    /// same keys either have numbers of one [`Numbers`](crate::Numbers) and the same mask, or, if they do not know of
    /// each other's numbers, masks that are random. Two senders with random masks that stay below 2^32 numbers have
    /// an IV in common with a probability of at most 2^-32.
    ///
    /// # Errors
    /// The first problem of the SA.
    pub fn new(sa: &Sa, numbers: Block, iv_mask: u64, now_ns: u64) -> Result<Self, Problem> {
        if let Some(problem) = problem::of_sa(sa).into_iter().next() {
            return Err(problem);
        }
        let front = match sa.mode {
            Mode::Tunnel => Front::Tunnel(Outer::new(sa)),
            Mode::Transport => Front::Transport(sa.udp),
        };
        Ok(Self {
            id: sa.id(),
            suite: sa.suite,
            cipher: Cipher::new(
                sa.suite,
                &sa.encryption_key,
                &sa.integrity_key,
                choice::of(sa.suite, Direction::Out),
            ),
            esn: sa.esn,
            numbers,
            iv_mask,
            front,
            path_mtu: sa.path_mtu.into(),
            limits: sa.limits,
            has_limits: sa.limits.are_set(),
            used: SaUsage { added_ns: now_ns, ..SaUsage::default() },
        })
    }

    /// Which SA it is.
    pub fn id(&self) -> SaId {
        self.id
    }

    /// What it was used for.
    pub fn used(&self) -> &SaUsage {
        &self.used
    }

    /// A lifetime that has ended.
    #[inline]
    pub fn expiry(&self, now_ns: u64) -> Option<Expiry> {
        if self.has_limits { self.limits.expiry(&self.used, now_ns) } else { None }
    }

    /// Continues an SA that has been used this much elsewhere.
    #[must_use]
    pub fn with_used(self, used: SaUsage) -> Self {
        Self { used, ..self }
    }

    /// The numbers that it has left.
    pub fn numbers(&self) -> &Block {
        &self.numbers
    }

    /// Replaces the block of numbers by the next one; gives back the old one, whose rest is not used any more.
    pub fn continue_with(&mut self, numbers: Block) -> Block {
        std::mem::replace(&mut self.numbers, numbers)
    }

    /// Sets the path MTU to the peer.
    pub fn set_path_mtu(&mut self, path_mtu: u16) {
        self.path_mtu = path_mtu.into();
    }

    /// The largest packet that fits the path MTU in a tunnel, for ICMP errors; in transport mode for an IP header of
    /// `header` bytes.
    pub fn inner_mtu(&self, header: usize) -> usize {
        let header = if matches!(self.front, Front::Tunnel(_)) { 0 } else { header };
        let room = self.path_mtu.saturating_sub(self.front_len() + header + self.suite.icv_len());
        (room & !(self.suite.alignment() - 1)).saturating_sub(2) + header
    }

    /// Encrypts a packet in place. After a failure its contents are undefined.
    ///
    /// # Errors
    /// See [`Failure`]; the SA is as before then.
    pub fn encrypt(&mut self, packet: &mut Buffer<'_>, now_ns: u64) -> Result<(), Failure> {
        let prepared = self.prepare(packet, now_ns)?;
        let Seal { packet: esp, iv, esn_high } = self.job(packet.data_mut(), &prepared);
        self.cipher.seal(esp, iv, esn_high);
        self.finish(packet.data_mut(), &prepared);
        Ok(())
    }

    /// Whether several packets at once are faster, so that it is worthwhile to wait for more of them.
    #[inline]
    pub fn takes_bursts(&self, lanes: &mut Lanes) -> bool {
        self.cipher.takes_several(lanes)
    }

    /// Encrypts packets in place, one outcome each: several at once, if that is faster. `T` is whatever the caller has
    /// with each packet.
    pub fn encrypt_burst<T>(
        &mut self,
        lanes: &mut Lanes,
        packets: &mut [(Buffer<'_>, T)],
        outcomes: &mut [Result<(), Failure>],
        now_ns: u64,
    ) {
        if packets.len() > 1 && self.cipher.takes_several(lanes) {
            for (packets, outcomes) in packets.chunks_mut(BURST).zip(outcomes.chunks_mut(BURST)) {
                self.encrypt_together(lanes, packets, outcomes, now_ns);
            }
            return;
        }
        for ((packet, _), outcome) in packets.iter_mut().zip(outcomes) {
            *outcome = self.encrypt(packet, now_ns);
        }
    }

    /// Up to [`BURST`] packets. Each that fails does so before it gets a number, so numbers follow the order of packets.
    fn encrypt_together<T>(
        &mut self,
        lanes: &mut Lanes,
        packets: &mut [(Buffer<'_>, T)],
        outcomes: &mut [Result<(), Failure>],
        now_ns: u64,
    ) {
        let mut all: [Option<PreparedPacket>; BURST] = [const { None }; BURST];
        for (((packet, _), outcome), place) in packets.iter_mut().zip(outcomes).zip(&mut all) {
            let prepared = self.prepare(packet, now_ns);
            *outcome = prepared.as_ref().map(|_| ()).map_err(|failure| *failure);
            *place = prepared.ok();
        }
        let prepared =
            packets.iter_mut().zip(&all).filter_map(|((packet, _), one)| Some((packet, one.as_ref()?)));
        let jobs = prepared.map(|(packet, prepared)| self.job(packet.data_mut(), prepared));
        self.cipher.seal_all(lanes, jobs);
        for ((packet, _), prepared) in packets.iter_mut().zip(&all) {
            if let Some(prepared) = prepared {
                self.finish(packet.data_mut(), prepared);
            }
        }
    }

    /// Bytes in front of what is encrypted, without the IP header of transport mode.
    fn front_len(&self) -> usize {
        let outer = match &self.front {
            Front::Tunnel(outer) => outer.len(),
            Front::Transport(Some(_)) => udp::HEADER_LEN,
            Front::Transport(None) => 0,
        };
        outer + ESP_HEADER + self.suite.iv_len()
    }

    #[inline]
    fn plain(&self, packet: &[u8]) -> Result<Plain, Failure> {
        let (inner, length) = header::inner(packet).ok_or(Failure::Malformed)?;
        let is_ipv4 = packet[0] >> 4 == 4;
        match self.front {
            Front::Tunnel(_) => {
                let next_header = if is_ipv4 { protocol::IPV4 } else { protocol::IPV6 };
                Ok(Plain { length, header: 0, next_header, next_header_at: 0, inner })
            }
            Front::Transport(_) => {
                let (header, next_header_at) =
                    if is_ipv4 { transport_ipv4(packet) } else { transport_ipv6(packet) }?;
                Ok(Plain { length, header, next_header: packet[next_header_at], next_header_at, inner })
            }
        }
    }

    /// Bytes to add in front and behind, if there is room for them.
    #[inline]
    fn room(&self, packet: &Buffer<'_>, plain: &Plain) -> Result<(usize, usize), Failure> {
        let front = self.front_len();
        let back = self.suite.padding(plain.length - plain.header) + 2 + self.suite.icv_len();
        let length = front + plain.length + back;
        let must_fit = match &self.front {
            // A source cannot send less than the least MTU of IPv6 (RFC 8200 5): then the outer packet is fragmented.
            Front::Tunnel(outer) => {
                let is_least = plain.next_header == protocol::IPV6 && plain.length <= ipv6::MIN_MTU;
                outer.dont_fragment(plain.inner) && !is_least
            }
            Front::Transport(_) => plain.inner.dont_fragment,
        };
        if length > usize::from(u16::MAX) {
            return Err(Failure::TooLong);
        }
        if must_fit && length > self.path_mtu {
            return Err(Failure::TooBig);
        }
        if packet.headroom() < front {
            return Err(Failure::NoHeadroom);
        }
        if packet.tailroom() < back {
            return Err(Failure::NoTailroom);
        }
        Ok((front, back))
    }

    /// Checks a packet, takes its number, and writes everything but what the cipher writes and what is in front of ESP.
    #[inline]
    fn prepare(&mut self, packet: &mut Buffer<'_>, now_ns: u64) -> Result<PreparedPacket, Failure> {
        if self.expiry(now_ns) == Some(Expiry::Hard) {
            return Err(Failure::Lifetime);
        }
        let number = self.numbers.peek().map_err(|empty| match empty {
            Empty::Block => Failure::NoSequenceNumbers,
            Empty::Sa => Failure::SequenceOverflow,
        })?;
        let plain = self.plain(packet.data())?;
        packet.truncate(plain.length);
        let (front, back) = self.room(packet, &plain)?;
        self.numbers.take();
        self.used.count(plain.length, now_ns);
        packet.extend(front, back);
        let packet = packet.data_mut();
        // In transport mode the IP header moves to the front, and its place is part of the ESP header's.
        if plain.header > 0 {
            packet.copy_within(front..front + plain.header, 0);
        }
        let esp_at = front + plain.header - ESP_HEADER - self.suite.iv_len();
        let esp = &mut packet[esp_at..];
        esp[..4].copy_from_slice(&self.id.spi.to_be_bytes());
        esp[4..8].copy_from_slice(&(number as u32).to_be_bytes());
        write_trailer(esp, self.suite, plain.length - plain.header, plain.next_header);
        Ok(PreparedPacket { plain, number, esp_at })
    }

    /// What the cipher is to do.
    #[inline]
    fn job<'a>(
        &self,
        packet: &'a mut [u8],
        &PreparedPacket { number, esp_at, .. }: &PreparedPacket,
    ) -> Seal<'a> {
        let esn_high = self.esn.then_some((number >> 32) as u32);
        Seal { packet: &mut packet[esp_at..], iv: number ^ self.iv_mask, esn_high }
    }

    /// Writes what is in front of ESP.
    #[inline]
    fn finish(&self, packet: &mut [u8], PreparedPacket { plain, number, .. }: &PreparedPacket) {
        match &self.front {
            Front::Tunnel(outer) => outer.write(packet, plain.inner, *number, self.path_mtu),
            Front::Transport(udp) => {
                header::finish_transport(packet, plain.header, plain.next_header_at, *udp)
            }
        }
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Outbound");
        shown.field("id", &self.id).field("suite", &self.suite).field("numbers", &self.numbers);
        shown.field("used", &self.used).finish_non_exhaustive()
    }
}

/// Writes padding and trailer of an ESP packet with a payload of `length` bytes, in front of its ICV.
#[inline]
pub(crate) fn write_trailer(esp: &mut [u8], suite: Suite, length: usize, next_header: u8) {
    let trailer = esp.len() - suite.icv_len();
    let padding = suite.padding(length);
    // All of it, where that fits: what is too much is overwritten by trailer and ICV.
    match esp[trailer - 2 - padding..].first_chunk_mut() {
        Some(room) => *room = PADDING,
        None => esp[trailer - 2 - padding..trailer - 2].copy_from_slice(&PADDING[..padding]),
    }
    (esp[trailer - 2], esp[trailer - 1]) = (padding as u8, next_header);
}

/// Padding is 1, 2, 3 and so on (RFC 4303 2.4).
const PADDING: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Bytes of the header, and where its protocol is.
#[inline]
fn transport_ipv4(packet: &[u8]) -> Result<(usize, usize), Failure> {
    let ip = Ipv4::parse(packet).map_err(|_| Failure::Malformed)?;
    // RFC 4303 3.3.4: transport mode takes whole packets.
    if ip.is_fragment() { Err(Failure::Fragment) } else { Ok((ip.header_len(), 9)) }
}

/// Bytes of the header with those extensions that routers read, and where the protocol after them is (RFC 4303 3.1.1).
fn transport_ipv6(packet: &[u8]) -> Result<(usize, usize), Failure> {
    let ip = Ipv6::parse(packet).map_err(|_| Failure::Malformed)?;
    let (mut header, mut next_header_at) = (ipv6::HEADER_LEN, 6);
    for extension in ip.extensions() {
        let extension = extension.map_err(|_| Failure::Malformed)?;
        match extension.kind {
            protocol::FRAGMENT => return Err(Failure::Fragment),
            // Destination options in front of a routing header are for each router in it, and stay in front, too.
            protocol::HOP_BY_HOP | protocol::ROUTING => {
                (header, next_header_at) = (extension.offset + extension.bytes.len(), extension.offset);
            }
            _ => {}
        }
    }
    Ok((header, next_header_at))
}
