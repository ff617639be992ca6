//! Packets through the whole data path in memory: their bytes are those that Scapy made, or the router must not send any.

use std::net::IpAddr;
use std::sync::Arc;

use bm_fib::published::{Published, Readers};
use bm_ipsec::{
    Action, Df, Direction, Limit, Mode, Numbers, Policies, Policy, Sa, SaId, Secret, Selector, Suite,
    UdpPorts,
};
use bm_link::{Producer, channel};
use bm_stats::Reason;
use bm_wire::checksum;

use super::{IpsecPlan, SaNumbers, SaPlan, SaStatus};
use crate::tables::{PublishedTables, Tables};
use crate::testing::Lab;

mod bursts;
mod errors;
mod interfaces;
mod moved;
mod path_mtu;
mod several;

/// ESP packets made by Scapy, an independent implementation: see `crates/ipsec/src/tests/esp_by_scapy.py`.
const RECORDED: &str = include_str!("../../../ipsec/src/tests/esp_by_scapy.txt");
const SPI: u32 = 0x1234_5678;

/// Hosts are behind `inside`; peers, and the hosts behind them, are behind `outside`.
const LINES: &str = "
    interface inside 0 02:00:00:00:00:01 10.9.0.1/24 2001:db8:9::1/64
    interface outside 1 02:00:00:00:00:02 203.0.113.1/24 2001:db8:a::1/64
    neighbor 10.9.0.9 inside 02:00:00:00:01:09
    neighbor 203.0.113.9 outside 02:00:00:00:02:09
    neighbor 2001:db8:a::9 outside 02:00:00:00:02:09
    route 0.0.0.0/0 via 203.0.113.9 outside
    route ::/0 via 2001:db8:a::9 outside";
const INSIDE: usize = 0;
const OUTSIDE: usize = 1;

struct Recorded<'a> {
    line: &'a str,
    sa: Sa,
    number: u64,
    plain: Vec<u8>,
    sent: Vec<u8>,
}

fn recorded(line: &str) -> Recorded<'_> {
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
        mode: if mode == "tunnel" { Mode::Tunnel } else { Mode::Transport },
        encryption_key: bytes(encryption),
        integrity_key: bytes(integrity),
        esn: esn == "esn",
        udp: (udp == "udp").then_some(UdpPorts { source: 4500, destination: 4500 }),
        ..Sa::new(Direction::Out, SaId { spi: SPI, destination }, source, suite.parse::<Suite>().unwrap())
    };
    Recorded { line, sa, number: number.parse().unwrap(), plain: bytes(plain).bytes().to_vec(), sent }
}

fn policy(direction: Direction, action: Action) -> Policy {
    Policy { at: 0, direction, priority: 100, if_id: 0, selector: Selector::default(), action }
}

/// The tables of a lab, for apps outside of it.
fn tables() -> PublishedTables {
    let readers = Readers::new();
    let published = Arc::new(Published::new(Lab::new(LINES).tables(), &readers));
    PublishedTables { published, readers }
}

/// A plan with one SA, and a policy that protects everything with it; also where further numbers come from.
fn plan(sa: &Sa, after: u64) -> (IpsecPlan, Producer<bm_ipsec::Block>) {
    let numbers = Numbers::after(after, sa.esn).reserve(3).unwrap();
    let (blocks, more) = channel(2);
    let status = Arc::new(SaStatus::new(1_000_000_000));
    if sa.direction == Direction::In && after > 0 {
        status.write(&status.read().used, after, None);
    }
    let numbers = SaNumbers { block: numbers, more, iv_mask: 0 };
    let numbers = (sa.direction == Direction::Out).then_some(numbers);
    let sas = vec![SaPlan { sa: sa.clone(), worker: 0, status, numbers }];
    let policies = vec![policy(sa.direction, Action::Protect(sa.id()))];
    (
        IpsecPlan {
            policies: Policies::new(policies).unwrap().into(),
            lists: Vec::new(),
            current: Vec::new(),
            sas,
            of_kernel: false,
        },
        blocks,
    )
}

/// A frame for the interface of a port of the lab, or from it to its neighbor.
fn frame(to: [u8; 6], from: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&to[..], &from, &kind, packet].concat()
}

fn arrives(port: usize, packet: &[u8]) -> Vec<u8> {
    frame([2, 0, 0, 0, 0, 1 + port as u8], [2, 0, 0, 0, 1 + port as u8, 9], packet)
}

fn leaves(port: usize, packet: &[u8]) -> Vec<u8> {
    frame([2, 0, 0, 0, 1 + port as u8, 9], [2, 0, 0, 0, 0, 1 + port as u8], packet)
}

/// The packet with this much added to its TTL or hop limit.
fn hops(packet: &[u8], change: i8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        packet[8] = packet[8].wrapping_add_signed(change);
        packet[10..12].fill(0);
        let sum = checksum::ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[7] = packet[7].wrapping_add_signed(change);
    }
    packet
}

#[test]
fn what_is_routed_leaves_as_scapy_encrypts_it() {
    for Recorded { line, sa, number, plain, sent } in RECORDED.lines().map(recorded) {
        let (plan, _more) = plan(&sa, number - 1);
        let mut lab = Lab::with_ipsec(LINES, plan);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &hops(&plain, 1)));
        assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &sent)[..])), "{line}");
    }
}

#[test]
fn what_scapy_encrypts_is_routed_in_clear() {
    for Recorded { line, sa, number, plain, sent } in RECORDED.lines().map(recorded) {
        let sa = Sa { direction: Direction::In, ..sa };
        let (plan, _more) = plan(&sa, number - 1);
        let status = plan.sas[0].status.clone();
        let mut lab = Lab::with_ipsec(LINES, plan);
        let esp = sent.windows(4).position(|bytes| bytes == SPI.to_be_bytes()).unwrap();
        let with = |at: usize| {
            let mut changed = sent.clone();
            changed[at] ^= 1;
            arrives(OUTSIDE, &changed)
        };
        // A packet that was changed leaves no trace; then the packet, a replay, one of no SA, and one in clear.
        assert!(lab.exchange(OUTSIDE, &with(sent.len() - 1)).is_silence(), "{line}");
        let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, &sent));
        assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &hops(&plain, -1))[..])), "{line}");
        for bad in [arrives(OUTSIDE, &sent), with(esp + 3), arrives(OUTSIDE, &plain)] {
            assert!(lab.exchange(OUTSIDE, &bad).is_silence(), "{line}");
        }
        let drops = lab.drops();
        for reason in [Reason::IpsecNoSa, Reason::IpsecReplay, Reason::IpsecIntegrity, Reason::IpsecPolicy] {
            assert!(drops.contains(&(reason, 1)), "{line}: {drops:?}");
        }
        assert_eq!(drops.len(), 4, "{line}: {drops:?}");
        let status = status.read();
        assert_eq!((status.used.packets, status.failures, status.number), (1, 2, number), "{line}");
    }
}

/// The first recorded packet: IPv4 in a tunnel over IPv4.
fn first() -> Recorded<'static> {
    recorded(RECORDED.lines().next().unwrap())
}

#[test]
fn nothing_leaves_in_clear_when_the_sa_has_ended() {
    let Recorded { mut sa, plain, .. } = first();
    sa.limits.packets = Limit { soft: None, hard: Some(1) };
    let (plan, _more) = plan(&sa, 0);
    let mut lab = Lab::with_ipsec(LINES, plan);
    let packet = arrives(INSIDE, &plain);
    assert_eq!(
        lab.exchange(INSIDE, &packet).only().map(|(port, frame)| (port, frame[23])),
        Some((OUTSIDE, 50))
    );
    assert!(lab.exchange(INSIDE, &packet).is_silence());
    assert_eq!(lab.drops(), [(Reason::IpsecLifetime, 1)]);
}

/// From the host behind `inside`, without payload that means anything.
fn ipv4(length: u16, flags: u8) -> Vec<u8> {
    let mut packet = vec![0; length.into()];
    packet[..2].copy_from_slice(&[0x45, 0]);
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6] = flags;
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..20].copy_from_slice(&[10, 9, 0, 9, 10, 2, 0, 7]);
    hops(&packet, 0)
}

/// An IPv6 packet from a host inside to the other end of a tunnel.
fn ipv6(length: u16) -> Vec<u8> {
    let mut packet = vec![0; length.into()];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(length - 40).to_be_bytes());
    packet[6..8].copy_from_slice(&[59, 64]);
    packet[8..24].copy_from_slice(&"2001:db8:9::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet[24..40].copy_from_slice(&"2001:db8:2::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet
}

/// The MTU in an ICMP error "fragmentation needed" to that host about the packet, whose TTL was decremented.
fn reported_mtu(answer: &crate::testing::Answer, packet: &[u8]) -> Option<u16> {
    let (port, error) = answer.only()?;
    assert_eq!((port, &error[..14]), (INSIDE, &leaves(INSIDE, &packet[..20])[..14]));
    assert_eq!((error[23], &error[26..36]), (1, &[10, 9, 0, 1, 10, 9, 0, 9, 3, 4][..]));
    assert_eq!(&error[42..62], &hops(packet, -1)[..20]);
    Some(u16::from_be_bytes([error[40], error[41]]))
}

#[test]
fn sources_get_the_mtu_of_a_tunnel() {
    const DF: u8 = 0x40;
    let Recorded { mut sa, .. } = first();
    sa.path_mtu = 1400;
    let (mut plan, mut more) = plan(&sa, 0);
    more.push(Numbers::after(100, false).reserve(10).unwrap()).unwrap();
    let selector = Selector { destination: Some("10.2.0.0/16".parse().unwrap()), ..Selector::default() };
    let protect = Policy { selector, ..policy(Direction::Out, Action::Protect(sa.id())) };
    plan.policies = Policies::new(vec![protect]).unwrap().into();
    let mut lab = Lab::with_ipsec(LINES, plan);
    let send = |lab: &mut Lab, length, flags| {
        let packet = ipv4(length, flags);
        let answer = lab.exchange(INSIDE, &arrives(INSIDE, &packet));
        let out = answer.only().map(|(port, _)| port);
        if out == Some(OUTSIDE) {
            Ok(answer.only().unwrap().1.len() - 14)
        } else {
            Err(reported_mtu(&answer, &packet))
        }
    };
    // Outer header, SPI and number, IV, padding to a multiple of 4 with its two bytes, ICV.
    let largest = |mtu: u16| ((mtu - 20 - 8 - 8 - 16) & !3) - 2;
    assert_eq!(send(&mut lab, largest(1400), DF), Ok(1400));
    assert_eq!(send(&mut lab, largest(1400) + 1, DF), Err(Some(largest(1400))));
    // Without DF, the ESP packet is fragmented, on an interface with a smaller MTU.
    assert_eq!(send(&mut lab, largest(1400) + 1, 0), Ok(1404));
    // The route to the peer gets a smaller MTU, which the source of the first packet is told.
    lab.change("route 192.0.2.0/24 via 203.0.113.9 outside mtu 1300");
    assert_eq!(send(&mut lab, largest(1400), DF), Err(Some(largest(1300))));
    assert_eq!(send(&mut lab, largest(1300) + 1, DF), Err(Some(largest(1300))));
    assert_eq!(send(&mut lab, largest(1300), DF), Ok(1300));
    // And a greater one.
    lab.change("route 192.0.2.0/24 via 203.0.113.9 outside mtu 1380");
    assert_eq!(send(&mut lab, largest(1380), DF), Ok(1380));
    assert_eq!(send(&mut lab, largest(1380) + 1, DF), Err(Some(largest(1380))));
    assert_eq!(lab.drops(), [(Reason::IpsecTooBig, 4)]);
}

#[test]
fn ipv6_sources_get_the_mtu_of_a_tunnel() {
    let Recorded { mut sa, .. } = first();
    sa.path_mtu = 1400;
    let (mut plan, _more) = plan(&sa, 0);
    let selector = Selector { destination: Some("2001:db8:2::/48".parse().unwrap()), ..Selector::default() };
    let protect = Policy { selector, ..policy(Direction::Out, Action::Protect(sa.id())) };
    plan.policies = Policies::new(vec![protect]).unwrap().into();
    let mut lab =
        Lab::with_ipsec(&format!("{LINES}\n neighbor 2001:db8:9::9 inside 02:00:00:00:01:09"), plan);
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(1346)));
    assert_eq!(answer.only().map(|(port, frame)| (port, frame.len())), Some((OUTSIDE, 1414)));
    let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(1347)));
    let (port, error) = answer.only().unwrap();
    // Packet Too Big (RFC 4443 3.2).
    assert_eq!((port, &error[54..56], &error[58..62]), (INSIDE, &[2, 0][..], &1346u32.to_be_bytes()[..]));
    assert_eq!(&error[62..102], &hops(&ipv6(1347), -1)[..40]);
}

/// This router is the source of ESP packets, so it may fragment them also over IPv6, and has to where even the least MTU of
/// IPv6 does not fit (RFC 4301 8.2.1, RFC 8200 5).
#[test]
fn esp_is_fragmented_over_both_families() {
    let ends = [["192.0.2.1", "192.0.2.2"], ["2001:db8:b::1", "2001:db8:b::2"]];
    for (addresses, header) in ends.into_iter().zip([20, 48]) {
        let [source, destination] = addresses.map(|text| text.parse::<IpAddr>().unwrap());
        for (df, length) in [(Df::Copy, 1280), (Df::Clear, 1450)] {
            let Recorded { mut sa, .. } = first();
            (sa.source, sa.destination, sa.df) = (source, destination, df);
            let (mut plan, _more) = plan(&sa, 0);
            let selector =
                Selector { destination: Some("2001:db8:2::/48".parse().unwrap()), ..Selector::default() };
            let protect = Policy { selector, ..policy(Direction::Out, Action::Protect(sa.id())) };
            plan.policies = Policies::new(vec![protect]).unwrap().into();
            let narrow = "
                route 192.0.2.0/24 via 203.0.113.9 outside mtu 1300
                route 2001:db8:b::/48 via 2001:db8:a::9 outside mtu 1300";
            let mut lab = Lab::with_ipsec(&format!("{LINES}{narrow}"), plan);
            let answer = lab.exchange(INSIDE, &arrives(INSIDE, &ipv6(length)));
            let pieces: Vec<_> = answer.sent.iter().map(|(port, frame)| (*port, frame.len() - 14)).collect();
            assert_eq!(pieces.len(), 2, "{addresses:?} {df:?}: {pieces:?}");
            assert!(pieces.iter().all(|(port, length)| *port == OUTSIDE && *length <= 1300), "{pieces:?}");
            // The TTL of the SA: no hop lies between its source and these.
            let ttl_at = 14 + if source.is_ipv4() { 8 } else { 7 };
            assert!(answer.sent.iter().all(|(_, frame)| frame[ttl_at] == 64), "{addresses:?}");
            // SPI, number and IV, padding and trailer, ICV.
            let esp = 16 + (usize::from(length) + 2).next_multiple_of(4) + 16;
            assert_eq!(pieces.iter().map(|(_, length)| length - header).sum::<usize>(), esp, "{addresses:?}");
            assert_eq!(lab.drops(), []);
        }
    }
}

/// Linux, which gets a packet with a Router Alert for whoever listens, cannot encrypt it.
#[test]
fn packets_with_a_router_alert_are_encrypted() {
    let Recorded { sa, .. } = first();
    let (mut plan, _more) = plan(&sa, 0);
    let selector = Selector { destination: Some("10.2.0.0/16".parse().unwrap()), ..Selector::default() };
    let protect = Policy { selector, ..policy(Direction::Out, Action::Protect(sa.id())) };
    plan.policies = Policies::new(vec![protect]).unwrap().into();
    let mut lab = Lab::with_ipsec(LINES, plan);
    // The second network is in no policy.
    let [inside, beyond] = [2, 3].map(|network| {
        let mut packet = ipv4(100, 0);
        (packet[0], packet[17]) = (0x46, network);
        packet.splice(20..24, [148, 4, 0, 0]);
        packet[10..12].fill(0);
        let sum = checksum::ipv4_header(&packet[..24]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        arrives(INSIDE, &packet)
    });
    let answer = lab.exchange(INSIDE, &inside);
    assert_eq!(answer.only().map(|(port, frame)| (port, frame[23])), Some((OUTSIDE, 50)));
    let answer = lab.exchange(INSIDE, &beyond);
    assert_eq!((answer.sent, answer.host), (vec![], vec![(INSIDE, beyond)]));
}

#[test]
fn numbers_continue_with_the_next_block_and_then_end() {
    let Recorded { sa, plain, .. } = first();
    let (plan, mut more) = plan(&sa, 0);
    let mut lab = Lab::with_ipsec(LINES, plan);
    let packet = arrives(INSIDE, &plain);
    let mut numbers = Vec::new();
    more.push(Numbers::after(100, false).reserve(2).unwrap()).unwrap();
    for _ in 0..6 {
        let answer = lab.exchange(INSIDE, &packet);
        let esp = answer
            .only()
            .map(|(_, frame)| frame[34 + 4..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes)));
        numbers.extend(esp.flatten());
    }
    assert_eq!(numbers, [1, 2, 3, 101, 102]);
    assert_eq!(lab.drops(), [(Reason::IpsecNoSequenceNumbers, 1)]);
}

#[test]
fn policies_discard_bypass_and_need_an_sa() {
    let Recorded { sa, plain, .. } = first();
    let packet = arrives(INSIDE, &plain);
    for (action, drop) in [
        (Action::Discard, Some(Reason::IpsecPolicy)),
        (Action::Bypass, None),
        (Action::Protect(sa.id()), Some(Reason::IpsecNoSa)),
    ] {
        let policies = Policies::new(vec![policy(Direction::Out, action)]).unwrap();
        let (policies, lists, current, sas) = (policies.into(), Vec::new(), Vec::new(), Vec::new());
        let mut lab = Lab::with_ipsec(LINES, IpsecPlan { policies, lists, current, sas, of_kernel: false });
        let answer = lab.exchange(INSIDE, &packet);
        match drop {
            None => assert_eq!(answer.only(), Some((OUTSIDE, &leaves(OUTSIDE, &hops(&plain, -1))[..]))),
            Some(reason) => {
                assert!(answer.is_silence(), "{action:?}");
                assert_eq!(lab.drops(), [(reason, 1)]);
            }
        }
    }
}

#[test]
fn esp_waits_for_the_neighbor_of_the_tunnel_and_is_not_encrypted_twice() {
    let Recorded { sa, number, plain, sent, .. } = first();
    let lines = LINES.replace(
        "neighbor 203.0.113.9 outside 02:00:00:00:02:09",
        "neighbor 203.0.113.8 outside 02:00:00:00:02:08",
    ) + "\nroute 10.2.0.0/16 via 203.0.113.8 outside";
    let (plan, _more) = plan(&sa, number - 1);
    let mut lab = Lab::with_ipsec(&lines, plan);
    assert!(lab.exchange(INSIDE, &arrives(INSIDE, &hops(&plain, 1))).is_silence());
    assert_eq!(lab.held(), 1);
    lab.change("neighbor 203.0.113.9 outside 02:00:00:00:02:09");
    lab.pass(10);
    assert_eq!(lab.take(OUTSIDE), [leaves(OUTSIDE, &sent)]);
}

#[test]
fn ike_and_esp_for_others_are_left_alone() {
    let Recorded { sa, sent, .. } = recorded(RECORDED.lines().nth(2).unwrap());
    let sa = Sa { direction: Direction::In, ..sa };
    assert!(sa.udp.is_some() && sa.destination.is_ipv4());
    let (plan, _more) = plan(&sa, 0);
    let policies = Policies::new(Vec::new()).unwrap().into();
    let mut lab = Lab::with_ipsec(LINES, IpsecPlan { policies, ..plan });
    let mut ike = sent.clone();
    ike[28..32].fill(0);
    let mut other = sent.clone();
    // 192.0.2.3: the sum of the header changes as well.
    other[19] = 3;
    other = hops(&other, 0);
    let forwarded = |packet: &[u8]| Some((OUTSIDE, leaves(OUTSIDE, &hops(packet, -1))));
    for packet in [ike, other] {
        let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, &packet));
        assert_eq!(answer.only().map(|(port, frame)| (port, frame.to_vec())), forwarded(&packet));
    }
}

/// Linux would reassemble them, and has a replay window of its own where the SAs are the kernel's.
#[test]
fn fragments_of_esp_are_dropped_also_where_the_kernel_has_the_sas() {
    // In UDP the SPI may be in the next fragment.
    for (line, length) in [(0, 28), (2, 36), (2, 28)] {
        let Recorded { sa, sent, .. } = recorded(RECORDED.lines().nth(line).unwrap());
        let sa = Sa { direction: Direction::In, ..sa };
        let mut fragment = sent[..length].to_vec();
        (fragment[2], fragment[3], fragment[6]) = (0, length as u8, 0x20);
        let fragment = arrives(OUTSIDE, &hops(&fragment, 0));
        for of_kernel in [false, true] {
            let (plan, _more) = plan(&sa, 0);
            let policies = Policies::new(Vec::new()).unwrap().into();
            let mut lab = Lab::with_ipsec(LINES, IpsecPlan { policies, of_kernel, ..plan });
            assert!(lab.exchange(OUTSIDE, &fragment).sent.is_empty());
            assert_eq!(lab.drops(), [(Reason::IpsecFragment, 1)], "{length} bytes, kernel: {of_kernel}");
        }
    }
}

#[test]
fn linux_gets_no_chains_of_headers_that_workers_do_not_follow() {
    let Recorded { sa, sent, .. } = recorded(RECORDED.lines().nth(4).unwrap());
    let sa = Sa { direction: Direction::In, ..sa };
    let mut packet = sent[..40].to_vec();
    packet[6] = 60;
    for next in [60, 60, 60, 60, 60, 60, 60, 60, 50] {
        packet.extend([next, 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend(&sent[40..]);
    packet[5] = (packet.len() - 40) as u8;
    let (plan, _more) = plan(&sa, 0);
    let policies = Policies::new(Vec::new()).unwrap().into();
    let mut lab = Lab::with_ipsec(LINES, IpsecPlan { policies, of_kernel: true, ..plan });
    lab.exchange(OUTSIDE, &arrives(OUTSIDE, &packet));
    assert_eq!(lab.drops(), [(Reason::IpsecMalformed, 1)]);
}

#[test]
fn other_workers_hand_packets_to_the_owner() {
    use super::{Decryption, IpsecWorker};
    use bm_frame::{FramePool, Freelist};
    use bm_graph::{Engine, Network, PortApp, Waker};
    use bm_port::{MemoryPort, Wire};
    use bm_stats::{Account, Entry, Registry, Scope};

    let Recorded { sa, plain, sent, number, .. } = first();
    let sa = Sa { direction: Direction::In, ..sa };
    let (mut plan, _more) = plan(&sa, number - 1);
    plan.sas[0].worker = 1;
    let status = plan.sas[0].status.clone();
    let pool = FramePool::new(256, 2048).unwrap();
    let registry = Registry::anonymous(2048).unwrap();
    let account = |name: &str| Account::open(&registry, Scope::Other(name)).unwrap();
    let wakers = [Waker::new().unwrap(), Waker::new().unwrap()];
    let tables = tables();
    let mut workers = Vec::new();
    for (index, mut worker) in IpsecWorker::all(&wakers, 16).0.into_iter().enumerate() {
        let (mut network, wire) = (Network::new(), Wire::new());
        let [received, sent] = ["in", "out"].map(|side| account(&format!("{index}/{side}")));
        let port = PortApp::new(Box::new(MemoryPort::new(wire.clone())), received, sent);
        let books = account(&format!("{index}/decryption"));
        let app = Decryption::new(&plan, &mut worker, vec!["p0".into()], &tables, books, 0).unwrap();
        network.app("p0", Box::new(port)).unwrap();
        network.app("decryption", Box::new(app)).unwrap();
        network.link("p0.output -> decryption.p0").unwrap();
        network.link("decryption.p0 -> p0.input").unwrap();
        let engine = Engine::new(network, Freelist::new(pool.clone(), 64)).unwrap();
        workers.push((engine, wire, books));
    }
    workers[0].1.send(&arrives(OUTSIDE, &sent));
    for _ in 0..4 {
        workers.iter_mut().for_each(|(engine, ..)| {
            engine.breathe();
        });
    }
    let out: Vec<_> = workers.iter().map(|(_, wire, _)| wire.take()).collect();
    assert_eq!(out, [Vec::new(), vec![arrives(OUTSIDE, &plain)]]);
    let books = |worker: usize, entry| workers[worker].2.get(entry);
    assert_eq!((books(0, Entry::Received), books(0, Entry::Passed), books(0, Entry::Sent)), (1, 1, 0));
    assert_eq!((books(1, Entry::Received), books(1, Entry::Sent)), (1, 1));
    assert!(workers.iter().all(|(.., books)| books.balance() == 0));
    assert_eq!(status.read().handed, 1);
}
