//! Random keys for tests, the same ones for a seed.

use crate::Key;
use std::net::IpAddr;

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn address(&mut self, family: u8) -> IpAddr {
        match family {
            4 => IpAddr::from((self.next() as u32).to_ne_bytes()),
            _ => IpAddr::from((u128::from(self.next()) << 64 | u128::from(self.next())).to_ne_bytes()),
        }
    }

    /// A key of family 4 or 6.
    pub fn key(&mut self, family: u8) -> Key {
        let (source, destination, other) = (self.address(family), self.address(family), self.next());
        Key {
            source,
            destination,
            source_port: other as u16,
            destination_port: (other >> 16) as u16,
            protocol: if other >> 63 == 0 { 6 } else { 17 },
            interface: (other >> 32) as u16 % 1024,
        }
    }
}
