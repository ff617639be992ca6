//! Routers on the way say that ESP packets are too big: then sources of larger ones get an error, or they are fragmented.

use bm_wire::icmp::{self, unreachable};
use bm_wire::icmpv6;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use super::*;

const DF: u8 = 0x40;

/// A lab that protects what goes to the other end of this tunnel, and one with the least MTU on the way.
fn lab(sa: &Sa) -> (Lab, Producer<bm_ipsec::Block>) {
    let (mut plan, mut more) = plan(sa, 0);
    more.push(Numbers::after(100, false).reserve(10).unwrap()).unwrap();
    let to = |prefix: &str| {
        let selector = Selector { destination: Some(prefix.parse().unwrap()), ..Selector::default() };
        Policy { selector, ..policy(Direction::Out, Action::Protect(sa.id())) }
    };
    plan.policies = Policies::new(vec![to("10.2.0.0/16"), to("2001:db8:2::/48")]).unwrap().into();
    (Lab::with_ipsec(LINES, plan), more)
}

/// The error of a router on the way about a frame that has left.
fn too_big(sent: &[u8], mtu: u16) -> Vec<u8> {
    let packet = &sent[14..];
    let mut error = vec![0; 1400];
    let length = if packet[0] >> 4 == 4 {
        let sender = icmp::Sender { source: 0xcb00_7109, ttl: 64, id: 1 };
        let problem = icmp::destination_unreachable(unreachable::FRAGMENTATION_NEEDED, mtu);
        problem.emit(&sender, &Ipv4::parse(packet).unwrap(), &mut error).unwrap()
    } else {
        let sender = icmpv6::Sender { source: 9, hop_limit: 64 };
        let problem = icmpv6::packet_too_big(mtu.into());
        problem.emit(&sender, &Ipv6::parse(packet).unwrap(), &mut error).unwrap()
    };
    arrives(OUTSIDE, &error[..length])
}

#[test]
fn sources_get_the_mtu_that_a_router_on_the_way_has_told() {
    let Recorded { sa, .. } = first();
    let (mut lab, _more) = lab(&sa);
    let packet = ipv4(1400, DF);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
    let sent = answer.only().unwrap().1.to_vec();
    // One whose number was never sent has no effect.
    let mut forged = sent.clone();
    forged[14 + 24] = 7;
    for (error, expected) in [(too_big(&forged, 1300), None), (too_big(&sent, 1300), Some(1300))] {
        lab.exchange(OUTSIDE, &error);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
        let mtu = expected.map(|mtu: u16| ((mtu - 20 - 8 - 8 - 16) & !3) - 2);
        assert_eq!(reported_mtu_of(&answer, &packet), mtu);
    }
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv4(1246, DF)));
    assert_eq!(answer.only().map(|(port, frame)| (port, frame.len() - 14)), Some((OUTSIDE, 1300)));
}

/// The MTU that the source is told, if the packet has not left.
fn reported_mtu_of(answer: &crate::testing::Answer, packet: &[u8]) -> Option<u16> {
    answer.only().filter(|(port, _)| *port == INSIDE).and_then(|_| reported_mtu(answer, packet))
}

#[test]
fn what_no_source_can_make_smaller_is_fragmented_for_the_path() {
    let [source, destination] = ["2001:db8:b::1", "2001:db8:b::2"].map(|text| text.parse().unwrap());
    let sa = Sa { source, destination, ..first().sa };
    let (mut lab, _more) = lab(&sa);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(1280)));
    let (port, sent) = answer.only().unwrap();
    assert_eq!((port, sent.len() - 14), (OUTSIDE, 1356));
    let error = too_big(sent, 1300);
    lab.exchange(OUTSIDE, &error);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(1280)));
    let lengths: Vec<_> = answer.sent.iter().map(|(port, frame)| (*port, frame.len() - 14)).collect();
    // Both have an IPv6 header and a fragment header.
    assert_eq!(lengths.len(), 2, "{lengths:?}");
    assert!(lengths.iter().all(|(port, length)| *port == OUTSIDE && *length <= 1300), "{lengths:?}");
    assert_eq!(lengths.iter().map(|(_, length)| length - 48).sum::<usize>(), 1356 - 40);
    assert_eq!(lab.drops(), []);
}

#[test]
fn esp_that_waits_for_its_neighbor_is_fragmented_afterwards() {
    let [source, destination] = ["2001:db8:b::1", "2001:db8:b::2"].map(|text| text.parse().unwrap());
    let sa = Sa { source, destination, df: Df::Clear, ..first().sa };
    let (mut lab, _more) = lab(&sa);
    lab.change("route 2001:db8:b::/48 via 2001:db8:a::7 outside mtu 1300");
    assert!(lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(1450))).sent.is_empty());
    lab.change("neighbor 2001:db8:a::7 outside 02:00:00:00:02:09");
    lab.pass(10);
    let lengths: Vec<_> = lab.take(OUTSIDE).iter().map(|frame| frame.len() - 14).collect();
    assert_eq!(lengths.len(), 2, "{lengths:?}");
    assert!(lengths.iter().all(|length| *length <= 1300), "{lengths:?}");
}
