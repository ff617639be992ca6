//! Stage two: is it a packet that a router may pass on? (RFC 1812 5.2.2 and 5.3, RFC 8200, RFC 4291)
//!
//! These checks need no table: whom a packet is for, and whether its TTL allows forwarding, is checked after the lookup,
//! so that a packet for this machine reaches it whatever its TTL.

use bm_stats::Reason;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::{Malformed, protocol};

use super::facts::Facts;
use super::hop_by_hop::{self, HopByHop};
use crate::verdict::{Refusal, Verdict};

/// What later stages need of a packet. It is read here once, so that they need not read its bytes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<A> {
    pub source: A,
    pub destination: A,
    pub facts: Facts,
}

const HOST: Refusal = Refusal::Slow(Verdict::Host);

/// Checks any IPv4 packet; `packet` may include padding.
pub(crate) fn ipv4(packet: &[u8]) -> Result<Packet<u32>, Refusal> {
    let ip = Ipv4::parse(packet).map_err(|malformed| {
        Refusal::Drop(match malformed {
            Malformed::Short => Reason::Ipv4Short,
            Malformed::Version => Reason::Ipv4Version,
            Malformed::HeaderLen => Reason::Ipv4HeaderLength,
            _ => Reason::Ipv4TotalLength,
        })
    })?;
    if !ip.checksum_ok() {
        return Err(Refusal::Drop(Reason::Ipv4Checksum));
    }
    let (source, destination) = (ip.source(), ip.destination());
    addresses_ipv4(source, destination)?;
    if ip.overruns() {
        return Err(Refusal::Drop(Reason::FragmentOverrun));
    }
    if ip.header_len() > ipv4::HEADER_LEN {
        return Err(Refusal::Slow(Verdict::Options));
    }
    let header = packet.first_chunk().ok_or(Refusal::Drop(Reason::Ipv4Short))?;
    Ok(Packet { source, destination, facts: Facts::ipv4(header) })
}

/// Which addresses may be routed, as in Linux: 240/4 and 169.254/16 like any other, also 0/8 except 0.0.0.0.
fn addresses_ipv4(source: u32, destination: u32) -> Result<(), Refusal> {
    // Multicast and broadcast go to Linux whatever their source: DHCP clients send from 0.0.0.0.
    if ipv4::is_multicast(destination) || destination == u32::MAX || (source, destination) == (0, 0) {
        return Err(HOST);
    }
    if ipv4::is_multicast(source) || source == u32::MAX || source == 0 || source >> 24 == 127 {
        return Err(Refusal::Drop(Reason::Ipv4Source));
    }
    if destination == 0 || destination >> 24 == 127 {
        return Err(Refusal::Drop(Reason::Ipv4Destination));
    }
    Ok(())
}

/// Checks any IPv6 packet; `packet` may include padding.
pub(crate) fn ipv6(packet: &[u8]) -> Result<Packet<u128>, Refusal> {
    let ip = Ipv6::parse(packet).map_err(|malformed| {
        Refusal::Drop(match malformed {
            Malformed::Short => Reason::Ipv6Short,
            Malformed::Version => Reason::Ipv6Version,
            _ => Reason::Ipv6PayloadLength,
        })
    })?;
    let (source, destination) = (ip.source(), ip.destination());
    addresses_ipv6(source, destination)?;
    // Padding and options that may be skipped need no slow path (RFC 8200 4.3, RFC 9673).
    if ip.next_header() == protocol::HOP_BY_HOP && hop_by_hop::examine(&ip) != HopByHop::Skip {
        return Err(Refusal::Slow(Verdict::HopByHop));
    }
    let header = packet.first_chunk().ok_or(Refusal::Drop(Reason::Ipv6Short))?;
    Ok(Packet { source, destination, facts: Facts::ipv6(header) })
}

/// Multicast scopes that never are on a wire: 0 is reserved, 1 is this interface (RFC 4291 2.7, errata 3480).
fn is_off_wire(group: u128) -> bool {
    ipv6::is_multicast(group) && (group >> 112) & 0xf <= 1
}

fn addresses_ipv6(source: u128, destination: u128) -> Result<(), Refusal> {
    if ipv6::is_multicast(source) || ipv6::is_loopback(source) {
        return Err(Refusal::Drop(Reason::Ipv6Source));
    }
    if is_off_wire(destination) || ipv6::is_loopback(destination) || ipv6::is_unspecified(destination) {
        return Err(Refusal::Drop(Reason::Ipv6Destination));
    }
    if ipv6::is_multicast(destination) || ipv6::is_link_local(destination) {
        return Err(HOST);
    }
    if ipv6::is_unspecified(source) || ipv6::is_link_local(source) {
        return Err(Refusal::Slow(Verdict::SourceScope));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_payload_does_not_wrap() {
        let mut packet = [0; 40];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0xff, 0xff, 59, 64]);
        assert_eq!(ipv6(&packet), Err(Refusal::Drop(Reason::Ipv6PayloadLength)));
    }
}
