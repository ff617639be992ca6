//! IPsec interfaces: only routes and the number of an interface decide which packets its SAs encrypt, and what they decrypt
//! arrives on the interface.

use super::*;
use bm_ipsec::{Buffer, Inbound, Located, locate};
use bm_wire::icmp::Icmp;
use bm_wire::ipv4::Ipv4;

/// What is behind the other ends is routed to interfaces, and the other ends are not.
const INTERFACES: &str = "
    interface one 2 02:00:00:00:00:03 if_id 42 10.42.0.1/30 2001:db8:42::1/64
    interface two 2 02:00:00:00:00:04 if_id 43 vlan 7 mtu 1300
    route 10.2.0.0/16 dev one
    route 10.3.0.0/16 dev two
    route 2001:db8:2::/48 dev one";
/// The port of both.
const IPSEC: usize = 2;

fn lines(more: &str) -> String {
    format!("{LINES}{INTERFACES}\n{more}")
}

fn of_interface(if_id: u32, direction: Direction, action: Action) -> Policy {
    Policy { if_id, ..policy(direction, action) }
}

/// A plan with these SAs and policies, and where further numbers come from.
fn plan_of(sas: &[Sa], policies: Vec<Policy>) -> (IpsecPlan, Vec<Producer<bm_ipsec::Block>>) {
    let (mut all, mut blocks): (Vec<SaPlan>, Vec<_>) = (Vec::new(), Vec::new());
    for sa in sas {
        let (plan, more) = plan(sa, 0);
        all.extend(plan.sas);
        blocks.push(more);
    }
    let policies = Policies::new(policies).unwrap().into();
    (IpsecPlan { policies, lists: Vec::new(), current: Vec::new(), sas: all, of_kernel: false }, blocks)
}

/// The SA of an interface, with an SPI of its own.
fn sa_of(if_id: u32, direction: Direction) -> Sa {
    Sa { if_id, direction, spi: SPI + if_id, ..first().sa }
}

/// A router with an outbound SA and policy for each of the interfaces.
fn both(more: &str) -> (Lab, Vec<Producer<bm_ipsec::Block>>) {
    let sas = [42, 43].map(|if_id| sa_of(if_id, Direction::Out));
    let policies =
        sas.iter().map(|sa| of_interface(sa.if_id, Direction::Out, Action::Protect(sa.id()))).collect();
    let (plan, blocks) = plan_of(&sas, policies);
    (Lab::with_ipsec(&lines(more), plan), blocks)
}

/// An IPv4 packet of the host behind `inside`.
fn to(destination: [u8; 4], length: u16) -> Vec<u8> {
    let mut packet = ipv4(length, 0x40);
    packet[16..20].copy_from_slice(&destination);
    hops(&packet, 0)
}

/// What the other end finds in the ESP packet of a frame.
fn decrypted(if_id: u32, frame: &[u8]) -> Vec<u8> {
    let mut packet = frame[14..].to_vec();
    let Ok(Located::Esp(esp)) = locate(&packet) else { panic!("no ESP: {frame:02x?}") };
    let length = packet.len();
    let mut buffer = Buffer::new(&mut packet, 0..length).unwrap();
    Inbound::new(&sa_of(if_id, Direction::In), 0).unwrap().decrypt(&mut buffer, &esp, 0).unwrap();
    buffer.data().to_vec()
}

#[test]
fn what_is_routed_to_an_interface_leaves_as_scapy_encrypts_it() {
    for Recorded { line, sa, number, plain, sent } in RECORDED.lines().map(recorded) {
        if sa.mode == Mode::Transport {
            continue;
        }
        let sa = Sa { if_id: 42, ..sa };
        let (mut plan, _more) = plan(&sa, number - 1);
        let protect = of_interface(42, Direction::Out, Action::Protect(sa.id()));
        plan.policies = Policies::new(vec![protect]).unwrap().into();
        let mut lab = Lab::with_ipsec(&lines(""), plan);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &hops(&plain, 1)));
        assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &sent)[..])), "{line}");
    }
}

#[test]
fn what_scapy_encrypts_arrives_on_the_interface() {
    for Recorded { line, sa, number, plain, sent } in RECORDED.lines().map(recorded) {
        if sa.mode == Mode::Transport {
            continue;
        }
        for (if_id, passes) in [(42, true), (43, false), (44, false)] {
            let sa = Sa { direction: Direction::In, if_id, ..sa.clone() };
            let (mut plan, _more) = plan(&sa, number - 1);
            let protect = of_interface(if_id, Direction::In, Action::Protect(sa.id()));
            plan.policies = Policies::new(vec![protect]).unwrap().into();
            // The source is not behind the second interface, and there is no third one.
            let mut lab = Lab::with_ipsec(
                &lines(
                    "interface one 2 02:00:00:00:00:03 if_id 42 strict
                    interface two 2 02:00:00:00:00:04 if_id 43 vlan 7 strict
                    route 10.1.0.0/16 dev one
                    route 10.2.0.0/16 via 203.0.113.9 outside
                    route 2001:db8:2::/48 via 2001:db8:a::9 outside",
                ),
                plan,
            );
            let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, &sent));
            // There is no reverse path filter for IPv6.
            if passes || if_id == 43 && plain[0] >> 4 == 6 {
                let expected = leaves(OUTSIDE, &hops(&plain, -1));
                assert_eq!(answer.only(), Some((OUTSIDE, &expected[..])), "{if_id} {line}");
            } else {
                assert!(answer.is_silence(), "{if_id} {line}");
                let reason = if if_id == 43 { Reason::ReversePath } else { Reason::IpsecNoInterface };
                assert_eq!(lab.drops(), [(reason, 1)], "{line}");
            }
        }
    }
}

#[test]
fn only_routes_tell_interfaces_apart() {
    let (mut lab, _more) = both("");
    for (destination, if_id) in [([10, 2, 0, 7], 42), ([10, 3, 0, 7], 43), ([10, 2, 9, 9], 42)] {
        let packet = to(destination, 100);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
        let (port, frame) = answer.only().expect("an ESP packet");
        assert_eq!((port, &frame[34..38]), (OUTSIDE, &(SPI + if_id).to_be_bytes()[..]));
        assert_eq!(decrypted(if_id, frame), hops(&packet, -1));
    }
    // Packets that no route leads to an interface are none of theirs.
    let packet = to([10, 4, 0, 7], 100);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
    assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &hops(&packet, -1))[..])));
    lab.change("route 10.3.0.0/16 dev one");
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &to([10, 3, 0, 7], 100)));
    assert_eq!(answer.only().map(|(_, frame)| frame[37]), Some((SPI + 42) as u8));
}

#[test]
fn flows_are_spread_over_interfaces() {
    let (mut lab, mut more) = both("route 10.5.0.0/16 group 10.42.0.2 one 1 10.43.0.2 two 1");
    more.iter_mut().for_each(|more| more.push(Numbers::after(100, false).reserve(99).unwrap()).unwrap());
    let mut spis = [0; 2];
    for host in 0..64 {
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &to([10, 5, 0, host], 100)));
        let (port, frame) = answer.only().expect("an ESP packet");
        assert_eq!((port, frame[23]), (OUTSIDE, 50));
        spis[usize::from(frame[37] == (SPI + 43) as u8)] += 1;
    }
    assert!(spis.iter().all(|count| *count > 10), "{spis:?}");
}

/// The source of a packet to an interface that nothing protects gets an ICMP error, as from Linux.
fn assert_unprotected(policies: Vec<Policy>, reason: Reason) {
    let (plan, _more) = plan_of(&[], policies);
    let mut lab = Lab::with_ipsec(&lines(""), plan);
    let packet = to([10, 2, 0, 7], 100);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
    let (port, error) = answer.only().expect("an error");
    let ip = Ipv4::parse(&error[14..]).unwrap();
    let message = Icmp::parse(ip.payload()).unwrap();
    assert_eq!((port, &error[..14]), (INSIDE, &leaves(INSIDE, &packet)[..14]));
    assert!(ip.checksum_ok() && message.checksum_ok());
    assert_eq!(error[26..34], [10, 9, 0, 1, 10, 9, 0, 9]);
    // Host unreachable; what is quoted has its TTL decremented.
    assert_eq!((message.kind(), message.code(), message.data()), (3, 1, &hops(&packet, -1)[..]));
    assert_eq!(lab.drops(), [(reason, 1)]);
    let mut six = vec![0; 60];
    six[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 20, 59, 64]);
    six[8..24].copy_from_slice(&"2001:db8:9::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
    six[24..40].copy_from_slice(&"2001:db8:2::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    lab.change("neighbor 2001:db8:9::9 inside 02:00:00:00:01:09");
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &six));
    let (port, error) = answer.only().expect("an error");
    // Address unreachable.
    assert_eq!((port, error[20], &error[54..56]), (INSIDE, 58, &[1, 3][..]));
    assert_eq!(error[62..], hops(&six, -1));
    assert_eq!(lab.drops(), [(reason, 2)]);
}

#[test]
fn nothing_leaves_an_interface_in_clear() {
    let out = |if_id, action| of_interface(if_id, Direction::Out, action);
    let protect = |if_id| Action::Protect(sa_of(if_id, Direction::Out).id());
    assert_unprotected(Vec::new(), Reason::IpsecPolicy);
    assert_unprotected(vec![out(42, Action::Discard)], Reason::IpsecPolicy);
    assert_unprotected(vec![out(42, Action::Bypass)], Reason::IpsecPolicy);
    // Those of others are not for it.
    let selector = Selector { destination: Some("10.2.0.0/16".parse().unwrap()), ..Selector::default() };
    let of_none = Policy { selector, ..out(0, protect(0)) };
    assert_unprotected(vec![of_none, out(43, protect(43))], Reason::IpsecPolicy);
    assert_unprotected(vec![out(42, protect(42)), out(43, Action::Bypass)], Reason::IpsecNoSa);
}

#[test]
fn policies_of_an_interface_are_not_for_other_packets() {
    let out = of_interface(42, Direction::Out, Action::Discard);
    let into = of_interface(42, Direction::In, Action::Discard);
    let (plan, _more) = plan_of(&[], vec![out, into]);
    let mut lab = Lab::with_ipsec(&lines(""), plan);
    let packet = to([10, 4, 0, 7], 100);
    let expected = leaves(OUTSIDE, &hops(&packet, -1));
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
    assert_eq!(answer.only(), Some((OUTSIDE, &expected[..])));
}

#[test]
fn what_comes_out_of_an_interface_needs_a_policy_of_it() {
    let Recorded { sa, number, sent, plain, .. } = first();
    let sa = Sa { direction: Direction::In, if_id: 42, ..sa };
    let protect = |if_id| of_interface(if_id, Direction::In, Action::Protect(sa.id()));
    let into = |if_id, action| of_interface(if_id, Direction::In, action);
    for (policies, passes) in [
        (vec![], false),
        (vec![protect(0)], false),
        (vec![protect(43)], false),
        (vec![into(42, Action::Discard), protect(0)], false),
        (vec![into(42, Action::Bypass)], true),
        (vec![into(0, Action::Discard), protect(42)], true),
    ] {
        let (mut plan, _more) = plan(&sa, number - 1);
        plan.policies = Policies::new(policies.clone()).unwrap().into();
        let more = "route 10.2.0.0/16 via 203.0.113.9 outside";
        let mut lab = Lab::with_ipsec(&lines(more), plan);
        let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, &sent));
        if passes {
            let expected = leaves(OUTSIDE, &hops(&plain, -1));
            assert_eq!(answer.only(), Some((OUTSIDE, &expected[..])), "{policies:?}");
        } else {
            assert!(answer.is_silence(), "{policies:?}");
            assert_eq!(lab.drops(), [(Reason::IpsecPolicy, 1)]);
        }
    }
}

#[test]
fn sources_get_the_mtu_of_the_interface_and_that_of_the_tunnel() {
    let (mut lab, _more) = both("");
    let mtu = |lab: &mut Lab, destination, length| {
        let packet = to(destination, length);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
        let (port, frame) = answer.only().expect("a frame");
        if port == OUTSIDE {
            return Ok(frame.len() - 14);
        }
        assert_eq!((frame[23], &frame[34..36]), (1, &[3, 4][..]));
        Err(u16::from_be_bytes([frame[40], frame[41]]))
    };
    assert_eq!(mtu(&mut lab, [10, 3, 0, 7], 1300), Ok(1356));
    assert_eq!(mtu(&mut lab, [10, 3, 0, 7], 1301), Err(1300));
    // 1,500 bytes on the way to the other end.
    assert_eq!(mtu(&mut lab, [10, 2, 0, 7], 1446), Ok(1500));
    assert_eq!(mtu(&mut lab, [10, 2, 0, 7], 1447), Err(1446));
    assert_eq!(lab.drops(), [(Reason::TooBig, 1), (Reason::IpsecTooBig, 1)]);
}

#[test]
fn packets_may_be_fragmented_before_they_are_encrypted() {
    let (mut lab, _more) = both("");
    let mut packet = to([10, 3, 0, 7], 1400);
    packet[6] = 0;
    lab.send(INSIDE, &arrives(INSIDE, &hops(&packet, 0)));
    lab.run();
    let frames = lab.take(OUTSIDE);
    let inner: Vec<_> = frames.iter().map(|frame| decrypted(43, frame)).collect();
    assert_eq!(inner.iter().map(Vec::len).collect::<Vec<_>>(), [1300, 120]);
    assert!(inner.iter().all(|packet| packet[8] == 63));
}

#[test]
fn errors_about_what_came_out_of_a_tunnel_go_back_into_it() {
    let (mut sas, mut policies) = (Vec::new(), Vec::new());
    for direction in [Direction::Out, Direction::In] {
        let sa = sa_of(42, direction);
        let id = SaId {
            destination: [192, 0, 2, if direction == Direction::Out { 2 } else { 1 }].into(),
            ..sa.id()
        };
        let ends = [sa.source, sa.destination];
        let [source, destination] = if direction == Direction::Out { ends } else { [ends[1], ends[0]] };
        sas.push(Sa { source, destination, ..sa });
        policies.push(of_interface(42, direction, Action::Protect(id)));
    }
    let (plan, _more) = plan_of(&sas, policies);
    let mut lab = Lab::with_ipsec(&lines(""), plan);
    // From behind the other end, with one hop left.
    let mut packet = to([10, 9, 0, 9], 60);
    packet[12..16].copy_from_slice(&[10, 2, 0, 7]);
    packet[8] = 1;
    let packet = hops(&packet, 0);
    let mut bytes = vec![0; 200];
    bytes[60..120].copy_from_slice(&packet);
    let mut buffer = Buffer::new(&mut bytes, 60..120).unwrap();
    let peer = Sa { direction: Direction::Out, ..sas[1].clone() };
    let block = Numbers::new(false).reserve(3).unwrap();
    bm_ipsec::Outbound::new(&peer, block, 0, 0).unwrap().encrypt(&mut buffer, 0).unwrap();
    let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, buffer.data()));
    let (port, frame) = answer.only().expect("an error");
    assert_eq!((port, frame[23]), (OUTSIDE, 50));
    let error = decrypted(42, frame);
    // From the address of the interface: time exceeded.
    assert_eq!((&error[12..20], error[20]), (&[10, 42, 0, 1, 10, 2, 0, 7][..], 11));
    assert_eq!(error[28..], packet);
}

#[test]
fn esp_packets_are_not_encrypted_again() {
    // The other end is behind the interface itself.
    let (mut lab, _more) = both("route 192.0.2.0/24 dev one");
    assert!(lab.exchange(INSIDE, &arrives(INSIDE, &to([10, 2, 0, 7], 100))).is_silence());
    assert_eq!(lab.drops(), [(Reason::NoRoute, 1)]);
    // So are those that the slow path sends, as one that waited for its neighbor.
    let mut frame = vec![0; 14 + 100];
    frame[..6].copy_from_slice(&crate::tables::ipsec_mac(42));
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..].copy_from_slice(&to([192, 0, 2, 2], 100));
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    lab.send_from_linux(IPSEC, &frame);
    lab.run();
    assert_eq!(lab.drops(), [(Reason::NoRoute, 2)]);
}

#[test]
fn linux_sends_and_receives_by_the_interface() {
    let Recorded { sa, number, sent, plain, .. } = first();
    let into = Sa { direction: Direction::In, if_id: 42, ..sa };
    let out = sa_of(43, Direction::Out);
    let (mut plan, _more) = plan(&into, number - 1);
    let (other, _others) = super::plan(&out, 0);
    plan.sas.extend(other.sas);
    let protect = |sa: &Sa| of_interface(sa.if_id, sa.direction, Action::Protect(sa.id()));
    plan.policies = Policies::new(vec![protect(&into), protect(&out)]).unwrap().into();
    let mut lab = Lab::with_ipsec(&lines("route 10.2.0.1/32 host"), plan);
    lab.send(OUTSIDE, &arrives(OUTSIDE, &sent));
    lab.run();
    let received = lab.take_host(IPSEC);
    assert_eq!(received.len(), 1);
    assert_eq!((crate::if_id_of(&received[0]), &received[0][14..]), (42, &plain[..]));
    let packet = to([10, 3, 0, 7], 100);
    let header = [&crate::tables::ipsec_mac(43)[..], &[0; 6], &[8, 0]].concat();
    lab.send_from_linux(IPSEC, &[header, packet.clone()].concat());
    lab.run();
    let frames = lab.take(OUTSIDE);
    assert_eq!((frames.len(), decrypted(43, &frames[0])), (1, packet));
}

#[test]
fn an_interface_without_policies_has_none_of_others() {
    let (lab, _more) = both("");
    let tables: Tables = lab.tables();
    let found = |if_id| tables.compiled.ipsec_interface(if_id).map(|of| (of.interface, of.tag.is_some()));
    assert_eq!([41, 42, 43, 44].map(found), [None, Some((2, false)), Some((3, true)), None]);
}
