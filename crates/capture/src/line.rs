//! A packet in one line, in tcpdump's manner.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const TAGS: [u16; 2] = [0x8100, 0x88a8];

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ESP: u8 = 50;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// What is in a frame: `IP 192.0.2.2.1234 > 198.51.100.2.53: UDP, length 20`.
pub fn summary(frame: &[u8]) -> String {
    let mut at = 12;
    let mut text = String::new();
    loop {
        let Some(ethertype) = be16(frame, at) else { return text + "a truncated frame" };
        at += 2;
        if !TAGS.contains(&ethertype) {
            return text + &network(ethertype, &frame[at..]);
        }
        let _written = write!(text, "vlan {}, ", be16(frame, at).unwrap_or_default() & 0xfff);
        at += 2;
    }
}

fn network(ethertype: u16, packet: &[u8]) -> String {
    let text = match ethertype {
        IPV4 => ipv4(packet),
        IPV6 => ipv6(packet),
        ARP => arp(packet),
        _ => return format!("ethertype 0x{ethertype:04x}, length {}", packet.len()),
    };
    text.unwrap_or_else(|| {
        let name = if ethertype == ARP { "ARP" } else { "IP" };
        format!("{name}, a truncated header of {} bytes", packet.len())
    })
}

fn ipv4(packet: &[u8]) -> Option<String> {
    let header = usize::from(packet.first()? & 15) * 4;
    let length = usize::from(be16(packet, 2)?);
    let (ttl, protocol) = (*packet.get(8)?, *packet.get(9)?);
    let [source, destination] =
        [12, 16].map(|at| be32(packet, at).map(|bits| Ipv4Addr::from(bits).to_string()));
    let (source, destination) = (source?, destination?);
    let offset = be16(packet, 6)?;
    let payload = packet.get(header..).unwrap_or_default();
    let length = length.saturating_sub(header);
    let fragment = offset & 0x3fff != 0;
    let text = if offset & 0x1fff == 0 {
        transport(protocol, payload, length, [&source, &destination])
    } else {
        format!("{source} > {destination}: protocol {protocol}")
    };
    let fragment = if fragment { format!(", fragment at {}", (offset & 0x1fff) * 8) } else { String::new() };
    Some(format!("IP {text}, ttl {ttl}{fragment}"))
}

fn ipv6(packet: &[u8]) -> Option<String> {
    let (mut next, hop_limit) = (*packet.get(6)?, *packet.get(7)?);
    let address = |at: usize| {
        let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).to_string())
    };
    let (source, destination) = (address(8)?, address(24)?);
    let (mut at, mut length) = (40, usize::from(be16(packet, 4)?));
    let mut fragment = String::new();
    if next == FRAGMENT {
        let offset = be16(packet, 42)? & !7;
        fragment = format!(", fragment at {offset}");
        (next, at, length) = (*packet.get(40)?, 48, length.saturating_sub(8));
        if offset != 0 {
            return Some(format!(
                "IP6 {source} > {destination}: protocol {next}, hlim {hop_limit}{fragment}"
            ));
        }
    }
    let text = transport(next, packet.get(at..).unwrap_or_default(), length, [&source, &destination]);
    Some(format!("IP6 {text}, hlim {hop_limit}{fragment}"))
}

/// The part behind an IP header, with the addresses before it; `length` is what the header says.
fn transport(protocol: u8, payload: &[u8], length: usize, [source, destination]: [&str; 2]) -> String {
    let ports = be16(payload, 0).zip(be16(payload, 2));
    let hosts = format!("{source} > {destination}");
    match (protocol, ports) {
        (TCP, Some((from, to))) => format!("{source}.{from} > {destination}.{to}: {}", tcp(payload, length)),
        (UDP, Some((from, to))) => {
            format!("{source}.{from} > {destination}.{to}: UDP, length {}", length.saturating_sub(8))
        }
        (ICMP | ICMPV6, Some(_)) => format!("{hosts}: {}, length {length}", icmp(protocol, payload)),
        (ESP, Some(_)) => format!(
            "{hosts}: ESP(spi=0x{:08x},seq=0x{:x}), length {length}",
            be32(payload, 0).unwrap_or_default(),
            be32(payload, 4).unwrap_or_default()
        ),
        _ => format!("{hosts}: protocol {protocol}, length {length}"),
    }
}

fn tcp(segment: &[u8], length: usize) -> String {
    let Some(flags) = segment.get(13) else { return "TCP, a truncated header".into() };
    // In the order in which tcpdump prints them.
    let names = [(2, "S"), (1, "F"), (4, "R"), (8, "P"), (32, "U"), (64, "E"), (128, "W"), (16, ".")];
    let set: String = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    let set = if set.is_empty() { "none".into() } else { set };
    let header = usize::from(segment[12] >> 4) * 4;
    let mut text = format!("Flags [{set}], seq {}", be32(segment, 4).unwrap_or_default());
    if flags & 16 != 0 {
        let _written = write!(text, ", ack {}", be32(segment, 8).unwrap_or_default());
    }
    let window = be16(segment, 14).unwrap_or_default();
    let _written = write!(text, ", win {window}, length {}", length.saturating_sub(header));
    text
}

fn icmp(protocol: u8, message: &[u8]) -> String {
    let (kind, code) = (message[0], message[1]);
    let name = if protocol == ICMP { "ICMP" } else { "ICMP6" };
    let what = match (protocol, kind) {
        (ICMP, 8) | (ICMPV6, 128) => "echo request",
        (ICMP, 0) | (ICMPV6, 129) => "echo reply",
        (ICMP, 3) | (ICMPV6, 1) => "destination unreachable",
        (ICMP, 11) | (ICMPV6, 3) => "time exceeded",
        (ICMPV6, 2) => "packet too big",
        (ICMPV6, 133) => "router solicitation",
        (ICMPV6, 134) => "router advertisement",
        (ICMPV6, 135) => "neighbor solicitation",
        (ICMPV6, 136) => "neighbor advertisement",
        _ => return format!("{name} type {kind}, code {code}"),
    };
    match (what.starts_with("echo"), be16(message, 4), be16(message, 6)) {
        (true, Some(id), Some(sequence)) => format!("{name} {what}, id {id}, seq {sequence}"),
        (true, ..) => format!("{name} {what}"),
        _ => format!("{name} {what}, code {code}"),
    }
}

fn arp(message: &[u8]) -> Option<String> {
    let [sender, target] = [14, 24].map(|at| be32(message, at).map(Ipv4Addr::from));
    let (sender, target) = (sender?, target?);
    Some(match be16(message, 6)? {
        1 => format!("ARP, Request who-has {target} tell {sender}"),
        2 => {
            let mac: Vec<_> = message.get(8..14)?.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("ARP, Reply {sender} is-at {}", mac.join(":"))
        }
        operation => format!("ARP, operation {operation}, {sender} to {target}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: [u8; 2], packet: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &ethertype, packet].concat()
    }

    const UDP_PACKET: [u8; 30] = [
        0x45, 0, 0, 30, 0, 1, 0, 0, 63, 17, 0, 0, 192, 0, 2, 2, 198, 51, 100, 2, 4, 210, 0, 53, 0, 10, 0, 0,
        1, 2,
    ];

    #[test]
    fn a_line_says_who_talks_to_whom() {
        let line = "IP 192.0.2.2.1234 > 198.51.100.2.53: UDP, length 2, ttl 63";
        assert_eq!(summary(&frame([8, 0], &UDP_PACKET)), line);
        let tagged = [&[0, 5, 8, 0], &UDP_PACKET[..]].concat();
        assert_eq!(summary(&frame([0x81, 0], &tagged)), format!("vlan 5, {line}"));
    }

    #[test]
    fn other_packets_are_named() {
        let mut tcp = UDP_PACKET.to_vec();
        (tcp[9], tcp[3]) = (6, 44);
        tcp.extend([0, 9, 0x60, 0x12, 1, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
        tcp.splice(24..32, [0, 0, 0, 7, 0, 0, 0, 9]);
        let text = summary(&frame([8, 0], &tcp));
        assert_eq!(
            text,
            "IP 192.0.2.2.1234 > 198.51.100.2.53: Flags [S.], seq 7, ack 9, win 256, length 0, ttl 63"
        );
        let mut later = UDP_PACKET;
        later[7] = 10;
        let text = summary(&frame([8, 0], &later));
        assert_eq!(text, "IP 192.0.2.2 > 198.51.100.2: protocol 17, ttl 63, fragment at 80");
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        assert_eq!(summary(&frame([8, 6], &arp)), "ARP, Request who-has 10.0.0.2 tell 10.0.0.1");
        let mut echo = [&[0x60, 0, 0, 0, 0, 8, 58, 64][..], &[0x20; 32]].concat();
        echo.extend([128, 0, 0, 0, 0, 3, 0, 4]);
        let host = "2020:2020:2020:2020:2020:2020:2020:2020";
        let text = format!("IP6 {host} > {host}: ICMP6 echo request, id 3, seq 4, length 8, hlim 64");
        assert_eq!(summary(&frame([0x86, 0xdd], &echo)), text);
    }

    #[test]
    fn any_bytes_make_a_line() {
        let echo = frame([8, 0], &UDP_PACKET);
        for ethertype in [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0], [1, 2]] {
            for protocol in [1, 6, 17, 44, 50, 58, 99] {
                let mut packet = UDP_PACKET.to_vec();
                (packet[6], packet[9]) = (protocol, protocol);
                packet.extend([protocol; 40]);
                let whole = frame(ethertype, &packet);
                (0..=whole.len()).for_each(|length| assert!(!summary(&whole[..length]).is_empty()));
            }
        }
        assert!(!summary(&echo[..3]).is_empty());
    }
}
