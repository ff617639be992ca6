//! Outer headers byte by byte: DSCP, ECN, DF, lengths, checksums, UDP.

use super::*;
use crate::sa::{Df, Dscp, Ecn};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::udp::Udp;

fn ipv4_with(tos: u8, flags: u8) -> Vec<u8> {
    let mut packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 8);
    (packet[1], packet[6]) = (tos, flags);
    Ipv4::parse(&mut packet[..]).unwrap().fill_checksum();
    packet
}

#[test]
fn outer_ipv4_header() {
    let sa = Sa { ttl: 77, ..sa(Suite::Aes128Gcm, Direction::Out) };
    let mut out = pair(&sa).out;
    let sent = encrypted(&mut out, &ipv4_with(0xb9, 0x40)).unwrap();
    let expected = [0x45, 0xb9, 0, 92, 0, 1, 0x40, 0, 77, 50, 0xa8, 0xb2, 192, 0, 2, 1, 192, 0, 2, 2];
    assert_eq!(sent[..20], expected);
    assert!(Ipv4::parse(&sent[..]).unwrap().checksum_ok());
    assert_eq!(sent[20..36], [0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(sent.len(), 92);
}

#[test]
fn df_is_copied_set_or_cleared() {
    for (df, inner, outer) in
        [(Df::Copy, 0x40, true), (Df::Copy, 0, false), (Df::Set, 0, true), (Df::Clear, 0x40, false)]
    {
        let mut out = pair(&Sa { df, ..sa(Suite::Aes128Gcm, Direction::Out) }).out;
        let sent = encrypted(&mut out, &ipv4_with(0, inner)).unwrap();
        let ip = Ipv4::parse(&sent[..]).unwrap();
        assert_eq!((ip.dont_fragment(), ip.checksum_ok()), (outer, true), "{df:?}");
    }
    let mut out = pair(&sa(Suite::Aes128Gcm, Direction::Out)).out;
    let sent = encrypted(&mut out, &ipv6_udp(1, 2, [1, 2], 8)).unwrap();
    assert!(Ipv4::parse(&sent[..]).unwrap().dont_fragment(), "routers do not fragment IPv6");
    // A source that sends what every link takes gets no error, which it could not heed: the outer packet is fragmented.
    out.set_path_mtu(1300);
    let [least, more] = [1280, 1281].map(|length| encrypted(&mut out, &ipv6_udp(1, 2, [1, 2], length - 48)));
    assert!(!Ipv4::parse(&least.unwrap()[..]).unwrap().dont_fragment());
    assert_eq!(more, Err(Failure::TooBig));
}

#[test]
fn dscp_and_ecn_outside() {
    for (dscp, ecn, outer) in [
        (Dscp::Copy, Ecn::Normal, 0xb9),
        (Dscp::Set(10), Ecn::Normal, 0x29),
        (Dscp::Copy, Ecn::Compatibility, 0xb8),
    ] {
        let four = Sa { dscp, ecn, ..sa(Suite::Aes128Gcm, Direction::Out) };
        let six = Sa {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            ..four.clone()
        };
        let sent = encrypted(&mut pair(&four).out, &ipv4_with(0xb9, 0)).unwrap();
        assert_eq!(Ipv4::parse(&sent[..]).unwrap().tos(), outer);
        let sent = encrypted(&mut pair(&six).out, &ipv4_with(0xb9, 0)).unwrap();
        assert_eq!(sent[..8], [0x60 | outer >> 4, outer << 4, 0, 0, 0, 72, 50, 64]);
    }
}

#[test]
fn congestion_on_the_way_is_marked_inside() {
    let sa = sa(Suite::Aes128Gcm, Direction::Out);
    let mut both = pair(&sa);
    let mark = |sent: &mut [u8]| {
        let mut ip = Ipv4::parse(sent).unwrap();
        let tos = ip.tos() | 3;
        ip.set_tos(tos);
    };
    let mut sent = encrypted(&mut both.out, &ipv4_with(0xb8 | 2, 0)).unwrap();
    mark(&mut sent);
    let received = decrypted(&mut both.into, &sent).unwrap();
    assert_eq!(received, ipv4_with(0xb8 | 3, 0));
    let mut sent = encrypted(&mut both.out, &ipv4_with(0xb8, 0)).unwrap();
    mark(&mut sent);
    assert_eq!(decrypted(&mut both.into, &sent), Err(Failure::Ecn));
    let mut six = ipv6_udp(1, 2, [1, 2], 8);
    six[1] |= 0x10;
    let mut sent = encrypted(&mut both.out, &six).unwrap();
    mark(&mut sent);
    six[1] |= 0x30;
    assert_eq!(decrypted(&mut both.into, &sent), Ok(six));
}

#[test]
fn udp_has_a_checksum_over_ipv6_only() {
    for sa in all_sas().into_iter().filter(|sa| sa.udp.is_some()) {
        let sent = encrypted(&mut pair(&sa).out, &packet_for(&sa, false, 9)).unwrap();
        let (pseudo, payload) = match sent[0] >> 4 {
            4 => (Ipv4::parse(&sent[..]).unwrap().pseudo(), &sent[20..]),
            _ => (Ipv6::parse(&sent[..]).unwrap().pseudo(), &sent[40..]),
        };
        let udp = Udp::parse(payload).unwrap();
        assert_eq!(usize::from(udp.length()), payload.len());
        assert_eq!((udp.source_port(), udp.destination_port()), (4500, 4500));
        assert_eq!((udp.checksum() != 0, udp.checksum_ok(&pseudo)), (sent[0] >> 4 == 6, true));
    }
}

#[test]
fn ethernet_padding_behind_the_packet_is_dropped() {
    let mut both = pair(&sa(Suite::Aes128Gcm, Direction::Out));
    let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 1);
    let sent = encrypted(&mut both.out, &[&packet[..], &[0xee; 17]].concat()).unwrap();
    assert_eq!(sent.len(), 20 + 8 + 8 + 32 + 16);
    assert_eq!(decrypted(&mut both.into, &[&sent[..], &[0xee; 9]].concat()), Ok(packet));
}

#[test]
fn transport_mode_keeps_headers_that_routers_read_in_front() {
    let addresses: [IpAddr; 2] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    let [source, destination] = addresses;
    let sa = Sa { mode: Mode::Transport, source, destination, ..sa(Suite::Aes128Sha1, Direction::Out) };
    let mut both = pair(&sa);
    let plain = packet_for(&sa, true, 8);
    // Hop-by-hop (PadN), then destination options (PadN), then UDP.
    let options = [60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
    let mut packet = [&plain[..40], &options, &plain[40..]].concat();
    (packet[5], packet[6]) = (32, 0);
    let sent = encrypted(&mut both.out, &packet).unwrap();
    assert_eq!((sent[6], sent[40]), (0, 50), "hop-by-hop in front of ESP, destination options inside");
    assert_eq!(sent[48..52], sa.spi.to_be_bytes());
    assert_eq!(decrypted(&mut both.into, &sent), Ok(packet));
    let options = [7, 3, 0, 0];
    let four = Sa { mode: Mode::Transport, ..crate::testing::sa(Suite::Aes256Gcm, Direction::Out) };
    let plain = packet_for(&four, false, 8);
    let mut packet = [&plain[..20], &options, &plain[20..]].concat();
    (packet[0], packet[3]) = (0x46, packet.len() as u8);
    Ipv4::parse(&mut packet[..]).unwrap().fill_checksum();
    let mut both = pair(&four);
    let sent = encrypted(&mut both.out, &packet).unwrap();
    assert_eq!((sent[0], sent[9], &sent[20..24]), (0x46, 50, &options[..]));
    assert_eq!(decrypted(&mut both.into, &sent), Ok(packet));
}

#[test]
fn nat_changes_addresses_of_transport_mode() {
    let udp = Some(UdpPorts { source: 4500, destination: 4500 });
    let sa = Sa { mode: Mode::Transport, udp, ..sa(Suite::Aes128Gcm, Direction::Out) };
    let mut both = pair(&sa);
    let mut sent = encrypted(&mut both.out, &packet_for(&sa, false, 8)).unwrap();
    Ipv4::parse(&mut sent[..]).unwrap().set_source(0xc633_6401);
    Ipv4::parse(&mut sent[..]).unwrap().fill_checksum();
    let received = decrypted(&mut both.into, &sent).unwrap();
    let ip = Ipv4::parse(&received[..]).unwrap();
    assert!(ip.checksum_ok() && Udp::parse(ip.payload()).unwrap().checksum_ok(&ip.pseudo()));
    assert_eq!(ip.source(), 0xc633_6401);
}
