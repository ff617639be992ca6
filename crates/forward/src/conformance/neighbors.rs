//! Group E: neighbors and next hops.

use bm_stats::Reason;

use super::frames::{LEFT_HOST, NARROW_HOST, RIGHT_HOST, RIGHT_MAC, V4, V6, error_ipv4, error_ipv6, frame};
use super::{LEFT, NARROW, RIGHT, lab};
use crate::WaitLimits;
use crate::tables::Settings;
use crate::testing::{Answer, Lab};

fn asked(interface: &str, address: &str) -> (String, std::net::IpAddr) {
    (interface.into(), address.parse().unwrap())
}

#[test]
fn e67_a_router_not_known_yet() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 via 198.51.100.8 right");
    let packet = |id| V4 { id, ..V4::to("10.1.1.1") };
    for id in 0..5 {
        assert!(lab.exchange(LEFT, &packet(id).sent()).is_silence());
    }
    assert_eq!((lab.held(), lab.asked()), (5, vec![asked("right", "198.51.100.8")]));
    lab.change("neighbor 198.51.100.8 right 02:00:00:00:02:08");
    lab.pass(2);
    let expected: Vec<_> =
        (0..5).map(|id| frame([2, 0, 0, 0, 2, 8], RIGHT_MAC, 0x0800, &packet(id).one_hop_on())).collect();
    assert_eq!((lab.take(RIGHT), lab.held()), (expected, 0));
    assert_eq!((lab.drops(), lab.counter("resolve_answered")), (vec![], 1));
}

#[test]
fn e67_a_host_on_the_link_not_known_yet() {
    let mut lab = lab();
    let packet = V4::to("198.51.100.50");
    let six = V6::to("2001:db8:2::50");
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert!(lab.exchange(LEFT, &six.sent()).is_silence());
    assert_eq!(lab.asked(), [asked("right", "198.51.100.50"), asked("right", "2001:db8:2::50")]);
    lab.change("neighbor 198.51.100.50 right 02:00:00:00:02:50");
    lab.pass(2);
    let expected = frame([2, 0, 0, 0, 2, 0x50], RIGHT_MAC, 0x0800, &packet.one_hop_on());
    assert_eq!(lab.answer().only(), Some((RIGHT, &expected[..])));
    lab.change("neighbor 2001:db8:2::50 right 02:00:00:00:02:50");
    lab.pass(2);
    let expected = frame([2, 0, 0, 0, 2, 0x50], RIGHT_MAC, 0x86dd, &six.one_hop_on());
    assert_eq!(lab.answer().only(), Some((RIGHT, &expected[..])));
}

#[test]
fn e67_silence_ends_in_host_unreachable() {
    let mut lab = lab();
    let packet = V4::to("198.51.100.50");
    let six = V6::to("2001:db8:2::50");
    lab.send(LEFT, &packet.sent());
    lab.send(LEFT, &six.sent());
    lab.run();
    for _ in 0..2 {
        lab.pass(1000);
    }
    // The request to the kernel is repeated every second, in case it has forgotten.
    assert_eq!(lab.asked().len(), 6);
    lab.pass(999);
    assert_eq!((lab.held(), lab.answer().is_silence()), (2, true));
    lab.pass(1);
    let mut answer = lab.answer().sent;
    answer.sort();
    // As Linux: the hop was spent already.
    let expected = error_ipv4("192.0.2.1", 3, 1, 0, &packet.one_hop_on(), &answer[0].1);
    assert_eq!(answer[0], (LEFT, expected));
    assert_eq!(answer[1], (LEFT, error_ipv6("2001:db8:1::1", 1, 3, 0, &six.one_hop_on())));
    assert_eq!((lab.held(), lab.drops()), (0, vec![(Reason::NeighborUnresolved, 2)]));
    assert_eq!((lab.counter("resolve_failed"), lab.counter("resolve_answered")), (2, 0));
    // And it is tried again.
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert_eq!(lab.asked(), [asked("right", "198.51.100.50")]);
}

#[test]
fn e67_the_kernel_may_give_up_earlier() {
    let mut lab = lab();
    let packet = V4::to("198.51.100.50");
    lab.send(LEFT, &packet.sent());
    lab.send(LEFT, &V4::to("198.51.100.51").sent());
    lab.run();
    lab.fail("right", "198.51.100.50");
    lab.fail("left", "198.51.100.51");
    lab.run();
    let answer = lab.answer();
    let (port, error) = answer.only().unwrap();
    let expected = error_ipv4("192.0.2.1", 3, 1, 0, &packet.one_hop_on(), error);
    assert_eq!((port, error, lab.held()), (LEFT, &expected[..], 1));
}

#[test]
fn e67_linux_gets_what_it_must_answer_itself() {
    let mut lab = lab();
    let mut tables = lab.tables();
    tables.linux_tells = [true; 2];
    lab.publish(tables);
    let packet = V4::to("198.51.100.50").sent();
    lab.send(LEFT, &packet);
    lab.run();
    lab.fail("right", "198.51.100.50");
    lab.run();
    let answer = lab.answer();
    assert_eq!((answer.sent, answer.host), (vec![], vec![(LEFT, packet)]));
    assert_eq!((lab.held(), lab.drops()), (0, vec![]));
}

/// A neighbor that was a broadcast address when Linux sent something there: its MAC is in no message.
#[test]
fn e67_linux_gets_what_only_it_can_send() {
    let mut lab = lab();
    let packet = V4::to("198.51.100.50").sent();
    lab.send(LEFT, &packet);
    lab.run();
    lab.leave_to_linux("right", "198.51.100.50");
    lab.run();
    let answer = lab.answer();
    assert_eq!((answer.sent, answer.host), (vec![], vec![(LEFT, packet)]));
    assert_eq!((lab.held(), lab.drops()), (0, vec![]));
}

#[test]
fn e67_queues_are_bounded() {
    let waits = WaitLimits { frames_each: 3, frames: 5, ..WaitLimits::default() };
    let mut lab = Lab::with(super::LINES, Settings::default(), waits);
    let packet = |id, destination| V4 { id, ..V4::to(destination) };
    (0..5).for_each(|id| lab.send(LEFT, &packet(id, "198.51.100.50").sent()));
    (0..4).for_each(|id| lab.send(LEFT, &packet(id, "198.51.100.51").sent()));
    lab.run();
    // The oldest makes room for the newest of its own queue; other queues keep their room.
    assert_eq!((lab.held(), lab.drops()), (5, vec![(Reason::NeighborQueueFull, 4)]));
    lab.change("neighbor 198.51.100.50 right 02:00:00:00:02:50");
    lab.pass(2);
    let ids: Vec<_> = lab.take(RIGHT).iter().map(|frame| frame[19]).collect();
    assert_eq!(ids, [2, 3, 4]);
    lab.pass(5000);
    assert_eq!(lab.held(), 0);
}

#[test]
fn e67_options_are_written_once_though_the_packet_waited() {
    let mut lab = lab();
    let options = vec![7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let packet = V4 { options, ..V4::to("198.51.100.50") };
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    lab.change("neighbor 198.51.100.50 right 02:00:00:00:02:50");
    lab.pass(2);
    let options = vec![7, 11, 8, 198, 51, 100, 1, 0, 0, 0, 0, 0];
    let routed = V4 { options, ..packet }.one_hop_on();
    let expected = frame([2, 0, 0, 0, 2, 0x50], RIGHT_MAC, 0x0800, &routed);
    assert_eq!(lab.answer().only(), Some((RIGHT, &expected[..])));
}

#[test]
fn e67_who_waits_goes_first() {
    // The neighbor answers, and a packet arrives on the slow path before waiting frames were checked.
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 via 198.51.100.8 right");
    lab.pass(5);
    let packet = |id, options: &[u8]| V4 { id, options: options.to_vec(), ..V4::to("10.1.1.1") };
    for id in 0..3 {
        assert!(lab.exchange(LEFT, &packet(id, &[]).sent()).is_silence());
    }
    lab.change("neighbor 198.51.100.8 right 02:00:00:00:02:08");
    lab.send(LEFT, &packet(3, &[1; 4]).sent());
    lab.run();
    let ids: Vec<_> = lab.take(RIGHT).iter().map(|frame| frame[19]).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

/// The same without a gateway: the packet's own destination is the neighbor.
#[test]
fn e67_who_waits_for_a_host_on_the_link_goes_first() {
    let mut lab = lab();
    lab.pass(5);
    let packet = |id, options: &[u8]| V4 { id, options: options.to_vec(), ..V4::to("198.51.100.50") };
    for id in 0..3 {
        assert!(lab.exchange(LEFT, &packet(id, &[]).sent()).is_silence());
    }
    lab.change("neighbor 198.51.100.50 right 02:00:00:00:02:50");
    lab.send(LEFT, &packet(3, &[1; 4]).sent());
    lab.run();
    let ids: Vec<_> = lab.take(RIGHT).iter().map(|frame| frame[19]).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn e67_what_is_too_big_is_told_before_it_waits() {
    let mut lab = lab();
    let packet = V4 { fragment: 0x4000, payload: vec![0; 1400], ..V4::to("203.0.113.50") };
    let answer = lab.exchange(LEFT, &packet.sent());
    let (_, error) = answer.only().unwrap();
    assert_eq!(error, error_ipv4("192.0.2.1", 3, 4, 1300, &packet.bytes(), error));
    assert_eq!(lab.asked(), []);
    // What may be fragmented waits unfragmented.
    let packet = V4 { payload: vec![0; 1400], ..V4::to("203.0.113.50") };
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    lab.change("neighbor 203.0.113.50 narrow 02:00:00:00:03:50");
    lab.pass(2);
    assert_eq!(lab.take(NARROW).len(), 2);
}

#[test]
fn e67_a_route_that_goes_away_while_packets_wait() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 via 198.51.100.8 right");
    let packet = V4::to("10.1.1.1");
    lab.exchange(LEFT, &packet.sent());
    lab.change("no route 10.0.0.0/8");
    lab.pass(2);
    let answer = lab.answer();
    let (_, error) = answer.only().unwrap();
    assert_eq!(error, error_ipv4("192.0.2.1", 3, 0, 0, &packet.bytes(), error));
    // And one whose route changes.
    lab.change("route 10.0.0.0/8 via 198.51.100.8 right");
    lab.exchange(LEFT, &packet.sent());
    lab.change("route 10.0.0.0/8 via 203.0.113.5 narrow");
    lab.pass(2);
    assert_eq!(lab.take(NARROW).len(), 1);
}

#[test]
fn e69_a_scan_is_bounded() {
    let mut lab = lab();
    lab.change("interface right 1 02:00:00:00:00:02 198.51.100.1/24 10.60.0.1/16 2001:db8:2::1/64");
    let addresses: Vec<&'static str> =
        (0..600u32).map(|host| &*format!("10.60.{}.{}", host >> 8, host & 255 | 1).leak()).collect();
    for &destination in &addresses[2..] {
        lab.send(LEFT, &V4::to(destination).sent());
    }
    lab.send(LEFT, &V4::default().sent());
    lab.run();
    // Packets to known neighbors are sent; requests for others are rate-limited.
    assert_eq!(lab.take(RIGHT).len(), 1);
    let (asked, lost) = (lab.asked().len() as u64, lab.dropped(Reason::NeighborQueueFull));
    assert!(asked <= 512, "{asked} questions");
    assert_eq!(lab.held() + lost + lab.dropped(Reason::SlowPathFull), 598);
    lab.pass(10_000);
    assert_eq!(lab.held(), 0);
}

#[test]
fn e70_a_changed_mac_is_used_at_once() {
    let mut lab = lab();
    let packet = V4::default();
    assert_eq!(lab.exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
    lab.change("neighbor 198.51.100.7 right 02:00:00:00:02:99");
    for destination in ["8.8.8.8", "8.1.1.1", "198.51.100.7"] {
        let answer = lab.exchange(LEFT, &V4::to(destination).sent());
        assert_eq!(answer.only().unwrap().1[..6], [2, 0, 0, 0, 2, 0x99]);
    }
    // A lost neighbor is resolved again.
    lab.change("no neighbor 198.51.100.7 right");
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert_eq!(lab.asked(), [asked("right", "198.51.100.7")]);
}

#[test]
fn e71_next_hops_in_use_are_marked() {
    let mut lab = lab();
    assert!(!lab.used("198.51.100.7"));
    lab.exchange(LEFT, &V4::default().sent());
    assert!(lab.used("198.51.100.7") && !lab.used("198.51.100.7") && !lab.used("203.0.113.5"));
    lab.exchange(LEFT, &V6::default().sent());
    assert!(lab.used("2001:db8:2::7"));
    // By the slow path too: options, fragments.
    lab.exchange(LEFT, &V4 { options: vec![1; 4], ..V4::default() }.sent());
    assert!(lab.used("198.51.100.7"));
    lab.exchange(LEFT, &V4 { payload: vec![0; 1400], ..V4::to("9.9.9.9") }.sent());
    assert!(lab.used("203.0.113.5"));
}

#[test]
fn e72_one_link_local_next_hop_on_two_links() {
    let mut lab = lab();
    lab.change(
        "neighbor fe80::9 right 02:00:00:00:02:09
        neighbor fe80::9 narrow 02:00:00:00:03:09
        route 2001:db8:a1::/48 via fe80::9 right
        route 2001:db8:a2::/48 via fe80::9 narrow",
    );
    for (destination, port) in [("2001:db8:a1::1", RIGHT), ("2001:db8:a2::1", NARROW)] {
        let answer = lab.exchange(LEFT, &V6::to(destination).sent());
        let (to, frame) = answer.only().unwrap();
        assert_eq!((to, frame[4], frame[5]), (port, port as u8 + 1, 9));
    }
}

#[test]
fn e73_flows_keep_their_way_and_share_it_well() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 group 198.51.100.7 right 1 203.0.113.5 narrow 1");
    let addresses: Vec<&'static str> =
        (0..1000u32).map(|host| &*format!("10.1.{}.{}", host / 250, host % 250).leak()).collect();
    let ways = |lab: &mut Lab| -> Vec<usize> {
        let mut way =
            |destination| lab.exchange(LEFT, &V4::to(destination).sent()).only().map(|(port, _)| port);
        addresses.iter().map(|&destination| way(destination).unwrap()).collect()
    };
    let first = ways(&mut lab);
    assert_eq!(first, ways(&mut lab));
    let narrow = first.iter().filter(|&&port| port == NARROW).count();
    assert!((430..=570).contains(&narrow), "{narrow}");
    // Whatever path the packet takes through the router: with options it takes the slow path.
    let options = V4 { options: vec![1; 4], ..V4::to(addresses[7]) };
    assert_eq!(lab.exchange(LEFT, &options.sent()).only().unwrap().0, first[7]);
}

#[test]
fn e73_a_member_not_known_yet() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 group 198.51.100.8 right 1 198.51.100.9 right 1");
    for host in 0..8 {
        lab.send(LEFT, &V4::to(format!("10.1.1.{host}").leak()).sent());
    }
    lab.run();
    let mut questions = lab.asked();
    questions.sort();
    assert_eq!(questions, [asked("right", "198.51.100.8"), asked("right", "198.51.100.9")]);
    lab.change("neighbor 198.51.100.8 right 02:00:00:00:02:08");
    lab.change("neighbor 198.51.100.9 right 02:00:00:00:02:09");
    lab.pass(2);
    assert_eq!((lab.take(RIGHT).len(), lab.held()), (8, 0));
}

#[test]
fn e74_ipv4_by_an_ipv6_next_hop() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 via 2001:db8:2::7 right");
    let packet = V4::to("10.1.1.1");
    let expected = frame(RIGHT_HOST, RIGHT_MAC, 0x0800, &packet.one_hop_on());
    assert_eq!(lab.exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &expected[..])));
    lab.change("route 10.0.0.0/8 via fe80::77 right");
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert_eq!(lab.asked(), [asked("right", "fe80::77")]);
}

#[test]
fn e76_nothing_is_sent_where_there_is_no_carrier() {
    let mut lab = lab();
    lab.change("interface right 1 02:00:00:00:00:02 down 198.51.100.1/24 2001:db8:2::1/64");
    assert!(lab.exchange(LEFT, &V4::default().sent()).is_silence());
    assert!(lab.exchange(LEFT, &V6::default().sent()).is_silence());
    assert!(lab.exchange(LEFT, &V4 { options: vec![1; 4], ..V4::default() }.sent()).is_silence());
    assert!(lab.exchange(LEFT, &V4::to("198.51.100.50").sent()).is_silence());
    assert_eq!(lab.drops(), [(Reason::InterfaceDown, 4)]);
    assert_eq!(lab.asked(), []);
    // An expired TTL is still reported, and so are errors about others.
    assert!(!lab.exchange(LEFT, &V4 { ttl: 1, ..V4::default() }.sent()).is_silence());
}

#[test]
fn own_sources_are_linuxs_where_they_are_allowed() {
    let mut lab = lab();
    lab.change("interface left 0 02:00:00:00:00:01 accept-local 192.0.2.1/24");
    for options in [vec![], vec![1; 4]] {
        let packet = V4 { source: "198.51.100.1", options, ..V4::default() }.sent();
        assert_eq!(lab.exchange(LEFT, &packet), Answer { sent: vec![], host: vec![(LEFT, packet)] });
    }
}

#[test]
fn next_hops_that_are_not_on_a_port() {
    let mut lab = lab();
    lab.change("route 10.0.0.0/8 host");
    let sent = V4::to("10.1.1.1").sent();
    assert_eq!(lab.exchange(LEFT, &sent).host, [(LEFT, sent)]);
    let _ = (LEFT_HOST, NARROW_HOST);
}

#[test]
fn without_a_slow_path_what_it_should_get_is_counted() {
    let mut lab = lab();
    let mut slow = lab.take_slow_path();
    slow.stop();
    drop(slow);
    lab.send(LEFT, &V4::to("192.0.2.1").sent());
    lab.send(LEFT, &V4::default().sent());
    lab.run();
    assert_eq!((lab.take(RIGHT).len(), lab.drops()), (1, vec![(Reason::SlowPathFull, 1)]));
}
