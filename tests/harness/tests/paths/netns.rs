//! Tests of the harness: namespaces are removed, frames are captured as they were sent, commands end.

use bm_tests::command::finish;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::netns::Namespace;
use bm_tests::packet::{self, Ip4};
use bm_tests::{report, sys};
use bm_wire::ethernet::{Tag, ethertype};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn is_root(test: &str) -> bool {
    if !sys::is_root() {
        report::skip(test, "namespaces need root");
    }
    sys::is_root()
}

fn exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

#[test]
fn namespaces_and_their_processes_end_with_the_owner() {
    if !is_root("netns") {
        return;
    }
    let panicked = std::panic::catch_unwind(|| {
        let namespace = Namespace::new("gone", "rtr");
        assert!(exists(namespace.name()));
        let mut sleeper = namespace.command("sleep");
        let child = sleeper.arg("1000").spawn().expect("sleep runs");
        std::panic::panic_any((namespace.name().to_string(), child));
    });
    let thrown = panicked.expect_err("it panics").downcast::<(String, std::process::Child)>();
    let (name, mut child) = *thrown.expect("the panic carries the name");
    assert!(!exists(&name), "{name} must be removed");
    let deadline = Instant::now() + Duration::from_secs(2);
    while child.try_wait().expect("the child is ours").is_none() {
        assert!(Instant::now() < deadline, "the process in {name} must be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sweep_removes_namespaces_of_dead_tests() {
    if !is_root("sweep") {
        return;
    }
    // A process id above the kernel's maximum, so the owner does not exist.
    let left = format!("bm-left{}-p99999999-rtr", std::process::id());
    let made = std::process::Command::new("ip").args(["netns", "add", &left]).status();
    assert!(made.expect("ip runs").success());
    bm_tests::netns::sweep();
    assert!(!exists(&left), "{left} must be removed");
}

#[test]
fn frames_arrive_as_they_were_sent() {
    if !is_root("frames") {
        return;
    }
    let lab = Lab::new("frames", Ends::Silent);
    let other_end = lab.rtr.packet_socket("r0");
    let plain = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 20).bytes());
    let tagged = packet::tagged(&plain, Tag { pcp: 5, ..Tag::vlan(100) });
    let twice = packet::tagged(&tagged, Tag { protocol: ethertype::SERVICE_VLAN, ..Tag::vlan(7) });
    let runt = packet::frame(Side::Src.mac(1), Side::Src.mac(2), ethertype::IPV4, &[]);
    for frame in [plain, tagged, twice, runt] {
        lab.send(Side::Src, &frame);
        assert!(sys::wait_readable(&[&other_end], Duration::from_secs(2)).expect("poll works"));
        let captured = other_end.receive().expect("the socket is open").expect("a frame is there");
        assert_eq!(captured.frame, frame);
        let age = sys::wall_clock().checked_sub(captured.at).expect("it came before now");
        assert!(age < Duration::from_secs(5), "{age:?}");
    }
}

#[test]
fn commands_are_killed_and_settings_are_local() {
    if !is_root("command") {
        return;
    }
    let namespace = Namespace::new("command", "rtr");
    assert_eq!(namespace.run("ip -o link").lines().count(), 1, "only lo");
    let before = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").expect("readable");
    namespace.set(&[("net.ipv4.ip_default_ttl", "77")]);
    assert_eq!(namespace.setting("net.ipv4.ip_default_ttl"), "77");
    let after = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").expect("readable");
    assert_eq!(before, after);
    let mut endless = namespace.command("sleep");
    endless.arg("1000").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = endless.spawn().expect("sleep runs");
    let start = Instant::now();
    let ended = std::panic::catch_unwind(move || finish("sleep", child, b"", Duration::from_millis(100)));
    assert!(ended.is_err() && start.elapsed() < Duration::from_secs(5));
}
