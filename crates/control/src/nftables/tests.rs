//! Tests which tables are created, and when they filter.

use super::*;
use std::path::Path;

fn config(filter: &str) -> Config {
    let text = format!("[[port]]\ndevice = 'r0'\n[[port]]\ndevice = 'r1'\n[filter]\n{filter}");
    Config::parse(Path::new("test.toml"), &text).unwrap()
}

const TELNET: &str =
    "[[filter.rule]]\naction = 'drop'\nprotocol = 'tcp'\ndestination_ports = 23\nport = 'r0'\n";

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn with(filter: &str, interface: PortInterface) -> Vec<Table> {
    tables(
        &config(filter),
        &[],
        "t",
        &[PortNow { name: "r0".into(), device: "r0".into(), index: 0, interface }],
    )
}

fn by_workers(vlans_in_vrf: bool, marked: bool) -> PortInterface {
    PortInterface::ByWorkers { ifindex: 7, mac: MAC, vlans_in_vrf, marked }
}

/// The families with a table, and whether its rules exclude the interface with index 7.
fn shape(tables: &[Table]) -> Vec<(Family, bool)> {
    let but = Match::IsNot(Value::Interface, 7u32.to_ne_bytes().into(), None);
    let leaves_out = |table: &Table| {
        let mut entries = table.chains.iter().filter(|chain| chain.hook != Hook::Nowhere);
        entries.all(|chain| chain.rules.iter().all(|rule| rule.matches.contains(&but)))
    };
    tables.iter().map(|table| (table.family, leaves_out(table))).collect()
}

#[test]
fn rules_by_name_skip_only_interfaces_filtered_elsewhere() {
    let (inet, bridge, netdev) = (Family::Inet, Family::Bridge, Family::Netdev);
    assert_eq!(shape(&with(TELNET, PortInterface::Missing)), [(inet, false), (bridge, false)]);
    let kernel = PortInterface::Usable(7);
    assert_eq!(shape(&with(TELNET, kernel)), [(inet, true), (bridge, false)]);
    let workers = by_workers(false, false);
    assert_eq!(
        shape(&with(TELNET, workers)),
        [(netdev, false), (inet, false), (bridge, false)],
        "they may end at any time"
    );
    let rates = "rate_packets = 5\n";
    assert_eq!(shape(&with(rates, workers)), [(inet, true), (bridge, false)], "everything would be dropped");
    assert_eq!(
        shape(&with(TELNET, PortInterface::Unusable(7))),
        [(netdev, false), (inet, true), (bridge, true)]
    );
}

#[test]
fn frames_that_workers_do_not_get_are_filtered_at_ingress() {
    let of_port = |vlans_in_vrf| {
        let tables = with(TELNET, by_workers(vlans_in_vrf, false));
        let chain = tables[0].chains.iter().find(|chain| chain.name == "r0").unwrap();
        chain.rules.iter().filter(|rule| rule.verdict == Verdict::Accept).cloned().collect::<Vec<_>>()
    };
    let own = Match::Is(Value::Link(0, 6), MAC.to_vec(), None);
    let passed = of_port(false);
    assert!(passed.len() == 2 && passed.iter().all(|rule| rule.matches.contains(&own)), "{passed:?}");
    assert_eq!(of_port(true).len(), 4, "tagged frames as well");
}

#[test]
fn what_workers_hand_to_linux_is_marked_while_the_daemon_lives() {
    let port =
        PortNow { name: "r0".into(), device: "r0".into(), index: 0, interface: by_workers(false, true) };
    let second_tag = |rule: &&Rule| TAGS.iter().any(|tag| rule.matches.last() == Some(&frame_is(*tag)));
    for (filter, all) in [("rate_packets = 5\n", true), (TELNET, false)] {
        let ports = std::slice::from_ref(&port);
        let owned = owned_table(&config(filter), &[], "t", ports).unwrap();
        assert!(owned.owned && owned.name == owned_name("t"), "{owned:?}");
        let [chain] = &owned.chains[..] else { panic!("{owned:?}") };
        assert!(chain.rules.iter().all(|rule| rule.verdict == Verdict::Mark(HANDED_OVER)), "{filter}");
        assert_eq!(chain.rules.iter().filter(second_tag).count(), if all { 0 } else { 2 }, "{filter}");
        let netdev = &tables(&config(filter), &[], "t", ports)[0];
        let chain = netdev.chains.iter().find(|chain| chain.name == "r0").unwrap();
        assert_eq!(
            (netdev.family, &chain.rules[0].verdict),
            (Family::Netdev, &Verdict::AcceptUnmarked(HANDED_OVER))
        );
        assert_eq!(chain.rules.iter().filter(second_tag).count(), 2, "{filter}: dropped without a mark");
        let passed = chain.rules.iter().filter(|rule| rule.verdict == Verdict::Accept).count();
        assert_eq!(passed, if all { 0 } else { 2 }, "{filter}: frames that are filtered by name");
    }
    let missing = PortNow { interface: PortInterface::Missing, ..port };
    assert_eq!(owned_table(&config(TELNET), &[], "t", &[missing]), None);
}

#[test]
fn a_port_that_drops_nothing_has_no_table() {
    let other =
        PortNow { name: "r1".into(), device: "r1".into(), index: 1, interface: PortInterface::Missing };
    assert_eq!(tables(&config(TELNET), &[], "t", &[other]), []);
    assert_eq!(with("[[filter.rule]]\naction = 'accept'\n", PortInterface::Missing), []);
    assert_eq!(with("", PortInterface::Unusable(7)), []);
}

#[test]
fn untranslatable_filters_drop_everything() {
    for filter in ["rate_packets = 5\n", "reverse_path = 'strict'\n"] {
        let tables = with(filter, PortInterface::Unusable(7));
        let chain = tables[0].chains.iter().find(|chain| chain.name == "r0_ipv4").unwrap();
        let last = chain.rules.last().unwrap();
        assert_eq!((last.matches.len(), &last.verdict), (0, &Verdict::Drop), "{filter}");
        assert!(inexact(&config(filter), 0).is_some());
    }
    assert_eq!(inexact(&config(TELNET), 0), None);
}

#[test]
fn each_daemon_has_tables_of_its_own() {
    assert_eq!(name(Path::new(bm_api::request::SOCKET)), "brickmoon_filters");
    let [one, other] = ["/run/a.sock", "/run/b.sock"].map(|socket| name(Path::new(socket)));
    assert!(one != other && one.starts_with("brickmoon_filters_"), "{one} {other}");
}

/// The inbound policies of a configuration, in order.
fn inbound(policies: &str) -> Vec<Policy> {
    let text = format!("[[port]]\ndevice = 'r0'\n[ipsec]\n{policies}");
    let mut policies = Config::parse(Path::new("test.toml"), &text).unwrap().ipsec.policies;
    policies.sort_by_key(|policy| policy.priority);
    policies
}

#[test]
fn inbound_policies_hold_for_what_no_worker_has_seen() {
    let policies = inbound(
        "[[ipsec.policy]]\ndirection = 'in'\naction = 'discard'\nsource = '10.2.0.0/24'\npriority = 9\n\
         [[ipsec.policy]]\ndirection = 'in'\naction = 'bypass'\nsource = '10.2.0.0/24'\nprotocol = 'udp'\n\
         destination_ports = 500\npriority = 3\n",
    );
    let port = |interface| PortNow { name: "r0".into(), device: "r0".into(), index: 0, interface };
    let config = config("");
    let of = |interface| tables(&config, &policies, "t", &[port(interface)]);
    assert_eq!(of(PortInterface::Missing), []);
    let [netdev] = &of(by_workers(false, true))[..] else { panic!("one table") };
    let verdicts = |name: &str| -> Vec<Verdict> {
        let chain = netdev.chains.iter().find(|chain| chain.name == name).unwrap();
        chain.rules.iter().map(|rule| rule.verdict.clone()).collect()
    };
    assert_eq!(verdicts("r0_inbound_ipv4"), [Verdict::Accept, Verdict::Drop]);
    // They have no ports: what is protected in doubt is not let through.
    assert_eq!(verdicts("r0_inbound_ipv4_later"), [Verdict::Drop]);
    assert_eq!(verdicts("r0_inbound_ipv6"), []);
    assert_eq!(verdicts("r0_inbound")[0], Verdict::AcceptUnmarked(CHECKED));
    let owned = owned_table(&config, &policies, "t", &[port(by_workers(false, false))]).unwrap();
    assert_eq!(owned.chains[0].rules[0].verdict, Verdict::Mark(CHECKED));
    // Linux has such a port to itself.
    let bridged = &of(PortInterface::Unusable(7))[0];
    assert!(bridged.chains.last().unwrap().rules.iter().all(|rule| matches!(rule.verdict, Verdict::Goto(_))));
    assert_eq!(owned_table(&config, &policies, "t", &[port(PortInterface::Unusable(7))]), None);
}

#[test]
fn a_hook_that_must_see_all_packets_keeps_them_from_linux() {
    let hook = |text: &str| config(&format!("[[hook]]\nfile = 'a.lua'\n{text}"));
    assert_eq!(unattended(&hook("on_failure = 'drop'"), 0), Unattended::Drop);
    assert_eq!(["", "on_failure = 'linux'"].map(|text| unattended(&hook(text), 0)), [Unattended::ToLinux; 2]);
}
