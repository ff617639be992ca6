//! Scapy as the other end: it makes the packets that we make, byte by byte, and we decrypt those that it makes.
//!
//! `esp_by_scapy.txt` is what `esp_by_scapy.py` prints. Where Python has Scapy, the file is compared with a new run.

use super::*;
use std::process::Command;

const RECORDED: &str = include_str!("esp_by_scapy.txt");

struct Recorded {
    sa: Sa,
    number: u64,
    plain: Vec<u8>,
    sent: Vec<u8>,
}

fn recorded(line: &str) -> Recorded {
    let fields: Vec<&str> = line.split(' ').collect();
    let [suite, mode, number, esn, udp, encryption, integrity, plain, sent] = fields[..] else {
        panic!("{line}");
    };
    let bytes = |text: &str| Secret::from_hex(if text == "-" { "" } else { text }).unwrap();
    let sent = bytes(sent).bytes().to_vec();
    let [source, destination]: [IpAddr; 2] = match sent[0] >> 4 {
        4 => ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap()),
        _ => ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap()),
    };
    let sa = Sa {
        source,
        destination,
        mode: if mode == "tunnel" { Mode::Tunnel } else { Mode::Transport },
        encryption_key: bytes(encryption),
        integrity_key: bytes(integrity),
        esn: esn == "esn",
        udp: (udp == "udp").then_some(UdpPorts { source: 4500, destination: 4500 }),
        ..sa(suite.parse().unwrap(), Direction::Out)
    };
    Recorded { sa, number: number.parse().unwrap(), plain: bytes(plain).bytes().to_vec(), sent }
}

#[test]
fn packets_are_those_of_scapy_in_both_directions() {
    assert_eq!(RECORDED.lines().count(), 112);
    for line in RECORDED.lines() {
        let Recorded { sa, number, plain, sent } = recorded(line);
        let numbers = Numbers::after(number - 1, sa.esn).reserve_all().unwrap();
        let mut out = Outbound::new(&sa, numbers, 0, 0).unwrap();
        assert_eq!(encrypted(&mut out, &plain).as_ref(), Ok(&sent), "{line}");
        let mut into = Inbound::new(&sa, 0).unwrap();
        into.resume(number - 1);
        assert_eq!(decrypted(&mut into, &sent).as_ref(), Ok(&plain), "{line}");
    }
}

#[test]
fn recorded_packets_are_what_scapy_makes() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/esp_by_scapy.py");
    let python = std::env::var("BM_PYTHON").unwrap_or("python3".into());
    // Scapy 2.5, which is Debian's, sets a wrong length of UDP, and leaves the high half out of ICVs of CBC suites.
    let check = "import cryptography, scapy.layers.ipsec; assert scapy.VERSION.split('.')[:2] >= ['2', '6']";
    let has_scapy = Command::new(&python).args(["-c", check]).output();
    if !has_scapy.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "skipped: {python} has no Scapy with cryptography (apt-get install python3-scapy python3-cryptography)"
        );
        return;
    }
    let output = Command::new(&python).arg(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), RECORDED);
}
