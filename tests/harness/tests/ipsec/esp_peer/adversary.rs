//! Somebody on the way, and a peer that breaks rules: `attacks.py`. What must not pass is dropped and counted, and nothing
//! that is valid is lost because of it.

use super::*;

/// Why a packet is dropped, in the words of the peer, and the reasons under which brickmoon may count it.
const REASONS: [(&str, &[&str]); 13] = [
    ("replay", &["ipsec_replay"]),
    ("integrity", &["ipsec_integrity"]),
    ("short", &["ipsec_short"]),
    ("padding", &["ipsec_padding"]),
    ("next header", &["ipsec_next_header"]),
    ("selector", &["ipsec_selector"]),
    ("policy", &["ipsec_policy"]),
    ("dummy", &["ipsec_dummy"]),
    ("fragment", &["ipsec_fragment"]),
    ("no SA", &["ipsec_no_sa"]),
    ("encapsulation", &["ipsec_encapsulation"]),
    ("congestion", &["ipsec_ecn"]),
    ("changed", &["ipsec_integrity", "ipsec_no_sa", "ipsec_replay", "ipsec_short"]),
];
/// Of a packet whose IP header is wrong.
const HEADER: [&str; 11] = [
    "ipv4_short",
    "ipv4_version",
    "ipv4_header_length",
    "ipv4_total_length",
    "ipv4_checksum",
    "ipv6_short",
    "ipv6_version",
    "ipv6_destination",
    "ipv6_payload_length",
    "ipv6_options",
    // Of one that arrives in clear, as far as its header can be read.
    "ipsec_policy",
];
/// How long a packet may take until it is counted, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// A port of the router to which the adversary sends.
const PORT: u16 = 7777;

fn reasons(why: &str) -> &'static [&'static str] {
    match why {
        "header" => return &HEADER[..HEADER.len() - 1],
        "header or policy" => return &HEADER,
        _ => {}
    }
    REASONS.iter().find(|(name, _)| *name == why).unwrap_or_else(|| panic!("{why}")).1
}

/// A socket of the router, for both families.
pub fn open_socket(lab: &Lab, port: u16) -> UdpSocket {
    let socket = lab.router.within(|| UdpSocket::bind(("::", port)).expect("a free port"));
    socket.set_nonblocking(true).expect("a flag");
    socket
}

/// The datagrams that it has received.
fn received(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut bytes = [0; 2000];
    let mut all = Vec::new();
    while let Ok(length) = socket.recv(&mut bytes) {
        all.push(bytes[..length].to_vec());
    }
    all
}

/// Tunnels that differ in what the adversary can try.
pub fn attacked() -> Vec<Tunnel> {
    let tunnel = Tunnel::new;
    vec![
        Tunnel { selectors: true, ..tunnel(1, Mode::Tunnel, 4, "aes128gcm16") },
        Tunnel { esn: true, ..tunnel(2, Mode::Tunnel, 6, "aes256-sha256") },
        Tunnel { udp: true, esn: true, window: 4096, ..tunnel(3, Mode::Tunnel, 4, "chacha20poly1305") },
        Tunnel { udp: true, window: 100, ..tunnel(4, Mode::Tunnel, 6, "aes128gcm16") },
        Tunnel { window: 1000, ..tunnel(5, Mode::Transport, 4, "aes128-sha1") },
        Tunnel { esn: true, udp: true, ..tunnel(6, Mode::Transport, 6, "aes256gcm16") },
    ]
}

/// One attack after the other on each of this many tunnels; returns how many packets were dropped.
pub fn attack(peer: &mut Peer, daemon: &Daemon<'_>, tunnels: usize) -> u64 {
    let mut dropped = 0;
    let names = peer.ask(&json!({ "do": "attacks" }));
    for name in names.as_array().expect("a list") {
        for tunnel in 0..tunnels {
            let before = drops(daemon);
            let answer = peer.ask(&json!({ "do": "attack", "name": name, "tunnel": tunnel }));
            let mut expected: BTreeMap<String, u64> = serde_json::from_value(answer).expect("counts");
            expected.remove("others");
            let total: u64 = expected.values().sum();
            let counted = grown_by(total, &before, daemon);
            for (why, count) in &expected {
                let of: u64 = reasons(why).iter().filter_map(|reason| counted.get(*reason)).sum();
                assert_eq!(of, *count, "{name}, tunnel {tunnel}: {why}\n{expected:?}\n{counted:?}");
            }
            let sum: u64 = counted.values().sum();
            assert_eq!(sum, total, "{name}, tunnel {tunnel}: {expected:?}\n{counted:?}");
            dropped += total;
        }
    }
    dropped
}

/// By how much each reason has grown, when all together have by this much, or do not any more.
pub fn grown_by(total: u64, before: &BTreeMap<String, u64>, daemon: &Daemon<'_>) -> BTreeMap<String, u64> {
    let end = Instant::now() + PATIENCE;
    loop {
        let counted = grown(before, &drops(daemon));
        if counted.values().sum::<u64>() >= total || Instant::now() > end {
            return counted;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// By how much each reason has grown.
fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut grown = BTreeMap::new();
    for (reason, count) in after {
        let more = count - before.get(reason).copied().unwrap_or_default();
        if more > 0 {
            grown.insert(reason.clone(), more);
        }
    }
    grown
}

/// With one worker, and with two, of which one hands the packets of half of the SAs to the other.
#[test]
fn nothing_that_is_forged_passes_and_all_of_it_is_counted() {
    let lab = Lab::new("esp-forged");
    let tunnels = attacked();
    let Some(mut peer) = lab.peer("esp-forged") else { return };
    let [forbidden, of_ike] = [PORT, 4500].map(|port| open_socket(&lab, port));
    peer.has(&tunnels);
    let (until, mut dropped, mut runs) = (until(), 0, 0);
    while runs < 2 || Instant::now() < until {
        let config = format!("[daemon]\nworkers = {}\n{}", 1 + runs % 2, lab.config(&tunnels, ""));
        let Some(daemon) = lab.start_with(&config) else { return };
        peer.ask(&json!({ "do": "exchange", "rounds": 3 }));
        dropped += attack(&mut peer, &daemon, tunnels.len());
        peer.ask(&json!({ "do": "exchange", "rounds": 3 }));
        let shown = daemon.ask(&["show", "sas"]);
        let handed =
            shown["sas"].as_array().expect("a list").iter().filter(|sa| sa["handed"].as_u64() > Some(0));
        assert_eq!(handed.count() > 0, runs % 2 == 1, "{shown}");
        peer.ask(&json!({ "do": "ike" }));
        let mut of_both = 0;
        eventually("IKE gets its datagrams, over both families", || {
            of_both += received(&of_ike).iter().filter(|datagram| datagram.ends_with(b"IKE")).count();
            of_both == 2
        });
        daemon.stop();
        runs += 1;
    }
    assert_eq!(received(&forbidden), Vec::<Vec<u8>>::new(), "a socket of the router");
    report::say(&format!("esp-forged: {dropped} packets were dropped"));
}
