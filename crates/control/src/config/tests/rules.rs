//! Filter rules and claims.

use super::*;

#[test]
fn reports_errors_in_rules() {
    let of_rule = |line: &str| refused(&format!("[[filter.rule]]\naction = 'drop'\n{line}\n"));
    for (line, at, text) in [
        (
            "source = '192.0.2.1/24'",
            3,
            "`source` in [[filter.rule]] is \"192.0.2.1/24\": must be an address, or a prefix such as ",
        ),
        ("protocol = 'tpc'", 3, "`protocol` in [[filter.rule]] is \"tpc\", expected \"tcp\", "),
        ("protocol = 256", 3, "`protocol` in [[filter.rule]] is 256: must be from 0 to 255"),
        (
            "protocol = 6\nsource_ports = '9-3'",
            4,
            "`source_ports` in [[filter.rule]] is \"9-3\": must be a port",
        ),
        ("source_ports = 53", 1, "this [[filter.rule]] matches ports but no protocol with ports: "),
        (
            "source = '::1'\ndestination = '1.2.3.4'",
            4,
            "no packet can match source ::1/128 and destination 1.2.3.4/32: ",
        ),
        ("form = 1", 3, "unknown key `form` in [[filter.rule]]"),
    ] {
        let refused = of_rule(line);
        assert!(refused.starts_with(&format!("test.toml, line {at}: {text}")), "{refused}");
    }
    let without = refused("[[filter.rule]]\nprotocol = 6\n");
    assert!(without.starts_with("test.toml, line 1: this [[filter.rule]] has no `action`: "), "{without}");
    assert!(refused("[filter]\nrule = 3\n").contains("must be an array of tables"));
}

#[test]
fn counts_rules_as_compiled() {
    let by_port = |action: &str| {
        format!("[[filter.rule]]\naction = '{action}'\nprotocol = 'udp'\ndestination_ports = 53\n")
    };
    let claim = "[[claim]]\nprotocol = 'udp'\ndestination_ports = 53\n";
    assert_eq!(read(&by_port("accept").repeat(5461)).filter.rules.len(), 5461);
    assert_eq!(read(&by_port("drop").repeat(16_384)).filter.rules.len(), 16_384);
    let room = "too many rules and claims: 16386 of at most 16384";
    for text in [by_port("accept").repeat(5462), by_port("accept").repeat(5461) + claim, claim.repeat(5462)] {
        let refused = refused(&text);
        assert!(refused.starts_with("test.toml, line 1: ") && refused.contains(room), "{refused}");
    }
}

#[test]
fn rules_may_only_name_existing_ports() {
    let config = read("[[filter.rule]]\naction = 'drop'\nport = 'eth1'\n[[port]]\ndevice = 'eth0'\n");
    assert_eq!(config.unknown_ports_of_rules(), ["eth1"]);
    assert!(config.filter.drops() && !read("").filter.drops());
    let [port] = &config.ports[..] else { panic!("one port") };
    assert_eq!(config.source_rule(port), SourceRule::Kernel);
}

#[test]
fn reads_claims() {
    let config = read(
        "[[claim]]\nname = 'dns'\nprotocol = 'udp'\ndestination_ports = 53\nport = 'eth0'\n\
         [[claim]]\nsource = '2001:db8::/32'\n",
    );
    let shown: Vec<_> = config.claims.iter().map(|claim| format!("{}: {claim}", claim.name)).collect();
    assert_eq!(shown, ["dns: udp from any to any port 53 in on eth0", "claim-2: from 2001:db8::/32 to any"]);
    assert_eq!(config.unknown_ports_of_rules(), ["eth0"]);
    let keys: Vec<_> = read("").diff(&config).into_iter().map(|changed| changed.key).collect();
    assert_eq!(keys, ["claim.1", "claim.2"]);
    assert!(refused("[[claim]]\naction = 'drop'\n").contains("unknown key `action`"));
    assert!(refused("claim = 3\n").contains("[[claim]] with protocol"));
}
