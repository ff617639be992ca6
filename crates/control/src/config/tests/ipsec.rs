//! SAs, policies, and keys.

use super::*;
use bm_ipsec::{Action, Direction, Mode, Suite};
use std::os::unix::fs::PermissionsExt;

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f10111213";

fn sa(name: &str, spi: u32, lines: &str) -> String {
    format!(
        "[[ipsec.sa]]\nname = '{name}'\ndirection = 'out'\nspi = {spi}\nsource = '192.0.2.1'\n\
         destination = '198.51.100.1'\nsuite = 'aes128gcm16'\n{lines}\n"
    )
}

fn with_key(name: &str, spi: u32, lines: &str) -> String {
    sa(name, spi, &format!("encryption_key = '{KEY}'\n{lines}"))
}

fn policy(lines: &str) -> String {
    format!("[[ipsec.policy]]\ndirection = 'out'\n{lines}\n")
}

#[test]
fn reads_sas_and_policies() {
    let lines = "mode = 'transport'\nesn = 'on'\nreplay_window = 1024\nhard_bytes = 1000\nhard_s = 3\n\
                 udp_encapsulation = 'on'\nudp_destination_port = 4501\ndscp = 46\n[[ipsec.sa.selector]]\nsource = '10.0.0.0/8'";
    let text = with_key("to-b", 4097, lines)
        + &policy("action = 'protect'\nsa = 'to-b'\ndestination = '10.2.0.0/16'");
    let ipsec = read(&text).ipsec;
    let [sa] = &ipsec.sas[..] else { panic!("one SA") };
    assert_eq!((ipsec.names[0].as_str(), sa.at, sa.direction, sa.spi), ("to-b", 1, Direction::Out, 4097));
    assert_eq!(
        (sa.mode, sa.suite, sa.esn, sa.replay_window),
        (Mode::Transport, Suite::Aes128Gcm, true, 1024)
    );
    assert_eq!((sa.limits.bytes.hard, sa.limits.time_ns.hard), (Some(1000), Some(3_000_000_000)));
    assert_eq!(sa.udp.map(|udp| (udp.source, udp.destination)), Some((4500, 4501)));
    assert_eq!((sa.encryption_key.bytes()[19], sa.selectors.len()), (0x13, 1));
    assert_eq!(ipsec.policies[0].action, Action::Protect(sa.id()));
    assert!(!format!("{ipsec:?}").contains("0a0b"), "keys are not shown");
}

/// Three SAs with keys of their own.
fn three() -> String {
    let one = |number: u32| {
        let key = KEY.replace("0x00", &format!("0x{number:02x}"));
        sa(&format!("to-b-{number}"), 4096 + number, &format!("encryption_key = '{key}'"))
    };
    (0..3).map(one).collect()
}

#[test]
fn reads_policies_with_several_sas() {
    let protect =
        |sas: &str, priority: u32| policy(&format!("action = 'protect'\npriority = {priority}\nsa = {sas}"));
    let text = three() + &protect("['to-b-0', 'to-b-1']", 1) + &protect("['to-b-2']", 2);
    let config = read(&text);
    let ipsec = &config.ipsec;
    let id = |at: usize| ipsec.sas[at].id();
    assert_eq!(ipsec.lists, [vec![id(0), id(1)]]);
    let actions: Vec<_> = ipsec.policies.iter().map(|policy| policy.action).collect();
    assert_eq!(actions, [Action::OneOf(0), Action::Protect(id(2))], "one SA needs no list");
    assert_eq!([0, 1, 2].map(|at| ipsec.place_of(id(at))), [Some(0), Some(1), None]);
    let other = read(&text.replace("'to-b-0', 'to-b-1'", "'to-b-1', 'to-b-0'"));
    let changed = config.diff(&other);
    assert_eq!((changed.len(), changed[0].key.as_str()), (1, "ipsec.policy"));
}

#[test]
fn linux_drops_what_is_left_to_it_unless_the_file_says_otherwise() {
    assert_eq!(read("[ipsec]\n").ipsec.left_to_linux, LeftToLinux::Drop);
    let [drop, forward] = ["drop", "forward"]
        .map(|word| read(&format!("[ipsec]\nleft_to_linux = '{word}'\n{}", with_key("a", 256, ""))));
    assert_eq!(forward.ipsec.left_to_linux, LeftToLinux::Forward);
    assert_eq!(drop.ipsec.left_to_linux, LeftToLinux::Drop);
    let changed = drop.diff(&forward);
    assert_eq!((changed.len(), changed[0].key.as_str()), (1, "ipsec.left_to_linux"));
}

#[test]
fn programs_can_add_sas_where_the_file_says_so() {
    let [none, some] =
        ["", "xfrm_socket = '/run/brickmoon/xfrm.sock'"].map(|line| read(&format!("[ipsec]\n{line}\n")));
    assert!(none.ipsec.is_empty() && !some.ipsec.is_empty());
    let changed = none.diff(&some);
    assert!(
        changed.iter().any(|changed| changed.key == "ipsec.xfrm_socket" && changed.effect == Effect::Daemon)
    );
}

#[test]
fn reports_errors_of_sas_and_policies() {
    let key = |key: &str, lines: &str| sa("a", 256, &format!("encryption_key = '{key}'\n{lines}"));
    for (text, line, why) in [
        (
            key("0x0102", ""),
            8,
            "encryption_key has 2 bytes: aes128gcm16 needs 20, of which the last 4 are the salt",
        ),
        (key("0x01 2", ""), 8, "`encryption_key` in [[ipsec.sa]]: must be hexadecimal"),
        (key(&"00".repeat(20), ""), 8, "encryption_key is all zeros"),
        (sa("a", 256, ""), 1, "encryption_key has 0 bytes"),
        (with_key("a", 255, ""), 4, "SPI 0xff is reserved"),
        (sa("a", 256, "").replace("aes128gcm16", "aes128gcm"), 7, "`suite` in [[ipsec.sa]] is \"aes128gcm\""),
        (with_key("a", 256, "integrity_key = '01'"), 9, "aes128gcm16 has no key for integrity"),
        (with_key("a", 256, "replay_window = 4097"), 9, "a replay window of 4097 packets: at most 4096"),
        (with_key("a", 256, "esn = 'on'\nreplay_window = 0"), 10, "ESN needs a replay window"),
        (with_key("a", 256, "hard_bytes = 0"), 9, "a lifetime of 0 bytes"),
        (
            with_key("a", 256, "soft_s = 2\nhard_s = 2"),
            9,
            "the soft lifetime in time is not below the hard one",
        ),
        (with_key("a", 256, "udp_encapsulation = 'on'\nudp_source_port = 0"), 10, "UDP port 0"),
        (with_key("a", 256, "path_mtu = 600"), 9, "a path MTU of 600 bytes"),
        (with_key("a", 256, "spy = 3"), 9, "unknown key `spy` in [[ipsec.sa]]"),
        (
            with_key("a", 256, "").replace("'198.51.100.1'", "'2001:db8::1'"),
            5,
            "source 192.0.2.1 and destination",
        ),
        (
            with_key("a", 256, "").replace("'198.51.100.1'", "'b'"),
            6,
            "`destination` in [[ipsec.sa]] is \"b\"",
        ),
        (
            with_key("a", 256, "") + &with_key("b", 256, ""),
            13,
            "second SA with dst 198.51.100.1 spi 0x00000100",
        ),
        (with_key("a", 256, "") + &with_key("a", 257, ""), 11, "duplicate SA \"a\", first on line 1"),
        (policy("action = 'protect'"), 1, "`sa` in [[ipsec.policy]] is missing"),
        (
            policy("action = 'protect'\nsa = 'b'"),
            4,
            "`sa` in [[ipsec.policy]] is \"b\": there is no [[ipsec.sa]]",
        ),
        (policy("action = 'bypass'\nsa = 'b'"), 4, "`sa` in [[ipsec.policy]] is \"b\": only policies with"),
        (policy("action = 'drop'"), 3, "`action` in [[ipsec.policy]] is \"drop\""),
        (policy("action = 'discard'\nsource_ports = 53"), 4, "ports without a protocol that has ports"),
        (
            policy("action = 'discard'").repeat(2),
            4,
            "another policy with priority 100 matches the same packets",
        ),
        (
            with_key("a", 256, "") + &policy("action = 'protect'\nsa = 'a'").replace("'out'", "'in'"),
            13,
            "the SA with dst 198.51.100.1 spi 0x00000100 is for the other direction",
        ),
        (
            three() + &policy("action = 'protect'\nsa = ['to-b-0', 'to-b-3']"),
            28,
            "`sa` in [[ipsec.policy]] is \"to-b-3\": there is no [[ipsec.sa]]",
        ),
        (three() + &policy("action = 'protect'\nsa = []"), 28, "`sa` in [[ipsec.policy]] is \"[]\": name at"),
        (
            three() + &policy("action = 'protect'\nsa = ['to-b-0', 3]"),
            28,
            "`sa` in [[ipsec.policy]] must be a",
        ),
        (
            three() + &policy("action = 'discard'\nsa = ['to-b-0', 'to-b-1']"),
            28,
            "`sa` in [[ipsec.policy]] is \"to-b-0, to-b-1\": only policies with",
        ),
        (
            three() + &policy("action = 'protect'\nsa = ['to-b-0', 'to-b-0']"),
            28,
            "the SA with dst 198.51.100.1 spi 0x00001000 is in the list twice",
        ),
        (
            three().replacen("192.0.2.1", "192.0.2.9", 1)
                + &policy("action = 'protect'\nsa = ['to-b-0', 'to-b-1']"),
            28,
            "the SA with dst 198.51.100.1 spi 0x00001001 has other addresses",
        ),
        (
            three()
                + &policy("action = 'protect'\nsa = ['to-b-0', 'to-b-1']")
                + &policy("action = 'protect'\npriority = 5\nsa = ['to-b-1', 'to-b-2']"),
            33,
            "the SA with dst 198.51.100.1 spi 0x00001001 is at another place",
        ),
    ] {
        let refused = refused(&text);
        assert!(refused.starts_with(&format!("test.toml, line {line}: {why}")), "{text}\n{refused}");
    }
    let number = refused(&sa("a", 256, "encryption_key = 112233"));
    assert!(number.contains("must be a string") && !number.contains("1122"), "{number}");
}

fn interface(device: &str, if_id: u32) -> String {
    format!("[[ipsec.interface]]\ndevice = '{device}'\nif_id = {if_id}\n")
}

#[test]
fn reads_interfaces_of_sas_and_policies() {
    let text = interface("ipsec0", 7)
        + &interface("ipsec1", u32::MAX)
        + &with_key("a", 256, "interface = 'ipsec0'")
        + &with_key("b", 257, "interface = 'ipsec1'")
        + &policy("interface = 'ipsec0'\naction = 'protect'\nsa = 'a'")
        // The same priority and packets, of another interface.
        + &policy("interface = 'ipsec1'\naction = 'protect'\nsa = 'b'")
        + &policy("action = 'discard'");
    let ipsec = read(&text).ipsec;
    let known: Vec<_> = ipsec.interfaces.iter().map(|own| (own.device.as_str(), own.if_id)).collect();
    assert_eq!(known, [("ipsec0", 7), ("ipsec1", u32::MAX)]);
    assert_eq!(ipsec.sas.iter().map(|sa| sa.if_id).collect::<Vec<_>>(), [7, u32::MAX]);
    assert_eq!(ipsec.policies.iter().map(|policy| policy.if_id).collect::<Vec<_>>(), [7, u32::MAX, 0]);
    assert!(!read(&interface("ipsec0", 7)).ipsec.is_empty(), "its packets are dropped");
    let changed = read(&text).diff(&read(&text.replace("if_id = 7", "if_id = 8")));
    assert!(changed.iter().any(|of| (of.key.as_str(), of.effect) == ("ipsec.interface", Effect::Workers)));
}

#[test]
fn reports_errors_of_interfaces() {
    let port = "[[port]]\ndevice = 'wan'\n";
    for (text, line, why) in [
        ("[[ipsec.interface]]\nif_id = 7\n".into(), 2, "`device` in [[ipsec.interface]] is missing"),
        ("[[ipsec.interface]]\ndevice = 'a'\n".into(), 2, "`if_id` in [[ipsec.interface]] is missing"),
        (interface("ipsec0", 0), 3, "`if_id` in [[ipsec.interface]] is 0"),
        (
            interface("ipsec0", 7).replace('7', "4294967296"),
            3,
            "`if_id` in [[ipsec.interface]] is 4294967296",
        ),
        (interface("an_interface_of_17", 7), 2, "`device` in [[ipsec.interface]] is \"an_interface_of_17\""),
        (interface("a", 7) + &interface("a", 8), 5, "duplicate interface \"a\" in [ipsec], first on line 1"),
        (interface("a", 7) + &interface("b", 7), 6, "duplicate if_id 7, first on line 1"),
        (
            port.to_owned() + &interface("wan", 7),
            4,
            "`device` in [[ipsec.interface]] is \"wan\": is a [[port]]",
        ),
        (
            with_key("a", 256, "interface = 'ipsec0'"),
            9,
            "`interface` in [[ipsec.sa]] is \"ipsec0\": there is no [[ipsec.interface]] with this device",
        ),
        (
            policy("interface = 'ipsec0'\naction = 'discard'"),
            3,
            "`interface` in [[ipsec.policy]] is \"ipsec0\": there is no [[ipsec.interface]] with this device",
        ),
        (
            interface("ipsec0", 7) + &with_key("a", 256, "interface = 'ipsec0'\nmode = 'transport'"),
            13,
            "SAs of an interface need tunnel mode",
        ),
        (
            interface("ipsec0", 7)
                + &with_key("a", 256, "interface = 'ipsec0'")
                + &policy("action = 'protect'\nsa = 'a'"),
            16,
            "the SA with dst 198.51.100.1 spi 0x00000100 has another interface",
        ),
        (
            interface("ipsec0", 7)
                + &with_key("a", 256, "")
                + &policy("action = 'protect'\nsa = 'a'\ninterface = 'ipsec0'"),
            17,
            "the SA with dst 198.51.100.1 spi 0x00000100 has another interface",
        ),
        (
            interface("ipsec0", 7) + &policy("interface = 'ipsec0'\naction = 'discard'").repeat(2),
            8,
            "another policy with priority 100 matches the same packets",
        ),
    ] {
        let refused = refused(&text);
        assert!(refused.starts_with(&format!("test.toml, line {line}: {why}")), "{text}\n{refused}");
    }
}

#[test]
fn keys_come_from_files_that_only_their_owner_can_read() {
    let folder = std::env::temp_dir().join(format!("bm-ipsec-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("a.key");
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    let parse = || Config::parse(&folder.join("test.toml"), &sa("a", 256, "encryption_key_file = 'a.key'"));
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o640);
    let readable = parse().unwrap_err().to_string();
    mode(0o600);
    let read = parse();
    std::fs::write(&file, "00zz").unwrap();
    let wrong = parse().unwrap_err().to_string();
    std::fs::remove_dir_all(&folder).unwrap();
    let gone = parse().unwrap_err().to_string();
    assert_eq!(read.unwrap().ipsec.sas[0].encryption_key.len(), 20);
    assert!(
        readable.contains(
            "line 8: `encryption_key_file` in [[ipsec.sa]]: a.key: others than its owner can read it"
        )
    );
    assert!(wrong.contains("must be hexadecimal") && !wrong.contains("zz"), "{wrong}");
    assert!(gone.contains("a.key: cannot be read: No such file"), "{gone}");
}

#[test]
fn a_changed_key_is_a_change() {
    let (old, new) = (read(&with_key("a", 256, "")), read(&with_key("a", 256, "").replace("1213'", "1214'")));
    let changed = old.diff(&new);
    assert_eq!(
        (changed.len(), changed[0].key.as_str(), changed[0].effect),
        (1, "ipsec.sa.a", Effect::Workers)
    );
    assert!(old.diff(&read(&format!("\n{}", with_key("a", 256, "")))).is_empty());
}

#[test]
fn keys_that_others_can_read_are_noticed() {
    let folder = std::env::temp_dir().join(format!("bm-public-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [file, key] = ["brickmoon.toml", "a.key"].map(|name| folder.join(name));
    let write = |file: &Path, mode, text: &str| {
        std::fs::write(file, text).unwrap();
        std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
    };
    let load = |mode, line: &str| {
        write(&file, mode, &sa("a", 4097, line));
        Config::load(&file).unwrap().ipsec.public_keys()
    };
    let here = format!("encryption_key = '{KEY}'");
    assert!(load(0o640, &here).is_some_and(|why| why.contains("chmod 600")));
    assert_eq!(load(0o600, &here), None);
    write(&key, 0o600, KEY);
    assert_eq!(load(0o644, "encryption_key_file = 'a.key'"), None);
    std::fs::remove_dir_all(folder).unwrap();
}
