//! Stage four: choose among several next hops, make the remaining checks, and turn the frame into the one that
//! leaves: TTL decremented, MAC addresses, VLAN tag, padding removed.
//!
//! A frame is refused before its first byte is changed, so the slow path and Linux get it as it arrived.

mod family;

use bm_fib::NextHop;
use bm_fib::next_hop::{Action, Entry};
use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, Tag};
use bm_wire::ipv4;

pub(crate) use family::RewriteFamily;

use super::Facts;
use super::input::Arrival;
use crate::compiled::Egress;
use crate::tables::{Tables, Vlan};
use crate::verdict::{Refusal, Verdict};

/// Makes `frame` leave through `hop`; returns the port, or why not.
pub(crate) fn rewrite<A: RewriteFamily>(
    tables: &Tables,
    hop: NextHop,
    facts: Facts,
    arrival: &Arrival,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let (hop, entry) = match tables.next_hops.entry(hop) {
        entry if entry.is_forward() => (hop, entry),
        entry => choose::<A>(tables, entry, frame, arrival.network)?,
    };
    if tables.compiled.may_redirect(A::IP_VERSION, arrival.interface, entry.interface()) {
        return Err(Refusal::Slow(Verdict::Host));
    }
    rewrite_through::<A>(tables, hop, entry, facts, arrival.network, frame)
}

/// Makes `frame` leave through an entry that forwards. Options do not matter here.
pub(crate) fn rewrite_through<A: RewriteFamily>(
    tables: &Tables,
    hop: NextHop,
    entry: Entry,
    facts: Facts,
    network: u16,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let egress = egress(tables, entry.interface())?;
    if !A::fits(facts, egress, tables.next_hops.mtu(hop)) {
        return Err(unfit(facts.ttl, egress));
    }
    tables.next_hops.mark_used(hop);
    if usize::from(network) != HEADER_LEN || egress.tag.is_some() {
        return rewrite_tagged::<A>(network, egress, facts, entry, frame);
    }
    let head = frame.data_mut().get_mut(..HEADER_LEN + A::HEADER_LEN).ok_or(Refusal::Drop(A::SHORT))?;
    let (ethernet, packet) = head.split_at_mut(HEADER_LEN);
    write_macs(ethernet, egress, entry);
    write_ttl::<A>(packet, facts);
    // What follows the packet is padding of a short frame, not data.
    frame.truncate(facts.length.wrapping_add(HEADER_LEN as u16));
    Ok(egress.port)
}

#[inline(always)]
pub(crate) fn egress(tables: &Tables, interface: u16) -> Result<&Egress, Refusal> {
    let egress = tables.compiled.egress.get(usize::from(interface));
    egress.ok_or(Refusal::Drop(Reason::NoInterface))
}

/// The smaller of the interface's MTU and the route's own, if it has one.
#[inline(always)]
pub(crate) fn mtu(egress: &Egress, route: u16) -> u16 {
    // 0 means "none": one less wraps to the greatest value.
    egress.mtu.min(route.wrapping_sub(1).saturating_add(1))
}

/// Whether a hop is left and the packet fits both the interface and the route; 0 for a route without an MTU.
#[inline(always)]
fn fits(facts: Facts, interface: u16, route: u16) -> bool {
    // Subtracting one on both sides turns a route's 0 into the greatest value. No packet has length 0.
    facts.ttl > 1 && facts.length <= interface && facts.length.wrapping_sub(1) <= route.wrapping_sub(1)
}

#[cold]
fn unfit(ttl: u16, egress: &Egress) -> Refusal {
    match () {
        () if ttl <= 1 => Refusal::Slow(Verdict::TtlExceeded),
        () if egress.mtu == 0 => Refusal::Drop(Reason::InterfaceDown),
        () => Refusal::Slow(Verdict::TooBig),
    }
}

#[inline(always)]
fn write_macs(ethernet: &mut [u8], egress: &Egress, entry: Entry) {
    // Two stores: of the first source bytes with the destination, and of the rest.
    let [a, b, rest @ ..] = egress.mac;
    let start = entry.raw() << 16 >> 16 | u64::from(u16::from_le_bytes([a, b])) << 48;
    ethernet[..8].copy_from_slice(&start.to_le_bytes());
    ethernet[8..12].copy_from_slice(&rest);
}

/// Decrements the TTL of a header, which must be above 1; for IPv4 also updates the checksum.
#[inline(always)]
fn write_ttl<A: RewriteFamily>(header: &mut [u8], facts: Facts) {
    header[A::TTL_WORD..A::TTL_WORD + 4].copy_from_slice(&facts.ttl_word);
}

/// Decrements the TTL of an IPv4 header, which must be above 1, and updates the checksum.
pub(crate) fn decrement_ttl(header: &mut [u8; ipv4::HEADER_LEN]) {
    let facts = Facts::ipv4(header);
    write_ttl::<u32>(header, facts);
}

/// For frames that have a tag, or get one.
#[inline(never)]
fn rewrite_tagged<A: RewriteFamily>(
    network: u16,
    egress: &Egress,
    facts: Facts,
    entry: Entry,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let network = usize::from(network);
    let header = frame.data_mut().get_mut(network..network + A::HEADER_LEN);
    write_ttl::<A>(header.ok_or(Refusal::Drop(A::SHORT))?, facts);
    encapsulate(frame, network, facts.length.into(), egress, entry, A::ETHERTYPE)?;
    Ok(egress.port)
}

/// Gives the packet of `length` bytes at `network` the link header of `egress`, whatever was before it.
///
/// Priorities of tags are not carried over: Linux maps them to 0 both ways by default.
pub(crate) fn encapsulate(
    frame: &mut Frame,
    network: usize,
    length: usize,
    egress: &Egress,
    entry: Entry,
    kind: u16,
) -> Result<(), Refusal> {
    let header = HEADER_LEN + if egress.tag.is_some() { TAG_LEN } else { 0 };
    if header > network {
        frame.prepend(header - network).map_err(|_| Refusal::Drop(Reason::Oversize))?;
    } else {
        frame.trim_front(network - header);
    }
    frame.truncate(u16::try_from(header + length).unwrap_or(u16::MAX));
    let data = frame.data_mut();
    entry.write_mac(data);
    data[6..12].copy_from_slice(&egress.mac);
    if let Some(Vlan { protocol, id }) = egress.tag {
        data[12..14].copy_from_slice(&protocol.to_be_bytes());
        data[14..16].copy_from_slice(&Tag::vlan(id).control().to_be_bytes());
    }
    data[header - 2..header].copy_from_slice(&kind.to_be_bytes());
    Ok(())
}

/// What an entry that does not forward means for a frame.
#[inline(never)]
fn choose<A: RewriteFamily>(
    tables: &Tables,
    entry: Entry,
    frame: &Frame,
    network: u16,
) -> Result<(NextHop, Entry), Refusal> {
    let (hop, entry) = if entry.is_group() {
        let packet = frame.data().get(usize::from(network)..).unwrap_or(&[]);
        let hash = A::flow_hash(&tables.compiled, packet).unwrap_or(0);
        let hop = tables.next_hops.select(entry, hash);
        (hop, tables.next_hops.entry(hop))
    } else {
        (NextHop::NONE, entry)
    };
    match entry.action() {
        Action::Forward { .. } => Ok((hop, entry)),
        Action::Host => Err(Refusal::Slow(Verdict::Host)),
        Action::LinuxOnly => Err(Refusal::Slow(Verdict::LinuxOnly)),
        Action::Resolve => Err(Refusal::Slow(Verdict::Resolve)),
        Action::Blackhole => Err(Refusal::Drop(Reason::Blackhole)),
        Action::Unreachable => Err(Refusal::Slow(Verdict::Unreachable)),
        Action::Prohibit => Err(Refusal::Slow(Verdict::Prohibit)),
        // A group within a group does not exist (NextHopWriter refuses it).
        Action::Group { .. } | Action::None => Err(Refusal::Slow(Verdict::NoRoute)),
    }
}

/// The number of a packet's flow; 0 if it is neither IPv4 nor IPv6.
pub(crate) fn hash(tables: &Tables, packet: &[u8]) -> u32 {
    let compiled = &tables.compiled;
    u32::flow_hash(compiled, packet).or_else(|| u128::flow_hash(compiled, packet)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::ipv4::Ipv4;

    /// 192.0.2.1 > 198.51.100.7, UDP without payload, two hops left; and the same packet one hop on.
    const TTL_2: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0xcc, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    const TTL_1: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 1, 17, 0xcd, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];

    #[test]
    fn decrements_the_ttl_and_updates_the_checksum() {
        let mut packet = TTL_2;
        decrement_ttl(&mut packet);
        assert_eq!(packet, TTL_1);
    }

    #[test]
    fn agrees_with_the_full_sum_over_all_values() {
        for id in 0..=u16::MAX {
            let mut packet = TTL_2;
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            Ipv4::parse(&mut packet[..]).unwrap().fill_checksum();
            decrement_ttl(&mut packet);
            assert!(Ipv4::parse(&packet[..]).unwrap().checksum_ok(), "id {id}");
            let spent = packet;
            Ipv4::parse(&mut packet[..]).unwrap().fill_checksum();
            assert_eq!(spent, packet, "id {id}");
        }
    }

    #[test]
    fn the_smaller_mtu_counts() {
        let egress = |mtu| Egress { mac: [0; 6], mtu, port: 0, tag: None };
        assert_eq!(
            [0, 1, 1000, 1500, 9000, 65_535].map(|route| mtu(&egress(1500), route)),
            [1500, 1, 1000, 1500, 1500, 1500]
        );
        for length in [1, 20, 999, 1000, 1001, 1500, 1501, 65_535] {
            for interface in [0, 1000, 1500, 65_535] {
                for route in [0, 1, 1000, 9000, 65_535] {
                    let facts = Facts { length, ttl: 2, ttl_word: [0; 4] };
                    let expected = length <= mtu(&egress(interface), route);
                    assert_eq!(fits(facts, interface, route), expected, "{length} {interface} {route}");
                    assert!(!fits(Facts { ttl: 1, ..facts }, interface, route));
                }
            }
        }
    }
}
