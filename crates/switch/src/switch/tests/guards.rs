//! Ports that must not pretend: to have others' addresses, to be a DHCP server, to be a router.

use super::*;
use crate::settings::PortFlags;

/// Behind `p0` is host 0 with 192.0.2.1 and 2001:db8::1.
fn lab(flags: PortFlags) -> Option<Lab> {
    let addresses = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap()).to_vec();
    let statics = vec![Static { mac: mac(0), vlan: 0, port: "p0".into(), addresses }];
    let rules = vec![PortRule { flags, ..PortRule::new(Pattern::new("p0")) }];
    Lab::with_ports(2, Settings { rules, statics, ..settings() })
}

fn ethernet(from: u8, protocol: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [&BROADCAST[..], &mac(from), &protocol.to_be_bytes(), body].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// ARP of a sender.
fn arp(from: u8, says: u8, address: [u8; 4]) -> Vec<u8> {
    let body = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &mac(says), &address, &[0; 6], &[192, 0, 2, 9]].concat();
    ethernet(from, 0x0806, &body)
}

/// UDP over IPv4.
fn udp4(from: u8, source: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
    ip.extend([source, [255; 4]].concat());
    ip.extend(ports.map(u16::to_be_bytes).concat());
    ethernet(from, 0x0800, &ip)
}

/// IPv6 with these headers behind its own, the first of that kind.
fn ipv6(from: u8, source: &str, first: u8, body: &[u8]) -> Vec<u8> {
    let source = source.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut ip = vec![0x60, 0, 0, 0, 0, body.len() as u8, first, 255];
    ip.extend([source, std::net::Ipv6Addr::LOCALHOST.octets()].concat());
    ip.extend(body);
    ethernet(from, 0x86dd, &ip)
}

/// ICMPv6 with a target.
fn icmp6(kind: u8, target: &str) -> Vec<u8> {
    let target = target.parse::<std::net::Ipv6Addr>().unwrap().octets();
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target].concat()
}

/// Frames that pass, and frames that are dropped for that reason.
fn check_frames(lab: &mut Lab, passes: &[Vec<u8>], drops: &[Vec<u8>], reason: &str) {
    for (number, frame) in passes.iter().enumerate() {
        assert_eq!(lab.run(0, frame).0, XDP_REDIRECT, "{reason}: number {number} passes: {frame:02x?}");
    }
    for (number, frame) in drops.iter().enumerate() {
        let before = lab.count(0, reason);
        assert_eq!(lab.run(0, frame).0, XDP_DROP, "{reason}: number {number} is dropped: {frame:02x?}");
        assert_eq!(lab.count(0, reason), before + 1, "{}", lab.port_counters());
    }
}

#[test]
fn a_source_guard_passes_only_addresses_of_static_macs() {
    let guard = PortFlags { source_guard: true, ..PortFlags::default() };
    let Some(mut lab) = lab(guard) else { return };
    let passes = [
        arp(0, 0, [192, 0, 2, 1]),
        arp(0, 0, [0; 4]),
        udp4(0, [192, 0, 2, 1], [1000, 2000]),
        udp4(0, [0; 4], [68, 67]),
        tagged(&udp4(0, [192, 0, 2, 1], [1000, 2000]), 5),
        ipv6(0, "2001:db8::1", 17, &[0; 8]),
        ipv6(0, "fe80::ff:fe00:0", 58, &icmp6(135, "::1")),
        ipv6(0, "::", 58, &icmp6(135, "fe80::1")),
        ipv6(0, "2001:db8::1", 58, &icmp6(136, "2001:db8::1")),
        ethernet(0, 0x88b5, b"neither"),
    ];
    let drops = [
        arp(0, 0, [192, 0, 2, 2]),
        arp(0, 3, [192, 0, 2, 1]),
        arp(3, 3, [192, 0, 2, 1]),
        udp4(0, [192, 0, 2, 2], [1000, 2000]),
        udp4(3, [192, 0, 2, 1], [1000, 2000]),
        udp4(0, [0; 4], [1000, 2000]),
        tagged(&udp4(0, [192, 0, 2, 2], [1000, 2000]), 5),
        tagged(&tagged(&tagged(&udp4(0, [192, 0, 2, 1], [1000, 2000]), 5), 6), 7),
        ipv6(0, "2001:db8::2", 17, &[0; 8]),
        ipv6(0, "fe80::1", 17, &[0; 8]),
        ipv6(0, "2001:db8::1", 58, &icmp6(136, "2001:db8::fe")),
    ];
    check_frames(&mut lab, &passes, &drops, "drop_source_guard");
    // Another port is free to send, and the MAC address of a dropped frame is not learned.
    assert_eq!(lab.run(1, &arp(5, 5, [192, 0, 2, 1])).0, XDP_REDIRECT);
    assert!(!lab.fdb().iter().any(|entry| entry.0 == 3), "{:?}", lab.fdb());
}

#[test]
fn a_dhcp_guard_passes_clients_and_no_servers() {
    let guard = PortFlags { dhcp_guard: true, ..PortFlags::default() };
    let Some(mut lab) = lab(guard) else { return };
    let ports = |ports: [u16; 2]| [&ports.map(u16::to_be_bytes).concat()[..], &[0, 0, 0, 0, 1]].concat();
    let of_kind = |mut frame: Vec<u8>, kind: u8| {
        (frame[17], frame[42]) = (29, kind);
        frame
    };
    let passes = [of_kind(udp4(0, [0; 4], [68, 67]), 1), ipv6(0, "fe80::5", 17, &ports([546, 547]))];
    let behind = [&[17, 0, 0, 0, 0, 0, 0, 0][..], &ports([547, 546])].concat();
    let drops = [
        udp4(0, [192, 0, 2, 2], [67, 68]),
        // Clients do not look at the port that an answer came from; relays accept answers at a server's port.
        udp4(0, [192, 0, 2, 2], [6767, 68]),
        of_kind(udp4(0, [192, 0, 2, 2], [6767, 67]), 2),
        udp4(0, [0; 4], [68, 67]),
        ipv6(0, "fe80::5", 17, &ports([6547, 546])),
        ipv6(0, "fe80::5", 17, &ports([547, 546])),
        ipv6(0, "fe80::5", 60, &behind),
    ];
    check_frames(&mut lab, &passes, &drops, "drop_dhcp_guard");
}

#[test]
fn an_ra_guard_passes_no_routers_however_they_hide() {
    let guard = PortFlags { ra_guard: true, ..PortFlags::default() };
    let Some(mut lab) = lab(guard) else { return };
    let advertisement = icmp6(134, "::");
    let hop_by_hop = |next: u8, body: &[u8]| [&[next, 0, 1, 4, 0, 0, 0, 0][..], body].concat();
    let first = [&[58, 0, 0, 1, 0, 0, 0, 7][..], &advertisement].concat();
    let passes = [ipv6(0, "fe80::5", 58, &icmp6(133, "::")), ipv6(0, "fe80::5", 58, &icmp6(136, "fe80::5"))];
    let drops = [
        ipv6(0, "fe80::5", 58, &advertisement),
        ipv6(0, "fe80::5", 58, &icmp6(137, "::")),
        ipv6(0, "fe80::5", 0, &hop_by_hop(58, &advertisement)),
        ipv6(0, "fe80::5", 0, &hop_by_hop(60, &hop_by_hop(58, &advertisement))),
        ipv6(0, "fe80::5", 44, &first),
        tagged(&ipv6(0, "fe80::5", 58, &advertisement), 9),
    ];
    check_frames(&mut lab, &passes, &drops, "drop_ra_guard");
    // Too many headers to look behind, and one that is cut off.
    let many = (0..6).fold(advertisement, |body, depth| hop_by_hop(if depth == 0 { 58 } else { 60 }, &body));
    let mut cut = ipv6(0, "fe80::5", 44, &[60, 0, 0, 1, 0, 0, 0, 7]);
    cut.truncate(14 + 40 + 8);
    check_frames(&mut lab, &[], &[ipv6(0, "fe80::5", 60, &many), cut], "drop_source_guard");
}
