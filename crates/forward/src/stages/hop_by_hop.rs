//! IPv6 hop-by-hop options (RFC 8200 4.2 and 4.3), as a router in Linux looks at them.
//!
//! Nearly all of them are padding or may be skipped, and then the packet stays on the fast path. Padding is limited
//! as in RFC 4942 2.1.9.5: at most eight bytes at a time, all zero; options are limited to eight, too.

use bm_wire::ipv6::extension::option;
use bm_wire::ipv6::{self, Ipv6};

/// Maximum number of consecutive bytes of padding.
const PADDING_MAX: usize = 7;
/// The most options in one header (Linux: `max_hbh_opts_number`).
const OPTIONS_MAX: usize = 8;

/// A label that Linux checks (RFC 5570).
const CALIPSO: u8 = 7;
/// Data that Linux fills in (RFC 9486).
const IOAM: u8 = 0x31;

/// The result of a packet's hop-by-hop options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopByHop {
    /// None that matters: the packet continues.
    Skip,
    /// A Router Alert.
    Alert,
    /// One that Linux writes into or judges.
    Linux,
    /// Malformed, or unknown and to be dropped silently.
    Discard,
    /// Unknown, and the sender must get an error; `at` is its offset in the packet.
    Unknown { at: u32 },
    /// A field with an invalid value.
    Field { at: u32 },
    /// Longer than any supported frame.
    Jumbo,
}

/// Checks the hop-by-hop header of a packet that starts with one.
pub(crate) fn examine<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> HopByHop {
    let Some(Ok(header)) = ip.extensions().next() else { return HopByHop::Discard };
    let (mut rest, mut at) = (&header.bytes[2..], header.offset as u32 + 2);
    let (mut padding, mut count, mut found) = (0, 0, HopByHop::Skip);
    while let Some(&kind) = rest.first() {
        let length = match (kind, rest.get(1)) {
            (option::PAD1, _) => 1,
            (_, Some(&length)) => 2 + usize::from(length),
            (_, None) => return HopByHop::Discard,
        };
        let Some(option) = rest.get(..length) else { return HopByHop::Discard };
        if matches!(kind, option::PAD1 | option::PADN) {
            padding += length;
            if padding > PADDING_MAX || option.iter().skip(2).any(|&byte| byte != 0) {
                return HopByHop::Discard;
            }
        } else {
            (padding, count) = (0, count + 1);
            match one(ip, kind, option, at) {
                HopByHop::Skip if count <= OPTIONS_MAX => {}
                HopByHop::Alert if count <= OPTIONS_MAX && found == HopByHop::Skip => found = HopByHop::Alert,
                HopByHop::Alert if count <= OPTIONS_MAX => {}
                HopByHop::Linux if count <= OPTIONS_MAX => found = HopByHop::Linux,
                _ if count > OPTIONS_MAX => return HopByHop::Discard,
                end => return end,
            }
        }
        (rest, at) = (&rest[length..], at + length as u32);
    }
    found
}

fn one<B: AsRef<[u8]>>(ip: &Ipv6<B>, kind: u8, option: &[u8], at: u32) -> HopByHop {
    match (kind, option) {
        (option::ROUTER_ALERT, [_, 2, ..]) => HopByHop::Alert,
        (option::ROUTER_ALERT, _) => HopByHop::Discard,
        (CALIPSO | IOAM, _) => HopByHop::Linux,
        // RFC 2675 3: such a length must be above 65,535, and the other one 0.
        (option::JUMBO, &[_, 4, a, b, c, d]) => match u32::from_be_bytes([a, b, c, d]) {
            length if length <= u32::from(u16::MAX) => HopByHop::Field { at: at + 2 },
            _ if ip.payload_len() != 0 => HopByHop::Field { at },
            _ => HopByHop::Jumbo,
        },
        (option::JUMBO, _) => HopByHop::Discard,
        _ => match kind >> 6 {
            0b00 => HopByHop::Skip,
            0b01 => HopByHop::Discard,
            0b11 if ipv6::is_multicast(ip.destination()) => HopByHop::Discard,
            _ => HopByHop::Unknown { at },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::ipv6::Ipv6Header;

    fn examined(options: &[u8]) -> HopByHop {
        let mut header = vec![17, ((options.len() + 2) / 8 - 1) as u8];
        header.extend(options);
        assert!(header.len().is_multiple_of(8));
        let mut packet = vec![0; 40];
        let payload_len = header.len() as u16;
        Ipv6Header { payload_len, next_header: 0, ..Default::default() }.emit(&mut packet).unwrap();
        packet.extend(header);
        examine(&Ipv6::parse(&packet).unwrap())
    }

    #[test]
    fn padding_is_skipped_within_reason() {
        assert_eq!(examined(&[0; 6]), HopByHop::Skip);
        assert_eq!(examined(&[1, 4, 0, 0, 0, 0]), HopByHop::Skip);
        assert_eq!(examined(&[1, 4, 0, 0, 0, 1]), HopByHop::Discard);
        assert_eq!(examined(&[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), HopByHop::Discard);
        assert_eq!(examined(&[0, 1, 5, 0, 0, 0, 0, 0, 0x1e, 4, 1, 2, 3, 4]), HopByHop::Discard);
        assert_eq!(examined(&[1, 5, 0, 0, 0, 0, 0, 0x1e, 4, 1, 2, 3, 4, 0]), HopByHop::Skip);
    }

    #[test]
    fn unknown_options_are_treated_by_their_action_bits() {
        assert_eq!(examined(&[0x1e, 4, 9, 9, 9, 9]), HopByHop::Skip);
        assert_eq!(examined(&[0x3e, 4, 9, 9, 9, 9]), HopByHop::Skip);
        assert_eq!(examined(&[0x5e, 4, 9, 9, 9, 9]), HopByHop::Discard);
        assert_eq!(examined(&[0, 0x9e, 3, 9, 9, 9]), HopByHop::Unknown { at: 43 });
        assert_eq!(examined(&[0xde, 4, 9, 9, 9, 9]), HopByHop::Unknown { at: 42 });
    }

    #[test]
    fn alerts_and_jumbos() {
        assert_eq!(examined(&[5, 2, 0, 0, 1, 0]), HopByHop::Alert);
        assert_eq!(examined(&[5, 3, 0, 0, 0, 0]), HopByHop::Discard);
        assert_eq!(examined(&[0x31, 4, 0, 0, 1, 0]), HopByHop::Linux);
        assert_eq!(examined(&[5, 2, 0, 0, 7, 0]), HopByHop::Linux);
        assert_eq!(examined(&[0xc2, 4, 0, 0, 0xff, 0xff]), HopByHop::Field { at: 44 });
        assert_eq!(examined(&[0xc2, 4, 0, 1, 0, 0]), HopByHop::Field { at: 42 });
    }

    #[test]
    fn what_is_broken_or_too_much_is_dropped() {
        assert_eq!(examined(&[0x1e, 5, 0, 0, 0, 0]), HopByHop::Discard);
        assert_eq!(examined(&[0, 0, 0, 0, 0, 0x1e]), HopByHop::Discard);
        let many: Vec<u8> = [0x1e, 0].repeat(8).into_iter().chain([1, 4, 0, 0, 0, 0]).collect();
        assert_eq!(examined(&many), HopByHop::Skip);
        let more: Vec<u8> = [0x1e, 0].repeat(9).into_iter().chain([1, 2, 0, 0]).collect();
        assert_eq!(examined(&more), HopByHop::Discard);
        let alert: Vec<u8> = [0x1e, 0].repeat(8).into_iter().chain([5, 2, 0, 0, 1, 0]).collect();
        assert_eq!(examined(&alert), HopByHop::Discard);
        let last: Vec<u8> = [0x1e, 0].repeat(7).into_iter().chain([5, 2, 0, 0, 1, 2, 0, 0]).collect();
        assert_eq!(examined(&last), HopByHop::Alert);
    }
}
