//! Questions to hosts on an external port, and their replies: ARP (RFC 826), neighbor solicitations and advertisements
//! (RFC 4861).
//!
//! Linux believes whoever speaks first. What this node announces to others it asks for itself, and only a reply to itself
//! counts: requests, gratuitous ARP and unsolicited advertisements do not.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use bm_wire::checksum::Pseudo;
use bm_wire::ethernet::{Mac, ethertype};

use crate::socket::FabricSocket;

const ETHERNET: usize = 14;
/// Length of an IPv6 header.
const IPV6: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Only a neighbor can send a packet that arrives with it (RFC 4861, section 7.1).
const HOP_LIMIT: u8 = 255;
/// Flag of an advertisement: it answers a solicitation.
const SOLICITED: u8 = 0x40;
const ARP_REPLY: u8 = 2;
/// Replies read at a time: more of them wait, so that a flood does not keep the thread.
const READ_MAX: usize = 256;

/// An external port that hosts are asked on.
#[derive(Debug)]
pub(crate) struct Solicitations {
    arp: FabricSocket,
    discovery: FabricSocket,
    /// The MAC of the port.
    pub mac: [u8; 6],
}

impl Solicitations {
    /// Opens its sockets, which receive only replies.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(ifindex: u32, mac: [u8; 6]) -> io::Result<Self> {
        let arp = FabricSocket::open_filtered(ifindex, ethertype::ARP, &keep(&[(21, ARP_REPLY)]))?;
        let steps = [(ETHERNET as u32 + 6, ICMPV6), (ETHERNET as u32 + 40, ADVERTISEMENT)];
        let discovery = FabricSocket::open_filtered(ifindex, ethertype::IPV6, &keep(&steps))?;
        Ok(Self { arp, discovery, mac })
    }

    /// Asks who has an address. `source` is an address of the port.
    pub fn ask(&self, address: IpAddr, source: Option<IpAddr>) {
        // One that is not taken is one that is not answered.
        let _taken = match (address, source) {
            (IpAddr::V4(target), Some(IpAddr::V4(source))) => {
                self.arp.send(&request(self.mac, source, target))
            }
            // RFC 5227: a probe, which changes nobody's table.
            (IpAddr::V4(target), _) => self.arp.send(&request(self.mac, Ipv4Addr::UNSPECIFIED, target)),
            (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
                self.discovery.send(&solicitation(self.mac, source, target))
            }
            (IpAddr::V6(_), _) => false,
        };
    }

    /// The replies that have arrived: address and MAC.
    pub fn replies(&self) -> Vec<(IpAddr, [u8; 6])> {
        let mut buffer = [0; 256];
        let mut replies = Vec::new();
        for socket in [&self.arp, &self.discovery] {
            for _ in 0..READ_MAX {
                let Some(frame) = socket.receive(&mut buffer) else { break };
                replies.extend(reply(frame, self.mac));
            }
        }
        replies
    }

    /// Becomes readable when replies arrive.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.arp.as_fd(), self.discovery.as_fd()]
    }
}

/// A classic BPF program that keeps frames that have these bytes at these places.
fn keep(bytes: &[(u32, u8)]) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (at, (place, byte)) in bytes.iter().enumerate() {
        let to_drop = 2 * (bytes.len() - at) as u8 - 1;
        program.push(step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, *place, 0, 0));
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::from(*byte), 0, to_drop));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0));
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn request(mac: [u8; 6], source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac, &ethertype::ARP.to_be_bytes()].concat();
    // Ethernet, IPv4, a request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.into_iter().chain(source.octets()));
    frame.extend([0; 6].into_iter().chain(target.octets()));
    frame
}

fn solicitation(mac: [u8; 6], source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    // Option: the sender's MAC.
    message.extend([1, 1].into_iter().chain(mac));
    let pseudo = Pseudo::V6 { source: source.into(), destination: group.into() };
    let checksum = pseudo.checksum(ICMPV6, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let to = Mac::of_ipv6_group(group.into());
    let mut frame = [&to.0[..], &mac, &ethertype::IPV6.to_be_bytes(), &[0x60, 0, 0, 0]].concat();
    frame.extend((message.len() as u16).to_be_bytes().into_iter().chain([ICMPV6, HOP_LIMIT]));
    frame.extend(source.octets().into_iter().chain(group.octets()));
    frame.extend(message);
    frame
}

/// The address that a reply to `own` is about, and its MAC.
fn reply(frame: &[u8], own: [u8; 6]) -> Option<(IpAddr, [u8; 6])> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET>()?;
    let [to @ .., high, low] = ethernet;
    let answer = match u16::from_be_bytes([*high, *low]) {
        _ if to[..6] != own => None,
        ethertype::ARP => arp_reply(packet),
        ethertype::IPV6 => advertisement(packet),
        _ => None,
    };
    answer.filter(|(_, mac)| Mac(*mac).is_host())
}

fn arp_reply(packet: &[u8]) -> Option<(IpAddr, [u8; 6])> {
    let (fixed, rest) = packet.split_first_chunk::<8>()?;
    let (mac, rest) = rest.split_first_chunk::<6>()?;
    let address = IpAddr::from(*rest.first_chunk::<4>()?);
    (*fixed == [0, 1, 8, 0, 6, 4, 0, ARP_REPLY]).then_some((address, *mac))
}

fn advertisement(packet: &[u8]) -> Option<(IpAddr, [u8; 6])> {
    let (header, rest) = packet.split_first_chunk::<IPV6>()?;
    let message = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let [source, destination] = [8, 24].map(|at| header.get(at..)?.first_chunk::<16>());
    let pseudo = Pseudo::V6 {
        source: Ipv6Addr::from(*source?).into(),
        destination: Ipv6Addr::from(*destination?).into(),
    };
    let (fixed, rest) = message.split_first_chunk::<8>()?;
    let (target, mut options) = rest.split_first_chunk::<16>()?;
    let is_answer = header[6..8] == [ICMPV6, HOP_LIMIT]
        && fixed[..2] == [ADVERTISEMENT, 0]
        && fixed[4] & SOLICITED != 0
        && pseudo.checksum(ICMPV6, message) == 0;
    while let [_, length, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(length.max(1)) * 8)?;
        // The MAC of the target.
        if let (true, [2, 1, mac @ ..]) = (is_answer, option) {
            return Some((IpAddr::from(*target), *mac.first_chunk::<6>()?));
        }
        options = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn arp(operation: u8) -> Vec<u8> {
        let mut frame = [&OWN[..], &HOST, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
        frame.extend(HOST.into_iter().chain([192, 0, 2, 9]).chain(OWN).chain([192, 0, 2, 1]));
        frame
    }

    fn advertised(flags: u8, hop_limit: u8) -> Vec<u8> {
        let [source, to]: [Ipv6Addr; 2] =
            ["2001:db8::9", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
        message.extend(source.octets().into_iter().chain([2, 1]).chain(HOST));
        let pseudo = Pseudo::V6 { source: source.into(), destination: to.into() };
        let checksum = pseudo.checksum(ICMPV6, &message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut frame = [&OWN[..], &HOST, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, ICMPV6, hop_limit]].concat();
        frame.extend(source.octets().into_iter().chain(to.octets()).chain(message));
        frame
    }

    #[test]
    fn only_replies_to_this_node_are_read() {
        let four = Some((IpAddr::from([192, 0, 2, 9]), HOST));
        assert_eq!(reply(&arp(2), OWN), four);
        assert_eq!(reply(&arp(1), OWN), None, "a request");
        assert_eq!(reply(&arp(2), HOST), None, "to another MAC");
        let six = Some(("2001:db8::9".parse().expect("an address"), HOST));
        assert_eq!(reply(&advertised(0x60, 255), OWN), six);
        assert_eq!(reply(&advertised(0x20, 255), OWN), None, "unsolicited");
        assert_eq!(reply(&advertised(0x60, 254), OWN), None, "from another link");
        for frame in [arp(2), advertised(0x60, 255)] {
            assert!(
                (0..frame.len()).all(|length| reply(&frame[..length], OWN).is_none() || length >= 28 + 4)
            );
        }
        let mut damaged = advertised(0x60, 255);
        damaged[70] ^= 1;
        assert_eq!(reply(&damaged, OWN), None);
    }

    #[test]
    fn questions_are_those_of_the_rfcs() {
        let frame = request(OWN, [192, 0, 2, 1].into(), [192, 0, 2, 9].into());
        assert_eq!((frame.len(), &frame[20..22], &frame[38..]), (42, &[0, 1][..], &[192, 0, 2, 9][..]));
        let target = "2001:db8::a:b0c".parse().expect("an address");
        let frame = solicitation(OWN, "2001:db8::1".parse().expect("an address"), target);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x0a, 0x0b, 0x0c]);
        let pseudo = Pseudo::V6 { source: read(&frame[22..38]), destination: read(&frame[38..54]) };
        assert_eq!((pseudo.checksum(ICMPV6, &frame[54..]), frame.len()), (0, 86));
    }

    fn read(bytes: &[u8]) -> u128 {
        u128::from_be_bytes(bytes.try_into().expect("16 bytes"))
    }
}
