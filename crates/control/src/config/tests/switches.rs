//! Switches and their ports.

use super::*;

const SWITCH: &str = "
[[switch]]
name = 'lan'
ports = ['veth*', 'tap0']
ageing_s = 60
flood_limit = 500
table = 1024
interface = 'lan0'
[[switch.port]]
ports = 'veth1'
access = 10
[[switch.port]]
ports = ['tap0', 'veth2']
trunk = [10, '20-22']
native = 5
flood_limit = 0
[[switch.static]]
mac = '02:00:00:00:00:0a'
port = 'veth1'
";

#[test]
fn reads_switches() {
    use bm_switch::Vlans;
    let config = read(SWITCH);
    let [lan] = config.switches.as_slice() else { panic!("{:?}", config.switches) };
    assert_eq!((lan.name.as_str(), lan.interface.as_deref(), lan.table), ("lan", Some("lan0"), 1024));
    assert_eq!((lan.ageing, lan.flood_limit), (Duration::from_secs(60), 500));
    assert!(lan.has("veth77") && lan.has("tap0") && lan.has("lan0.bm") && !lan.has("tap1"));
    assert_eq!(
        (lan.port_settings("veth1").vlans, lan.port_settings("veth1").flood_limit),
        (Vlans::Access(10), 500)
    );
    let trunk = Vlans::Trunk { tagged: vec![(10, 10), (20, 22)], native: Some(5) };
    assert_eq!((lan.port_settings("veth2").vlans, lan.port_settings("veth2").flood_limit), (trunk, 0));
    assert_eq!(lan.statics[0].mac, [2, 0, 0, 0, 0, 10]);
    let changed = Config::default().diff(&config);
    assert_eq!(changed, [Change { key: "switch.lan".into(), effect: Effect::Live }]);
}

#[test]
fn reads_the_port_flags_of_linuxs_bridge() {
    use bm_switch::PortFlags;
    let options = "access = 10\nisolated = 'on'\nlocked = 'on'\nlearning = 'off'\nflood = 'off'\n\
                   mcast_flood = 'off'\nbcast_flood = 'off'\nsource_guard = 'on'\ndhcp_guard = 'on'\nra_guard = 'on'\nmove_limit = 5\nfdb_max_learned = 7";
    let config =
        read(&SWITCH.replace("access = 10", options).replace("table = 1024", "table = 1024\nmove_limit = 9"));
    let [lan] = config.switches.as_slice() else { panic!("{:?}", config.switches) };
    let (one, other) = (lan.port_settings("veth1"), lan.port_settings("veth2"));
    let all = [
        "learning off",
        "locked on",
        "isolated on",
        "flood off",
        "mcast_flood off",
        "bcast_flood off",
        "source_guard on",
        "dhcp_guard on",
        "ra_guard on",
    ];
    assert_eq!(one.flags.changed(), all);
    assert_eq!((one.move_limit, one.fdb_max_learned), (5, 7));
    assert_eq!((other.flags, other.move_limit, other.fdb_max_learned), (PortFlags::default(), 9, 4096));
    let addresses = "port = 'veth1'\naddresses = ['192.0.2.1', '2001:db8::1']";
    let config = read(&SWITCH.replace("port = 'veth1'", addresses));
    let expected: [std::net::IpAddr; 2] =
        ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    assert_eq!(config.switches[0].statics[0].addresses, expected);
    let text = refused(&SWITCH.replace("port = 'veth1'", "port = 'veth1'\naddresses = ['192.0.2.1/24']"));
    assert!(
        text.contains("`addresses` in [[switch.static]] is \"192.0.2.1/24\": must be an IPv4 or IPv6"),
        "{text}"
    );
    let text = refused(&SWITCH.replace("access = 10", "isolated = true"));
    assert!(text.contains("`isolated` in [[switch.port]] must be a string, not the boolean true"), "{text}");
    let text = refused(&SWITCH.replace("access = 10", "isolated = 'yes'"));
    assert!(text.contains("`isolated` in [[switch.port]]") && text.contains("\"on\""), "{text}");
}

#[test]
fn reports_errors_in_switches() {
    let told = |from: &str, to: &str| {
        assert!(SWITCH.contains(from), "{from}");
        let text = refused(&SWITCH.replace(from, to));
        text.strip_prefix("test.toml, line ").unwrap_or_else(|| panic!("{text}")).to_string()
    };
    for (from, to, expected) in [
        ("name = 'lan'", "name = 'a b'", "3: `name` in [[switch]] is \"a b\": use 1 to 12 letters"),
        ("name = 'lan'\n", "", "3: `name` in [[switch]] is missing: write name = \"lan\""),
        (
            "'tap0']",
            "5]",
            "4: `ports` in [[switch]] must be a name or pattern, or a list of them, not the number 5",
        ),
        ("ageing_s", "aging_s", "5: unknown key `aging_s` in [[switch]]: did you mean `ageing_s`?"),
        ("access = 10", "access = 4095", "11: `access` in [[switch.port]] is 4095: must be from 1 to 4094"),
        (
            "'20-22'",
            "'22-20'",
            "14: `trunk` in [[switch.port]] is \"22-20\": must be a range, such as \"30-39\"",
        ),
        ("access = 10", "access = 10\ntrunk = [5]", "11: `access` in [[switch.port]] is \"10\": a port with"),
        ("trunk = [10, '20-22']\n", "", "14: `trunk` in [[switch.port]] is missing: write trunk = [20]"),
        ("02:00", "03:00", "18: `mac` in [[switch.static]] is \"03:00:00:00:00:0a\": must be a unicast MAC"),
        ("'lan0'", "'lan0-is-too-long'", "8: `interface` in [[switch]] is \"lan0-is-too-long\": use 1 to 12"),
    ] {
        let text = told(from, to);
        assert!(text.starts_with(expected), "{text}\n{expected}");
    }
    let twice = refused(&format!("{SWITCH}[[switch]]\nname = 'lan'\nports = 'x'\n"));
    assert!(twice.contains("duplicate switch \"lan\", first on line 2"), "{twice}");
    let twice = refused(&format!("{SWITCH}[[switch]]\nname = 'b'\nports = 'tap0'\n"));
    assert!(twice.contains("duplicate port tap0, first on line 2"), "{twice}");
    let both = refused(&format!("[[port]]\ndevice = 'veth3'\n{SWITCH}"));
    assert!(both.contains("\"veth3\": this is also a [[port]] of the router"), "{both}");
}

#[test]
fn the_example_of_a_switch_is_valid() {
    let config = read(&example_of(&["[[switch]]", "[[switch.port]]", "[[switch.static]]"]));
    let [switch] = config.switches.as_slice() else { panic!("{:?}", config.switches) };
    let defaults = bm_switch::Settings::new("lan");
    assert_eq!(switch.interface.as_deref(), Some("lan0"));
    assert_eq!(
        (switch.ageing, switch.flood_limit, switch.table),
        (defaults.ageing, defaults.flood_limit, defaults.table)
    );
    assert_eq!((switch.move_limit, switch.fdb_max_learned), (defaults.move_limit, defaults.fdb_max_learned));
    assert_eq!(switch.rules[0].flags, bm_switch::PortFlags::default());
    assert_eq!((switch.rules[0].flood_limit, switch.rules[0].move_limit), (None, None));
    assert_eq!((switch.rules.len(), switch.statics.len()), (2, 1));
}
