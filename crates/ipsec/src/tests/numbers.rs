//! No sequence number and no IV is used twice: not by several senders with the same keys, not over a restart.

use super::*;
use std::collections::HashSet;

/// Sequence number of 64 bits and IV of a packet that was sent.
fn number_and_iv(sa: &Sa, sent: &[u8], high: u64) -> (u64, Vec<u8>) {
    let esp = &sent[20..];
    let low = u32::from_be_bytes(*esp[4..].first_chunk().unwrap());
    (high << 32 | u64::from(low), esp[8..8 + sa.suite.iv_len()].to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Senders with the same keys take blocks, send, fail, continue, end and are restarted, in any order.
    #[test]
    fn nothing_repeats(
        suite in 0usize..7,
        mask in any::<u64>(),
        esn in any::<bool>(),
        steps in prop::collection::vec((0u8..7, 0usize..4, 1u64..6), 1..120),
    ) {
        let sa = Sa { esn, ..sa(Suite::ALL[suite], Direction::Out) };
        let mut numbers = Numbers::new(esn);
        // The number that is written down before a block is used.
        let mut recorded = 0;
        let mut senders: Vec<Outbound> = Vec::new();
        let (mut seen, mut ivs) = (HashSet::new(), HashSet::new());
        let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 8);
        for (step, which, count) in steps {
            let mut reserve = |numbers: &mut Numbers| {
                let block = numbers.reserve(count).unwrap();
                recorded = block.end() - 1;
                block
            };
            match step {
                0 => senders.push(Outbound::new(&sa, reserve(&mut numbers), mask, 0).unwrap()),
                1 if !senders.is_empty() => {
                    let at = which % senders.len();
                    let _rest = senders[at].continue_with(reserve(&mut numbers));
                }
                // A restart: all is lost but what was written down.
                2 if which == 0 => {
                    senders.clear();
                    numbers = Numbers::after(recorded, esn);
                }
                // Its numbers may be reserved again.
                3 if !senders.is_empty() => drop(senders.swap_remove(which % senders.len())),
                _ if !senders.is_empty() => {
                    let at = which % senders.len();
                    let sender = &mut senders[at];
                    for packet in [&packet[..], &packet[..10]] {
                        let high = sender.numbers().next() >> 32;
                        if let Ok(sent) = encrypted(sender, packet) {
                            let (number, iv) = number_and_iv(&sa, &sent, high);
                            prop_assert!(number >= 1 && number <= recorded);
                            prop_assert!(seen.insert(number), "{} twice", number);
                            prop_assert!(ivs.insert(iv), "IV of {} twice", number);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Masks that differ in their high half keep senders apart that have the same numbers, below 2^32 of them.
    #[test]
    fn masks_keep_senders_apart(one in any::<u64>(), other in any::<u64>(), numbers in prop::collection::vec(any::<u32>(), 2..50)) {
        prop_assume!(one >> 32 != other >> 32);
        let ivs = |mask: u64| numbers.iter().map(move |number| u64::from(*number) ^ mask).collect::<HashSet<_>>();
        prop_assert!(ivs(one).is_disjoint(&ivs(other)));
    }
}

#[test]
fn esn_goes_on_across_the_boundary() {
    for suite in [Suite::Aes128Gcm, Suite::Aes128Sha256, Suite::Aes256Sha1, Suite::ChaCha20Poly1305] {
        let sa = Sa { esn: true, ..sa(suite, Direction::Out) };
        let start = u64::from(u32::MAX) - 5;
        let numbers = Numbers::after(start, true).reserve_all().unwrap();
        let mut out = Outbound::new(&sa, numbers, 0, 0).unwrap();
        let mut into = Inbound::new(&sa, 0).unwrap();
        into.resume(start);
        let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 8);
        let sent: Vec<_> = (0..12).map(|_| encrypted(&mut out, &packet).unwrap()).collect();
        // The high half is only in the ICV: swapped packets show that it is inferred.
        for index in [0, 7, 4, 5, 3, 1, 2, 11, 10, 9, 8, 6] {
            assert_eq!(decrypted(&mut into, &sent[index]).as_ref(), Ok(&packet), "{suite} {index}");
            assert_eq!(decrypted(&mut into, &sent[index]), Err(Failure::Replay), "{suite} {index}");
        }
        assert_eq!(into.highest(), start + 12);
    }
}

#[test]
fn first_number_on_the_wire_is_1() {
    let sa = sa(Suite::Aes128Gcm, Direction::Out);
    let mut out = pair(&sa).out;
    let packet = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [1, 2], 8);
    let first = [1, 2, 3].map(|_| number_and_iv(&sa, &encrypted(&mut out, &packet).unwrap(), 0).0);
    assert_eq!(first, [1, 2, 3]);
}
