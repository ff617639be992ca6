//! ARP (RFC 826) and neighbor discovery (RFC 4861).

use super::{Ip6, frame, ip_frame};
use bm_wire::Mac;
use bm_wire::ethernet::ethertype;
use std::net::{Ipv4Addr, Ipv6Addr};

fn arp(operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let words = [1, ethertype::IPV4, 0x0604, operation].map(u16::to_be_bytes).concat();
    [&words, &sender.0.0[..], &sender.1.octets(), &target.0.0, &target.1.octets()].concat()
}

/// A broadcast request: who has `target`?
pub fn arp_request(sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    frame(Mac::BROADCAST, sender.0, ethertype::ARP, &arp(1, sender, (Mac::default(), target)))
}

/// The answer that `sender` has this MAC address, sent to the one that asked. The frame's source is `through`, usually
/// the same MAC address.
pub fn arp_reply(sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr), through: Mac) -> Vec<u8> {
    frame(target.0, through, ethertype::ARP, &arp(2, sender, target))
}

/// A link-layer address option of neighbor discovery: 1 for source, 2 for target.
pub fn option_link_address(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1], &mac.0[..]].concat()
}

/// The packet that asks `destination` who has `target`, with these options.
pub fn neighbor_solicitation(source: &str, destination: &str, target: Ipv6Addr, options: &[u8]) -> Ip6 {
    let body = [&[0; 4][..], &target.octets(), options].concat();
    Ip6::icmp(source, destination, 135, 0, &body).hop_limit(255)
}

/// The frame that tells `destination` the MAC address of `target`, with the flags solicited and override.
pub fn neighbor_advertisement(target: (Mac, Ipv6Addr), destination: (Mac, Ipv6Addr)) -> Vec<u8> {
    let option = option_link_address(2, target.0);
    let body = [&[0x60, 0, 0, 0][..], &target.1.octets(), &option].concat();
    let packet = Ip6::icmp(&target.1.to_string(), &destination.1.to_string(), 136, 0, &body).hop_limit(255);
    ip_frame(destination.0, target.0, &packet.bytes())
}
