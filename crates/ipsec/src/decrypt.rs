//! An inbound SA: takes an ESP packet, and makes the IP packet of it in place.
//!
//! ```text
//! lifetime ▸ length ▸ replay window ▸ ICV ▸│▸ window moves ▸ padding ▸ next header ▸ ECN ▸ selectors
//! '------- changes nothing ---------------'
//! ```
//!
//! Up to the ICV anyone can have sent the packet, so it changes nothing if it is refused. After that it is from the
//! peer: its number is used, even if what is inside is refused (RFC 4303 3.4.3).

use std::fmt;

use bm_filter::Flat;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;
use bm_wire::tcp::Tcp;
use bm_wire::udp::Udp;

use crate::buffer::Buffer;
use crate::choice;
use crate::cipher::Cipher;
use crate::ecn;
use crate::failure::Failure;
use crate::header;
use crate::key::key;
use crate::lifetime::{Expiry, Limits, SaUsage};
use crate::locate::Esp;
use crate::multi::{BURST, Lanes, Open};
use crate::problem::{self, Problem};
use crate::replay::Window;
use crate::sa::{Direction, Mode, Sa, SaId};
use crate::selector::LaterFragments;
use crate::suite::{ESP_HEADER, Suite};

/// An SA that decrypts.
pub struct Inbound {
    id: SaId,
    suite: Suite,
    /// Bytes of the ESP header with the IV, and of the ICV.
    front_len: usize,
    icv_len: usize,
    /// What is encrypted is a multiple of this power of two.
    alignment: usize,
    cipher: Cipher,
    mode: Mode,
    esn: bool,
    udp: bool,
    window: Window,
    selectors: Vec<Flat>,
    limits: Limits,
    /// Most SAs have none.
    has_limits: bool,
    used: SaUsage,
}

impl Inbound {
    /// The SA as it is configured.
    ///
    /// # Errors
    /// The first problem of the SA.
    pub fn new(sa: &Sa, now_ns: u64) -> Result<Self, Problem> {
        if let Some(problem) = problem::of_sa(sa).into_iter().next() {
            return Err(problem);
        }
        let selectors = sa.selectors.iter().flat_map(|selector| selector.flat(0, LaterFragments::Match));
        Ok(Self {
            id: sa.id(),
            suite: sa.suite,
            front_len: ESP_HEADER + sa.suite.iv_len(),
            icv_len: sa.suite.icv_len(),
            alignment: sa.suite.alignment(),
            cipher: Cipher::new(
                sa.suite,
                &sa.encryption_key,
                &sa.integrity_key,
                choice::of(sa.suite, Direction::In),
            ),
            mode: sa.mode,
            esn: sa.esn,
            udp: sa.udp.is_some(),
            window: Window::new(sa.replay_window, sa.esn),
            selectors: selectors.collect(),
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

    /// The highest sequence number that was received.
    pub fn highest(&self) -> u64 {
        self.window.top()
    }

    /// Continues an SA that has received numbers up to `highest` elsewhere: only higher ones are accepted.
    pub fn resume(&mut self, highest: u64) {
        self.window.resume(highest);
    }

    /// Decrypts a packet in place, in which [`locate`](crate::locate()) has found ESP of this SA. After a failure its
    /// contents are undefined.
    ///
    /// # Errors
    /// See [`Failure`], and this module's page for what a failure changes.
    pub fn decrypt(&mut self, packet: &mut Buffer<'_>, esp: &Esp, now_ns: u64) -> Result<(), Failure> {
        let number = self.check(packet, esp, now_ns)?;
        let esn_high = self.esn.then_some((number >> 32) as u32);
        self.cipher.open(&mut packet.data_mut()[esp.offset()..], esn_high)?;
        self.accept(packet, esp, number, now_ns)
    }

    /// Whether several packets at once are faster, so that it is worthwhile to wait for more of them.
    #[inline]
    pub fn takes_bursts(&self, lanes: &mut Lanes) -> bool {
        self.cipher.takes_several(lanes)
    }

    /// Decrypts packets in place, one outcome each: several at once, if that is faster.
    pub fn decrypt_burst(
        &mut self,
        lanes: &mut Lanes,
        packets: &mut [(Buffer<'_>, Esp)],
        outcomes: &mut [Result<(), Failure>],
        now_ns: u64,
    ) {
        if packets.len() > 1 && self.cipher.takes_several(lanes) {
            for (packets, outcomes) in packets.chunks_mut(BURST).zip(outcomes.chunks_mut(BURST)) {
                self.decrypt_together(lanes, packets, outcomes, now_ns);
            }
            return;
        }
        for ((packet, esp), outcome) in packets.iter_mut().zip(outcomes) {
            *outcome = self.decrypt(packet, esp, now_ns);
        }
    }

    /// Up to [`BURST`] packets. What one of them changes is only known after all ICVs: so window and lifetime are checked
    /// again for each, as if it came alone.
    fn decrypt_together(
        &mut self,
        lanes: &mut Lanes,
        packets: &mut [(Buffer<'_>, Esp)],
        outcomes: &mut [Result<(), Failure>],
        now_ns: u64,
    ) {
        let mut numbers = [0; BURST];
        let places = packets.iter_mut().zip(outcomes.iter_mut()).zip(&mut numbers);
        let jobs = places.filter_map(|(((packet, esp), outcome), place)| {
            let checked = self.check(packet, esp, now_ns);
            *outcome = checked.map(|_| ());
            *place = checked.ok()?;
            let esn_high = self.esn.then_some((*place >> 32) as u32);
            Some(Open { packet: &mut packet.data_mut()[esp.offset()..], esn_high, outcome })
        });
        self.cipher.open_all(lanes, jobs);
        for (((packet, esp), outcome), number) in packets.iter_mut().zip(outcomes).zip(numbers) {
            *outcome = match *outcome {
                _ if self.expiry(now_ns) == Some(Expiry::Hard) => Err(Failure::Lifetime),
                Err(failure) if failure != Failure::Integrity => continue,
                of_icv => match self.window.check(number as u32) {
                    Ok(again) if again == number => {
                        of_icv.and_then(|()| self.accept(packet, esp, number, now_ns))
                    }
                    // With ESN, what is left of the window is taken for a packet far ahead.
                    Ok(_) => Err(Failure::Integrity),
                    Err(failure) => Err(failure),
                },
            };
        }
    }

    /// Bytes in front of what is encrypted.
    #[inline]
    fn start(&self, esp: &Esp) -> usize {
        esp.offset() + self.front_len
    }

    /// All that can be checked before the ICV; returns the whole sequence number.
    #[inline(always)]
    fn check(&self, packet: &mut Buffer<'_>, esp: &Esp, now_ns: u64) -> Result<u64, Failure> {
        if self.expiry(now_ns) == Some(Expiry::Hard) {
            return Err(Failure::Lifetime);
        }
        if esp.udp() != self.udp {
            return Err(Failure::Encapsulation);
        }
        packet.truncate(esp.length());
        let around = self.start(esp) + self.icv_len;
        let encrypted = packet.len().checked_sub(around).ok_or(Failure::TooShort)?;
        if encrypted < 2 || encrypted & (self.alignment - 1) != 0 {
            return Err(Failure::TooShort);
        }
        let number = packet.data()[esp.offset() + 4..].first_chunk().ok_or(Failure::TooShort)?;
        self.window.check(u32::from_be_bytes(*number))
    }

    /// Accepts a packet whose ICV is right.
    #[inline(always)]
    fn accept(
        &mut self,
        packet: &mut Buffer<'_>,
        esp: &Esp,
        number: u64,
        now_ns: u64,
    ) -> Result<(), Failure> {
        self.window.advance(number);
        let start = self.start(esp);
        let end = packet.len() - self.icv_len;
        let (payload, next_header) = trailer(&packet.data()[start..end])?;
        self.used.count(payload, now_ns);
        // RFC 4303 2.6.
        if next_header == protocol::NO_NEXT {
            return Err(Failure::Dummy);
        }
        match self.mode {
            Mode::Tunnel => {
                let outer = header::traffic_class(packet.data());
                packet.trim_front(start);
                tunnel(packet, payload, next_header, outer)?;
            }
            Mode::Transport => {
                packet.truncate(start + payload);
                transport(packet, esp, start, next_header)?;
            }
        }
        self.select(packet.data())
    }

    /// Whether the SA's selectors allow the inner packet (RFC 4301 5.2).
    fn select(&self, packet: &[u8]) -> Result<(), Failure> {
        if self.selectors.is_empty() {
            return Ok(());
        }
        let key = key(packet).ok_or(Failure::NextHeader)?;
        let allowed = self.selectors.iter().any(|selector| selector.matches(&key));
        if allowed { Ok(()) } else { Err(Failure::Selector) }
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Inbound");
        shown.field("id", &self.id).field("suite", &self.suite).field("highest", &self.window.top());
        shown.field("used", &self.used).finish_non_exhaustive()
    }
}

/// Bytes of the payload in front of padding and trailer, and the next header.
#[inline(always)]
fn trailer(decrypted: &[u8]) -> Result<(usize, u8), Failure> {
    let [payload @ .., padding, next_header] = decrypted else { return Err(Failure::TooShort) };
    let length = payload.len().checked_sub((*padding).into()).ok_or(Failure::Padding)?;
    // RFC 4303 2.4: the receiver should check the padding.
    let is_right = payload[length..].iter().enumerate().all(|(at, byte)| *byte == at as u8 + 1);
    if is_right { Ok((length, *next_header)) } else { Err(Failure::Padding) }
}

/// The packet inside a tunnel: what follows it is padding for traffic flow confidentiality (RFC 4303 2.7).
#[inline(always)]
fn tunnel(packet: &mut Buffer<'_>, payload: usize, next_header: u8, outer: u8) -> Result<(), Failure> {
    packet.truncate(payload);
    let version = packet.data().first().map(|first| first >> 4);
    match (next_header, version) {
        (protocol::IPV4, Some(4)) | (protocol::IPV6, Some(6)) => {}
        _ => return Err(Failure::NextHeader),
    }
    let (inner, length) = header::inner(packet.data()).ok_or(Failure::NextHeader)?;
    packet.truncate(length);
    let marked = ecn::decapsulated(inner.traffic_class, outer).ok_or(Failure::Ecn)?;
    let traffic_class = inner.traffic_class & !ecn::MASK | marked;
    if traffic_class != inner.traffic_class {
        set_traffic_class(packet.data_mut(), traffic_class);
    }
    Ok(())
}

fn set_traffic_class(packet: &mut [u8], traffic_class: u8) {
    if packet[0] >> 4 == 4 {
        if let Ok(mut ip) = Ipv4::parse(packet) {
            ip.set_tos(traffic_class);
        }
    } else if let Ok(mut ip) = Ipv6::parse(packet) {
        ip.set_traffic_class(traffic_class);
    }
}

/// Moves the IP header to the payload, which begins at `start`.
fn transport(packet: &mut Buffer<'_>, esp: &Esp, start: usize, next_header: u8) -> Result<(), Failure> {
    let moved = start - esp.ip_header();
    packet.data_mut().copy_within(..esp.ip_header(), moved);
    packet.trim_front(moved);
    let data = packet.data_mut();
    data[esp.next_header_at()] = next_header;
    header::set_length(data, esp.ip_header());
    if esp.udp() {
        fill_checksum(data, esp.ip_header(), next_header).ok_or(Failure::NextHeader)?;
    }
    Ok(())
}

/// The checksum of TCP or UDP, after NAT may have changed the addresses that it includes (RFC 3948 3.1.2). The ICV has
/// shown that the segment is as the peer sent it.
fn fill_checksum(packet: &mut [u8], ip_header: usize, next_header: u8) -> Option<()> {
    let pseudo = match packet[0] >> 4 {
        4 => Ipv4::parse(&packet[..]).ok()?.pseudo(),
        _ => Ipv6::parse(&packet[..]).ok()?.pseudo(),
    };
    let segment = &mut packet[ip_header..];
    match next_header {
        protocol::TCP => Tcp::parse(segment).ok()?.fill_checksum(&pseudo),
        protocol::UDP => {
            let mut datagram = Udp::parse(segment).ok()?;
            if datagram.checksum() != 0 {
                datagram.fill_checksum(&pseudo);
            }
        }
        _ => {}
    }
    Some(())
}
