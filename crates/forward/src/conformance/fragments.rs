//! Group B: fragmentation and path MTU of IPv4.

use bm_stats::Reason;

use super::frames::{NARROW_HOST, NARROW_MAC, V4, error_ipv4, frame};
use super::{LEFT, NARROW, RIGHT, lab};
use crate::testing::{Answer, Lab};

/// A packet to a destination behind the link of 1300 bytes.
fn narrow(bytes: usize) -> V4 {
    V4 { payload: (0..bytes - 20).map(|at| at as u8).collect(), ..V4::to("9.9.9.9") }
}

/// Cuts a packet into payload ranges, the long way: `(offset in bytes, payload, more)`.
fn pieces(packet: &V4, mtu: usize) -> Vec<V4> {
    let room = mtu - 20 - packet.options.len();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < packet.payload.len() {
        let left = packet.payload.len() - at;
        let take = if left <= room { left } else { room / 8 * 8 };
        let more = at + take < packet.payload.len() || packet.fragment & 0x2000 != 0;
        let fragment = ((packet.fragment & 0x1fff) + (at / 8) as u16) | if more { 0x2000 } else { 0 };
        let payload = packet.payload[at..at + take].to_vec();
        pieces.push(V4 { fragment, payload, ttl: packet.ttl - 1, ..packet.clone() });
        at += take;
    }
    pieces
}

fn leaves_as(lab: &mut Lab, sent: &V4, pieces: &[V4]) {
    let answer = lab.exchange(LEFT, &sent.sent());
    let expected: Vec<_> =
        pieces.iter().map(|piece| (NARROW, frame(NARROW_HOST, NARROW_MAC, 0x0800, &piece.bytes()))).collect();
    assert!(answer.host.is_empty() && answer.sent == expected, "{sent:?}");
}

#[test]
fn b29_too_big_with_df_is_told_the_mtu() {
    for fragment in [0x4000, 0x6000] {
        let packet = V4 { fragment, ..narrow(1301) };
        let mut lab = lab();
        let answer = lab.exchange(LEFT, &packet.sent());
        let (port, error) = answer.only().unwrap();
        assert_eq!((port, error), (LEFT, &error_ipv4("192.0.2.1", 3, 4, 1300, &packet.bytes(), error)[..]));
        assert_eq!((error.len(), lab.drops()), (14 + 576, vec![(Reason::TooBig, 1)]));
    }
    let fits = V4 { fragment: 0x4000, ..narrow(1300) };
    leaves_as(&mut lab(), &fits, &[V4 { ttl: 63, ..fits.clone() }]);
}

#[test]
fn b29_the_routes_own_mtu_counts() {
    let mut lab = lab();
    lab.change("route 9.1.0.0/16 via 203.0.113.5 narrow mtu 1000");
    lab.change("route 9.2.0.0/16 via 203.0.113.5 narrow mtu 9000");
    let packet = V4 { destination: "9.1.1.1", fragment: 0x4000, ..narrow(1001) };
    let answer = lab.exchange(LEFT, &packet.sent());
    let (_, error) = answer.only().unwrap();
    assert_eq!(error, error_ipv4("192.0.2.1", 3, 4, 1000, &packet.bytes(), error));
    // Above the interface's MTU, Linux does what the route says.
    let packet = V4 { destination: "9.2.1.1", fragment: 0x4000, ..narrow(1301) }.sent();
    assert_eq!(lab.exchange(LEFT, &packet), Answer { sent: vec![], host: vec![(LEFT, packet)] });
    let packet = V4 { destination: "9.1.1.1", ..narrow(1400) };
    leaves_as(&mut lab, &packet, &pieces(&packet, 1000));
}

#[test]
fn b30_too_big_without_df_is_cut() {
    for bytes in [1301, 1308, 1400, 1500] {
        let packet = narrow(bytes);
        let pieces = pieces(&packet, 1300);
        let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.payload.clone()).collect();
        assert!(pieces.len() == 2 && joined == packet.payload);
        leaves_as(&mut lab(), &packet, &pieces);
    }
    // The reserved flag is not for new headers.
    let flagged = V4 { fragment: 0x8000, ..narrow(1400) };
    leaves_as(&mut lab(), &flagged, &pieces(&narrow(1400), 1300));
    assert!(lab().exchange(LEFT, &narrow(1301).sent()).sent[1].1.len() == 14 + 20 + 1);
}

#[test]
fn b31_fragments_are_cut_again() {
    for fragment in [0x2000, 0x2000 + 185, 185] {
        let packet = V4 { fragment, ..narrow(1404) };
        leaves_as(&mut lab(), &packet, &pieces(&packet, 1300));
    }
}

#[test]
fn b32_options_follow_the_copy_bit() {
    let options = vec![0x9e, 4, 1, 2, 0x1e, 4, 3, 4, 1, 1, 0x5e, 2];
    let packet = V4 { options, ..narrow(1400) };
    let mut expected = pieces(&packet, 1300);
    expected[1].options = vec![0x9e, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1];
    leaves_as(&mut lab(), &packet, &expected);
    // A later fragment has lost its uncopied options already: the others stay.
    let later = V4 { fragment: 0x2000 + 50, ..packet };
    leaves_as(&mut lab(), &later, &pieces(&later, 1300));
}

#[test]
fn b32_a_route_is_recorded_in_the_first_alone() {
    let packet = V4 { options: vec![7, 7, 4, 0, 0, 0, 0, 0], ..narrow(1400) };
    let mut expected = pieces(&packet, 1300);
    expected[0].options = vec![7, 7, 8, 203, 0, 113, 1, 0];
    expected[1].options = vec![1, 1, 1, 1, 1, 1, 1, 0];
    leaves_as(&mut lab(), &packet, &expected);
}

/// A veth may refuse the first fragment: then Linux sends none of the others.
#[test]
fn b30_linux_cuts_for_a_veth() {
    let mut lab = lab();
    lab.change("interface narrow 2 02:00:00:00:00:03 mtu 1300 linux-cuts 203.0.113.1/24");
    let packet = narrow(1400).sent();
    assert_eq!(lab.exchange(LEFT, &packet), Answer { sent: vec![], host: vec![(LEFT, packet)] });
    assert_eq!(lab.exchange(LEFT, &narrow(1000).sent()).only().unwrap().0, super::NARROW);
}

#[test]
fn b33_fragments_past_the_longest_packet() {
    let packet = V4 { fragment: 8191, payload: vec![7; 800], ..V4::default() };
    let mut lab = lab();
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert_eq!(lab.drops(), [(Reason::FragmentOverrun, 1)]);
    let fits = V4 { fragment: 8187, payload: vec![7; 19], ..V4::default() };
    assert_eq!(lab.exchange(LEFT, &fits.sent()).only(), Some((RIGHT, &fits.routed()[..])));
}

#[test]
fn b34_b39_fragments_take_their_flows_path() {
    let mut lab = Lab::with(
        super::LINES,
        crate::tables::Settings { hash_policy_ipv4: 1, ..Default::default() },
        crate::WaitLimits::default(),
    );
    lab.change("route 10.0.0.0/8 group 198.51.100.7 right 1 203.0.113.5 narrow 1");
    // Ports differ from fragment to fragment as payload does; the way does not.
    for destination in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        let way = |lab: &mut Lab, fragment, byte| {
            let packet = V4 { fragment, payload: vec![byte; 16], ..V4::to(destination) };
            let answer = lab.exchange(LEFT, &packet.sent());
            answer.only().unwrap().0
        };
        let first = way(&mut lab, 0x2000, 1);
        assert!((2..50).all(|byte| way(&mut lab, 0x2000 + u16::from(byte), byte) == first));
    }
}

#[test]
fn a_spent_ttl_comes_before_the_size() {
    let packet = V4 { ttl: 1, fragment: 0x4000, ..narrow(1400) };
    let answer = lab().exchange(LEFT, &packet.sent());
    let (_, error) = answer.only().unwrap();
    assert_eq!(error, error_ipv4("192.0.2.1", 11, 0, 0, &packet.bytes(), error));
}

#[test]
fn padding_does_not_make_a_packet_too_big() {
    let packet = V4 { fragment: 0x4000, ..narrow(1300) };
    let mut padded = packet.sent();
    padded.resize(1500, 0xaa);
    let answer = lab().exchange(LEFT, &padded);
    let expected = frame(NARROW_HOST, NARROW_MAC, 0x0800, &packet.one_hop_on());
    assert_eq!(answer.only(), Some((NARROW, &expected[..])));
}
