//! What the kernel path is attached to: as the configuration says, or as what comes asks for.

use bm_tests::PATIENCE;
use bm_tests::lab::{Ends, Lab};
use bm_tests::packet::{Ip4, ip_frame};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::sys;
use bm_wire::ipv4::Ipv4;
use bm_wire::{Mac, protocol};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ALL: [&str; 3] = ["r0", "r1", "r2"];
/// The sink's address on its first link.
const SINK: &str = "198.51.100.2";
/// What each port is attached to, and why.
fn attached(router: &Router) -> Vec<(String, String)> {
    let ports = router.json(&["show", "ports"]);
    let ports = ports["ports"].as_array().cloned().unwrap_or_default();
    let text = |port: &serde_json::Value, key: &str| port[key].as_str().unwrap_or_default().to_string();
    ports.iter().map(|port| (text(port, "attach"), text(port, "attach_reason"))).collect()
}

/// Sends over one connection until `enough` says so; returns the bytes that came out at the other end.
fn transfer(lab: &Lab, mut enough: impl FnMut(u64) -> bool) -> u64 {
    let listener = lab.snk.within(|| TcpListener::bind((SINK, 0))).expect("a port of the sink");
    let port = listener.local_addr().expect("it is bound").port();
    let mut sender =
        lab.src.within(|| TcpStream::connect((SINK, port))).expect("a connection through the router");
    sender.set_write_timeout(Some(PATIENCE)).expect("a time-out can be set");
    let (mut receiver, _) = listener.accept().expect("the connection");
    let reader = std::thread::spawn(move || {
        let (mut chunk, mut all) = (vec![0; 1 << 17], 0);
        while let Ok(read @ 1..) = receiver.read(&mut chunk) {
            assert!(chunk[..read].iter().all(|byte| *byte == 0x5a), "other bytes came");
            all += read as u64;
        }
        all
    });
    let (chunk, mut sent) = (vec![0x5a; 1 << 17], 0);
    while !enough(sent) {
        sender.write_all(&chunk).expect("TCP goes through");
        sent += chunk.len() as u64;
    }
    drop(sender);
    let came = reader.join().expect("the reader ends");
    assert_eq!(came, sent);
    came
}

#[test]
fn hosts_that_leave_work_to_their_devices_are_served_at_tc() {
    let Some(subject) = Subject::kernel("attach") else { return };
    let lab = Lab::new("attach", Ends::Hosts);
    lab.set_offloads(true, true);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_choosing(&ALL, "[daemon]\npath = 'kernel'\n");
    let (attach, why) = attached(&router)[0].clone();
    assert_eq!(attach, "tc", "{}", router.status_text());
    assert!(why.contains("a veth"), "{why}");
    let before = router.sent();
    transfer(&lab, |sent| sent > 1 << 26);
    let frames = router.sent() - before;
    assert!(frames > 0, "{}", router.status_text());
    report::say(&format!("attach: {frames} packets for 64 MiB"));
    // Nothing of it counts as lost.
    let drops = router.json(&["show", "drops"]);
    let by_linux = drops["by_linux"].as_array().cloned().unwrap_or_default();
    assert!(by_linux.iter().all(|drop| drop["reason"] != "traffic_control"), "{drops}");
    router.assert_verified();
    // A daemon that starts while the other's program is there keeps it at tc.
    router.kill();
    router.restart();
    assert_eq!(attached(&router)[0].0, "tc", "{}", router.status_text());
    transfer(&lab, |sent| sent > 1 << 24);
    router.end(&[]);
}

/// A UDP packet from behind the TAP to the sink. Its checksum is whole, or the sum of the pseudo-header alone.
fn from_tap(to: [u8; 6], is_whole: bool) -> Vec<u8> {
    let mut packet = Ip4::udp_ports("10.77.0.2", SINK, 4000, 5000, &[7; 100]).bytes();
    if !is_whole {
        let ip = Ipv4::parse(&packet[..]).expect("a packet");
        let left = ip.pseudo().sum(protocol::UDP, ip.payload().len());
        packet[26..28].copy_from_slice(&left.to_be_bytes());
    }
    ip_frame(Mac(to), Mac([2, 0, 0, 0, 7, 2]), &packet)
}

#[test]
fn a_port_moves_to_tc_when_xdp_leaves_its_packets_to_linux() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return report::skip("attach-moves", "needs /dev/net/tun");
    }
    for (gro, is_whole) in [("on", false), ("off", true)] {
        let Some(subject) = Subject::kernel("attach-moves") else { return };
        let lab = Lab::new("attach-moves", Ends::Hosts);
        let mut router = subject.start(&lab);
        router.end(&[]);
        lab.snk.run(&format!("ethtool -K k0 gro {gro}"));
        let mac = [2, 0, 0, 0, 7, 1];
        let mut tap = lab.rtr.within(|| sys::open_tap("t0")).expect("a TAP");
        lab.rtr.ip("link set t0 address 02:00:00:00:07:01 up\naddr add 10.77.0.1/24 dev t0\n");
        lab.src.run("ping -c 1 -W 5 198.51.100.2");
        router.restart_choosing(&["r1", "t0"], "[daemon]\npath = 'kernel'\n");
        assert_eq!(attached(&router)[1].0, "xdp", "{}", router.status_text());
        let frame = from_tap(mac, is_whole);
        let until = Instant::now() + PATIENCE;
        let mut sent = 0;
        while attached(&router)[1].0 != "tc" {
            assert!(Instant::now() < until, "{sent} frames: {}", router.status_text());
            for _ in 0..1000 {
                sent += u32::from(tap.write(&frame).is_ok());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let why = attached(&router)[1].1.clone();
        assert!(why.contains("XDP left them to Linux"), "{why}");
        let before = router.sent();
        for _ in 0..100 {
            let _ = tap.write(&frame);
        }
        while router.sent() < before + 100 {
            assert!(Instant::now() < until, "{}", router.status_text());
            std::thread::sleep(Duration::from_millis(10));
        }
        report::say(&format!("attach: moved after {sent} frames, GRO {gro}"));
        router.end(&[]);
    }
}

#[test]
fn each_port_is_attached_as_it_says() {
    let Some(subject) = Subject::kernel("attach-each") else { return };
    let lab = Lab::new("attach-each", Ends::Hosts);
    let mut router = subject.start(&lab);
    router.end(&[]);
    let port = |name: &str, attach: &str| format!("[[port]]\ndevice = '{name}'\nattach = '{attach}'\n");
    let config = |r0: &str, r1: &str| {
        format!(
            "[daemon]\npath = 'kernel'\nattach = 'xdp'\n{}{}[[port]]\ndevice = 'r2'\n",
            port("r0", r0),
            port("r1", r1)
        )
    };
    router.restart_choosing(&[], &config("tc", "xdp"));
    let types = |router: &Router| attached(router).into_iter().map(|(attach, _)| attach).collect::<Vec<_>>();
    assert_eq!(types(&router), ["tc", "xdp", "xdp"]);
    transfer(&lab, |sent| sent > 1 << 24);
    let reloaded = router.reload_with(&config("xdp", "tc")).expect("a daemon");
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    assert_eq!(types(&router), ["xdp", "tc", "xdp"]);
    transfer(&lab, |sent| sent > 1 << 24);
    router.end(&[]);
    let claims = format!("{}[[claim]]\nprotocol = 'udp'\n", port("r0", "tc"));
    let output = subject.refused(&lab, "kernel", &claims);
    assert!(output.contains("attach = \"tc\" cannot be combined with [[claim]]"), "{output}");
}
