//! Which packets are fragments. If connections are tracked Linux reassembles fragments, so they are left to it.

use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::{Family, protocol};

/// Those next headers of IPv6 packets behind which a fragment header may be: one bit each, starting with [`Self::FIRST`].
///
/// Hop-by-hop options are not among them: packets with those never take the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextHeaders(pub u32);

impl NextHeaders {
    /// The next header of the lowest bit.
    pub const FIRST: u8 = protocol::ROUTING;
    /// Fragments do not matter.
    pub const NONE: Self = Self(0);
    /// The fragment header and those that may precede it.
    pub const ALL: Self = Self(
        Self::bit(protocol::ROUTING)
            | Self::bit(protocol::FRAGMENT)
            | Self::bit(protocol::AUTHENTICATION)
            | Self::bit(protocol::DESTINATION_OPTIONS),
    );

    const fn bit(next: u8) -> u32 {
        1 << (next - Self::FIRST)
    }

    /// Whether the set contains a next header.
    #[inline(always)]
    pub fn has(self, next: u8) -> bool {
        self.0.unbounded_shr(u32::from(next).wrapping_sub(Self::FIRST.into())) & 1 == 1
    }
}

/// Whether a packet is a fragment, or may be one because its chain of headers cannot be followed.
pub(crate) fn is_fragment(family: Family, packet: &[u8]) -> bool {
    match family {
        Family::V4 => Ipv4::parse(packet).is_ok_and(|ip| ip.is_fragment()),
        Family::V6 => {
            Ipv6::parse(packet).is_ok_and(|ip| !ip.upper().is_ok_and(|upper| upper.fragment.is_none()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv6 packet of that next header and payload.
    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
        packet.extend([0x20; 32]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn ipv4_fragments_are_those_with_an_offset_or_more_to_come() {
        for (word, expected) in
            [(0u16, false), (0x4000, false), (0x8000, false), (0x2000, true), (1, true), (0x3fff, true)]
        {
            let mut packet = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7];
            packet[6..8].copy_from_slice(&word.to_be_bytes());
            assert_eq!(is_fragment(Family::V4, &packet), expected, "{word:#x}");
        }
    }

    #[test]
    fn ipv6_fragments_are_found_behind_other_headers_and_in_doubt() {
        let fragment = [17, 0, 0, 1, 0, 0, 0, 7];
        let padding = |next| [next, 0, 1, 4, 0, 0, 0, 0];
        let behind = |next: u8, rest: &[u8]| [&padding(next)[..], rest].concat();
        assert!(is_fragment(Family::V6, &ipv6(44, &fragment)));
        assert!(is_fragment(Family::V6, &ipv6(60, &behind(44, &fragment))));
        assert!(is_fragment(Family::V6, &ipv6(0, &behind(43, &behind(44, &fragment)))));
        assert!(is_fragment(Family::V6, &ipv6(60, &[44])), "cut off");
        assert!(!is_fragment(Family::V6, &ipv6(60, &behind(17, &[0; 8]))));
        assert!(!is_fragment(Family::V6, &ipv6(17, &[44; 8])));
        // Nothing is seen behind encryption.
        assert!(!is_fragment(Family::V6, &ipv6(50, &[44; 16])));
    }

    #[test]
    fn next_headers_that_are_looked_at_closer() {
        for next in 0..=u8::MAX {
            assert_eq!(NextHeaders::ALL.has(next), [43, 44, 51, 60].contains(&next), "{next}");
            assert!(!NextHeaders::NONE.has(next));
        }
    }
}
