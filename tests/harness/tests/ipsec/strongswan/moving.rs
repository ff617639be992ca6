//! Ends of a tunnel that get other addresses and ports: by MOBIKE (RFC 4555), and because of a NAT (RFC 7296 2.23).

use super::*;
use bm_tests::sys::PacketSocket;
use std::collections::HashSet;

/// The gateway with brickmoon, before and after it gets another address.
const HERE: [u8; 4] = [192, 0, 2, 1];
const MOVED: [u8; 4] = [192, 0, 2, 77];

/// An ESP packet in UDP.
struct Sent {
    source: [u8; 4],
    port: u16,
    destination_port: u16,
    spi: u32,
    number: u32,
    iv: [u8; 8],
}

/// The ESP packets in UDP among frames, without IKE.
fn esp(frames: &[Vec<u8>]) -> Vec<Sent> {
    let find = |frame: &Vec<u8>| {
        let port = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let is_udp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&UDP);
        let (source, destination_port) = (port(34)?, port(36)?);
        let spi = word(42).filter(|spi| is_udp && *spi != 0 && [source, destination_port].contains(&4500))?;
        Some(Sent {
            source: *frame.get(26..)?.first_chunk()?,
            port: source,
            destination_port,
            spi,
            number: word(46)?,
            iv: *frame.get(50..)?.first_chunk()?,
        })
    };
    frames.iter().filter_map(find).collect()
}

/// All ESP packets of brickmoon that have crossed the net: neither a number nor an IV was used twice with a key.
#[derive(Default)]
struct Unique {
    numbers: HashSet<(u32, u32)>,
    ivs: HashSet<(u32, [u8; 8])>,
}

impl Unique {
    /// Looks at what has crossed since the last call; returns the ESP packets of brickmoon.
    fn look(&mut self, seen: &PacketSocket) -> Vec<Sent> {
        let ours = |sent: &Sent| [HERE, MOVED].contains(&sent.source);
        let sent: Vec<_> = esp(&Net::frames(seen)).into_iter().filter(ours).collect();
        for Sent { spi, number, iv, .. } in &sent {
            assert!(self.numbers.insert((*spi, *number)), "number {number} of SPI {spi:#x} was sent twice");
            assert!(self.ivs.insert((*spi, *iv)), "IV {iv:x?} of SPI {spi:#x} was sent twice");
        }
        sent
    }
}

/// What must go on of each SA while it moves: SPI, then packets, bytes and numbers, which only grow.
fn counts(daemon: &Daemon<'_>) -> Vec<(u64, [u64; 3])> {
    let number = |sa: &serde_json::Value, key: &str| sa[key].as_u64().unwrap_or_else(|| panic!("{sa}"));
    let of = |sa: &serde_json::Value| {
        (number(sa, "spi"), ["packets", "bytes", "sequence"].map(|key| number(sa, key)))
    };
    let mut all: Vec<_> = sas(daemon).iter().map(of).collect();
    all.sort_unstable();
    all
}

fn assert_went_on(before: &[(u64, [u64; 3])], after: &[(u64, [u64; 3])]) {
    assert_eq!(before.len(), 2, "{before:?}");
    let pairs = || before.iter().zip(after);
    let same = pairs().all(|((spi, _), (now, _))| spi == now);
    let grew = pairs().all(|((_, before), (_, after))| before.iter().zip(after).all(|(one, two)| one < two));
    assert!(before.len() == after.len() && same && grew, "{before:?}, then {after:?}");
}

/// MOBIKE: the gateway with brickmoon loses its address in the middle of a stream, three times, and goes on with another one.
#[test]
fn a_tunnel_goes_on_when_this_end_gets_another_address() {
    if !has_strongswan("strongswan-mobike") {
        return;
    }
    let net = Net::new("strongswan-mobike");
    net.gateways[0].set(&[("net.ipv4.conf.all.promote_secondaries", "1")]);
    // Else it may go on over IPv6.
    net.gateways[0].ip("-6 route del default\n-6 addr flush dev wan");
    let Some(daemon) = net.brickmoon() else { return };
    let (seen, mut unique) = (net.net.packet_socket("m1"), Unique::default());
    let _b = net.charon_between(1, &IPV4, [IPV4.gateways[1], "%any"], "");
    let a = net.charon_between(0, &IPV4, ["%any", IPV4.gateways[1]], "start_action = trap");
    ping(&net.a, "10.2.0.2", 56, 62);
    unique.look(&seen);
    let mut stream = net.a.command("ping");
    stream.args(["-i", "0.02", "-c", "500", "-W", "2", "10.2.0.2"]).stdout(Stdio::piped());
    let stream = stream.spawn().expect("there is ping");
    std::thread::sleep(std::time::Duration::from_secs(1));
    for (from, to) in [("1", "77"), ("77", "1"), ("1", "77")] {
        net.gateways[0].ip(&format!(
            "addr add 192.0.2.{to}/24 dev wan\naddr del 192.0.2.{from}/24 dev wan\nroute replace default via 192.0.2.9"
        ));
        let here = format!("@ 192.0.2.{to}[4500]");
        eventually("charon has moved", || a.swanctl("--list-sas").contains(&here));
        eventually("the SAs have moved", || {
            let moved =
                sas(&daemon).iter().filter(|sa| sa.to_string().contains(&format!("192.0.2.{to}"))).count();
            moved == 2
        });
        unique.look(&seen);
        ping(&net.a, "10.2.0.2", 56, 62);
    }
    let output = stream.wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("icmp_seq=500 "), "{output}\n{}", a.log());
    let sent = unique.look(&seen);
    assert!(sent.iter().any(|sent| sent.source == MOVED), "after the last move");
    // What kernel-netlink says about SAs; then the other end, whose kernel-libipsec cannot move SAs, has replaced them.
    let log = a.log();
    assert!(log.matches("updating SAD entry").count() >= 6 && !log.contains("unable to"), "{log}");
    Net::none_in_clear(&seen, UDP);
    drop(a);
    daemon.stop();
}

/// What the net does with packets of the other end: they get its address, and ports of a range.
fn nat(net: &Net, first: u16) {
    let last = first + 100;
    net.net
        .feed(
            "nft -f -",
            &format!(
                "flush ruleset\ntable ip nat {{ chain post {{ type nat hook postrouting priority srcnat;\n\
                 oifname m1 udp sport 4500 masquerade to :{first}-{last}\noifname m1 ip saddr 198.51.100.1 masquerade\n}}\n}}\n"
            ),
        )
        .expect("a ruleset");
    // Linux forgets the ports that it has chosen for an address when the address goes.
    net.net.ip("addr del 192.0.2.9/24 dev m1\naddr add 192.0.2.9/24 dev m1");
    net.net.ip("route replace 192.0.2.0/24 dev m1");
}

/// A NAT in between forgets the port of the other end and chooses another one: charon hears of it by the first packet, and
/// answers go to the new port.
#[test]
fn a_tunnel_goes_on_when_a_nat_changes_the_port_of_the_other_end() {
    if !has_strongswan("strongswan-nat") || !bm_tests::command::has("nft") {
        return report::skip("strongswan-nat", "it needs strongSwan and nft");
    }
    let net = Net::new("strongswan-nat");
    nat(&net, 20_000);
    let Some(daemon) = net.brickmoon() else { return };
    let (seen, mut unique) = (net.net.packet_socket("m1"), Unique::default());
    let a = net.charon_between(0, &IPV4, [IPV4.gateways[0], "%any"], "");
    let b = net.charon(1, &IPV4, "");
    b.swanctl("--initiate --child nets");
    ping(&net.b, "10.1.0.2", 56, 62);
    let before = counts(&daemon);
    let sent = unique.look(&seen);
    let to = |sent: &[Sent], range: std::ops::RangeInclusive<u16>| {
        sent.iter().filter(|sent| sent.port == 4500 && range.contains(&sent.destination_port)).count()
    };
    assert!(to(&sent, 20_000..=20_100) >= 5 && !a.log().contains("NAT mappings of CHILD_SA"), "{}", a.log());
    nat(&net, 30_000);
    ping(&net.b, "10.1.0.2", 56, 62);
    assert!(a.log().contains("NAT mappings of CHILD_SA"), "{}", a.log());
    assert!(to(&unique.look(&seen), 30_000..=30_100) >= 5, "{}", a.log());
    assert_went_on(&before, &counts(&daemon));
    drop(a);
    daemon.stop();
}
