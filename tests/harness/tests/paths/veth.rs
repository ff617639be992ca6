//! XDP on veth with jumbo frames, which are in several buffers, and with offloads of the port that change. For offloads of
//! hosts see `hosts`.

use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::Ip4;
use bm_tests::subject::{Forwarding, Subject};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MTU: usize = 9000;
const PATIENCE: Duration = Duration::from_secs(2);

/// The sink's addresses, and the length of the headers in front of a datagram's payload.
const SINKS: [(&str, &str, usize); 2] =
    [("198.51.100.2:7", "192.0.2.2:0", 28), ("[2001:db8:2::2]:7", "[2001:db8:1::2]:0", 48)];

fn bind(to: &str) -> UdpSocket {
    let socket = UdpSocket::bind(to).unwrap_or_else(|error| panic!("{to}: {error}"));
    socket.set_read_timeout(Some(PATIENCE / 10)).unwrap_or_else(|error| panic!("{to}: {error}"));
    socket
}

/// Sends a datagram until it has come back intact; the first ones may be lost while neighbors are resolved.
fn there_and_back(socket: &UdpSocket, to: &str, bytes: usize, what: &str) {
    let sent: Vec<u8> = (0..bytes).map(|at| (at * 31 + bytes) as u8).collect();
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..10 {
        let _ = socket.send_to(&sent, to);
        if let Ok((length, _)) = socket.recv_from(&mut buffer)
            && buffer[..length] == sent
        {
            return;
        }
    }
    panic!("{what}: {bytes} bytes to {to} must come back");
}

#[test]
fn jumbo_frames_pass_the_kernel_path() {
    for subject in Subject::all("jumbo") {
        // On the user path a slot is at most a page.
        if matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. }) {
            continue;
        }
        let lab = Lab::new("jumbo", Ends::Hosts);
        for side in [Side::Src, Side::Snk] {
            lab.rtr.ip(&format!("link set {} mtu {MTU}", side.router()));
            lab.host(side).ip(&format!("link set {} mtu {MTU}", side.host()));
        }
        for gro in ["on", "off"] {
            // With and without checksum offload; GRO on the router's ends merges packets that Linux forwards.
            lab.set_offloads(gro == "on", true);
            for side in [Side::Src, Side::Snk] {
                lab.rtr.run(&format!("ethtool -K {} gro {gro}", side.router()));
            }
            let router = subject.start(&lab);
            for (to, from, headers) in SINKS {
                let (server, client) = (lab.snk.within(|| bind(to)), lab.src.within(|| bind(from)));
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut buffer = vec![0; 1 << 16];
                        while !stop.load(Ordering::Relaxed) {
                            if let Ok((length, from)) = server.recv_from(&mut buffer) {
                                let _ = server.send_to(&buffer[..length], from);
                            }
                        }
                    });
                    // One buffer, at its limit, several buffers, a full frame, fragments of full frames.
                    for bytes in [100, 1472, 3400, 3600, 4096, 8000, MTU - headers, 20_000] {
                        there_and_back(&client, to, bytes, &format!("{subject}, gro {gro}"));
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            router.stop();
        }
    }
}

/// Somebody may turn on what the daemon has turned off.
#[test]
fn tags_stay_in_frames() {
    for subject in Subject::all("rxvlan") {
        let lab = Lab::new("rxvlan", Ends::Silent);
        let router = subject.start(&lab);
        let strips = || lab.rtr.run("ethtool -k r0").contains("rx-vlan-offload: on");
        if subject != Subject::Linux {
            assert!(!strips(), "{subject}");
            lab.rtr.run("ethtool -K r0 rxvlan on");
            let since = Instant::now();
            while strips() {
                assert!(since.elapsed() < 10 * PATIENCE, "{subject}: rxvlan stays on");
                std::thread::sleep(PATIENCE / 100);
            }
        }
        let packet = Ip4::udp("192.0.2.2", "10.9.9.9", 20).bytes();
        assert!(lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 1, true).complete);
        router.stop();
        assert!(strips(), "{subject}: as before");
    }
}
