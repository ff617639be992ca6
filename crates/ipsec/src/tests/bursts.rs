//! A burst does what the same packets do one after the other: outcomes, bytes, numbers, window and counters.

use super::*;
use crate::lifetime::{Limit, Limits};

/// Each packet alone, or all at once.
fn all_encrypted(
    out: &mut Outbound,
    packets: &[(Vec<u8>, usize)],
    lanes: Option<&mut Lanes>,
) -> Vec<Result<Vec<u8>, Failure>> {
    let mut slots: Vec<Vec<u8>> = packets
        .iter()
        .map(|(packet, room)| [&[0xaa; ROOM], &packet[..], &vec![0xbb; *room]].concat())
        .collect();
    let mut buffers: Vec<_> = slots
        .iter_mut()
        .zip(packets)
        .map(|(slot, (packet, _))| (Buffer::new(slot, ROOM..ROOM + packet.len()).unwrap(), ()))
        .collect();
    let mut outcomes = vec![Ok(()); packets.len()];
    match lanes {
        Some(lanes) => out.encrypt_burst(lanes, &mut buffers, &mut outcomes, 0),
        None => buffers.iter_mut().zip(&mut outcomes).for_each(|((buffer, ()), outcome)| {
            *outcome = out.encrypt(buffer, 0);
        }),
    }
    let done = buffers.iter().zip(outcomes);
    done.map(|((buffer, ()), outcome)| outcome.map(|()| buffer.data().to_vec())).collect()
}

fn all_decrypted(
    into: &mut Inbound,
    packets: &[Vec<u8>],
    lanes: Option<&mut Lanes>,
) -> Vec<Result<Vec<u8>, Failure>> {
    let mut slots: Vec<Vec<u8>> = packets.iter().map(|packet| with_room(packet)).collect();
    let mut buffers: Vec<_> = slots
        .iter_mut()
        .zip(packets)
        .map(|(slot, packet)| {
            let Ok(Located::Esp(esp)) = locate(packet) else { panic!("not ESP") };
            (Buffer::new(slot, ROOM..ROOM + packet.len()).unwrap(), esp)
        })
        .collect();
    let mut outcomes = vec![Ok(()); packets.len()];
    match lanes {
        Some(lanes) => into.decrypt_burst(lanes, &mut buffers, &mut outcomes, 0),
        None => buffers.iter_mut().zip(&mut outcomes).for_each(|((buffer, esp), outcome)| {
            *outcome = into.decrypt(buffer, esp, 0);
        }),
    }
    let done = buffers.iter().zip(outcomes);
    done.map(|((buffer, _), outcome)| outcome.map(|()| buffer.data().to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Replays and duplicates within a burst, wrong ICVs, packets in any order, and an SA that ends in the middle.
    #[test]
    fn inbound(
        kind in 0usize..112,
        payloads in prop::collection::vec(0usize..1500, 1..90),
        arrivals in prop::collection::vec((any::<usize>(), any::<Option<usize>>()), 0..40),
        hard in prop::option::of(1u64..60),
    ) {
        let mut sa = all_sas()[kind].clone();
        sa.limits = Limits { packets: Limit { soft: None, hard }, ..Limits::default() };
        let mut sender = pair(&Sa { limits: Limits::default(), ..sa.clone() }).out;
        let mut packets: Vec<Vec<u8>> = payloads
            .iter()
            .map(|payload| encrypted(&mut sender, &packet_for(&sa, payload % 2 == 1, *payload)).unwrap())
            .collect();
        // Another packet comes once more in place of this one, and may be damaged behind its SPI and number.
        for (to, from, damage) in arrivals.iter().enumerate().map(|(to, (from, damage))| (to * 2, *from, damage)) {
            let Some(mut packet) = packets.get(from % packets.len()).cloned() else { continue };
            if let Some(at) = damage {
                let front = packet.len() - 20;
                let length = packet.len();
                packet[front + at % (length - front)] ^= 0x10;
            }
            if let Some(place) = packets.get_mut(to) {
                *place = packet;
            }
        }
        let (mut alone, mut burst) = (pair(&sa).into, pair(&sa).into);
        let expected = all_decrypted(&mut alone, &packets, None);
        let found = all_decrypted(&mut burst, &packets, Some(&mut Lanes::new(Direction::In)));
        // With ESN, an old number may be taken for one that is far ahead, whose ICV is wrong: it depends on how far the
        // window has moved, which a burst learns only at its end.
        let refused = |outcome: &Result<Vec<u8>, Failure>| match outcome {
            Err(Failure::Integrity) if sa.esn => Err(Failure::Replay),
            other => other.clone(),
        };
        for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
            prop_assert!(refused(expected) == refused(found), "{:?} packet {}", sa, at);
        }
        prop_assert_eq!((alone.used(), alone.highest()), (burst.used(), burst.highest()));
    }

    /// Packets that are malformed or have no room get no number, and others in the burst are as without them.
    #[test]
    fn outbound(
        kind in 0usize..112,
        payloads in prop::collection::vec((0usize..1500, any::<bool>(), any::<bool>()), 1..90),
        numbers in 1u64..100,
    ) {
        let sa = &all_sas()[kind];
        let packets: Vec<(Vec<u8>, usize)> = payloads
            .iter()
            .map(|&(payload, is_malformed, has_room)| {
                let mut packet = packet_for(sa, payload % 2 == 1, payload);
                packet[0] ^= if is_malformed && payload % 3 == 0 { 0xf0 } else { 0 };
                (packet, if has_room || payload % 5 > 0 { ROOM } else { 3 })
            })
            .collect();
        let sender = || Outbound::new(sa, Numbers::new(sa.esn).reserve(numbers).unwrap(), 7, 0).unwrap();
        let (mut alone, mut burst) = (sender(), sender());
        let expected = all_encrypted(&mut alone, &packets, None);
        let found = all_encrypted(&mut burst, &packets, Some(&mut Lanes::new(Direction::Out)));
        for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
            prop_assert!(expected == found, "{:?} packet {}", sa, at);
        }
        let numbers = |sender: &Outbound| (sender.numbers().next(), sender.numbers().left());
        prop_assert_eq!((alone.used(), numbers(&alone)), (burst.used(), numbers(&burst)));
    }
}

#[test]
fn a_wrong_icv_in_the_middle_fails_alone() {
    for suite in Suite::ALL {
        let mut pair = pair(&sa(suite, Direction::Out));
        let plain = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 100);
        let mut packets: Vec<_> = (0..20).map(|_| encrypted(&mut pair.out, &plain).unwrap()).collect();
        *packets[11].last_mut().unwrap() ^= 1;
        let found = all_decrypted(&mut pair.into, &packets, Some(&mut Lanes::new(Direction::In)));
        for (at, found) in found.iter().enumerate() {
            let expected = if at == 11 { Err(Failure::Integrity) } else { Ok(plain.clone()) };
            assert_eq!(*found, expected, "{suite} packet {at}");
        }
        // Its number was not used, so the right packet is accepted.
        *packets[11].last_mut().unwrap() ^= 1;
        assert_eq!(decrypted(&mut pair.into, &packets[11]), Ok(plain));
    }
}
