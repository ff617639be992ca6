//! Each failure by name, and that the SA is as before.

use super::*;
use crate::header::set_length;
use crate::lifetime::{Expiry, Limit, Limits};

fn plain() -> Vec<u8> {
    ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 40)
}

#[test]
fn wrong_icv_changes_nothing() {
    for suite in Suite::ALL {
        let mut pair = pair(&sa(suite, Direction::Out));
        let sent = encrypted(&mut pair.out, &plain()).unwrap();
        for at in 20..sent.len() {
            let mut damaged = sent.clone();
            damaged[at] ^= 0x80;
            if at < 24 {
                continue;
            }
            assert_eq!(decrypted(&mut pair.into, &damaged), Err(Failure::Integrity), "{suite} byte {at}");
            assert_eq!((pair.into.highest(), pair.into.used().packets), (0, 0));
        }
        assert_eq!(decrypted(&mut pair.into, &sent), Ok(plain()));
    }
}

#[test]
fn short_packets() {
    for suite in Suite::ALL {
        let mut pair = pair(&sa(suite, Direction::Out));
        let sent = encrypted(&mut pair.out, &plain()).unwrap();
        for length in 20..sent.len() {
            let mut cut = sent[..length].to_vec();
            set_length(&mut cut, 20);
            let found = match locate(&cut) {
                Ok(_) => decrypted(&mut pair.into, &cut).unwrap_err(),
                Err(failure) => failure,
            };
            assert!([Failure::TooShort, Failure::Integrity].contains(&found), "{suite} {length}: {found:?}");
        }
        assert_eq!(pair.into.used().packets, 0);
    }
}

#[test]
fn not_for_esp() {
    let mut other = plain();
    assert_eq!(locate(&other), Err(Failure::NotEsp));
    other[6] = 0x20;
    set_length(&mut other, 20);
    assert_eq!(locate(&other), Err(Failure::Fragment));
    assert_eq!([locate(&[]), locate(&[0x45; 10]), locate(&[0x10; 60])], [Err(Failure::Malformed); 3]);
    let nat = |payload: &[u8]| {
        let mut packet = ipv4_udp([192, 0, 2, 1], [192, 0, 2, 2], [4500, 4500], payload.len());
        packet[28..].copy_from_slice(payload);
        packet
    };
    assert_eq!(locate(&nat(&[0xff])), Ok(Located::Keepalive));
    assert_eq!(locate(&nat(&[0, 0, 0, 0, 1, 2, 3])), Ok(Located::Ike));
    assert_eq!([locate(&nat(&[])), locate(&nat(&[1, 2]))], [Err(Failure::TooShort); 2]);
    let esp = nat(&[0, 0, 1, 0, 0, 0, 0, 1]);
    assert!(matches!(locate(&esp), Ok(Located::Esp(found)) if found.id(&esp).spi == 256));
}

#[test]
fn encapsulation_must_be_that_of_the_sa() {
    let plain_sa = sa(Suite::Aes128Gcm, Direction::Out);
    let in_udp = Sa { udp: Some(UdpPorts { source: 4500, destination: 4500 }), ..plain_sa.clone() };
    let (mut one, mut other) = (pair(&plain_sa), pair(&in_udp));
    let sent = encrypted(&mut one.out, &plain()).unwrap();
    assert_eq!(decrypted(&mut other.into, &sent), Err(Failure::Encapsulation));
    let sent = encrypted(&mut other.out, &plain()).unwrap();
    assert_eq!(decrypted(&mut one.into, &sent), Err(Failure::Encapsulation));
}

#[test]
fn no_room() {
    let sa = sa(Suite::Aes128Sha256, Direction::Out);
    let mut out = pair(&sa).out;
    let packet = plain();
    // Outer header, ESP header and IV in front; padding, trailer and ICV behind.
    let (front, back) = (20 + 8 + 16, 10 + 2 + 16);
    for (front, back, outcome) in [
        (front - 1, back, Err(Failure::NoHeadroom)),
        (front, back - 1, Err(Failure::NoTailroom)),
        (front, back, Ok(())),
    ] {
        let mut bytes = [&vec![0; front][..], &packet, &vec![0; back]].concat();
        let mut buffer = Buffer::new(&mut bytes, front..front + packet.len()).unwrap();
        let left = out.numbers().left();
        assert_eq!(out.encrypt(&mut buffer, 0), outcome);
        assert_eq!(left - out.numbers().left(), u64::from(outcome.is_ok()));
    }
}

#[test]
fn too_long_and_too_big() {
    let sa = Sa { path_mtu: 1400, ..sa(Suite::Aes128Gcm, Direction::Out) };
    let mut out = pair(&sa).out;
    let largest = out.inner_mtu(0);
    assert_eq!(largest, 1400 - 20 - 8 - 8 - 16 - 2);
    let mut packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], largest - 28);
    packet[6] = 0x40;
    assert_eq!(encrypted(&mut out, &packet).unwrap().len(), 1400);
    let mut packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], largest - 27);
    assert_eq!(encrypted(&mut out, &packet).unwrap().len(), 1404, "may be fragmented");
    packet[6] = 0x40;
    assert_eq!(encrypted(&mut out, &packet), Err(Failure::TooBig));
    assert_eq!(encrypted(&mut out, &ipv6_udp(1, 2, [1, 2], largest)), Err(Failure::TooBig));
    let huge = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 65_535 - 28);
    assert_eq!(encrypted(&mut out, &huge), Err(Failure::TooLong));
    let transport = Sa { mode: Mode::Transport, ..sa };
    assert_eq!(pair(&transport).out.inner_mtu(20), 1400 - 8 - 8 - 16 - 2);
}

#[test]
fn transport_mode_takes_whole_packets_only() {
    let mut out = pair(&Sa { mode: Mode::Transport, ..sa(Suite::Aes128Gcm, Direction::Out) }).out;
    let mut packet = plain();
    packet[7] = 5;
    assert_eq!(encrypted(&mut out, &packet), Err(Failure::Fragment));
    let mut packet = ipv6_udp(1, 2, [1, 2], 40);
    (packet[6], packet[40], packet[41]) = (44, 17, 0);
    assert_eq!(encrypted(&mut out, &packet), Err(Failure::Fragment));
    assert_eq!(encrypted(&mut out, &[0x45; 10]), Err(Failure::Malformed));
}

#[test]
fn hard_lifetimes_end_an_sa() {
    let limit = |soft, hard| Limit { soft: Some(soft), hard: Some(hard) };
    let limits = Limits { packets: limit(2, 3), ..Limits::default() };
    let mut both = pair(&Sa { limits, ..sa(Suite::Aes128Gcm, Direction::Out) });
    for expiry in [None, Some(Expiry::Soft), Some(Expiry::Hard)] {
        let sent = encrypted(&mut both.out, &plain()).unwrap();
        decrypted(&mut both.into, &sent).unwrap();
        assert_eq!((both.out.expiry(0), both.into.expiry(0)), (expiry, expiry));
    }
    let fourth = encrypted(&mut both.out, &plain());
    assert_eq!((fourth, both.out.numbers().next()), (Err(Failure::Lifetime), 4));
    let limits = Limits { bytes: limit(68, 136), ..Limits::default() };
    let mut bytes = pair(&Sa { limits, ..sa(Suite::Aes128Gcm, Direction::Out) });
    let sent = encrypted(&mut bytes.out, &plain()).unwrap();
    assert_eq!(
        (sent.len(), bytes.out.used().bytes, bytes.out.expiry(0)),
        (20 + 8 + 8 + 72 + 16, 68, Some(Expiry::Soft))
    );
    encrypted(&mut bytes.out, &plain()).unwrap();
    assert_eq!(encrypted(&mut bytes.out, &plain()), Err(Failure::Lifetime));
    let limits = Limits { time_ns: limit(10, 20), ..Limits::default() };
    let time = pair(&Sa { limits, ..sa(Suite::Aes128Gcm, Direction::Out) });
    assert_eq!((time.into.expiry(10), time.into.expiry(20)), (Some(Expiry::Soft), Some(Expiry::Hard)));
}

#[test]
fn sequence_numbers_run_out() {
    let sa = sa(Suite::Aes128Gcm, Direction::Out);
    let mut numbers = Numbers::after(u64::from(u32::MAX) - 3, false);
    let mut out = Outbound::new(&sa, numbers.reserve(1).unwrap(), 0, 0).unwrap();
    encrypted(&mut out, &plain()).unwrap();
    assert_eq!(encrypted(&mut out, &plain()), Err(Failure::NoSequenceNumbers));
    assert_eq!(out.continue_with(numbers.reserve(9).unwrap()).left(), 0);
    let last = [0, 1].map(|_| encrypted(&mut out, &plain()).unwrap())[1].clone();
    assert_eq!(last[24..28], [0xff; 4]);
    assert_eq!(encrypted(&mut out, &plain()), Err(Failure::SequenceOverflow));
}

/// An ESP packet with any trailer, from a peer that has the keys.
fn forged(sa: &Sa, sequence: u32, payload: &[u8], trailer: &[u8]) -> Vec<u8> {
    let cipher = crate::cipher::Cipher::new(
        sa.suite,
        &sa.encryption_key,
        &sa.integrity_key,
        crate::choice::of(sa.suite, Direction::Out),
    );
    let iv_and_payload =
        [&vec![0; sa.suite.iv_len()][..], payload, trailer, &vec![0; sa.suite.icv_len()]].concat();
    let mut esp = [&sa.spi.to_be_bytes()[..], &sequence.to_be_bytes(), &iv_and_payload].concat();
    cipher.seal(&mut esp, sequence.into(), None);
    let header = bm_wire::ipv4::Ipv4Header {
        total_len: (20 + esp.len()) as u16,
        ttl: 9,
        protocol: 50,
        source: 0xc000_0201,
        destination: 0xc000_0202,
        ..Default::default()
    };
    let mut packet = vec![0; 20];
    header.emit(&mut packet).unwrap();
    packet.extend(esp);
    packet
}

#[test]
fn what_a_peer_can_get_wrong() {
    let sa = sa(Suite::Aes128Gcm, Direction::In);
    let mut into = pair(&sa).into;
    let inner = plain();
    let with_tfc = [&inner[..], &[7; 29]].concat();
    // Payload, trailer, what comes out.
    type Case<'a> = (&'a [u8], &'a [u8], Result<Vec<u8>, Failure>);
    let cases: [Case<'_>; 10] = [
        (&inner, &[1, 2, 2, 4], Ok(inner.clone())),
        (&inner, &[1, 2, 3, 4, 5, 6, 6, 4], Ok(inner.clone())),
        (&inner, &[1, 3, 2, 4], Err(Failure::Padding)),
        (&inner, &[0, 0, 2, 4], Err(Failure::Padding)),
        (&inner, &[1, 2, 255, 4], Err(Failure::Padding)),
        (&inner, &[1, 2, 2, 41], Err(Failure::NextHeader)),
        (&inner, &[1, 2, 2, 17], Err(Failure::NextHeader)),
        (&inner[..40], &[1, 2, 2, 4], Err(Failure::NextHeader)),
        (&inner, &[1, 2, 2, 59], Err(Failure::Dummy)),
        (&with_tfc, &[0, 4], Err(Failure::TooShort)),
    ];
    for (index, (payload, trailer, outcome)) in cases.into_iter().enumerate() {
        let sequence = index as u32 + 1;
        let packet = forged(&sa, sequence, payload, trailer);
        assert_eq!(decrypted(&mut into, &packet), outcome, "case {index}");
        let counts = outcome != Err(Failure::TooShort);
        assert_eq!(into.highest() == u64::from(sequence), counts, "its ICV is right, so its number is used");
    }
    // Padding for traffic flow confidentiality behind the packet's own length is removed.
    let padded = forged(&sa, 100, &[&inner[..], &[7; 34]].concat(), &[0, 4]);
    assert_eq!(decrypted(&mut into, &padded), Ok(inner));
    assert_eq!(decrypted(&mut into, &forged(&sa, 101, &[], &[1, 2, 2, 59])), Err(Failure::Dummy));
    assert_eq!(decrypted(&mut into, &forged(&sa, 102, &[], &[1, 2, 2, 4])), Err(Failure::NextHeader));
}

#[test]
fn inner_packets_outside_of_the_selectors() {
    let selector = Selector {
        source: Some("10.1.0.0/16".parse().unwrap()),
        destination: Some("10.2.0.0/16".parse().unwrap()),
        protocol: Some(17),
        destination_ports: Some(50..=60),
        ..Selector::default()
    };
    let six = Selector { destination: Some("2001:db8::/32".parse().unwrap()), ..Selector::default() };
    let sa = Sa { selectors: vec![selector, six], ..sa(Suite::ChaCha20Poly1305, Direction::In) };
    let mut both = pair(&sa);
    let v6 = |host: u128| ipv6_udp(1, host, [1, 2], 8);
    for (packet, is_allowed) in [
        (ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 50], 8), true),
        (ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 61], 8), false),
        (ipv4_udp([10, 3, 0, 1], [10, 2, 0, 1], [1, 50], 8), false),
        (ipv4_udp([10, 1, 0, 1], [10, 1, 0, 1], [1, 50], 8), false),
        (v6(0x2001_0db8 << 96 | 1), true),
        (v6(0x2001_0db9 << 96 | 1), false),
    ] {
        let sent = encrypted(&mut both.out, &packet).unwrap();
        let expected = if is_allowed { Ok(packet) } else { Err(Failure::Selector) };
        assert_eq!(decrypted(&mut both.into, &sent), expected);
    }
}

#[test]
fn both_sas_are_accepted_while_one_replaces_the_other() {
    let old = sa(Suite::Aes128Gcm, Direction::In);
    let new = Sa { spi: old.spi + 1, encryption_key: Secret::new(&[9; 20]), ..old.clone() };
    let mut table = SaTable::new();
    let mut outs = [&old, &new].map(|sa| {
        let Pair { out, into } = pair(sa);
        table.insert(sa.id(), into).unwrap();
        out
    });
    for round in 0..10 {
        let sent = encrypted(&mut outs[round % 2], &plain()).unwrap();
        let Ok(Located::Esp(esp)) = locate(&sent) else { panic!("not ESP") };
        assert_eq!(decrypted(table.find(esp.id(&sent)).unwrap(), &sent), Ok(plain()));
    }
    assert_eq!(table.remove(old.id()).unwrap().used().packets, 5);
    let late = encrypted(&mut outs[0], &plain()).unwrap();
    let Ok(Located::Esp(esp)) = locate(&late) else { panic!("not ESP") };
    assert!(table.find(esp.id(&late)).is_none());
}

#[test]
fn an_sa_with_problems_is_not_built() {
    let short = Sa { encryption_key: Secret::new(&[1; 3]), ..sa(Suite::Aes128Gcm, Direction::Out) };
    let numbers = Numbers::new(false).reserve_all().unwrap();
    assert!(matches!(
        Outbound::new(&short, numbers, 0, 0).unwrap_err().what,
        What::KeyLength { found: 3, .. }
    ));
    assert!(matches!(Inbound::new(&short, 0).unwrap_err().what, What::KeyLength { found: 3, .. }));
}
