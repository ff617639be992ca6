//! Whole packets through both ends of an SA: every suite, mode and family, and everything that can go wrong.

mod bursts;
mod failures;
mod headers;
mod locate;
mod numbers;
mod scapy;

use std::net::IpAddr;

use proptest::prelude::*;

use crate::testing::{ipv4_udp, ipv6_udp, sa};
use crate::*;

/// Room around packets in these tests.
pub(super) const ROOM: usize = 128;

/// Both ends of an SA.
pub(super) struct Pair {
    pub out: Outbound,
    pub into: Inbound,
}

pub(super) fn pair(sa: &Sa) -> Pair {
    let numbers = Numbers::new(sa.esn).reserve_all().unwrap();
    Pair { out: Outbound::new(sa, numbers, 0, 0).unwrap(), into: Inbound::new(sa, 0).unwrap() }
}

/// A packet with room around it.
pub(super) fn with_room(packet: &[u8]) -> Vec<u8> {
    [&[0xaa; ROOM], packet, &[0xbb; ROOM]].concat()
}

pub(super) fn encrypted(out: &mut Outbound, packet: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut bytes = with_room(packet);
    let mut buffer = Buffer::new(&mut bytes, ROOM..ROOM + packet.len()).unwrap();
    out.encrypt(&mut buffer, 0)?;
    Ok(buffer.data().to_vec())
}

pub(super) fn decrypted(into: &mut Inbound, packet: &[u8]) -> Result<Vec<u8>, Failure> {
    let Located::Esp(esp) = locate(packet)? else { panic!("not ESP") };
    assert_eq!(esp.id(packet), into.id());
    let mut bytes = with_room(packet);
    let mut buffer = Buffer::new(&mut bytes, ROOM..ROOM + packet.len()).unwrap();
    into.decrypt(&mut buffer, &esp, 0)?;
    Ok(buffer.data().to_vec())
}

/// Every combination that there is, with the same addresses outside as in transport mode's packets.
pub(super) fn all_sas() -> Vec<Sa> {
    let mut all = Vec::new();
    for suite in Suite::ALL {
        for mode in [Mode::Tunnel, Mode::Transport] {
            for is_ipv6 in [false, true] {
                for udp in [None, Some(UdpPorts { source: 4500, destination: 4500 })] {
                    for esn in [false, true] {
                        let addresses: [IpAddr; 2] = match is_ipv6 {
                            false => ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap()),
                            true => ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap()),
                        };
                        let [source, destination] = addresses;
                        all.push(Sa { mode, source, destination, udp, esn, ..sa(suite, Direction::Out) });
                    }
                }
            }
        }
    }
    all
}

/// A packet that an SA takes, of either family in a tunnel.
pub(super) fn packet_for(sa: &Sa, inner_ipv6: bool, payload: usize) -> Vec<u8> {
    match (sa.mode, sa.source, sa.destination) {
        (Mode::Transport, IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4_udp(source.octets(), destination.octets(), [1, 2], payload)
        }
        (Mode::Transport, IpAddr::V6(source), IpAddr::V6(destination)) => {
            ipv6_udp(source.to_bits(), destination.to_bits(), [1, 2], payload)
        }
        _ if inner_ipv6 => ipv6_udp(5, 6, [1, 2], payload),
        _ => ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], payload),
    }
}

#[test]
fn every_combination_and_size_comes_back() {
    for sa in all_sas() {
        let mut pair = pair(&sa);
        for payload in (0..130).chain([1400, 8000]) {
            let packet = packet_for(&sa, payload % 2 == 1, payload);
            let sent = encrypted(&mut pair.out, &packet).unwrap();
            assert_eq!(decrypted(&mut pair.into, &sent).as_ref(), Ok(&packet), "{sa:?} {payload}");
            assert_eq!(decrypted(&mut pair.into, &sent), Err(Failure::Replay));
        }
        assert_eq!(pair.out.used(), pair.into.used_in_tunnel(&sa, pair.out.used()));
    }
}

impl Inbound {
    /// What the inbound SA should have counted: in transport mode it counts payloads without their IP header.
    fn used_in_tunnel<'a>(&'a self, sa: &Sa, out: &'a SaUsage) -> &'a SaUsage {
        if sa.mode == Mode::Tunnel { self.used() } else { out }
    }
}

#[test]
fn bursts_are_as_single_packets() {
    for suite in Suite::ALL {
        let sa = sa(suite, Direction::Out);
        let (mut alone, mut burst) = (pair(&sa), pair(&sa));
        let packets: Vec<_> =
            (0..20).map(|index| ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], index * 61)).collect();
        let one_by_one: Vec<_> =
            packets.iter().map(|packet| encrypted(&mut alone.out, packet).unwrap()).collect();
        let mut slots: Vec<_> = packets.iter().map(|packet| with_room(packet)).collect();
        let mut buffers: Vec<_> = slots
            .iter_mut()
            .zip(&packets)
            .map(|(slot, packet)| (Buffer::new(slot, ROOM..ROOM + packet.len()).unwrap(), ()))
            .collect();
        let mut outcomes = vec![Err(Failure::NoSa); 20];
        burst.out.encrypt_burst(&mut Lanes::new(Direction::Out), &mut buffers, &mut outcomes, 0);
        assert_eq!(outcomes, vec![Ok(()); 20]);
        let sent: Vec<_> = buffers.iter().map(|(buffer, ())| buffer.data().to_vec()).collect();
        assert_eq!(sent, one_by_one, "{suite}");
        let located = buffers.into_iter().map(|(buffer, ())| {
            let Ok(Located::Esp(esp)) = locate(buffer.data()) else { panic!("not ESP") };
            (buffer, esp)
        });
        let mut located: Vec<_> = located.collect();
        burst.into.decrypt_burst(&mut Lanes::new(Direction::In), &mut located, &mut outcomes, 0);
        assert_eq!(outcomes, vec![Ok(()); 20]);
        let received: Vec<_> = located.iter().map(|(buffer, _)| buffer.data().to_vec()).collect();
        assert_eq!(received, packets);
    }
}

#[test]
fn ipsec_of_debug_shows_no_key() {
    let sa = sa(Suite::Aes256Sha256, Direction::Out);
    let pair = pair(&sa);
    let shown = format!("{sa:?} {:?} {:?}", pair.out, pair.into);
    assert!(shown.contains("Secret(32 bytes)") && shown.contains("Outbound") && shown.contains("highest"));
    for byte in sa.encryption_key.bytes().windows(3) {
        assert!(!shown.contains(&format!("{}, {}, {}", byte[0], byte[1], byte[2])), "{shown}");
        assert!(!shown.contains(&format!("{:02x}{:02x}{:02x}", byte[0], byte[1], byte[2])), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever arrives, nothing panics, and nothing but a packet of the peer changes the SA.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..112) {
        let sa = &all_sas()[kind];
        let mut pair = pair(sa);
        let mut packet = encrypted(&mut pair.out, &packet_for(sa, false, 40)).unwrap();
        for (byte, change) in packet.iter_mut().zip(&bytes) {
            *byte ^= change;
        }
        for packet in [&packet[..], &bytes] {
            let Ok(Located::Esp(esp)) = locate(packet) else { continue };
            let before = (*pair.into.used(), pair.into.highest());
            let mut slot = with_room(packet);
            let mut buffer = Buffer::new(&mut slot, ROOM..ROOM + packet.len()).unwrap();
            if pair.into.decrypt(&mut buffer, &esp, 0).is_err() {
                prop_assert_eq!((*pair.into.used(), pair.into.highest()), before);
            }
        }
        let mut slot = with_room(&bytes);
        let mut buffer = Buffer::new(&mut slot, ROOM..ROOM + bytes.len()).unwrap();
        let used = *pair.out.used();
        if pair.out.encrypt(&mut buffer, 0).is_err() {
            prop_assert_eq!(*pair.out.used(), used);
        }
    }
}
