//! All libraries make the same bytes, and refuse the same packets. The one that is always there is the reference; its
//! own bytes are compared with vectors and with Scapy's.

use proptest::prelude::*;

use super::*;
use crate::suite::ESP_HEADER;

/// A cipher and lanes for each library of a suite.
fn all(suite: Suite, key: u8) -> Vec<(Library, Cipher, Lanes)> {
    let secret = |length: usize| Secret::new(&(0..length).map(|at| key ^ at as u8).collect::<Vec<_>>());
    let (encryption, integrity) = (secret(suite.encryption_key_len()), secret(suite.integrity_key_len()));
    let of = |library: Library| {
        let cipher = Cipher::new(suite, &encryption, &integrity, Choice::one(library));
        (library, cipher, Lanes::with([library]))
    };
    Library::all(suite).into_iter().map(of).collect()
}

/// A packet with at least this many bytes to encrypt, and nothing in IV and ICV.
fn plain(suite: Suite, bytes: usize, seed: u8) -> Vec<u8> {
    let whole = bytes + 2 + suite.padding(bytes);
    let around = ESP_HEADER + suite.iv_len();
    let mut packet: Vec<u8> = (0..around + whole).map(|at| seed.wrapping_add(at as u8)).collect();
    packet.resize(packet.len() + suite.icv_len(), 0);
    packet
}

fn sealed((_, cipher, lanes): &mut (Library, Cipher, Lanes), packets: &[Vec<u8>], esn: bool) -> Vec<Vec<u8>> {
    let mut packets = packets.to_vec();
    let jobs = packets.iter_mut().zip(0u32..).map(|(packet, at)| Seal {
        packet,
        iv: u64::from(at) << 7 | 1 << 60,
        esn_high: esn.then_some(at ^ 0x8000_0001),
    });
    cipher.seal_all(lanes, jobs);
    packets
}

type Opened = Vec<(Result<(), Failure>, Vec<u8>)>;

fn opened((_, cipher, lanes): &mut (Library, Cipher, Lanes), packets: &[Vec<u8>], esn: bool) -> Opened {
    let mut all: Opened = packets.iter().map(|packet| (Ok(()), packet.clone())).collect();
    let jobs = all.iter_mut().zip(0u32..).map(|((outcome, packet), at)| Open {
        packet,
        esn_high: esn.then_some(at ^ 0x8000_0001),
        outcome,
    });
    cipher.open_all(lanes, jobs);
    all
}

/// Seals with all libraries, opens with all, and damages the packets whose place is in `bad`.
fn check(suite: Suite, packets: &[Vec<u8>], esn: bool, bad: &[(usize, usize)]) {
    let mut libraries = all(suite, packets.len() as u8);
    let expected = sealed(&mut libraries[0], packets, esn);
    let mut damaged = expected.clone();
    for (at, byte) in bad {
        let packet = &mut damaged[at % packets.len()];
        let byte = byte % packet.len();
        packet[byte] ^= 1 << (byte % 8);
    }
    for library in &mut libraries {
        let name = format!("{suite} {} esn {esn}", library.0);
        assert!(sealed(library, packets, esn) == expected, "{name}: other bytes");
        let around = ESP_HEADER + suite.iv_len();
        for (at, (outcome, packet)) in opened(library, &damaged, esn).into_iter().enumerate() {
            let right = damaged[at] == expected[at];
            assert_eq!(outcome, if right { Ok(()) } else { Err(Failure::Integrity) }, "{name} packet {at}");
            let end = packet.len() - suite.icv_len();
            assert!(!right || packet[around..end] == packets[at][around..end], "{name} packet {at}");
        }
        if esn {
            // Another high half is another packet.
            let outcomes = opened(library, &expected, false);
            assert!(outcomes.iter().all(|(outcome, _)| *outcome == Err(Failure::Integrity)), "{name}");
        }
    }
}

#[test]
fn libraries_agree_on_every_size() {
    for suite in Suite::ALL {
        for esn in [false, true] {
            for first in (1..1500).step_by(37) {
                let packets: Vec<_> =
                    (first..first + 37).map(|bytes| plain(suite, bytes, bytes as u8)).collect();
                check(suite, &packets, esn, &[(17, first)]);
            }
        }
    }
}

#[cfg(all(feature = "ipsec-mb", target_arch = "x86_64"))]
#[test]
fn ipsec_mb_is_among_the_libraries() {
    for suite in Suite::ALL.into_iter().filter(|suite| *suite != Suite::ChaCha20Poly1305) {
        assert!(Library::all(suite).contains(&Library::IpsecMb(Manager::Sse)), "{suite}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Bursts of any sizes in any order, with any packets damaged, at the start of which and behind which nothing else
    /// in memory changes.
    #[test]
    fn libraries_agree_on_bursts(
        suite in prop::sample::select(&Suite::ALL[..]),
        sizes in prop::collection::vec((1usize..1500, any::<u8>()), 1..80),
        bad in prop::collection::vec((any::<usize>(), any::<usize>()), 0..6),
        esn in any::<bool>(),
    ) {
        let packets: Vec<_> = sizes.iter().map(|&(bytes, seed)| plain(suite, bytes, seed)).collect();
        check(suite, &packets, esn, &bad);
    }
}

#[test]
fn only_the_packet_changes() {
    for suite in Suite::ALL {
        for (library, cipher, mut lanes) in all(suite, 9) {
            let packets: Vec<_> = [1, 50, 51, 700, 1400].map(|bytes| plain(suite, bytes, 1)).into();
            let margin = 64;
            let mut slots: Vec<Vec<u8>> =
                packets.iter().map(|packet| [&[0xaa; 64][..], packet, &[0xbb; 64]].concat()).collect();
            let inside = |slot: &Vec<u8>| margin..slot.len() - margin;
            cipher.seal_all(
                &mut lanes,
                slots.iter_mut().map(|slot| {
                    let range = inside(slot);
                    Seal { packet: &mut slot[range], iv: 3, esn_high: Some(1) }
                }),
            );
            let mut outcomes = vec![Ok(()); slots.len()];
            cipher.open_all(
                &mut lanes,
                slots.iter_mut().zip(&mut outcomes).map(|(slot, outcome)| {
                    let range = inside(slot);
                    Open { packet: &mut slot[range], esn_high: Some(1), outcome }
                }),
            );
            assert!(outcomes.iter().all(Result::is_ok), "{suite} {library}");
            for slot in slots {
                let range = inside(&slot);
                assert!(slot[..range.start].iter().all(|byte| *byte == 0xaa), "{suite} {library}");
                assert!(slot[range.end..].iter().all(|byte| *byte == 0xbb), "{suite} {library}");
            }
        }
    }
}
