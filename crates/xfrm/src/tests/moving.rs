//! SAs whose addresses change: what charon does to move one, and events when a NAT has changed the peer's port.

use bm_ipsec::{Direction, SaUsage};

use super::*;

/// `struct xfrm_encap_tmpl`.
fn in_udp(source: u16, destination: u16) -> Vec<u8> {
    let mut value = vec![2, 0];
    value.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
    value.resize(24, 0);
    value
}

/// An SA with UDP encapsulation and ESN, as charon adds it.
fn of_charon(source: &str, destination: &str, ports: [u16; 2]) -> Vec<u8> {
    let mut body = new_sa(source, destination, 0x1001, 7, &KEY);
    (body[at::FLAGS], body[at::WINDOW]) = (128, 0);
    let body = with(body, attribute::ENCAPSULATION, &in_udp(ports[0], ports[1]));
    with(body, attribute::REPLAY_ESN, &[1u32, 0, 0, 0, 0, 32, 0].map(u32::to_ne_bytes).concat())
}

#[test]
fn mapping_has_the_bytes_of_linux() {
    let mut lab = Lab::default();
    assert_eq!(lab.errno(kind::NEW_SA, &of_charon(PEER, OWN, [4500, 4500])), 0);
    let mapping = |lab: &mut Lab, spi, address: &str, port| {
        let sender = (address.parse().unwrap(), port);
        lab.with(|database, _, context| database.mapping(id(OWN, spi), sender, context))
    };
    lab.now.ns = 5_000_000_000;
    let answer = mapping(&mut lab, 0x1001, "203.0.113.7", 1025);
    assert!(answer.replies.is_empty() && answer.changes.is_empty());
    let [(group, event)] = &answer.events[..] else { panic!("{} events", answer.events.len()) };
    // struct nlmsghdr: 80 bytes, XFRM_MSG_MAPPING.
    let mut expected = [&80u32.to_ne_bytes()[..], &[0x26, 0, 0, 0], &[0; 8]].concat();
    // struct xfrm_user_mapping: the SA's destination, SPI, family and protocol; its reqid.
    expected
        .extend([&[192, 0, 2, 1][..], &[0; 12], &[0, 0, 0x10, 1], &2u16.to_ne_bytes(), &[50, 0]].concat());
    expected.extend(7u32.to_ne_bytes());
    // The old and the new source, and their ports.
    expected.extend([&[198, 51, 100, 1][..], &[0; 12], &[203, 0, 113, 7], &[0; 12]].concat());
    expected.extend([0x11, 0x94, 0x04, 0x01]);
    assert_eq!((*group, &event[..]), (8, &expected[..]));
    // Once a second, and only what has changed.
    lab.now.ns += 999_999_999;
    assert!(mapping(&mut lab, 0x1001, "203.0.113.7", 1025).events.is_empty());
    lab.now.ns += 1;
    assert!(mapping(&mut lab, 0x1001, PEER, 4500).events.is_empty());
    assert!(mapping(&mut lab, 0x1002, PEER, 1025).events.is_empty(), "an SA that there is not");
    assert_eq!(mapping(&mut lab, 0x1001, PEER, 1025).events.len(), 1);
    // Neither an outbound SA nor one without UDP has a sender.
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, 0x1003, 7, &[9; 20])), 0);
    let outbound = |lab: &mut Lab| {
        let sender = ("203.0.113.7".parse().unwrap(), 1025);
        lab.with(|database, _, context| database.mapping(id(PEER, 0x1003), sender, context))
    };
    assert!(outbound(&mut lab).events.is_empty());
}

/// The attributes behind a structure.
fn attributes(body: &[u8], length: usize) -> Vec<(u16, Vec<u8>)> {
    let found = crate::message::attributes(body, length).unwrap();
    found.into_iter().map(|(kind, value)| (kind, value.to_vec())).collect()
}

/// Moves an SA as charon's plugin kernel-netlink does: GETSA, GETAE, DELSA, NEWSA with all attributes of the first answer,
/// the lifetime of the second one, and other addresses and ports.
fn move_sa(lab: &mut Lab, destination: &str, to: [&str; 2], ports: [u16; 2]) -> Answer {
    let got = lab.ask(kind::GET_SA, 1, &sa_id(destination, 0x1001));
    let body = only(&got.replies).body.to_vec();
    // struct xfrm_aevent_id, with XFRM_AE_RVAL.
    let ae = [sa_id(destination, 0x1001), vec![0; 16], vec![4, 0, 0, 0, 0, 0, 0, 0]].concat();
    let counted = lab.ask(kind::GET_AE, 1, &ae);
    assert_eq!(only(&counted.replies).kind, kind::NEW_AE);
    let counted = attributes(only(&counted.replies).body, 48);
    assert_eq!(lab.errno(kind::DELETE_SA, &sa_id(destination, 0x1001)), 0);
    let mut moved = body[..at::LENGTH].to_vec();
    let ends = sa_info(to[0], to[1], 0x1001, 7);
    moved[at::DESTINATION..][..16].copy_from_slice(&ends[at::DESTINATION..][..16]);
    moved[at::SOURCE..][..16].copy_from_slice(&ends[at::SOURCE..][..16]);
    for (kind, value) in attributes(&body, at::LENGTH) {
        let value = if kind == attribute::ENCAPSULATION { in_udp(ports[0], ports[1]) } else { value };
        moved = with(moved, kind, &value);
    }
    for (kind, value) in counted {
        moved = with(moved, kind, &value);
    }
    lab.ask(kind::NEW_SA, 5, &moved)
}

#[test]
fn an_sa_that_charon_moves_goes_on() {
    for (ends, moved, direction) in [
        ([OWN, PEER], [OWN, "203.0.113.7"], Direction::Out),
        ([PEER, OWN], ["203.0.113.7", OWN], Direction::In),
        // The address of this machine is another one, which the machine may have lost again already.
        ([PEER, OWN], [PEER, "192.0.2.99"], Direction::In),
    ] {
        let mut lab = Lab { now: Now { epoch_s: 5_000, ns: 1_000_000_000 }, ..Lab::default() };
        lab.client.process = 42;
        let mut body = of_charon(ends[0], ends[1], [4500, 4500]);
        body[at::LIMITS + 40..][..8].copy_from_slice(&100u64.to_ne_bytes());
        assert_eq!(lab.errno(kind::NEW_SA, &body), 0);
        lab.now = Now { epoch_s: 5_060, ns: 61_000_000_000 };
        let number = 1 << 32 | 500;
        lab.usage = Usage { bytes: 8400, packets: 100, number, failures: 2, first_ns: 31_000_000_000 };
        let added = move_sa(&mut lab, ends[1], moved, [1025, 4500]);
        assert_eq!(errno(&added), 0);
        let [Change::AddSa { sa, sent, received, used }] = &added.changes[..] else { panic!() };
        let sa_of = |sa: &bm_ipsec::Sa| (sa.direction, sa.source.to_string(), sa.destination.to_string());
        assert_eq!(sa_of(sa), (direction, moved[0].to_owned(), moved[1].to_owned()));
        assert_eq!((sa.encryption_key.bytes(), sa.esn, sa.replay_window), (&KEY[..], true, 32));
        assert_eq!(sa.udp.map(|udp| (udp.source, udp.destination)), Some((1025, 4500)));
        let numbers = if direction == Direction::Out { (number - 1, 0) } else { (0, number) };
        assert_eq!((*sent, *received), numbers);
        let expected =
            SaUsage { bytes: 8400, packets: 100, added_ns: 1_000_000_000, first_ns: 31_000_000_000 };
        assert_eq!(*used, Some(expected));
        // Its lifetime is that of before: 100 s after it was added first.
        let expire = |lab: &mut Lab| kinds(&lab.with(|database, _, context| database.expire(context)));
        lab.now.ns = 100_999_999_999;
        assert!(expire(&mut lab).is_empty());
        lab.now.ns += 1;
        assert_eq!(expire(&mut lab), ["remove"]);
    }
}

#[test]
fn of_two_equal_attributes_the_last_one_counts() {
    let mut lab = Lab::default();
    let replay = |sent: u8| [sent, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let body = with(new_sa(OWN, PEER, 0x1001, 1, &KEY), attribute::REPLAY, &replay(5));
    let added = lab.ask(kind::NEW_SA, 5, &with(body, attribute::REPLAY, &replay(9)));
    assert!(matches!(added.changes[..], [Change::AddSa { sent: 9, .. }]));
    // A time in the future is taken for now.
    let lifetime = [0u64, 0, 99, 99].map(u64::to_ne_bytes).concat();
    lab.now = Now { epoch_s: 50, ns: 7 };
    let body = with(new_sa(OWN, PEER, 0x1002, 1, &[9; 20]), attribute::LIFETIME, &lifetime);
    let added = lab.ask(kind::NEW_SA, 5, &body);
    let [Change::AddSa { used: Some(used), .. }] = &added.changes[..] else { panic!() };
    assert_eq!((used.added_ns, used.first_ns), (7, 7));
    let cut = with(new_sa(OWN, PEER, 0x1003, 1, &[8; 20]), attribute::LIFETIME, &lifetime[..31]);
    assert_eq!(lab.errno(kind::NEW_SA, &cut), number::INVALID);
}

#[test]
fn lifetimes_since_the_first_use_begin_with_a_packet() {
    let mut lab = Lab::default();
    let mut body = new_sa(OWN, PEER, 0x1001, 1, &KEY);
    body[at::LIMITS + 48..][..16].copy_from_slice(&[10u64.to_ne_bytes(), 20u64.to_ne_bytes()].concat());
    assert_eq!(lab.errno(kind::NEW_SA, &body), 0);
    let mut expire = |seconds: u64, first_s: u64| {
        lab.now = Now { epoch_s: 1_000 + seconds, ns: seconds * 1_000_000_000 };
        lab.usage = Usage { packets: first_s.min(1), first_ns: first_s * 1_000_000_000, ..Usage::default() };
        let answer = lab.with(|database, _, context| database.expire(context));
        let ends = answer.events.iter().filter(|(group, _)| *group == 2);
        let ends = ends.map(|(_, event)| {
            let event = Messages(event).next().unwrap();
            (event.body[224], read::<u64>(event.body, at::USED + 24))
        });
        (ends.collect::<Vec<_>>(), kinds(&answer))
    };
    let none = (Vec::new(), Vec::new());
    assert_eq!(expire(500, 0), none, "it is not used");
    assert_eq!(expire(509, 500), none);
    assert_eq!(expire(510, 500), (vec![(0, 1_500)], Vec::new()));
    assert_eq!(expire(519, 500), none, "the soft one once");
    assert_eq!(expire(520, 500), (vec![(1, 1_500)], vec!["remove"]));
}
