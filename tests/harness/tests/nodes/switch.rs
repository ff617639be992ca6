//! The switch as its users start it: containers, virtual machines, VLANs, and ports that are added and removed.

use bm_tests::bridge::{Bridge, mac, mac_text};
use bm_tests::sys::{self, PacketSocket};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BROADCAST: [u8; 6] = [0xff; 6];
const LAN: &str = "[[switch]]\nname = 'lan'\nports = ['p*']\n";
/// How long to wait for a frame that must arrive.
const SOON: Duration = Duration::from_secs(5);
/// How long to wait for frames that must not arrive.
const MOMENT: Duration = Duration::from_millis(100);

/// A frame of an experimental EtherType that holds its sender and a number.
fn frame(to: [u8; 6], from: usize, number: u16) -> Vec<u8> {
    let mut frame = [&to[..], &mac(from), &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat()
}

fn send(socket: &PacketSocket, frame: &[u8]) {
    let until = Instant::now() + SOON;
    while let Err(error) = socket.send(frame) {
        assert!(Instant::now() < until, "sending: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends numbered frames from the second end to the first, one each `pause`, while `action` runs; returns how many.
fn sending(socket: &PacketSocket, pause: Duration, action: impl FnOnce()) -> u16 {
    // The sender also ends when `action` panics, since this is dropped then.
    let going = Arc::new(());
    let seen = Arc::downgrade(&going);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut sent = 0u16;
            while seen.strong_count() > 0 {
                send(socket, &frame(mac(0), 1, sent));
                sent += 1;
                std::thread::sleep(pause);
            }
            sent
        });
        action();
        drop(going);
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn next(socket: &PacketSocket) -> Option<Vec<u8>> {
    socket.receive().unwrap_or_else(|error| panic!("receiving: {error}")).map(|captured| captured.frame)
}

/// Receives this many frames from a socket.
#[track_caller]
fn take(socket: &PacketSocket, count: usize, what: &str) -> Vec<Vec<u8>> {
    let until = Instant::now() + SOON;
    let mut frames = Vec::new();
    while frames.len() < count {
        match next(socket) {
            Some(frame) => frames.push(frame),
            None => {
                assert!(Instant::now() < until, "{what}: {} of {count} frames", frames.len());
                let _ = sys::wait_readable(&[socket], MOMENT);
            }
        }
    }
    frames
}

#[track_caller]
fn nothing(sockets: &[&PacketSocket], what: &str) {
    std::thread::sleep(MOMENT);
    for socket in sockets {
        assert_eq!(next(socket), None, "{what}");
    }
}

#[test]
fn all_of_250_ports_reach_each_other() {
    const PORTS: usize = 250;
    let Some(mut bridge) = Bridge::new("sw-250", PORTS) else { return };
    bridge.up(&format!("{LAN}flood_limit = 0\n"));
    assert!(bridge.log().contains("1 switch with 250 ports"), "{}", bridge.log());
    let ends: Vec<PacketSocket> = bridge.far.within(|| {
        let open = |number| sys::interface_index(&format!("f{number}")).and_then(PacketSocket::open);
        (0..PORTS).map(|number| open(number).unwrap_or_else(|error| panic!("f{number}: {error}"))).collect()
    });
    // Broadcasts: each comes out of all other ports once, and not of its own.
    for (from, end) in ends.iter().enumerate() {
        send(end, &frame(BROADCAST, from, 0));
        for (to, other) in ends.iter().enumerate().filter(|(to, _)| *to != from) {
            let got = take(other, 1, &format!("to all from {from} at {to}"));
            assert_eq!(got[0], frame(BROADCAST, from, 0));
        }
    }
    assert_eq!(bridge.macs().len(), PORTS);
    // Unicast: each comes out of the destination's port and nowhere else.
    for (from, end) in ends.iter().enumerate() {
        for to in (0..PORTS).filter(|to| *to != from) {
            send(end, &frame(mac(to), from, to as u16));
        }
    }
    for (to, end) in ends.iter().enumerate() {
        let mut got: Vec<_> = take(end, PORTS - 1, &format!("to {to}"));
        got.sort();
        let expected: Vec<_> =
            (0..PORTS).filter(|from| *from != to).map(|from| frame(mac(to), from, to as u16)).collect();
        assert_eq!(got, expected, "to {to}");
    }
    nothing(&ends.iter().collect::<Vec<_>>(), "no frame twice");
    bridge.assert_closed();
    let others = (PORTS - 1) as u64;
    for port in bridge.ports() {
        let (account, counters) = (&port["account"], &port["counters"]);
        assert_eq!(account["received"], others + 1, "{port}");
        assert_eq!((&counters["flooded"], &counters["forwarded"]), (&1.into(), &others.into()), "{port}");
        assert_eq!(port["sent"], 2 * others, "{port}");
    }
    bridge.stop("stop");
    assert_eq!((bridge.programs(), bridge.sw.switch_pins().exists()), (0, false));
}

#[test]
fn learns_moves_and_forgets() {
    let Some(mut bridge) = Bridge::new("sw-learn", 3) else { return };
    bridge.up(&format!("{LAN}ageing_s = 1\n[[switch.static]]\nmac = '02:00:00:00:00:63'\nport = 'p2'\n"));
    let ends: Vec<_> = (0..3).map(|number| bridge.end(number)).collect();
    let [a, b, c] = ends.as_slice() else { unreachable!("three ends") };
    send(a, &frame(mac(1), 0, 1));
    assert_eq!((take(b, 1, "unknown at b").len(), take(c, 1, "unknown at c").len()), (1, 1));
    send(b, &frame(mac(0), 1, 2));
    assert_eq!(take(a, 1, "known at a"), [frame(mac(0), 1, 2)]);
    // The MAC address moves from a to c.
    send(c, &frame(mac(1), 0, 3));
    assert_eq!(take(b, 1, "moved"), [frame(mac(1), 0, 3)]);
    send(b, &frame(mac(0), 1, 4));
    assert_eq!(take(c, 1, "to where it moved"), [frame(mac(0), 1, 4)]);
    assert_eq!(bridge.port("p2")["counters"]["moved"], 1);
    let macs = bridge.macs();
    assert!(macs.contains(&(mac_text(0), 0, "p2".into())), "{macs:?}");
    assert!(macs.contains(&("02:00:00:00:00:63".into(), 0, "p2".into())), "{macs:?}");
    assert!(bridge.ask("show macs").contains("static"));
    // No MAC address sends for more than a second.
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(bridge.macs().len(), 1, "only the static one must be left");
    send(b, &frame(mac(0), 1, 5));
    assert_eq!((take(a, 1, "forgotten").len(), take(c, 1, "forgotten").len()), (1, 1));
    nothing(&[a, b, c], "no more than that");
    bridge.assert_closed();
    bridge.stop("stop");
}

#[test]
fn a_broadcast_storm_is_limited() {
    const LIMIT: usize = 200;
    let Some(mut bridge) = Bridge::new("sw-storm", 3) else { return };
    bridge.up(&format!("{LAN}flood_limit = {LIMIT}\n"));
    let [a, b, c] = [0, 1, 2].map(|number| bridge.end(number));
    send(&b, &frame(BROADCAST, 1, 0));
    take(&a, 1, "b is known");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        send(&a, &frame(BROADCAST, 0, 1));
    }
    // Unicast to a known MAC address is not limited.
    (0..100).for_each(|number| send(&a, &frame(mac(1), 0, number)));
    let took = started.elapsed().as_secs_f64();
    bridge.until("all is counted", |bridge| bridge.port("p0")["counters"]["forwarded"].as_u64() == Some(100));
    let port = bridge.port("p0");
    let flooded = port["counters"]["flooded"].as_u64().unwrap_or(0) as f64;
    let most = LIMIT as f64 * (took + 0.1) + 33.0;
    assert!((LIMIT as f64 * 0.8..=most).contains(&flooded), "{flooded} in {took} s, at most {most}");
    let dropped = port["account"]["drops"]["flood_limit"].as_u64().unwrap_or(0);
    assert_eq!(dropped + flooded as u64 + 100, port["account"]["received"].as_u64().unwrap_or(0));
    assert!(
        bridge
            .ask("show drops")
            .contains("more broadcast, multicast and unknown unicast frames than the port may send")
    );
    // Another port has its own limit.
    std::iter::from_fn(|| next(&c)).for_each(drop);
    send(&b, &frame(BROADCAST, 1, 9));
    assert!(take(&c, 1, "of b").contains(&frame(BROADCAST, 1, 9)));
    bridge.assert_closed();
    bridge.stop("stop");
}

/// The MAC table can be filled completely, and one port that fills it does not affect other ports.
#[test]
fn a_guest_fills_its_own_share_of_the_table() {
    const TABLE: usize = 16_384;
    let Some(mut bridge) = Bridge::new("sw-hostile", 3) else { return };
    bridge.up(&format!("{LAN}table = {TABLE}\nfdb_max_learned = 0\nflood_limit = 0\ninterface = 'lan0'\n"));
    let [a, b, c] = [0, 1, 2].map(|number| bridge.end(number));
    let own = mac_text(0x63);
    bridge.sw.ip(&format!("link set lan0 address {own}"));
    bridge.until("Linux's new MAC is known", |bridge| {
        bridge.macs().contains(&(own.clone(), 0, "lan0.bm".into()))
    });
    // Many source addresses, then the address of Linux's own interface.
    for number in 0..TABLE as u32 + 100 {
        let mut claim = frame(BROADCAST, 0, 0);
        claim[6..12].copy_from_slice(&[&[2, 7][..], &number.to_be_bytes()].concat());
        send(&a, &claim);
    }
    let claim = frame(BROADCAST, 0x63, 0);
    (0..10).for_each(|_| send(&a, &claim));
    bridge.until("all has come in", |bridge| {
        bridge.port("p0")["counters"]["move_refused"].as_u64() == Some(10)
    });
    let macs = bridge.macs();
    let of = |port: &str| macs.iter().filter(|entry| entry.2 == port).count();
    assert_eq!((of("p0"), of("lan0.bm")), (TABLE, 1), "of {}", macs.len());
    assert!(macs.contains(&(own, 0, "lan0.bm".into())), "the entry of Linux's own interface must not move");
    let evicted = bridge.port("p0")["counters"]["evicted"].as_u64();
    assert_eq!(evicted, Some(100), "the port's oldest entries must be evicted");
    // A new MAC address on another port is learned, and frames to it reach only that port.
    for end in [&a, &b, &c] {
        while next(end).is_some() {}
    }
    send(&b, &frame(BROADCAST, 1, 1));
    take(&a, 1, "new");
    take(&c, 1, "new");
    send(&c, &frame(mac(1), 2, 2));
    assert_eq!(take(&b, 1, "to it"), [frame(mac(1), 2, 2)]);
    nothing(&[&a, &b, &c], "nothing was flooded");
    assert!(bridge.ask("show switch").contains("p0: 10 moves refused, 100 addresses evicted"));
    bridge.assert_closed();
    bridge.stop("stop");
}

const VLANS: &str = "
[[switch.port]]
ports = ['p0', 'p1']
access = 10
[[switch.port]]
ports = 'p2'
access = 20
[[switch.port]]
ports = 'p3'
trunk = [10, '20-29']
";

#[test]
fn vlans_are_isolated() {
    let Some(mut bridge) = Bridge::new("sw-vlan", 5) else { return };
    bridge.up(&format!("{LAN}{VLANS}"));
    let [a, b, other, trunk, default] = [0, 1, 2, 3, 4].map(|number| bridge.end(number));
    send(&a, &frame(BROADCAST, 0, 1));
    assert_eq!(take(&b, 1, "of 10"), [frame(BROADCAST, 0, 1)]);
    assert_eq!(take(&trunk, 1, "of 10, with a tag"), [tagged(&frame(BROADCAST, 0, 1), 10)]);
    send(&trunk, &tagged(&frame(BROADCAST, 3, 2), 0x6000 | 20));
    assert_eq!(take(&other, 1, "of 20, without"), [frame(BROADCAST, 3, 2)]);
    send(&trunk, &tagged(&frame(mac(0), 3, 3), 10));
    assert_eq!(take(&a, 1, "to one of 10"), [frame(mac(0), 3, 3)]);
    send(&a, &frame(mac(3), 0, 4));
    assert_eq!(take(&trunk, 1, "back"), [tagged(&frame(mac(3), 0, 4), 10)]);
    send(&default, &frame(BROADCAST, 4, 5));
    send(&a, &tagged(&frame(BROADCAST, 0, 6), 20));
    send(&trunk, &frame(BROADCAST, 3, 7));
    send(&trunk, &tagged(&frame(BROADCAST, 3, 8), 30));
    nothing(&[&a, &b, &other, &trunk, &default], "VLAN 1 has one port; others were not theirs");
    assert_eq!(bridge.port("p3")["account"]["drops"]["vlan"], 2);
    assert_eq!(bridge.port("p0")["account"]["drops"]["vlan"], 1);
    assert!(bridge.macs().contains(&(mac_text(3), 20, "p3".into())));
    assert_eq!(
        (&bridge.port("p3")["vlans"], &bridge.port("p4")["vlans"]),
        (&"10t,20-29t".into(), &"1".into())
    );
    bridge.assert_closed();
    bridge.stop("stop");
}

#[test]
fn a_virtual_machines_tap_is_a_port() {
    let Some(mut bridge) = Bridge::new("sw-tap", 1) else { return };
    bridge.sw.ip("tuntap add dev tap0 mode tap\nlink set tap0 up");
    let mut tap = bridge.sw.within(|| sys::open_tap("tap0")).unwrap_or_else(|error| panic!("tap0: {error}"));
    bridge.up("[[switch]]\nname = 'vms'\nports = ['p0', 'tap*']\n");
    let end = bridge.end(0);
    tap.write_all(&frame(BROADCAST, 7, 1)).unwrap_or_else(|error| panic!("tap0: {error}"));
    assert_eq!(take(&end, 1, "from the machine"), [frame(BROADCAST, 7, 1)]);
    send(&end, &frame(mac(7), 0, 2));
    let until = Instant::now() + SOON;
    let mut buffer = [0; 2048];
    let got = loop {
        match tap.read(&mut buffer) {
            Ok(length) => break buffer[..length].to_vec(),
            Err(error) => assert!(Instant::now() < until, "to the machine: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(got, frame(mac(7), 0, 2));
    assert_eq!(bridge.macs(), [(mac_text(0), 0, "p0".into()), (mac_text(7), 0, "tap0".into())]);
    bridge.assert_closed();
    bridge.stop("stop");
}

#[test]
fn ports_are_added_and_removed_while_it_runs() {
    let Some(mut bridge) = Bridge::new("sw-join", 1) else { return };
    bridge.up(LAN);
    assert_eq!(bridge.ports().len(), 1);
    bridge.add_pairs(1..4);
    bridge.until("they have joined", |bridge| {
        let ports = bridge.ports();
        ports.len() == 4 && ports.iter().all(|port| port["takes_frames"] == true)
    });
    let ends: Vec<_> = (0..4).map(|number| bridge.end(number)).collect();
    send(&ends[3], &frame(BROADCAST, 3, 1));
    (0..3).for_each(|number| assert_eq!(take(&ends[number], 1, "from the new one").len(), 1));
    send(&ends[0], &frame(mac(3), 0, 2));
    take(&ends[3], 1, "to the new one");
    bridge.sw.ip("link del p3");
    bridge.until("it has left", |bridge| bridge.ports().len() == 3);
    assert_eq!(bridge.macs(), [(mac_text(0), 0, "p0".into())]);
    // An interface with a foreign program is reported, and becomes a port once it is free.
    bridge.sw.ip("link set p2 down\nlink set p2 name x2");
    bridge.until("it has left, too", |bridge| bridge.ports().len() == 2);
    assert_eq!(bridge.programs(), 2);
    bridge.sw.ip("link set x2 name p9\nlink set p9 up");
    bridge.until("it is back", |bridge| bridge.ports().len() == 3);
    bridge.stop("stop");
    assert_eq!(bridge.programs(), 0);
}

#[test]
fn it_keeps_forwarding_without_its_daemon() {
    let Some(mut bridge) = Bridge::new("sw-kept", 3) else { return };
    bridge.up(LAN);
    let [a, b, c] = [0, 1, 2].map(|number| bridge.end(number));
    send(&a, &frame(BROADCAST, 0, 0));
    take(&b, 1, "before");
    take(&c, 1, "before");
    bridge.kill();
    send(&b, &frame(mac(0), 1, 1));
    assert_eq!(take(&a, 1, "after a crash"), [frame(mac(0), 1, 1)]);
    // While another daemon takes over, twice, no frame is lost, duplicated or flooded.
    let sent = sending(&b, Duration::from_micros(200), || {
        bridge.up(LAN);
        bridge.stop("stop --keep");
        bridge.up(LAN);
        bridge.kill();
        bridge.up(LAN);
    });
    let got = take(&a, usize::from(sent), "while it is taken over");
    let expected: Vec<_> = (0..sent).map(|number| frame(mac(0), 1, number)).collect();
    assert!(got == expected, "the same frames in the same order");
    nothing(&[&a, &c], "and no others");
    assert!(bridge.macs().contains(&(mac_text(0), 0, "p0".into())));
    bridge.kill();
    let output = bridge.ask("stop");
    assert!(output.contains("p0, p1, p2"), "{output}");
    assert_eq!((bridge.programs(), bridge.sw.switch_pins().exists()), (0, false));
}

/// `reload` changes a switch while frames pass, and a configuration with an error changes nothing.
#[test]
fn reload_changes_a_switch_without_losing_frames() {
    let Some(mut bridge) = Bridge::new("sw-reload", 4) else { return };
    let few = "[[switch]]\nname = 'lan'\nports = ['p0', 'p1', 'p2']\n";
    bridge.up(&format!("{few}interface = 'lan0'\n"));
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| bridge.end(number));
    for (number, end) in [&a, &b, &c].into_iter().enumerate() {
        send(end, &frame(BROADCAST, number, 0));
    }
    for end in [&a, &b, &c] {
        take(end, 2, "all are known");
    }
    let isolated = "[[switch.port]]\nports = ['p1', 'p2']\nisolated = 'on'\n";
    let sent = sending(&b, Duration::from_millis(1), || {
        // Another port, another interface in Linux, and two ports that must not reach each other.
        bridge.configure(&format!("{LAN}interface = 'lan1'\nageing_s = 77\n{isolated}"));
        let output = bridge.ask("reload");
        assert!(output.contains("switch.lan"), "{output}");
        bridge.configure(&format!("{LAN}isolated = 'on'\n"));
        assert!(!bridge.try_ask("reload").status.success(), "the key belongs to a port");
    });
    let got = take(&a, usize::from(sent), "while it is changed");
    assert!(
        got.into_iter().eq((0..sent).map(|number| frame(mac(0), 1, number))),
        "the same in the same order"
    );
    let shown = bridge.ask("show switch");
    assert!(shown.contains("lan: 5 ports") && shown.contains("ageing 77 s"), "{shown}");
    assert!(shown.contains("p1: isolated on") && shown.contains("interface lan1 in Linux"), "{shown}");
    assert!(!bridge.sw.run("ip -o link").contains("lan0"), "the earlier interface must be deleted");
    send(&b, &frame(mac(2), 1, 1));
    bridge.until("the isolated cannot reach each other", |bridge| {
        bridge.port("p1")["account"]["drops"]["isolated"] == 1
    });
    send(&d, &frame(mac(2), 3, 2));
    assert_eq!(take(&c, 1, "the new port reaches both"), [frame(mac(2), 3, 2)]);
    // Adds another switch with a port of this one; then removes this one.
    let other = "[[switch]]\nname = 'other'\nports = ['p2', 'p3']\n";
    bridge.configure(&format!("[[switch]]\nname = 'lan'\nports = ['p0', 'p1']\n{other}"));
    bridge.ask("reload");
    assert_eq!(bridge.programs(), 4);
    let shown = bridge.ask("show switch");
    assert!(shown.contains("lan: 2 ports") && shown.contains("other: 2 ports"), "{shown}");
    send(&d, &frame(BROADCAST, 3, 3));
    assert_eq!(take(&c, 1, "in the other switch"), [frame(BROADCAST, 3, 3)]);
    nothing(&[&a, &b], "and only there");
    bridge.configure(other);
    bridge.ask("reload");
    assert_eq!(bridge.programs(), 2);
    bridge.assert_closed();
    bridge.stop("stop");
    assert_eq!((bridge.programs(), bridge.sw.switch_pins().exists()), (0, false));
}

#[test]
fn a_switch_outlives_a_daemon_with_workers() {
    let Some(mut bridge) = Bridge::new("sw-beside", 2) else { return };
    bridge.up(&format!("{LAN}[[port]]\ndevice = 'tap:vm0'\n"));
    assert!(bridge.log().contains("1 port, 1 worker,"), "{}", bridge.log());
    let [a, b] = [0, 1].map(|number| bridge.end(number));
    send(&a, &frame(BROADCAST, 0, 1));
    take(&b, 1, "beside workers");
    bridge.stop("stop --keep");
    send(&b, &frame(mac(0), 1, 2));
    assert_eq!(take(&a, 1, "without a daemon"), [frame(mac(0), 1, 2)]);
    bridge.ask("stop");
    assert_eq!(bridge.programs(), 0);
}

/// TCP and UDP of real hosts, whose kernels offload checksums and segmentation.
#[test]
fn hosts_with_offloads_can_communicate() {
    for mtu in [1500, 9000] {
        let Some(mut bridge) = Bridge::new(&format!("sw-hosts-{mtu}"), 2) else { return };
        // Two ends in one namespace would communicate over its loopback interface.
        let other = bm_tests::netns::Namespace::new(&format!("sw-hosts-{mtu}"), "other");
        bridge.far.ip(&format!("link set f1 netns {}", other.name()));
        for (namespace, number) in [(&bridge.far, 0), (&other, 1)] {
            namespace.set(&[("net.ipv6.conf.all.disable_ipv6", "0")]);
            namespace.ip(&format!(
                "link set f{number} up mtu {mtu}\naddr add 192.0.2.{}/24 dev f{number}\n\
                 addr add 2001:db8::{}/64 dev f{number} nodad",
                number + 1,
                number + 1
            ));
            bridge.sw.ip(&format!("link set p{number} mtu {mtu}"));
        }
        bridge.up(&format!("{LAN}interface = 'lan0'\n"));
        bridge.sw.ip(&format!(
            "link set lan0 mtu {mtu}\nlink set lan0.bm mtu {mtu}\naddr add 192.0.2.254/24 dev lan0"
        ));
        for host in ["192.0.2.1:7", "[2001:db8::1]:7"] {
            let listener =
                bridge.far.within(|| TcpListener::bind(host)).unwrap_or_else(|error| panic!("{error}"));
            let sent: Vec<u8> = (0..4_000_000u32).flat_map(u32::to_le_bytes).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let stream = other.within(|| TcpStream::connect(host));
                    let mut stream = stream.unwrap_or_else(|error| panic!("{host}: {error}"));
                    stream.write_all(&sent).unwrap_or_else(|error| panic!("{host}: {error}"));
                });
                let (mut stream, _) = listener.accept().unwrap_or_else(|error| panic!("{host}: {error}"));
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap_or_else(|error| panic!("{host}: {error}"));
                assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
            });
        }
        // A datagram that fills a frame, sent by Linux on the switch.
        let bind = |to: &str| UdpSocket::bind(to).unwrap_or_else(|error| panic!("{to}: {error}"));
        let server = bridge.far.within(|| bind("192.0.2.1:9"));
        let client = bridge.sw.within(|| bind("192.0.2.254:9"));
        let datagram: Vec<u8> = (0..mtu - 28).map(|byte| byte as u8).collect();
        server.set_read_timeout(Some(SOON)).unwrap_or_else(|error| panic!("{error}"));
        client.send_to(&datagram, "192.0.2.1:9").unwrap_or_else(|error| panic!("{error}"));
        let mut buffer = [0; 10_000];
        let (length, from) =
            server.recv_from(&mut buffer).unwrap_or_else(|error| panic!("datagram: {error}"));
        assert!(buffer[..length] == datagram && from.to_string() == "192.0.2.254:9");
        assert!(
            bridge.port("p1")["counters"]["sums_completed"].as_u64() > Some(1000),
            "{:?}",
            bridge.ports()
        );
        bridge.assert_closed();
        bridge.stop("stop");
        assert!(!bridge.sw.run("ip -o link").contains("lan0"), "its interface in Linux must be deleted, too");
    }
}

/// A packet of IPv4 in a frame from the first end: its length, its fragment field, and what follows its header.
fn ipv4(to: [u8; 6], length: u16, fragment: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &mac(0), &[8, 0, 0x45, 0], &length.to_be_bytes(), &[0, 7]].concat();
    frame.extend([&fragment.to_be_bytes()[..], &[64, 17, 0, 0, 192, 0, 2, 10], &[255; 4], body].concat());
    frame.resize(frame.len().max(60), 0);
    frame
}

fn udp(ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let length = (8 + data.len()) as u16;
    [&ports.map(u16::to_be_bytes).concat()[..], &length.to_be_bytes(), &[0; 2], data].concat()
}

/// What the adversary of `crates/switch` does to the program, with a daemon and its configuration.
#[test]
fn a_guest_gets_nothing_past_its_guards() {
    let Some(mut bridge) = Bridge::new("sw-guards", 2) else { return };
    bridge.up(&format!(
        "{LAN}[[switch.port]]\nports = 'p0'\naccess = 10\nlocked = 'on'\nsource_guard = 'on'\ndhcp_guard = 'on'\n\
         ra_guard = 'on'\n[[switch.port]]\nports = 'p1'\ntrunk = [20]\nnative = 10\n\
         [[switch.static]]\nmac = '{}'\nport = 'p0'\nvlan = 10\naddresses = ['192.0.2.10']\n",
        mac_text(0)
    ));
    let [guest, other] = [0, 1].map(|number| bridge.end(number));
    let answer = udp([6767, 68], &[2; 40]);
    let harmless = udp([1000, 2000], &[1; 40]);
    let own = ipv4(BROADCAST, 68, 0, &harmless);
    for (frame, reason) in [
        // An answer of a DHCP server, from a port that no server has.
        (ipv4(BROADCAST, 68, 0, &answer), "dhcp_guard"),
        // The first fragment ends before the ports, and harmless ones follow in the trailer.
        (ipv4(BROADCAST, 20, 0x2000, &harmless), "source_guard"),
        (ipv4(BROADCAST, 24, 0x2000, &harmless), "source_guard"),
        // To Linux, where no bridge may forward.
        (ipv4([1, 0x80, 0xc2, 0, 0, 0x0e], 68, 0, &harmless), "reserved"),
        // Into another VLAN, behind the tag that is removed at p1.
        (tagged(&tagged(&own, 20), 10), "vlan"),
    ] {
        let before = bridge.port("p0")["account"]["drops"][reason].as_u64().unwrap_or(0);
        send(&guest, &frame);
        bridge.until(reason, |bridge| bridge.port("p0")["account"]["drops"][reason] == before + 1);
    }
    nothing(&[&other], "of all that");
    send(&guest, &own);
    assert_eq!(take(&other, 1, "what it may send"), [own]);
    bridge.assert_closed();
    bridge.stop("stop");
}

#[test]
fn reports_problems_and_keeps_running() {
    let Some(mut bridge) = Bridge::new("sw-wrong", 2) else { return };
    bridge.far.run("ethtool -K f1 gro off");
    bridge.up(&format!("{LAN}[[switch]]\nname = 'other'\nports = ['p0']\n"));
    let shown = bridge.ask("show switch");
    assert!(
        shown.contains("p1: its device does not accept frames from XDP: run `ethtool -K PEER gro on`"),
        "{shown}"
    );
    assert!(shown.contains("p0 is not a port: another XDP program ("), "{shown}");
    let [a, b] = [0, 1].map(|number| bridge.end(number));
    send(&b, &frame(BROADCAST, 1, 0));
    take(&a, 1, "it can still send");
    send(&a, &frame(mac(1), 0, 1));
    bridge.until("the drop is counted", |bridge| bridge.port("p0")["account"]["drops"]["far_end"] == 1);
    bridge.far.run("ethtool -K f1 gro on");
    bridge.until("the change is noticed", |bridge| bridge.port("p1")["takes_frames"] == true);
    send(&a, &frame(mac(1), 0, 2));
    assert_eq!(take(&b, 1, "now it goes"), [frame(mac(1), 0, 2)]);
    bridge.stop("stop");
}
