//! SAs and policies that `brickmoon xfrm ip xfrm` adds, as an IKE daemon does, with the same peer.

use super::*;

/// Algorithms in the words of `ip xfrm`: for encryption, and for integrity where that is another one.
fn algorithms(tunnel: &Tunnel, encryption: &str, integrity: &str) -> String {
    match tunnel.suite {
        "aes128gcm16" | "aes256gcm16" => format!("aead rfc4106(gcm(aes)) 0x{encryption} 128"),
        "chacha20poly1305" => format!("aead rfc7539esp(chacha20,poly1305) 0x{encryption} 128"),
        "aes128-sha256" | "aes256-sha256" => {
            format!("auth-trunc hmac(sha256) 0x{integrity} 128 enc cbc(aes) 0x{encryption}")
        }
        _ => format!("auth-trunc hmac(sha1) 0x{integrity} 96 enc cbc(aes) 0x{encryption}"),
    }
}

/// What `ip` is told, so that there are these tunnels: lines for `ip -batch`.
pub fn commands(tunnels: &[Tunnel]) -> String {
    let mut lines = String::new();
    for tunnel in tunnels {
        let mode = tunnel.mode.name();
        for end in tunnel.ends() {
            let ends = format!("src {} dst {}", end.source, end.destination);
            let template = format!("proto esp reqid {} mode {mode}", tunnel.n);
            lines += &format!(
                "xfrm state add {ends} proto esp spi {:#x} reqid {} mode {mode} replay-window {} replay-oseq {} flag af-unspec{}{} {}\n",
                end.spi,
                tunnel.n,
                tunnel.window,
                if end.direction == "out" { tunnel.begin } else { 0 },
                if tunnel.esn { " esn" } else { "" },
                if tunnel.udp { " encap espinudp 4500 4500 0.0.0.0" } else { "" },
                algorithms(tunnel, &end.encryption, &end.integrity),
            );
            for [near, far] in tunnel.networks() {
                let (directions, [from, to]) = match end.direction {
                    "out" => (&["out"][..], [near, far]),
                    _ => (&["in", "fwd"][..], [far, near]),
                };
                for direction in directions {
                    lines += &format!(
                        "xfrm policy add src {from} dst {to} dir {direction} tmpl {ends} {template}\n"
                    );
                }
            }
        }
    }
    lines
}

#[test]
fn sas_of_ip_xfrm_do_the_same() {
    let lab = Lab::new("esp-xfrm");
    let Some(mut peer) = lab.peer("esp-xfrm") else { return };
    let socket = lab.folder.join("xfrm.sock");
    let Some(daemon) = lab.start_with(&format!("[ipsec]\nxfrm_socket = '{}'\n", socket.display())) else {
        return;
    };
    // Every suite, and what the adversary is given.
    let more = suites().enumerate().map(|(at, suite)| Tunnel {
        esn: at.is_multiple_of(2),
        udp: at.is_multiple_of(3),
        // So the high half of ESN changes on the way out, too.
        begin: if at.is_multiple_of(2) { u32::MAX - 3 } else { 0 },
        ..Tunnel::new(at as u8 + 11, Mode::Tunnel, if at.is_multiple_of(2) { 4 } else { 6 }, suite)
    });
    // An SA has no direction here: it is inbound if its destination is an address of the router. So there is no transport mode
    // for hosts behind it.
    let mut tunnels = adversary::attacked();
    tunnels.retain(|tunnel| tunnel.mode == Mode::Tunnel);
    // Selectors of SAs are those of policies here.
    tunnels.iter_mut().for_each(|tunnel| tunnel.selectors = false);
    let attacked = tunnels.len();
    tunnels.extend(more);
    let brickmoon = bm_tests::binary::binary().expect("it runs");
    lab.router
        .feed(
            &format!("{} xfrm --xfrm-socket {} ip -batch -", brickmoon.display(), socket.display()),
            &commands(&tunnels),
        )
        .expect("ip xfrm");
    let shown = daemon.ask(&["show", "sas"]);
    assert_eq!(shown["sas"].as_array().map(Vec::len), Some(2 * tunnels.len()), "{shown}");
    peer.has(&tunnels);
    let mut packets = peer.number(&json!({ "do": "exchange", "rounds": 5 }));
    let dropped = adversary::attack(&mut peer, &daemon, attacked);
    packets += peer.number(&json!({ "do": "exchange", "rounds": 5 }));
    // A reload keeps SAs that are not of the configuration, and their numbers.
    let before = numbers::highest(&mut peer);
    daemon.ask(&["reload"]);
    packets += peer.number(&json!({ "do": "exchange", "rounds": 1 }));
    for (spi, number) in numbers::highest(&mut peer) {
        assert_eq!(number, before[&spi] + 1, "SPI {spi} after a reload");
    }
    report::say(&format!("esp-xfrm: {packets} packets passed, {dropped} were dropped"));
    daemon.stop();
}
