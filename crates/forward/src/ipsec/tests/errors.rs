//! ICMP errors about packets that came out of a tunnel: encrypted, or dropped, or sent as they are.

use super::*;
use bm_ipsec::{Buffer, Inbound, Located, locate};
use bm_wire::icmp::{self, Icmp, Sender};
use bm_wire::icmpv6::Icmpv6;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

/// From the host behind the other end, to the host behind `inside`.
const IPV4: [&str; 2] = ["10.2.0.7", "10.9.0.9"];
const IPV6: [&str; 2] = ["2001:db8:2::7", "2001:db8:9::9"];
/// Networks of the policy for replies to these.
const REPLIES_IPV4: [&str; 2] = ["10.9.0.0/24", "10.2.0.0/16"];
const REPLIES_IPV6: [&str; 2] = ["2001:db8:9::/64", "2001:db8:2::/48"];

fn octets(address: &str) -> Vec<u8> {
    match address.parse::<IpAddr>().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A UDP packet with TTL or hop limit 1 that came out of a tunnel.
fn expiring([from, to]: [&str; 2]) -> Vec<u8> {
    let head = match from.contains(':') {
        false => vec![0x45, 0, 0, 28, 0, 0, 0, 0, 1, 17, 0, 0],
        true => vec![0x60, 0, 0, 0, 0, 8, 17, 1],
    };
    hops(&[head, octets(from), octets(to), vec![0, 1, 0, 2, 0, 8, 0, 0]].concat(), 0)
}

fn of([source, destination]: [&str; 2], priority: u32, action: Action) -> Policy {
    let [source, destination] = [source, destination].map(|prefix| Some(prefix.parse().unwrap()));
    let selector = Selector { source, destination, ..Selector::default() };
    Policy { selector, priority, ..policy(Direction::Out, action) }
}

/// A router with these outbound policies.
fn router(lines: &str, policies: Vec<Policy>) -> Lab {
    let (mut plan, _more) = plan(&first().sa, 0);
    plan.policies = Policies::new(policies).unwrap().into();
    Lab::with_ipsec(&format!("{lines}\n neighbor 2001:db8:9::9 inside 02:00:00:00:01:09"), plan)
}

fn protect() -> Action {
    Action::Protect(first().sa.id())
}

/// What the other end finds in the ESP packet of a frame.
fn decrypted(frame: &[u8]) -> Vec<u8> {
    let sa = Sa { direction: Direction::In, ..first().sa };
    let mut packet = frame[14..].to_vec();
    let Ok(Located::Esp(esp)) = locate(&packet) else { panic!("no ESP: {frame:02x?}") };
    let length = packet.len();
    let mut buffer = Buffer::new(&mut packet, 0..length).unwrap();
    Inbound::new(&sa, 0).unwrap().decrypt(&mut buffer, &esp, 0).unwrap();
    buffer.data().to_vec()
}

/// Asserts that the error is encrypted, and correct with its new source; the quoted packet is what was received.
fn assert_encrypted(lab: &mut Lab, packet: &[u8], source: &str) {
    let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, packet));
    let (port, frame) = answer.only().expect("an error");
    assert_eq!(port, OUTSIDE);
    let error = decrypted(frame);
    if packet[0] >> 4 == 4 {
        let ip = Ipv4::parse(&error[..]).unwrap();
        let message = Icmp::parse(ip.payload()).unwrap();
        assert!(ip.checksum_ok() && message.checksum_ok(), "{error:02x?}");
        assert_eq!((&error[12..16], &error[16..20]), (&octets(source)[..], &packet[12..16]));
        assert_eq!((message.kind(), message.data()), (11, packet));
    } else {
        let ip = Ipv6::parse(&error[..]).unwrap();
        let message = Icmpv6::parse(ip.payload()).unwrap();
        assert!(message.checksum_ok(&ip.pseudo()), "{error:02x?}");
        assert_eq!((&error[8..24], &error[24..40]), (&octets(source)[..], &packet[8..24]));
        assert_eq!((message.kind(), message.data()), (3, packet));
    }
}

fn assert_dropped(lab: &mut Lab, packet: &[u8]) {
    assert!(lab.exchange(OUTSIDE, &arrives(OUTSIDE, packet)).is_silence());
    assert_eq!(lab.dropped(Reason::IpsecPolicy), 1);
}

fn assert_in_clear(lab: &mut Lab, packet: &[u8]) {
    let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, packet));
    let (port, frame) = answer.only().expect("an error");
    let protocol = if packet[0] >> 4 == 4 { frame[23] } else { frame[20] };
    assert_eq!((port, protocol), (OUTSIDE, if packet[0] >> 4 == 4 { 1 } else { 58 }), "{frame:02x?}");
}

#[test]
fn they_are_encrypted_from_an_address_that_the_policy_has() {
    for (packet, replies, source) in [(IPV4, REPLIES_IPV4, "10.9.0.1"), (IPV6, REPLIES_IPV6, "2001:db8:9::1")]
    {
        let packet = expiring(packet);
        assert_encrypted(&mut router(LINES, vec![of(replies, 100, protect())]), &packet, source);
        // A bypass of everything that comes later changes nothing.
        let any = ["::/0", "::/0"].map(|any| if source.contains(':') { any } else { "0.0.0.0/0" });
        let policies = vec![of(replies, 100, protect()), of(any, 200, Action::Bypass)];
        assert_encrypted(&mut router(LINES, policies), &packet, source);
        let policies = vec![of(any, 50, Action::Bypass), of(replies, 100, protect())];
        assert_in_clear(&mut router(LINES, policies), &packet);
    }
}

#[test]
fn they_are_dropped_without_such_an_address_and_if_replies_are_discarded() {
    for (packet, replies, host) in [
        (IPV4, REPLIES_IPV4, ["10.9.0.9/32", "10.2.0.0/16"]),
        (IPV6, REPLIES_IPV6, ["2001:db8:9::9/128", "2001:db8:2::/48"]),
    ] {
        let packet = expiring(packet);
        assert_dropped(&mut router(LINES, vec![of(host, 100, protect())]), &packet);
        assert_dropped(&mut router(LINES, vec![of(replies, 100, Action::Discard)]), &packet);
        // A policy for another protocol never matches an ICMP error.
        let udp = of(replies, 100, protect());
        let selector = Selector { protocol: Some(17), ..udp.selector.clone() };
        assert_dropped(&mut router(LINES, vec![Policy { selector, ..udp }]), &packet);
    }
}

#[test]
fn a_router_without_an_ipv4_address_sends_none_in_clear() {
    let lines = "
        interface inside 0 02:00:00:00:00:01 2001:db8:9::1/64
        interface outside 1 02:00:00:00:00:02 2001:db8:a::1/64
        neighbor 203.0.113.9 outside 02:00:00:00:02:09
        route 0.0.0.0/0 via 203.0.113.9 outside";
    assert_dropped(&mut router(lines, vec![of(REPLIES_IPV4, 100, protect())]), &expiring(IPV4));
}

#[test]
fn errors_to_the_other_end_itself_are_no_esp_packets() {
    let lines = "
        interface inside 0 02:00:00:00:00:01 10.9.0.1/24 2001:db8:9::1/64
        interface outside 1 02:00:00:00:00:02 192.0.2.1/24
        neighbor 192.0.2.2 outside 02:00:00:00:02:09
        route 0.0.0.0/0 via 192.0.2.2 outside";
    let policies = vec![of(["10.9.0.0/24", "192.0.2.2/32"], 100, protect())];
    let packet = expiring(["192.0.2.2", "10.9.0.9"]);
    assert_encrypted(&mut router(lines, policies), &packet, "10.9.0.1");
}

#[test]
fn others_are_sent_as_they_are() {
    for (packet, other, replies) in [
        (IPV4, ["10.8.0.0/24", "10.2.0.0/16"], REPLIES_IPV4),
        (IPV6, ["2001:db8:8::/64", "2001:db8:2::/48"], REPLIES_IPV6),
    ] {
        let packet = expiring(packet);
        assert_in_clear(&mut router(LINES, vec![of(other, 100, protect())]), &packet);
        assert_in_clear(&mut router(LINES, vec![of(replies, 100, Action::Bypass)]), &packet);
    }
}

#[test]
fn errors_of_other_routers_are_encrypted_as_they_are() {
    let about = expiring(IPV4);
    let sender = Sender { source: 0x0a03_0001, ttl: 64, id: 1 };
    let mut error = [0; 100];
    let length = icmp::time_exceeded(0).emit(&sender, &Ipv4::parse(&about).unwrap(), &mut error).unwrap();
    let mut lab = router(LINES, vec![of(REPLIES_IPV4, 100, protect())]);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &error[..length]));
    let (port, frame) = answer.only().expect("it is sent");
    assert_eq!((port, decrypted(frame)), (OUTSIDE, hops(&error[..length], -1)));
}

/// The fragments of an error of another router, which quotes as much as it may.
fn fragments() -> [Vec<u8>; 2] {
    let mut about = expiring(IPV4);
    about.extend((0..=255).cycle().take(600));
    about[2..4].copy_from_slice(&628u16.to_be_bytes());
    let about = hops(&about, 0);
    let sender = Sender { source: 0x0a03_0001, ttl: 64, id: 7 };
    let mut error = [0; 576];
    let length = icmp::time_exceeded(0).emit(&sender, &Ipv4::parse(&about[..]).unwrap(), &mut error).unwrap();
    [(0..400, 0x2000u16), (400..length - 20, 400 / 8)].map(|(part, offset)| {
        let mut fragment = [&error[..20], &error[20..][part]].concat();
        let length = fragment.len() as u16;
        fragment[2..4].copy_from_slice(&length.to_be_bytes());
        fragment[6..8].copy_from_slice(&offset.to_be_bytes());
        hops(&fragment, 0)
    })
}

#[test]
fn later_fragments_are_treated_like_the_first() {
    let [first, later] = fragments();
    let mut lab = router(LINES, vec![of(REPLIES_IPV4, 100, protect())]);
    for fragment in [&first, &later] {
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, fragment));
        let (port, frame) = answer.only().expect("it is sent");
        assert_eq!((port, decrypted(frame)), (OUTSIDE, hops(fragment, -1)));
    }
    let mut lab = router(LINES, vec![of(REPLIES_IPV4, 100, Action::Discard)]);
    for (fragment, dropped) in [(&first, 1), (&later, 2)] {
        assert!(lab.exchange(INSIDE, &arrives(INSIDE, fragment)).is_silence());
        assert_eq!(lab.dropped(Reason::IpsecPolicy), dropped);
    }
}

#[test]
fn fragments_of_other_datagrams_are_sent_as_they_are() {
    let [first, later] = fragments();
    let mut other = later;
    other[5] = 8;
    let ping = [&first[..20], &[8], &first[21..]].concat();
    let mut lab = router(LINES, vec![of(REPLIES_IPV4, 100, protect())]);
    assert_eq!(lab.exchange(INSIDE, &arrives(INSIDE, &first)).only().map(|(port, _)| port), Some(OUTSIDE));
    for packet in [hops(&other, 0), ping] {
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
        assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &hops(&packet, -1))[..])));
    }
}
