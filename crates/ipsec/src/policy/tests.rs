//! The database against a look at each policy.

use super::*;
use crate::key::key;
use crate::testing::{ipv4_udp, ipv6_udp};
use proptest::prelude::*;

fn policy(priority: u32, selector: Selector, action: Action) -> Policy {
    Policy { at: 0, direction: Direction::Out, priority, selector, action }
}

fn to(destination: &str) -> Selector {
    Selector { destination: Some(destination.parse().unwrap()), ..Selector::default() }
}

#[test]
fn lowest_priority_decides() {
    let sa = SaId { spi: 256, destination: "192.0.2.2".parse().unwrap() };
    let dns = Selector { protocol: Some(17), destination_ports: Some(53..=53), ..to("10.2.0.0/16") };
    let policies = Policies::new(vec![
        policy(30, Selector::default(), Action::Discard),
        policy(10, dns, Action::Bypass),
        policy(20, to("10.2.0.0/16"), Action::Protect(sa)),
        Policy { direction: Direction::In, ..policy(1, Selector::default(), Action::Discard) },
    ])
    .unwrap();
    let find =
        |packet: &[u8]| policies.find(Direction::Out, &key(packet).unwrap()).map(|policy| policy.action);
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 53], 8)), Some(Action::Bypass));
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 54], 8)), Some(Action::Protect(sa)));
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 3, 0, 1], [4000, 54], 8)), Some(Action::Discard));
    assert_eq!(find(&ipv6_udp(1, 2, [1, 2], 8)), Some(Action::Discard));
    let mut later = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 53], 8);
    later[6..8].copy_from_slice(&[0, 9]);
    // A later fragment has no ports: it must not leave in clear because a part of its traffic may.
    assert_eq!(find(&later), Some(Action::Protect(sa)));
    assert_eq!(Policies::new(Vec::new()).unwrap().find(Direction::Out, &key(&later).unwrap()), None);
}

proptest! {
    #[test]
    fn tree_finds_what_a_look_at_each_finds(
        wanted in prop::collection::vec((0u32..4, 0u8..4, 0u8..25, 0u8..3, 0u16..3), 1..40),
        packets in prop::collection::vec((0u8..4, 0u8..4, 0u16..4), 1..60),
    ) {
        let policies: Vec<Policy> = wanted.iter().map(|&(priority, net, length, action, port)| {
            let prefix = bm_wire::prefix::Ipv4Prefix::containing(0x0a00_0000 | u32::from(net) << 8, length);
            let ports = (port > 0).then_some(port..=port);
            let selector = Selector {
                destination: prefix.map(bm_filter::AnyPrefix::V4),
                protocol: ports.as_ref().map(|_| 17),
                destination_ports: ports,
                ..Selector::default()
            };
            let sa = SaId { spi: 300, destination: [192, 0, 2, 1].into() };
            let action = [Action::Discard, Action::Bypass, Action::Protect(sa)][usize::from(action)];
            policy(priority, selector, action)
        }).collect();
        let built = Policies::new(policies).unwrap();
        for (third, last, port) in packets {
            let packet = ipv4_udp([10, 9, 9, 9], [10, 0, third, last], [9, port], 8);
            let destination = 0x0a00_0000 | u32::from(third) << 8 | u32::from(last);
            let by_hand = built.all().iter().find(|policy| {
                let Some(bm_filter::AnyPrefix::V4(prefix)) = policy.selector.destination else { return true };
                let ports = policy.selector.destination_ports.as_ref();
                prefix.contains(destination) && ports.is_none_or(|ports| ports.contains(&port))
            });
            prop_assert_eq!(built.find(Direction::Out, &key(&packet).unwrap()), by_hand);
        }
    }
}
