//! A probe in fragments, as hosts send them and as nobody should.

use super::{Probe, Random, Shape};
use crate::packet::{Ip4, Ip6};
use std::net::IpAddr;

/// How a packet is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// In order, the first of eight bytes.
    InOrder,
    /// The last one first.
    Reversed,
    /// The last one twice, then the first.
    Twice,
    /// Two that overlap, then the rest: nobody puts that together.
    Overlapping,
    /// Behind destination options in IPv6, and in IPv4 not to be cut further.
    BehindOptions,
}

/// Bytes of the first fragment. The others are the rest.
const FIRST: usize = 8;
/// More fragments follow.
const MORE: u16 = 0x2000;
/// May not be cut.
const KEEP: u16 = 0x4000;

impl Probe {
    /// The same in fragments, if it is without options.
    #[must_use]
    pub fn in_pieces(self, random: &mut Random) -> Self {
        let cuts = [Cut::InOrder, Cut::Reversed, Cut::Twice, Cut::Overlapping, Cut::BehindOptions];
        let shape = if self.shape == Shape::Plain { Shape::Pieces(random.choice(&cuts)) } else { self.shape };
        Self { shape, ..self }
    }

    pub(super) fn pieces(&self, cut: Cut, ttl: u8) -> Vec<Vec<u8>> {
        let payload = self.payload();
        let piece = |from: usize, to: usize| self.piece(cut, ttl, &payload, from..to);
        let (first, last) = (piece(0, FIRST), piece(FIRST, payload.len()));
        match cut {
            Cut::InOrder | Cut::BehindOptions => vec![first, last],
            Cut::Reversed => vec![last, first],
            Cut::Twice => vec![last.clone(), last, first],
            // Where there is no room for it, it overlaps with all of itself.
            Cut::Overlapping => vec![piece(0, (2 * FIRST).min(payload.len() / 8 * 8)), last],
        }
    }

    fn piece(&self, cut: Cut, ttl: u8, payload: &[u8], part: std::ops::Range<usize>) -> Vec<u8> {
        let [source, destination] = [self.source, self.destination].map(|address| address.to_string());
        let more = part.end < payload.len();
        let (units, bytes) = ((part.start / 8) as u16, payload[part].to_vec());
        match self.source {
            IpAddr::V4(_) => {
                let keep = if cut == Cut::BehindOptions { KEEP } else { 0 };
                let flags = units | keep | if more { MORE } else { 0 };
                Ip4::new(&source, &destination, self.protocol, bytes)
                    .ttl(ttl)
                    .flags(flags)
                    .id(self.id as u16)
                    .bytes()
            }
            IpAddr::V6(_) => {
                let packet = Ip6::new(&source, &destination, self.protocol, bytes).hop_limit(ttl);
                let packet = match cut {
                    Cut::BehindOptions => packet.extension(60, &[0, 1, 4, 0, 0, 0, 0]),
                    _ => packet,
                };
                packet.fragment(units << 3, more, self.id).bytes()
            }
        }
    }
}
