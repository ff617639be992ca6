//! Stage four: choose among several next hops, make the remaining checks, and turn the frame into the one that
//! leaves: TTL decremented, MAC addresses, VLAN tag, padding removed.
//!
//! A frame is refused before its first byte is changed, so the slow path and Linux get it as it arrived. The decision
//! uses data that was read with the header: the packet itself is only written here.

pub(crate) mod fast;

use bm_fib::NextHop;
use bm_fib::next_hop::{Action, Entry, NextHops};
use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, Tag, ethertype};
use bm_wire::flow;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::{self, Ipv6};

use crate::compiled::{Egress, FlowHash};
use crate::tables::{Tables, Vlan};
use crate::validate::Facts;
use crate::verdict::{Refusal, Verdict};

/// Bytes of the headers of an untagged frame.
pub(crate) const IPV4_HEAD: usize = HEADER_LEN + ipv4::HEADER_LEN;
pub(crate) const IPV6_HEAD: usize = HEADER_LEN + ipv6::HEADER_LEN;

/// Makes `frame` leave through `hop`; returns the port, or why not. `network` is the offset of its IPv4 header.
pub(crate) fn ipv4(
    tables: &Tables,
    hop: NextHop,
    facts: Facts,
    network: u16,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let through = match tables.next_hops.entry(hop) {
        entry if entry.is_forward() => (hop, entry),
        entry => choose_ipv4(tables, entry, frame, network)?,
    };
    ipv4_through(tables, through, facts, network, frame)
}

/// The same for IPv6.
pub(crate) fn ipv6(
    tables: &Tables,
    hop: NextHop,
    facts: Facts,
    network: u16,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let through = match tables.next_hops.entry(hop) {
        entry if entry.is_forward() => (hop, entry),
        entry => choose_ipv6(tables, entry, frame, network)?,
    };
    ipv6_through(tables, through, facts, network, frame)
}

/// Makes `frame` leave as an entry that forwards says. Options do not matter here.
pub(crate) fn ipv4_through(
    tables: &Tables,
    (hop, entry): (NextHop, Entry),
    facts: Facts,
    network: u16,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let egress = egress(tables, entry.interface())?;
    if !fits(facts, egress.mtu, tables.next_hops.mtu(hop)) {
        return Err(unfit(facts.ttl, egress));
    }
    tables.next_hops.mark_used(hop);
    if usize::from(network) != HEADER_LEN || egress.tag.is_some() {
        return tagged_ipv4(network, egress, facts, entry, frame);
    }
    let head = frame.data_mut().first_chunk_mut::<IPV4_HEAD>().ok_or(Refusal::Drop(Reason::Ipv4Short))?;
    let (ethernet, packet) = split::<IPV4_HEAD, { ipv4::HEADER_LEN }>(head);
    write_macs(ethernet, egress, entry);
    spend_hop(packet, facts);
    // What follows the datagram is padding of a short frame, not data.
    frame.truncate(facts.length.wrapping_add(HEADER_LEN as u16));
    Ok(egress.port)
}

/// The same for IPv6.
pub(crate) fn ipv6_through(
    tables: &Tables,
    (hop, entry): (NextHop, Entry),
    facts: Facts,
    network: u16,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let egress = egress(tables, entry.interface())?;
    let mtu = mtu(egress, tables.next_hops.mtu(hop));
    if facts.ttl <= 1 || usize::from(facts.length) > mtu_ipv6(mtu) {
        return Err(unfit(facts.ttl, egress));
    }
    tables.next_hops.mark_used(hop);
    if usize::from(network) != HEADER_LEN || egress.tag.is_some() {
        return tagged_ipv6(network, egress, facts, entry, frame);
    }
    let head = frame.data_mut().first_chunk_mut::<IPV6_HEAD>().ok_or(Refusal::Drop(Reason::Ipv6Short))?;
    let (ethernet, packet) = split::<IPV6_HEAD, { ipv6::HEADER_LEN }>(head);
    write_macs(ethernet, egress, entry);
    spend_hop_ipv6(packet, facts);
    frame.truncate(facts.length.wrapping_add(HEADER_LEN as u16));
    Ok(egress.port)
}

/// Both headers of an untagged frame, at their known places.
#[inline(always)]
fn split<const HEAD: usize, const IP: usize>(
    head: &mut [u8; HEAD],
) -> (&mut [u8; HEADER_LEN], &mut [u8; IP]) {
    const { assert!(HEAD == HEADER_LEN + IP) };
    let (ethernet, packet) = head.split_at_mut(HEADER_LEN);
    let whole = "the lengths are constants that add up";
    (ethernet.try_into().expect(whole), packet.try_into().expect(whole))
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

/// IPv6 requires 1280 bytes of every link (RFC 8200 5); 0 is kept for a link that is down.
#[inline(always)]
pub(crate) fn mtu_ipv6(mtu: u16) -> usize {
    if mtu == 0 { 0 } else { usize::from(mtu).max(ipv6::MIN_MTU) }
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
fn write_macs(ethernet: &mut [u8; HEADER_LEN], egress: &Egress, entry: Entry) {
    // Two stores: of the first source bytes with the destination, and of the rest.
    let [a, b, rest @ ..] = egress.mac;
    let start = entry.raw() << 16 >> 16 | u64::from(u16::from_le_bytes([a, b])) << 48;
    ethernet[..8].copy_from_slice(&start.to_le_bytes());
    ethernet[8..12].copy_from_slice(&rest);
}

/// Decrements the TTL of a header, which must be above 1, and updates the checksum.
#[inline(always)]
pub(crate) fn spend_hop(packet: &mut [u8; ipv4::HEADER_LEN], facts: Facts) {
    packet[8..12].copy_from_slice(&facts.spent);
}

/// Decrements the hop limit of an IPv6 header, which must be above 1.
#[inline(always)]
fn spend_hop_ipv6(packet: &mut [u8; ipv6::HEADER_LEN], facts: Facts) {
    packet[4..8].copy_from_slice(&facts.spent);
}

/// For frames that have a tag, or get one.
#[inline(never)]
fn tagged_ipv4(
    network: u16,
    egress: &Egress,
    facts: Facts,
    entry: Entry,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let packet = frame.data_mut().get_mut(usize::from(network)..).and_then(<[u8]>::first_chunk_mut);
    spend_hop(packet.ok_or(Refusal::Drop(Reason::Ipv4Short))?, facts);
    let length = usize::from(facts.length);
    encapsulate(frame, usize::from(network), length, egress, entry, ethertype::IPV4)?;
    Ok(egress.port)
}

#[inline(never)]
fn tagged_ipv6(
    network: u16,
    egress: &Egress,
    facts: Facts,
    entry: Entry,
    frame: &mut Frame,
) -> Result<u16, Refusal> {
    let packet = frame.data_mut().get_mut(usize::from(network)..);
    let packet = packet.and_then(<[u8]>::first_chunk_mut);
    spend_hop_ipv6(packet.ok_or(Refusal::Drop(Reason::Ipv6Short))?, facts);
    let length = usize::from(facts.length);
    encapsulate(frame, usize::from(network), length, egress, entry, ethertype::IPV6)?;
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
fn choose(
    next_hops: &NextHops,
    entry: Entry,
    hash: impl FnOnce() -> Option<u32>,
) -> Result<(NextHop, Entry), Refusal> {
    let (hop, entry) = if entry.is_group() {
        let hop = next_hops.select(entry, hash().unwrap_or(0));
        (hop, next_hops.entry(hop))
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

#[inline(never)]
fn choose_ipv4(
    tables: &Tables,
    entry: Entry,
    frame: &Frame,
    network: u16,
) -> Result<(NextHop, Entry), Refusal> {
    let packet = frame.data().get(usize::from(network)..).unwrap_or(&[]);
    choose(&tables.next_hops, entry, || hash_ipv4(tables.compiled.flow_ipv4, packet))
}

#[inline(never)]
fn choose_ipv6(
    tables: &Tables,
    entry: Entry,
    frame: &Frame,
    network: u16,
) -> Result<(NextHop, Entry), Refusal> {
    let packet = frame.data().get(usize::from(network)..).unwrap_or(&[]);
    choose(&tables.next_hops, entry, || hash_ipv6(tables.compiled.flow_ipv6, packet))
}

fn hash_ipv4(by: FlowHash, packet: &[u8]) -> Option<u32> {
    Ipv4::parse(packet).ok().map(|ip| flow::ipv4(&ip, by.policy).hash(by.seed))
}

fn hash_ipv6(by: FlowHash, packet: &[u8]) -> Option<u32> {
    Ipv6::parse(packet).ok().map(|ip| flow::ipv6(&ip, by.policy).hash(by.seed))
}

/// The number of a packet's flow; 0 if it is neither IPv4 nor IPv6.
pub(crate) fn hash(tables: &Tables, packet: &[u8]) -> u32 {
    let compiled = &tables.compiled;
    hash_ipv4(compiled.flow_ipv4, packet).or_else(|| hash_ipv6(compiled.flow_ipv6, packet)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 192.0.2.1 > 198.51.100.7, UDP without payload, two hops left; and the same packet one hop on.
    const TTL_2: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0xcc, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    const TTL_1: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 1, 17, 0xcd, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];

    #[test]
    fn decrements_the_ttl_and_updates_the_checksum() {
        let mut packet = TTL_2;
        spend_hop(&mut packet, Facts::ipv4(&TTL_2));
        assert_eq!(packet, TTL_1);
    }

    #[test]
    fn agrees_with_the_full_sum_over_all_values() {
        for id in 0..=u16::MAX {
            let mut packet = TTL_2;
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            Ipv4::parse(&mut packet[..]).unwrap().fill_checksum();
            let facts = Facts::ipv4(&packet);
            spend_hop(&mut packet, facts);
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
        assert_eq!([0, 1, 1280, 1281].map(mtu_ipv6), [0, 1280, 1280, 1281]);
        for length in [1, 20, 999, 1000, 1001, 1500, 1501, 65_535] {
            for interface in [0, 1000, 1500, 65_535] {
                for route in [0, 1, 1000, 9000, 65_535] {
                    let facts = Facts { length, ttl: 2, spent: [0; 4] };
                    let expected = length <= mtu(&egress(interface), route);
                    assert_eq!(fits(facts, interface, route), expected, "{length} {interface} {route}");
                    assert!(!fits(Facts { ttl: 1, ..facts }, interface, route));
                }
            }
        }
    }
}
