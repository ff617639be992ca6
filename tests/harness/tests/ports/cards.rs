//! Network cards named by PCI address, as in `make test-vm`: emulated by QEMU, driven by DPDK.
//!
//! ```text
//!  src: far 0 ══ cable ══ card 0 ┤ brickmoon ├ card 1 ══ cable ══ far 1 :snk
//! ```
//!
//! `BM_CARDS` names them (`0000:00:04.0=eth0 0000:00:05.0=eth1`: twice a card for brickmoon and the interface at the
//! far end of its cable), and `BM_CARDS_DRIVER` the driver that gives cards to programs: `vfio-pci` or
//! `uio_pci_generic`. Without these variables there is nothing to test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bm_tests::daemon::{Daemon, End, cross, eventually, mac, ping};
use bm_tests::netns::Namespace;
use bm_tests::{report, subject};
use std::path::{Path, PathBuf};

/// A card for brickmoon, and the interface at the far end of its cable.
struct Card {
    /// PCI address.
    place: String,
    /// Interface of Linux at the far end.
    far: String,
}

impl Card {
    fn folder(&self) -> PathBuf {
        Path::new("/sys/bus/pci/devices").join(&self.place)
    }

    /// Binds it to `driver`, as `dpdk-devbind.py -b` does.
    fn bind(&self, driver: &str) {
        let write = |file: &Path, text: &str| {
            std::fs::write(file, text).unwrap_or_else(|error| panic!("{text} > {}: {error}", file.display()));
        };
        write(&self.folder().join("driver_override"), driver);
        write(&self.folder().join("driver/unbind"), &self.place);
        write(Path::new("/sys/bus/pci/drivers_probe"), &self.place);
        let bound = std::fs::read_link(self.folder().join("driver"));
        assert!(bound.as_ref().is_ok_and(|to| to.ends_with(driver)), "{} has {bound:?}", self.place);
    }

    /// As a port.
    fn port(&self) -> String {
        format!("dpdk:{}", self.place)
    }

    /// Its host TAP in Linux.
    fn host_tap(&self) -> String {
        format!("bm-{}", self.place.trim_start_matches("0000:").replace([':', '.'], "-"))
    }
}

/// The cards of this machine and their driver.
fn cards() -> Option<([Card; 2], String)> {
    let text = std::env::var("BM_CARDS").ok()?;
    let card = |word: &str| {
        let (place, far) = word.split_once('=').unwrap_or_else(|| panic!("BM_CARDS: {word:?} has no ="));
        Card { place: place.into(), far: far.into() }
    };
    let cards: Vec<_> = text.split_whitespace().map(card).collect();
    let driver = std::env::var("BM_CARDS_DRIVER").expect("BM_CARDS_DRIVER is set where BM_CARDS is");
    Some((cards.try_into().unwrap_or_else(|_| panic!("BM_CARDS: two cards")), driver))
}

/// The host at the far end of card `n`: 10.0.N.2/24 and fd00:N::2/64 with N = n + 1; in VLAN 10 the same with N + 100.
fn host(card: &Card, role: &str, n: usize) -> Namespace {
    let host = Namespace::new("cards", role);
    let (far, net, tagged) = (&card.far, n + 1, n + 101);
    let moved = std::process::Command::new("ip").args(["link", "set", far, "netns", host.name()]).status();
    assert!(moved.unwrap().success(), "{far} goes to {role}");
    host.run(&format!("ethtool -K {far} tx off gro off"));
    host.ip(&format!(
        "link set lo up\nlink set {far} up\n\
         link add link {far} name {far}.10 type vlan id 10\nlink set {far}.10 up\n\
         addr add 10.0.{net}.2/24 dev {far}\naddr add fd00:{net}::2/64 dev {far} nodad\n\
         addr add 10.0.{tagged}.2/24 dev {far}.10\n\
         route add default via 10.0.{net}.1\n-6 route add default via fd00:{net}::1"
    ));
    host
}

/// As long as the card is not bound to such a driver, the error must tell how to bind it.
fn refused_while_linux_has_it(router: &Namespace, card: &Card, giver: &str) {
    let kernel = std::fs::read_link(card.folder().join("driver")).unwrap();
    let kernel = kernel.file_name().unwrap().to_str().unwrap().to_string();
    let mut command = router.command(subject::binary().unwrap());
    let refused = command.args(["up", "--port", &card.port()]).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    for word in [&kernel, &format!("modprobe {giver} && dpdk-devbind.py -b {giver} {}", card.place)] {
        assert!(message.contains(word), "{word} is not in:\n{message}");
    }
    report::say(message.trim());
}

#[test]
fn cards_forward_byte_by_byte_and_have_host_taps() {
    let Some(([one, two], driver)) = cards() else {
        return report::skip("cards", "BM_CARDS names no network cards; `make test-vm` has some");
    };
    let router = Namespace::new("cards", "rtr");
    router.ip("link set lo up");
    router.set(&[("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")]);
    for card in [&one, &two] {
        refused_while_linux_has_it(&router, card, &driver);
        card.bind(&driver);
    }
    let (src, snk) = (host(&one, "src", 0), host(&two, "snk", 1));
    let Some(daemon) = Daemon::start(&router, &[&one.port(), &two.port()]) else { return };
    for (n, card) in [&one, &two].into_iter().enumerate() {
        let (host_tap, net, tagged) = (card.host_tap(), n + 1, n + 101);
        router.ip(&format!(
            "addr add 10.0.{net}.1/24 dev {host_tap}\naddr add fd00:{net}::1/64 dev {host_tap} nodad\n\
             link add link {host_tap} name vlan{n} type vlan id 10\nlink set vlan{n} up\n\
             addr add 10.0.{tagged}.1/24 dev vlan{n}"
        ));
        // The host TAP shows the card's MAC address, which QEMU set, and its link state.
        assert_eq!(mac(&router, &host_tap).0, [2, 0, 0, 0, 0x0b, n as u8]);
        let carrier = || router.run(&format!("ip -o link show dev {host_tap}")).contains("LOWER_UP");
        eventually("the cards have their links", carrier);
    }
    // To Linux behind the host TAP, and through the router: neighbor resolution, both families, a tag, a full frame.
    ping(&src, "10.0.1.1", 56, 64);
    ping(&src, "10.0.2.2", 1472, 63);
    ping(&snk, "fd00:1::2", 1400, 63);
    src.ip("route add 10.0.102.0/24 via 10.0.101.1");
    snk.ip("route add 10.0.101.0/24 via 10.0.102.1");
    ping(&src, "10.0.102.2", 1472, 63);
    let ends = [(&src, &one, 1), (&snk, &two, 2)];
    let ends = ends.map(|(host, card, net)| End { host, wire: &card.far, host_tap: card.host_tap(), net });
    cross(&router, &ends[0], &ends[1]);
    cross(&router, &ends[1], &ends[0]);
    for card in [&one, &two] {
        let port = daemon.port(&card.host_tap());
        assert_eq!((port["mode"].as_str(), port["mode_reason"].is_null()), (Some("dpdk"), true), "{port}");
        assert!(port["account"]["sent"].as_u64().unwrap() >= 10, "{port}");
        assert!(port["hardware_counters"]["rx_good_packets"].as_u64().unwrap() >= 15, "{port}");
    }
    // The device follows the host TAP's MTU: longer packets get an ICMP error and are not sent.
    router.ip(&format!("link set {} mtu 1400", two.host_tap()));
    eventually("packets above the new MTU are refused", || {
        let message = src.try_run("ping -c 1 -W 1 -M do -s 1400 10.0.2.2");
        String::from_utf8_lossy(&message.stdout).contains("mtu = 1400") || !message.status.success()
    });
    ping(&src, "10.0.2.2", 1300, 63);
    daemon.stop();
}
