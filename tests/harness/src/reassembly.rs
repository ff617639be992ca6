//! Compares datagrams independently of their fragmentation, and reads how many a kernel has reassembled and fragmented.
//!
//! Where connections are tracked, Linux reassembles fragments and fragments the datagram again on the way out. It either
//! sends the fragments as they arrived, or makes new ones of the size of the largest of them. Which of the two depends on
//! its buffers, that is on the driver and on the timing of the fragments, and not on any setting.

use crate::exchange::Seen;
use crate::lab::Side;
use crate::netns::Namespace;
use crate::packet::put16;
use bm_wire::checksum;
use bm_wire::ethernet::{HEADER_LEN, ethertype};
use std::collections::BTreeMap;

/// More fragments follow, and the offset: of IPv4, and of an IPv6 fragment header.
const POSITION4: u16 = 0x3fff;
const MORE4: u16 = 0x2000;
const POSITION6: u16 = 0xfff9;
const MORE6: u16 = 1;
const FRAGMENT: u8 = 44;
/// Headers that may precede the fragment header: hop-by-hop, routing, destination options.
const PRECEDING: [u8; 3] = [0, 43, 60];

/// A fragment.
struct Fragment {
    /// All headers, without what differs between fragments of a datagram.
    headers: Vec<u8>,
    offset: usize,
    is_last: bool,
    data: Vec<u8>,
}

/// Fragments that belong together, with the frames that they came in.
type Fragments<'a> = Vec<(Fragment, &'a Seen)>;

/// The same frames, sorted, with the fragments of each whole datagram replaced by the datagram. Fragments that overlap,
/// repeat, or leave a gap stay as they are, and so do those whose headers differ in more than their position.
pub fn datagrams(seen: &[Seen]) -> Vec<Seen> {
    let mut groups: BTreeMap<(Side, Vec<u8>), Fragments> = BTreeMap::new();
    let mut all = Vec::new();
    for one in seen {
        match fragment(&one.frame) {
            Some(fragment) => {
                groups.entry((one.side, fragment.headers.clone())).or_default().push((fragment, one));
            }
            None => all.push(one.clone()),
        }
    }
    for ((side, headers), mut fragments) in groups {
        fragments.sort_by_key(|(fragment, _)| fragment.offset);
        match reassemble(&headers, fragments.iter().map(|(fragment, _)| fragment)) {
            Some(frame) => all.push(Seen { side, frame }),
            None => all.extend(fragments.into_iter().map(|(_, one)| one.clone())),
        }
    }
    all.sort();
    all
}

/// The datagram of all its fragments in order.
fn reassemble<'a>(headers: &[u8], fragments: impl Iterator<Item = &'a Fragment>) -> Option<Vec<u8>> {
    let (mut frame, mut is_whole) = (headers.to_vec(), false);
    for fragment in fragments {
        if is_whole || fragment.offset != frame.len() - headers.len() {
            return None;
        }
        frame.extend(&fragment.data);
        is_whole = fragment.is_last;
    }
    is_whole.then_some(frame)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

/// The fragment that a frame is; `None` for any other, also for one with a wrong length or header checksum.
fn fragment(frame: &[u8]) -> Option<Fragment> {
    match be16(frame, 12)? {
        ethertype::IPV4 => fragment4(frame),
        ethertype::IPV6 => fragment6(frame),
        _ => None,
    }
}

fn fragment4(frame: &[u8]) -> Option<Fragment> {
    let packet = &frame[HEADER_LEN..];
    let header = packet.get(..usize::from(packet.first()? & 15) * 4).filter(|header| header.len() >= 20)?;
    let position = be16(header, 6)?;
    let is_right = usize::from(be16(header, 2)?) == packet.len() && checksum::sum(header) == 0xffff;
    if position & POSITION4 == 0 || !is_right {
        return None;
    }
    let (mut headers, data) = (frame[..HEADER_LEN + header.len()].to_vec(), packet[header.len()..].to_vec());
    // DF among them: Linux keeps it in new fragments, and not in those that arrived.
    for (at, value) in [(2, 0), (6, 0), (10, 0)] {
        put16(&mut headers, HEADER_LEN + at, value);
    }
    let offset = usize::from(position & POSITION4 & !MORE4) * 8;
    Some(Fragment { headers, offset, is_last: position & MORE4 == 0, data })
}

fn fragment6(frame: &[u8]) -> Option<Fragment> {
    let packet = &frame[HEADER_LEN..];
    let (mut next, mut at) = (*packet.get(6)?, 40);
    if usize::from(be16(packet, 4)?) + at != packet.len() {
        return None;
    }
    while PRECEDING.contains(&next) {
        let length = 8 + 8 * usize::from(*packet.get(at + 1)?);
        (next, at) = (*packet.get(at)?, at + length);
    }
    let position = be16(packet, at + 2).filter(|_| next == FRAGMENT)?;
    let data = packet.get(at + 8..)?.to_vec();
    let mut headers = frame[..HEADER_LEN + at + 8].to_vec();
    put16(&mut headers, HEADER_LEN + 4, 0);
    put16(&mut headers, HEADER_LEN + at + 2, position & !POSITION6);
    // The offset is in units of eight bytes, above three bits of others.
    Some(Fragment { headers, offset: usize::from(position & !7), is_last: position & MORE6 == 0, data })
}

/// The counters of fragments, of both families.
const COUNTERS: [&str; 3] = ["ReasmReqds", "ReasmOKs", "FragCreates"];

/// The kernel's counters in a namespace: fragments received for reassembly, datagrams reassembled, and fragments created;
/// first of IPv4, then of IPv6.
pub fn counted(namespace: &Namespace) -> [u64; 6] {
    let read = |file: &str| {
        let path = format!("/proc/thread-self/net/{file}");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (ipv4, ipv6) = namespace.within(|| (read("snmp"), read("snmp6")));
    let mut lines = ipv4.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let of_ipv4: Vec<_> = names.split(' ').zip(values.split(' ')).collect();
    let of_ipv6: Vec<_> = ipv6.lines().filter_map(|line| line.split_once(char::is_whitespace)).collect();
    let find = |list: &[(&str, &str)], name: &str| -> u64 {
        let value = list.iter().find(|(counter, _)| *counter == name).map(|(_, value)| value.trim().parse());
        value.and_then(Result::ok).unwrap_or_else(|| panic!("the kernel has no counter {name}"))
    };
    let [a, b, c] = COUNTERS.map(|name| find(&of_ipv4, name));
    let [d, e, f] = COUNTERS.map(|name| find(&of_ipv6, &format!("Ip6{name}")));
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ip4, Ip6};

    const TCP: u8 = 6;

    fn seen(packet: &[u8]) -> Seen {
        Seen { side: Side::Snk, frame: Side::Snk.to_neighbor(2, packet) }
    }

    fn fragment4(from: usize, to: usize, id: u16) -> Seen {
        let data: Vec<u8> = (0..28).collect();
        let flags = (from / 8) as u16 | if to < data.len() { MORE4 } else { 0 };
        seen(&Ip4::new("192.0.2.2", "10.0.0.9", TCP, data[from..to].to_vec()).flags(flags).id(id).bytes())
    }

    fn fragment6(from: usize, to: usize, id: u32) -> Seen {
        let data: Vec<u8> = (0..28).collect();
        let packet = Ip6::new("2001:db8:1::2", "2001:db8:a000::9", TCP, data[from..to].to_vec())
            .extension(60, &[0, 1, 4, 0, 0, 0, 0]);
        seen(&packet.fragment(from as u16, to < data.len(), id).bytes())
    }

    #[test]
    fn datagrams_do_not_depend_on_their_fragments() {
        for cut in [8, 16, 24] {
            assert_eq!(
                datagrams(&[fragment4(cut, 28, 7), fragment4(0, cut, 7)]),
                datagrams(&[fragment4(0, 8, 7), fragment4(8, 16, 7), fragment4(16, 28, 7)])
            );
            let whole = datagrams(&[fragment6(0, cut, 7), fragment6(cut, 28, 7)]);
            assert_eq!(whole, datagrams(&[fragment6(0, 8, 7), fragment6(8, 28, 7)]));
            assert_eq!(whole.len(), 1);
        }
    }

    #[test]
    fn incomplete_datagrams_stay_fragments() {
        let mut wrong = fragment4(8, 28, 7);
        wrong.frame[HEADER_LEN + 10] ^= 1;
        let mut other_ttl = fragment6(8, 28, 7);
        other_ttl.frame[HEADER_LEN + 7] -= 1;
        for mut frames in [
            vec![fragment4(0, 8, 7)],
            vec![fragment4(8, 28, 7)],
            vec![fragment4(0, 8, 7), fragment4(16, 28, 7)],
            vec![fragment4(0, 16, 7), fragment4(8, 28, 7)],
            vec![fragment4(0, 8, 7), fragment4(0, 8, 7), fragment4(8, 28, 7)],
            vec![fragment4(0, 8, 7), fragment4(8, 28, 8)],
            vec![fragment4(0, 8, 7), wrong],
            vec![fragment6(0, 8, 7), other_ttl],
            vec![fragment6(0, 8, 7), fragment6(8, 28, 8)],
            vec![seen(&Ip4::new("192.0.2.2", "10.0.0.9", TCP, vec![0; 8]).bytes())],
        ] {
            frames.sort();
            assert_eq!(datagrams(&frames), frames);
        }
    }

    #[test]
    fn all_other_bytes_are_compared() {
        let whole = datagrams(&[fragment4(0, 8, 7), fragment4(8, 28, 7)]);
        let mut changed = fragment4(8, 28, 7);
        *changed.frame.last_mut().expect("it is not empty") ^= 1;
        assert_ne!(datagrams(&[fragment4(0, 8, 7), changed]), whole);
        assert_ne!(datagrams(&[fragment4(0, 8, 8), fragment4(8, 28, 8)]), whole);
    }
}
