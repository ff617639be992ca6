//! Tests what the configuration accepts, and its error messages.

mod cluster;
mod export;
mod ipsec;
mod rules;
mod scripts;
mod switches;

use super::*;
use bm_fastpath::AttachChoice;
use bm_fib::structure;
use bm_filter::{Action, Rule};
use bm_graph::{Idle, RealTime, Schedule};
use std::time::Duration;

fn read(text: &str) -> Config {
    Config::parse(Path::new("test.toml"), text).unwrap()
}

fn refused(text: &str) -> String {
    Config::parse(Path::new("test.toml"), text).unwrap_err().to_string()
}

/// The error in the second line of a section.
fn message_for(section: &str, line: &str) -> String {
    let text = refused(&format!("[{section}]\n{line}\n"));
    text.strip_prefix("test.toml, line 2: ").unwrap_or_else(|| panic!("{text}")).into()
}

const EXAMPLE: &str = include_str!("../../../../docs/brickmoon.toml");

/// These tables of the example, which shows them as comments.
fn example_of(tables: &[&str]) -> String {
    let mut table = "";
    let mut shown = String::new();
    for line in EXAMPLE.lines().map(|line| line.strip_prefix("# ").unwrap_or(line)) {
        let key = line.split_once(" = ").map(|(key, _)| key);
        let is_key =
            key.is_some_and(|key| key.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c)));
        if line.starts_with('[') && line.ends_with(']') {
            table = line;
        }
        if tables.contains(&table) && (line == table || is_key) {
            shown.push_str(&format!("{line}\n"));
        }
    }
    shown
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(read(""), Config::default());
    assert_eq!(
        read("[daemon]\n[fib]\n[slow_path]\n[neighbors]\n[mirror]\n[lua]\n[filter]\n[firewall]\n[flows]\n"),
        Config::default()
    );
}

#[test]
fn the_example_has_every_key_with_its_default() {
    assert_eq!(read(EXAMPLE), Config::default());
    let ports = read(&example_of(&["[[port]]"])).ports;
    let inherited = Port {
        attach: Some(AttachChoice::Auto),
        reverse_path: Some(SourceRule::Kernel),
        ..Port::new(Device::Xdp("eth0".into()))
    };
    assert_eq!(ports, [inherited]);
    let [hook] = &read(&example_of(&["[[hook]]"])).hooks[..] else { panic!("no hook") };
    let Hook { name, file, arguments, line, .. } = hook.clone();
    assert_eq!(*hook, Hook { name, file, arguments, line, ..Hook::default() });
    let tables = ["[[port]]", "[[app]]", "[[link]]"];
    let config = read(&example_of(&tables));
    assert_eq!((config.apps[0].core, config.links.len()), (None, 2));
    assert_eq!(config.check_links(), []);
    let config = read(&example_of(&["[ipsec]", "[[ipsec.interface]]"]));
    let Ipsec { interfaces, xfrm_socket, .. } = config.ipsec.clone();
    assert_eq!(config.ipsec, Ipsec { interfaces, xfrm_socket, ..Ipsec::default() });
    let config = read(&example_of(&["[[filter.rule]]", "[[claim]]", "[[sflow]]", "[[ipfix]]"]));
    assert_eq!((config.filter.rules.len(), config.claims.len(), config.export.collectors.len()), (1, 1, 2));
}

#[test]
fn reads_every_key() {
    let text = "
        [daemon]
        socket = '/tmp/api.sock'
        read_group = 'adm'
        sandbox = 'off'
        metrics = '[::1]:9473'
        web = '127.0.0.1:9480'
        web_token = '/etc/token'
        workers = 2
        cores = [2, 3]
        rebalance = 'on'
        path = 'user'
        attach = 'xdp'
        kernel_grace_s = 5
        idle = 'busy'
        poll_us = 7
        priority = 0
        ring = 4096
        slots = 0x2000
        slot_size = 4096
        huge_pages = 'on'
        [[port]]
        device = 'eth0'
        queues = 4
        queue_workers = [0, 1, 1]
        zero_copy = 'off'
        checksum_completion = 'on'
        path = 'kernel'
        attach = 'tc'
        reverse_path = 'strict'
        [[port]]
        device = 'pcap:in.pcap,out.pcap'
        [fib]
        ipv4 = 'dir24_8'
        ipv6 = 'range6'
        next_hops = 2048
        group_buckets = 65_536
        hash_seed = 5
        [slow_path]
        ring = 128
        queue_per_next_hop = 8
        queue = 99
        wait_ms = 1500
        icmp_per_second = 0
        [neighbors]
        refresh_s = 2
        resolve_per_second = 10
        resolve_queue = 20
        [mirror]
        compare_s = 0
        receive_buffer = 1048576
        [lua]
        path = ['lua', '/usr/share/nf']
        [firewall]
        nftables = 'bypass'
        netfilter = 'bypass'
        xfrm = 'bypass'
        shaping = 'bypass'
        tc_filters = 'bypass'
        counters = 'exact'
        [flows]
        mode = 'auto'
        max = 5000
        [filter]
        unmatched = 'drop'
        tiny_fragments = 'drop'
        rate_packets = 100
        rate_burst = 7
        rate_ipv4_length = 24
        rate_ipv6_length = 48
        reverse_path = 'loose'
        fail = 'open'
        [[filter.rule]]
        name = 'no-telnet'
        action = 'drop'
        source = '192.0.2.0/24'
        destination = '198.51.100.7'
        protocol = 'tcp'
        source_ports = '1024-65535'
        destination_ports = 23
        port = 'eth0'
        [[filter.rule]]
        action = 'accept'
        destination = '2001:db8::/32'
        protocol = 89
    ";
    let config = read(text);
    let daemon = Daemon {
        socket: "/tmp/api.sock".into(),
        read_group: Some("adm".into()),
        sandbox: false,
        metrics: Some("[::1]:9473".parse().unwrap()),
        web: Some("127.0.0.1:9480".parse().unwrap()),
        web_token: Some("/etc/token".into()),
        workers: Some(2),
        cores: vec![2, 3],
        rebalance: true,
        path: PathChoice::User,
        attach: AttachChoice::Xdp,
        kernel_grace: Duration::from_secs(5),
        idle: IdleChoice::Busy,
        poll_us: Some(7),
        priority: Some(0),
        ring: Some(4096),
        slots: 8192,
        slot_size: 4096,
        huge_pages: Switch::On,
    };
    assert_eq!(config.daemon, daemon);
    let eth0 = Port {
        device: Device::Xdp("eth0".into()),
        queues: Some(4),
        queue_workers: vec![0, 1, 1],
        zero_copy: Switch::Off,
        checksum_completion: Switch::On,
        reverse_path: Some(SourceRule::Own(ReversePath::Strict)),
        path: PathChoice::Kernel,
        attach: Some(AttachChoice::Tc),
    };
    let files = Device::Pcap { input: Some("in.pcap".into()), output: Some("out.pcap".into()) };
    assert_eq!(config.ports, [eth0, Port::new(files)]);
    let dir24_8 = *structure::IPV4.iter().find(|structure| structure.name == "dir24_8").unwrap();
    let range6 = *structure::IPV6.iter().find(|structure| structure.name == "range6").unwrap();
    let (next_hops, group_buckets, hash_seed) = (2048, 65_536, Some(5));
    assert_eq!(config.fib, Fib { ipv4: dir24_8, ipv6: range6, next_hops, group_buckets, hash_seed });
    let slow_path = SlowPath {
        ring: 128,
        queue_per_next_hop: 8,
        queue: 99,
        wait: Duration::from_millis(1500),
        icmp_per_second: Some(0),
    };
    assert_eq!(config.slow_path, slow_path);
    let neighbors = Neighbors { refresh: Duration::from_secs(2), resolve_per_second: 10, resolve_queue: 20 };
    assert_eq!(config.neighbors, neighbors);
    assert_eq!(config.mirror, Mirror { compare: Duration::ZERO, receive_buffer: 1 << 20 });
    let telnet = Rule {
        name: "no-telnet".into(),
        action: Action::Drop,
        source: "192.0.2.0/24".parse().ok(),
        destination: "198.51.100.7/32".parse().ok(),
        protocol: Some(6),
        source_ports: Some(1024..=65_535),
        destination_ports: Some(23..=23),
        port: Some("eth0".into()),
    };
    let destination = "2001:db8::/32".parse().ok();
    let ospf = Rule { name: "rule-2".into(), destination, protocol: Some(89), ..Rule::default() };
    let filter = Filter {
        rules: vec![telnet, ospf],
        unmatched: Action::Drop,
        tiny_fragments: Action::Drop,
        rate_packets: Some(100),
        rate_burst: Some(7),
        rate_ipv4_length: 24,
        rate_ipv6_length: 48,
        reverse_path: SourceRule::Own(ReversePath::Loose),
        fail: Fail::Open,
    };
    assert_eq!(config.filter, filter);
    assert!(config.firewall.all().iter().all(|(_, mode)| *mode == FirewallMode::Bypass));
    assert!(config.unknown_ports_of_rules().is_empty());
    assert_eq!(config.daemon.schedule(), Schedule { idle: Idle::Busy, ..Schedule::default() });
    // Every setting differs, except a structure without alternatives.
    let chosen = 1 + usize::from(range6 != structure::IPV6[0]);
    assert_eq!(Config::default().diff(&config).len(), 32 + chosen + 1 + 2 + 9 + 1 + 1 + 6 + 2);
}

#[test]
fn suggests_the_intended_key() {
    assert_eq!(refused("[[prots]]\n"), "test.toml, line 1: unknown key `prots`: did you mean `port`?");
    assert_eq!(
        refused("[interfaces]\n"),
        "test.toml, line 1: unknown key `interfaces`, expected `daemon`, `port`, `fib`, `slow_path`, \
         `neighbors`, `mirror`, `lua`, `hook`, `app`, `link`, `claim`, `switch`, `cluster`, `filter`, `firewall`, `flows`, `ipsec`, `sampling`, `sflow` or `ipfix`"
    );
    assert_eq!(message_for("daemon", "slot = 1"), "unknown key `slot` in [daemon]: did you mean `slots`?");
    assert_eq!(
        message_for("neighbors", "arp = true"),
        "unknown key `arp` in [neighbors], expected `refresh_s`, `resolve_per_second` or `resolve_queue`"
    );
    assert_eq!(
        message_for("[port]", "zerocopy = 'on'\ndevice = 'eth0'"),
        "unknown key `zerocopy` in [[port]]: did you mean `zero_copy`?"
    );
}

#[test]
fn errors_name_the_expected_type() {
    assert_eq!(
        message_for("daemon", "slots = 'many'"),
        "`slots` in [daemon] must be a whole number, not the string \"many\": write slots = 16384"
    );
    assert_eq!(
        message_for("daemon", "slots = 1.5"),
        "`slots` in [daemon] must be a whole number, not the number 1.5: write slots = 16384"
    );
    assert_eq!(
        message_for("daemon", "workers = 'two'"),
        "`workers` in [daemon] must be a whole number or a keyword, not the string \"two\": \
         write workers = \"auto\" or workers = 1"
    );
    assert_eq!(
        message_for("daemon", "cores = 3"),
        "`cores` in [daemon] must be a list of whole numbers, not the number 3: write cores = [0, 1]"
    );
    assert_eq!(
        message_for("daemon", "path = true"),
        "`path` in [daemon] must be a string, not the boolean true: write path = \"auto\""
    );
    assert_eq!(
        message_for("slow_path", "wait_ms = []"),
        "`wait_ms` in [slow_path] must be a whole number, not a list: write wait_ms = 3000"
    );
    assert_eq!(
        message_for("daemon", "socket = 7"),
        "`socket` in [daemon] must be a string, not the number 7: \
         write socket = \"/run/brickmoon/api.sock\""
    );
    assert_eq!(
        refused("fib = 1\n"),
        "test.toml, line 1: `fib` in this file must be a table, not the number 1: \
         write [fib] on a line of its own"
    );
    assert_eq!(
        refused("[port]\ndevice = 'eth0'\n"),
        "test.toml, line 1: `port` in this file must be an array of tables, not a table: \
         write [[port]] with device = \"xdp:eth0\" below it"
    );
    assert_eq!(
        refused("port = ['eth0']\n"),
        "test.toml, line 1: `port` in this file must be an array of tables, not the string \"eth0\": \
         write [[port]] with device = \"xdp:eth0\" below it"
    );
}

#[test]
fn checks_priority_against_idle_and_ring_sizes() {
    let busy = message_for("daemon", "priority = 5\nidle = 'busy'");
    assert!(
        busy.starts_with("priority = 5 with idle = \"busy\": ") && busy.contains("set priority = 0"),
        "{busy}"
    );
    assert_eq!(
        message_for("daemon", "ring = 3000"),
        "`ring` in [daemon] is 3000: must be a power of two, such as 2048 or 4096"
    );
    let daemon = |text: &str| read(&format!("[daemon]\n{text}")).daemon;
    let micros = Duration::from_micros;
    let schedule = daemon("priority = 5\npoll_us = 9").schedule();
    assert_eq!(schedule.real_time, Some(RealTime { priority: 5, after: micros(9) }));
    let schedule = daemon("").schedule();
    assert_eq!(schedule.idle, Idle::Sleep { after: micros(50) });
    assert_eq!(schedule.real_time, Some(RealTime { priority: 1, after: micros(0) }));
    assert_eq!(daemon("priority = 0").schedule().real_time, None);
    // 65,536 in total, 2,048 to 16,384 for each; a configured size is kept.
    assert_eq!(
        [1, 4, 5, 8, 32, 1000].map(|queues| daemon("").ring(queues)),
        [16_384, 16_384, 8192, 8192, 2048, 2048]
    );
    assert_eq!([1, 1000].map(|queues| daemon("ring = 64").ring(queues)), [64, 64]);
}

#[test]
fn errors_name_the_valid_values() {
    let range = "`slots` in [daemon] is 10: must be from 1024 to 4194304";
    assert_eq!(message_for("daemon", "slots = 10"), range);
    assert_eq!(message_for("daemon", "slots = -1"), range.replace("10:", "-1:"));
    assert_eq!(
        message_for("daemon", "slots = 99999999999999999999999"),
        range.replace("10:", "99999999999999999999999:")
    );
    assert_eq!(
        message_for("daemon", "slot_size = 3000"),
        "`slot_size` in [daemon] is 3000: must be a power of two, such as 2048 or 4096"
    );
    assert_eq!(
        message_for("daemon", "path = 'usr'"),
        "`path` in [daemon] is \"usr\", expected \"auto\", \"user\" or \"kernel\": did you mean \"user\"?"
    );
    assert_eq!(
        message_for("daemon", "huge_pages = 'never'"),
        "`huge_pages` in [daemon] is \"never\", expected \"auto\", \"on\" or \"off\""
    );
    let unknown = message_for("fib", "ipv4 = 'dir24-8'");
    assert!(
        unknown.starts_with("`ipv4` in [fib] is \"dir24-8\", expected ")
            && unknown.ends_with(": did you mean \"dir24_8\"?"),
        "{unknown}"
    );
    assert_eq!(
        message_for("fib", "ipv4 = 'dxr18'"),
        "`ipv4` in [fib] is \"dxr18\": only `brickmoon bench lookup` still has this structure: delete the line, which means \
         \"dir18\", or write \"chunk17\" if the cache is small"
    );
    assert_eq!(
        message_for("daemon", "metrics = 'localhost'"),
        "`metrics` in [daemon] is \"localhost\": must be an address with a port, such as \"127.0.0.1:9473\" or \
         \"[::1]:9473\", or \"off\""
    );
    assert_eq!(
        message_for("daemon", "cores = [1, 2, 1]"),
        "`cores` in [daemon] contains 1 twice: remove one"
    );
    assert_eq!(
        message_for("daemon", "cores = [1]\nworkers = 2"),
        "`cores` in [daemon] lists 1 core for 2 workers: list a core for each, or none"
    );
}

#[test]
fn reports_errors_in_ports() {
    assert_eq!(
        refused("\n[[port]]\nqueues = 1\n"),
        "test.toml, line 2: this [[port]] has no `device`: add one, such as device = \"xdp:eth0\""
    );
    assert_eq!(
        message_for("[port]", "device = 'xpd:eth0'"),
        "unknown kind of device `xpd`: did you mean `xdp:`?"
    );
    assert_eq!(
        message_for("[port]", "device = 3"),
        "`device` in [[port]] must be a string, not the number 3: write device = \"xdp:eth0\""
    );
    assert_eq!(
        refused("[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'xdp:eth0'\n"),
        "test.toml, line 4: duplicate port xdp:eth0, first on line 2: remove one of the two"
    );
}

#[test]
fn errors_locate_invalid_toml() {
    let text = refused("[daemon]\nslots = \n");
    assert!(text.starts_with("test.toml, line 2: invalid TOML: "), "{text}");
    let text = refused("[daemon]\nslots = 2048\nslots = 2048\n");
    assert!(text.starts_with("test.toml, line 3: invalid TOML: duplicate key"), "{text}");
}

#[test]
fn reports_all_errors_by_line() {
    let text = refused("[mirror]\ncompare = 1\n[daemon]\nslots = 1\n\n[[port]]\n");
    let lines: Vec<&str> = text.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(lines, ["test.toml, line 2", "test.toml, line 4", "test.toml, line 6"]);
}

#[test]
fn reports_a_missing_file() {
    assert_eq!(
        Config::load(Path::new("/nonexistent.toml")).unwrap_err().to_string(),
        "/nonexistent.toml: cannot read the configuration: No such file or directory (os error 2); \
         use --config FILE for another file"
    );
}

#[test]
fn reports_the_effect_of_each_change() {
    let old = read("[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'eth1'\n[daemon]\nslots = 2048\n");
    assert_eq!(old.diff(&old), []);
    let new = read(
        "[[port]]\ndevice = 'eth0'\nqueues = 1\n[[port]]\ndevice = 'eth2'\n[neighbors]\nrefresh_s = 9\n",
    );
    let expected = [
        ("daemon.slots", Effect::Daemon),
        ("neighbors.refresh_s", Effect::Live),
        ("port.xdp:eth0", Effect::Workers),
        ("port.xdp:eth1", Effect::Workers),
        ("port.xdp:eth2", Effect::Workers),
    ];
    assert_eq!(old.diff(&new), expected.map(|(key, effect)| Change { key: key.into(), effect }));
}
