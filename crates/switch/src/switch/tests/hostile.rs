//! Hostile guests: they try to fill the table, to take over MAC addresses of others, and to receive their frames.

use super::*;
use crate::layout::RESERVED_MACS;
use crate::settings::PortFlags;

/// One of very many MAC addresses.
fn one_of_many(number: u32) -> [u8; 6] {
    let [_, a, b, c] = number.to_be_bytes();
    [2, 7, 0, a, b, c]
}

/// A rule for one port.
fn flags(port: &str, flags: PortFlags) -> PortRule {
    PortRule { flags, ..PortRule::new(Pattern::new(port)) }
}

/// The port that each known MAC address is behind.
fn ports_of_macs(lab: &Lab) -> Vec<([u8; 6], String)> {
    lab.switch.fdb().into_iter().map(|entry| (entry.address.mac, entry.port)).collect()
}

#[test]
fn a_port_at_its_limit_forgets_its_own_oldest_mac() {
    let Some(mut lab) = Lab::with_ports(3, Settings { fdb_max_learned: 4, ..settings() }) else { return };
    lab.run(1, &frame(BROADCAST, mac(1), "a neighbor"));
    for number in 0..10 {
        lab.run(0, &frame(BROADCAST, one_of_many(number), "one of many"));
        // The clock of the table is coarse.
        std::thread::sleep(Duration::from_millis(12));
    }
    let left: Vec<_> = (6..10).map(|number| (one_of_many(number), "p0".to_string())).collect();
    assert_eq!(ports_of_macs(&lab), [&[(mac(1), "p1".into())][..], &left].concat());
    assert_eq!((lab.count(0, "learned"), lab.count(0, "evicted"), lab.count(0, "table_full")), (10, 6, 0));
    // One that is heard again is not the oldest any more: its time is written after half a second.
    std::thread::sleep(Duration::from_millis(600));
    lab.run(0, &frame(BROADCAST, one_of_many(6), "still here"));
    lab.run(0, &frame(BROADCAST, one_of_many(20), "another"));
    let left: Vec<_> = ports_of_macs(&lab).into_iter().map(|(mac, _)| mac).collect();
    assert!(left.contains(&one_of_many(6)) && !left.contains(&one_of_many(7)), "{left:?}");
}

#[test]
fn one_port_cannot_fill_the_table_for_others() {
    const TABLE: u32 = 64;
    let Some(mut lab) = Lab::with_ports(4, Settings { table: TABLE, ..settings() }) else { return };
    for number in 0..20_000 {
        lab.run(0, &frame(BROADCAST, one_of_many(number), "one of many"));
    }
    assert_eq!(lab.switch.fdb_count(), (TABLE + RESERVED_MACS) as usize);
    assert_eq!(lab.count(0, "learned") - lab.count(0, "evicted"), u64::from(TABLE + RESERVED_MACS));
    assert!(ports_of_macs(&lab).contains(&(one_of_many(19_999), "p0".into())), "its newest is known");
    // New MAC addresses of another port are learned, and what goes to them reaches no third.
    for number in 0..RESERVED_MACS as u8 {
        lab.goes(1, &frame(BROADCAST, mac(number), "new"), &[0, 2, 3]);
    }
    for number in 0..RESERVED_MACS as u8 {
        lab.goes(2, &frame(mac(number), mac(99), "to one of them"), &[1]);
    }
    assert_eq!((lab.count(1, "table_full"), lab.count(1, "evicted")), (0, 0));
    // Once they are forgotten, their room is there for others.
    lab.switch.settings.ageing = Duration::from_nanos(1);
    std::thread::sleep(Duration::from_millis(20));
    lab.switch.sweep();
    for number in 0..TABLE {
        lab.run(3, &frame(BROADCAST, one_of_many(30_000 + number), "later"));
    }
    assert_eq!((lab.count(3, "learned"), lab.count(3, "evicted")), (TABLE.into(), 0));
}

#[test]
fn the_switchs_own_mac_cannot_be_taken() {
    let interface = Some("lan0".to_string());
    let Some(mut lab) = Lab::with_ports(2, Settings { interface, ..settings() }) else { return };
    let own = lab.switch.interfaces.mac("lan0").unwrap();
    let reaches_linux = |lab: &Lab, to: [u8; 6]| {
        for number in 0..10 {
            lab.goes(0, &frame(BROADCAST, to, &format!("I am lan0 {number}")), &[1]);
        }
        lab.goes(1, &frame(to, mac(1), "to Linux"), &[]);
        assert!(ports_of_macs(lab).contains(&(to, "lan0.bm".into())), "{:?}", ports_of_macs(lab));
    };
    reaches_linux(&lab, own);
    assert_eq!((lab.count(0, "moved"), lab.count(0, "move_refused")), (0, 10));
    // Another MAC is as safe as soon as Linux tells of it, and the old one is nobody's.
    ip("link set lan0 address 02:00:00:00:00:63");
    lab.switch.reconcile().unwrap();
    reaches_linux(&lab, mac(0x63));
    assert!(!ports_of_macs(&lab).iter().any(|(mac, _)| *mac == own));
}

#[test]
fn moves_of_macs_are_rate_limited() {
    let Some(mut lab) = Lab::with_ports(3, Settings { move_limit: 10, ..settings() }) else { return };
    let started = Instant::now();
    let claim = frame(BROADCAST, mac(7), "here");
    lab.run(0, &claim);
    for _ in 0..500 {
        lab.run(1, &claim);
        lab.run(0, &claim);
    }
    let most = BURST_EVENTS + 2 + started.elapsed().as_millis() as u64 / 100;
    for port in [0, 1] {
        assert!(
            (BURST_EVENTS..=most).contains(&lab.count(port, "moved")),
            "{} of {most}",
            lab.port_counters()
        );
    }
    assert!(lab.count(0, "move_refused") + lab.count(1, "move_refused") > 400, "{}", lab.port_counters());
    // The limit of one port is not that of others.
    lab.run(2, &claim);
    assert_eq!((lab.count(2, "moved"), ports_of_macs(&lab)), (1, vec![(mac(7), "p2".into())]));
}

#[test]
fn isolated_ports_reach_others_but_not_each_other() {
    let isolated = PortFlags { isolated: true, ..PortFlags::default() };
    let rules = vec![flags("p0", isolated), flags("p1", isolated)];
    let Some(lab) = Lab::with_ports(4, Settings { rules, ..settings() }) else { return };
    lab.goes(0, &frame(BROADCAST, mac(0), "from one that is"), &[2, 3]);
    lab.goes(1, &frame(mac(9), mac(1), "the other, unknown"), &[2, 3]);
    lab.goes(2, &frame(BROADCAST, mac(2), "from one that is not"), &[0, 1, 3]);
    lab.drops(0, &frame(mac(1), mac(0), "to the other"), "drop_isolated");
    lab.goes(0, &frame(mac(2), mac(0), "up"), &[2]);
    lab.goes(2, &frame(mac(0), mac(2), "down"), &[0]);
}

#[test]
fn a_port_gets_no_floods_that_it_does_not_take() {
    let all = PortFlags::default();
    let rules = vec![
        flags("p1", PortFlags { flood: false, ..all }),
        flags("p2", PortFlags { mcast_flood: false, ..all }),
        flags("p3", PortFlags { flood: false, mcast_flood: false, bcast_flood: false, ..all }),
    ];
    let Some(lab) = Lab::with_ports(4, Settings { rules, ..settings() }) else { return };
    lab.goes(0, &frame(mac(9), mac(0), "unknown"), &[2]);
    lab.goes(0, &frame([1, 0, 0x5e, 0, 0, 5], mac(0), "multicast"), &[1]);
    lab.goes(0, &frame(BROADCAST, mac(0), "broadcast"), &[1, 2]);
    lab.goes(3, &frame(BROADCAST, mac(3), "known now"), &[0, 1, 2]);
    lab.goes(0, &frame(mac(3), mac(0), "to a MAC address"), &[3]);
}

#[test]
fn with_all_floods_off_unknown_macs_get_nothing() {
    let rules = vec![flags("p*", PortFlags { flood: false, ..PortFlags::default() })];
    let Some(lab) = Lab::with_ports(3, Settings { rules, ..settings() }) else { return };
    lab.goes(0, &frame(BROADCAST, mac(0), "here"), &[1, 2]);
    lab.drops(1, &frame(mac(9), mac(1), "unknown"), "drop_no_flood");
    lab.goes(1, &frame(mac(0), mac(1), "known"), &[0]);
}

#[test]
fn a_locked_port_passes_only_frames_of_its_static_macs() {
    let locked = PortFlags { locked: true, ..PortFlags::default() };
    let statics = vec![Static { mac: mac(0), vlan: 0, port: "p0".into(), addresses: Vec::new() }];
    let settings = Settings { rules: vec![flags("p0", locked)], statics, ..settings() };
    let Some(lab) = Lab::with_ports(3, settings) else { return };
    lab.goes(0, &frame(BROADCAST, mac(0), "the one"), &[1, 2]);
    lab.drops(0, &frame(BROADCAST, mac(5), "another"), "drop_locked");
    lab.goes(1, &frame(BROADCAST, mac(1), "elsewhere"), &[0, 2]);
    lab.drops(0, &frame(BROADCAST, mac(1), "that of a neighbor"), "drop_locked");
    lab.goes(2, &frame(mac(1), mac(2), "still there"), &[1]);
    assert_eq!(lab.count(0, "learned") + lab.count(0, "moved"), 0);
}

#[test]
fn a_port_without_learning_forwards_and_learns_nothing() {
    let deaf = PortFlags { learning: false, ..PortFlags::default() };
    let Some(lab) = Lab::with_ports(3, Settings { rules: vec![flags("p0", deaf)], ..settings() }) else {
        return;
    };
    lab.goes(0, &frame(BROADCAST, mac(0), "hello"), &[1, 2]);
    lab.goes(1, &frame(mac(0), mac(1), "not known"), &[0, 2]);
    assert_eq!(ports_of_macs(&lab), [(mac(1), "p1".into())]);
}
