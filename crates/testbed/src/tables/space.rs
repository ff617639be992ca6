//! What differs between the address families when a table is made: where networks may lie.

use bm_wire::prefix::{Address, Prefix};

use super::histogram::{IPV4, IPV6, IPV6_TOPS, Share};
use crate::random::{Random, mix};

/// An address family as the generator of tables sees it.
pub trait Space: Address {
    /// Lengths of a full table.
    const HISTOGRAM: &'static [Share];
    /// Blocks that no table holds, as address and length.
    const RESERVED: &'static [(Self, u8)];
    /// An address where a prefix of `length` may begin, or `None` where this draw is to be missed: `salt`
    /// makes some regions crowded and others empty.
    fn fresh(random: &mut Random, salt: u64, length: u8) -> Option<Self>;
    /// The address `steps` prefixes of `length` further on, unless the space ends before.
    fn plus(self, length: u8, steps: u64) -> Option<Self>;
    /// An address with any bits.
    fn any(random: &mut Random) -> Self;
}

/// Whether the prefix overlaps a block that no table holds.
pub fn is_reserved<A: Space>(prefix: &Prefix<A>) -> bool {
    A::RESERVED.iter().any(|&(address, length)| {
        let length = length.min(prefix.length());
        prefix.first().common(address) >= length
    })
}

impl Space for u32 {
    const HISTOGRAM: &'static [Share] = IPV4;
    /// 0/8, private, shared, loopback, link-local, documentation, benchmarking, multicast and beyond.
    const RESERVED: &'static [(Self, u8)] = &[
        (0x0000_0000, 8),
        (0x0a00_0000, 8),
        (0x6440_0000, 10),
        (0x7f00_0000, 8),
        (0xa9fe_0000, 16),
        (0xac10_0000, 12),
        (0xc000_0000, 24),
        (0xc000_0200, 24),
        (0xc0a8_0000, 16),
        (0xc612_0000, 15),
        (0xc633_6400, 24),
        (0xcb00_7100, 24),
        (0xe000_0000, 3),
    ];

    fn fresh(random: &mut Random, salt: u64, length: u8) -> Option<Self> {
        let address = Self::any(random);
        // Each /16 has a heat between 0 and 1, skewed to cold; long prefixes gather where it is hot.
        let heat = (mix(u64::from(address >> 16) ^ salt) >> 11) as f64 / (1u64 << 53) as f64;
        (length < 16 || random.unit() < heat * heat).then_some(address & Self::mask(length))
    }

    fn plus(self, length: u8, steps: u64) -> Option<Self> {
        let step = u64::from(Self::BITS - u32::from(length));
        Self::try_from(u64::from(self).checked_add(steps.checked_shl(step as u32)?)?).ok()
    }

    fn any(random: &mut Random) -> Self {
        random.next_u64() as Self
    }
}

impl Space for u128 {
    const HISTOGRAM: &'static [Share] = IPV6;
    /// Teredo, documentation, 6to4; all else lies outside the blocks that are drawn from.
    const RESERVED: &'static [(Self, u8)] =
        &[(0x2001 << 112, 32), (0x2001_0db8 << 96, 32), (0x2002 << 112, 16), (0x3fff << 112, 20)];

    fn fresh(random: &mut Random, _salt: u64, length: u8) -> Option<Self> {
        let mut left = random.below(IPV6_TOPS.iter().map(|top| top.1 as usize).sum());
        let top = IPV6_TOPS.iter().find(|top| match left.checked_sub(top.1 as usize) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        // Registries fill their blocks from the front.
        let unit = random.unit();
        let second = (256.0 * unit * unit) as Self;
        let rest = random.next_u128() >> 24;
        top.map(|top| (Self::from(top.0) << 112 | second << 104 | rest) & Self::mask(length))
    }

    fn plus(self, length: u8, steps: u64) -> Option<Self> {
        let offset = match length {
            0 if steps == 0 => 0,
            0 => return None,
            _ => Self::from(steps).checked_mul(1 << (Self::BITS - u32::from(length)))?,
        };
        self.checked_add(offset)
    }

    fn any(random: &mut Random) -> Self {
        random.next_u128()
    }
}
