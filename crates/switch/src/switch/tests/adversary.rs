//! A guest that knows the guards. It hides what a guard forbids in tags, 802.2 headers, options, extension headers,
//! fragments and trailers, chosen by a seed; whoever receives what passes must find nothing of it, although it reads
//! frames as generously as any receiver might.
//!
//! `BM_SEED` repeats a run, `BM_GUARD_SECONDS` makes it longer than the 20 s of `make test`.

use super::*;
use crate::settings::PortFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

const OWN4: [u8; 4] = [192, 0, 2, 1];
const OWN6: &str = "2001:db8::1";
/// The link-local address of host 0.
const OWN_LOCAL: &str = "fe80::ff:fe00:0";
const OTHER6: &str = "2001:db8::66";

/// Xorshift.
struct Choice(u64);

impl Choice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn once_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// What a guest sends, before it hides it.
#[derive(Clone)]
enum Message {
    V4 { source: [u8; 4], protocol: u8, body: Vec<u8> },
    V6 { source: &'static str, protocol: u8, body: Vec<u8> },
    Arp { mac: u8, address: [u8; 4] },
}

fn udp(ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let length = (8 + data.len()) as u16;
    [&ports.map(u16::to_be_bytes).concat()[..], &length.to_be_bytes(), &[0; 2], data].concat()
}

fn icmp6(kind: u8, target: &str) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.parse::<Ipv6Addr>().unwrap().octets()].concat()
}

/// What the guards forbid.
fn forbidden(choice: &mut Choice) -> Message {
    let port = choice.one(&[67, 68, 547, 6767, 1]);
    let reply = [&[2, 1, 6, 0][..], &[7; 60]].concat();
    let of_server = [choice.one(&[2, 7, 10, 13]), 1, 2, 3, 4, 5, 6, 7];
    let v4 = |body| Message::V4 { source: OWN4, protocol: 17, body };
    let v6 = |protocol, body| Message::V6 { source: OWN_LOCAL, protocol, body };
    match choice.below(10) {
        0 => v4(udp([port, 68], &reply)),
        1 => v4(udp([port, 67], &reply)),
        2 => v6(17, udp([port, 546], &of_server)),
        3 => v6(17, udp([port, 547], &of_server)),
        4 => v6(58, icmp6(134, "::")),
        5 => v6(58, icmp6(137, "::1")),
        6 => v6(58, icmp6(136, OTHER6)),
        7 => Message::V6 { source: OTHER6, protocol: 17, body: udp([1, 2], &[0; 40]) },
        8 => {
            let source = choice.one(&[[192, 0, 2, 66], [0; 4]]);
            Message::V4 { source, protocol: choice.one(&[17, 6, 1]), body: udp([68, 53], &[0; 40]) }
        }
        _ => {
            let (mac, address) = choice.one(&[(0, [192, 0, 2, 66]), (5, OWN4)]);
            Message::Arp { mac, address }
        }
    }
}

/// What they let pass.
fn allowed(choice: &mut Choice) -> Message {
    match choice.below(7) {
        0 => Message::V4 { source: [0; 4], protocol: 17, body: udp([68, 67], &[1; 64]) },
        1 => Message::V4 { source: OWN4, protocol: choice.one(&[6, 17, 1]), body: udp([1000, 53], &[9; 64]) },
        2 => Message::V6 { source: OWN_LOCAL, protocol: 17, body: udp([546, 547], &[1; 32]) },
        3 => Message::V6 { source: OWN6, protocol: choice.one(&[6, 17]), body: udp([1000, 53], &[9; 64]) },
        4 => Message::V6 { source: "::", protocol: 58, body: icmp6(135, OWN_LOCAL) },
        5 => Message::V6 { source: OWN6, protocol: 58, body: icmp6(136, OWN6) },
        _ => Message::Arp { mac: 0, address: OWN4 },
    }
}

/// Something harmless to be taken for a header, where there is none.
fn decoy(choice: &mut Choice) -> Vec<u8> {
    match choice.below(4) {
        0 => Vec::new(),
        1 => vec![0; 40],
        2 => udp([1000, 53], &[1; 32]),
        _ => udp([68, 67], &[1; 32]),
    }
}

/// Cuts what comes behind a header into fragments, in units of 8 bytes: `(offset, more, data)`.
fn cut(choice: &mut Choice, body: &[u8]) -> Vec<(usize, bool, Vec<u8>)> {
    let at = (8 * (1 + choice.below(4))).min(body.len() / 8 * 8);
    let mut pieces = vec![(0, true, body[..at].to_vec()), (at, false, body[at..].to_vec())];
    if choice.once_in(4) {
        pieces.swap(0, 1);
    }
    if choice.once_in(6) {
        // An empty first one, whose headers would be in the trailer.
        pieces.insert(0, (0, true, Vec::new()));
    }
    pieces
}

fn packets4(choice: &mut Choice, tame: bool, source: [u8; 4], protocol: u8, body: &[u8]) -> Vec<Vec<u8>> {
    let options = if choice.once_in(3) { vec![1; 4 * (1 + choice.below(10))] } else { Vec::new() };
    let pieces = if choice.once_in(2) && !tame { cut(choice, body) } else { vec![(0, false, body.to_vec())] };
    let mut packet = |(offset, more, data): (usize, bool, Vec<u8>)| {
        let header = 20 + options.len();
        let length = (header + data.len()) as u16;
        let fragment = (offset / 8) as u16 | u16::from(more) << 13;
        let mut first = 0x40 | (header / 4) as u8;
        if !tame && choice.once_in(20) {
            first = choice.one(&[0x44, 0x40, 0x65, 0x4f]);
        }
        let mut packet = vec![first, 0];
        packet.extend([length, 7, fragment].map(u16::to_be_bytes).concat());
        packet.extend([64, protocol, 0, 0].into_iter().chain(source).chain([255; 4]));
        packet.extend(options.iter().chain(&data));
        if !tame {
            packet.extend(decoy(choice));
        }
        packet
    };
    pieces.into_iter().map(&mut packet).collect()
}

/// Puts extension headers in front of a body; returns the first one's number.
fn extended(choice: &mut Choice, most: usize, protocol: u8, body: Vec<u8>) -> (u8, Vec<u8>) {
    (0..choice.below(most + 1)).fold((protocol, body), |(next, body), _| {
        let kind = choice.one(&[0, 60, 43, 51]);
        let units = choice.below(3) as u8;
        let (length, size) = match kind {
            51 => (2 * units + 2, 8 * usize::from(units) + 16),
            _ => (units, 8 * usize::from(units) + 8),
        };
        let mut header = vec![0; size];
        (header[0], header[1]) = (next, length);
        (kind, [header, body].concat())
    })
}

fn packets6(choice: &mut Choice, tame: bool, source: &str, protocol: u8, body: &[u8]) -> Vec<Vec<u8>> {
    let most = if tame { 2 } else { 3 };
    let (next, body) = extended(choice, most, protocol, body.to_vec());
    let bodies = if tame || choice.once_in(2) {
        vec![(next, body)]
    } else {
        let fragment = |(offset, more, data): (usize, bool, Vec<u8>)| {
            let field = (offset as u16 | u16::from(more)).to_be_bytes();
            (44, [&[next, 0][..], &field, &[0, 0, 0, 7], &data].concat())
        };
        cut(choice, &body).into_iter().map(fragment).collect()
    };
    let source = source.parse::<Ipv6Addr>().unwrap().octets();
    let mut packet = |(next, body): (u8, Vec<u8>)| {
        let (next, body) = if tame { (next, body) } else { extended(choice, 1, next, body) };
        let version = if !tame && choice.once_in(20) { 0x40 } else { 0x60 };
        let mut packet = vec![version, 0, 0, 0];
        packet.extend((body.len() as u16).to_be_bytes());
        packet.extend([next, 255].into_iter().chain(source).chain(Ipv6Addr::LOCALHOST.octets()).chain(body));
        if !tame {
            packet.extend(decoy(choice));
        }
        packet
    };
    bodies.into_iter().map(&mut packet).collect()
}

/// The frames of a message. A tame guest only does what hosts do.
fn frames(choice: &mut Choice, tame: bool, message: &Message) -> Vec<Vec<u8>> {
    let (protocol, packets) = match message {
        Message::V4 { source, protocol, body } => {
            (0x0800u16, packets4(choice, tame, *source, *protocol, body))
        }
        Message::V6 { source, protocol, body } => (0x86dd, packets6(choice, tame, source, *protocol, body)),
        Message::Arp { mac: says, address } => {
            let body = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &mac(*says), address, &[0; 6], &[192, 0, 2, 9]];
            (0x0806, vec![body.concat()])
        }
    };
    let reserved = !tame && choice.once_in(8);
    let to = if reserved { [1, 0x80, 0xc2, 0, 0, choice.below(16) as u8] } else { BROADCAST };
    let tags: Vec<u16> =
        (0..choice.below(if tame { 3 } else { 4 })).map(|_| choice.one(&[0x8100, 0x88a8])).collect();
    let snap = choice.once_in(5);
    let frame = |packet: Vec<u8>| {
        let mut frame = [to, mac(0)].concat();
        tags.iter().for_each(|tag| frame.extend([&tag.to_be_bytes()[..], &[0x20, 5]].concat()));
        if snap && tags.len() < 2 {
            frame.extend(((packet.len() + 8) as u16).to_be_bytes());
            frame.extend([0xaa, 0xaa, 3, 0, 0, 0]);
        }
        frame.extend([&protocol.to_be_bytes()[..], &packet].concat());
        frame.resize(frame.len().max(60), 0);
        frame
    };
    packets.into_iter().map(frame).collect()
}

/// The packet in a frame, behind any tags and 802.2 headers, with its EtherType.
fn inside(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut rest = frame.get(12..)?;
    loop {
        let kind = u16::from_be_bytes(*rest.first_chunk()?);
        rest = match kind {
            0x8100 | 0x88a8 => rest.get(4..)?,
            _ if kind < 0x600 && rest.get(2..7)? == [0xaa, 0xaa, 3, 0, 0] => rest.get(8..)?,
            _ => return Some((kind, &rest[2..])),
        };
    }
}

/// A fragment: its offset, whether more follow, the protocol that it names, its data.
type Piece = (usize, bool, u8, Vec<u8>);

/// A receiver, which believes everything that somebody might.
#[derive(Default)]
struct Victim {
    pieces: BTreeMap<(u16, [u8; 16]), Vec<Piece>>,
    found: BTreeSet<&'static str>,
}

impl Victim {
    fn receive(&mut self, frame: &[u8]) {
        match inside(frame) {
            Some((0x0800, packet)) => drop(self.ipv4(packet)),
            Some((0x86dd, packet)) => drop(self.ipv6(packet)),
            Some((0x0806, packet)) if packet.len() >= 28 => {
                let fits = packet[8..14] == mac(0) && [&OWN4[..], &[0; 4]].contains(&&packet[14..18]);
                if !fits {
                    self.found.insert("arp");
                }
            }
            _ => {}
        }
    }

    fn ipv4(&mut self, packet: &[u8]) -> Option<()> {
        let (header, total) = (usize::from(packet.first()? & 15) * 4, usize::from(word(packet, 2)?));
        if packet[0] >> 4 != 4 || header < 20 || total < header {
            return None;
        }
        let (source, body) = (*packet.get(12..)?.first_chunk::<4>()?, packet.get(header..total)?);
        let (field, protocol) = (word(packet, 6)?, packet[9]);
        let offset = usize::from(field & 0x1fff) * 8;
        let asks = offset == 0 && protocol == 17 && word(body, 2) == Some(67);
        if source != OWN4 && !(source == [0; 4] && asks) {
            self.found.insert("ipv4 source");
        }
        let name = (word(packet, 4)?, Ipv4Addr::from(source).to_ipv6_mapped().octets());
        for whole in self.assembled(name, (offset, field & 0x2000 != 0, protocol, body.to_vec()), false) {
            if whole.0 == 17
                && whole.1.get(8) == Some(&2)
                && [Some(67), Some(68)].contains(&word(&whole.1, 2))
            {
                self.found.insert("dhcp");
            }
        }
        Some(())
    }

    fn ipv6(&mut self, packet: &[u8]) -> Option<()> {
        let length = usize::from(word(packet, 4)?);
        let (source, body) = (*packet.get(8..)?.first_chunk::<16>()?, packet.get(40..40 + length)?);
        if packet[0] >> 4 != 6 {
            return None;
        }
        if ![OWN6, OWN_LOCAL, "::"].contains(&Ipv6Addr::from(source).to_string().as_str()) {
            self.found.insert("ipv6 source");
        }
        self.upper(source, packet[6], body)
    }

    fn upper(&mut self, source: [u8; 16], next: u8, body: &[u8]) -> Option<()> {
        let length = |body: &[u8]| body.get(1).map(|length| usize::from(*length));
        match next {
            0 | 60 | 43 => {
                self.upper(source, body[0..].first().copied()?, body.get((length(body)? + 1) * 8..)?)
            }
            51 => self.upper(source, *body.first()?, body.get((length(body)? + 2) * 4..)?),
            44 => {
                let (field, data) = (word(body, 2)?, body.get(8..)?.to_vec());
                let piece = (usize::from(field & 0xfff8), field & 1 != 0, body[0], data);
                for (next, whole) in self.assembled((word(body, 6)?, source), piece, true) {
                    self.upper(source, next, &whole);
                }
                Some(())
            }
            17 if matches!(word(body, 2)?, 546 | 547) && [2, 7, 10, 13].contains(body.get(8)?) => {
                self.found.insert("dhcpv6");
                Some(())
            }
            58 => {
                match body.first()? {
                    134 => drop(self.found.insert("router advertisement")),
                    137 => drop(self.found.insert("redirect")),
                    136 if body.get(8..24)? != OWN6.parse::<Ipv6Addr>().ok()?.octets() => {
                        self.found.insert("neighbor advertisement");
                    }
                    _ => {}
                }
                Some(())
            }
            _ => None,
        }
    }

    /// All that might be made of the fragments with this name: where they overlap, receivers of IPv4 keep the first or
    /// the last; those of IPv6 discard all (RFC 5722).
    fn assembled(&mut self, name: (u16, [u8; 16]), piece: Piece, strict: bool) -> Vec<(u8, Vec<u8>)> {
        if piece.0 == 0 && !piece.1 {
            return vec![(piece.2, piece.3)];
        }
        let pieces = self.pieces.entry(name).or_default();
        pieces.push(piece);
        let Some(size) = pieces.iter().filter(|piece| !piece.1).map(|piece| piece.0 + piece.3.len()).max()
        else {
            return Vec::new();
        };
        let protocols: BTreeSet<u8> =
            pieces.iter().filter(|piece| piece.0 == 0).map(|piece| piece.2).collect();
        let overlap = pieces.iter().map(|piece| piece.3.len()).sum::<usize>() != size;
        if strict && overlap {
            return Vec::new();
        }
        let fill = |backwards: bool| {
            let mut whole = vec![None; size];
            let order: Vec<_> =
                if backwards { pieces.iter().rev().collect() } else { pieces.iter().collect() };
            for (offset, _, _, data) in order {
                for (place, byte) in whole.iter_mut().skip(*offset).zip(data) {
                    *place = Some(*byte);
                }
            }
            whole.into_iter().collect::<Option<Vec<u8>>>()
        };
        let wholes: Vec<_> = [fill(false), fill(true)].into_iter().flatten().collect();
        protocols
            .into_iter()
            .flat_map(|protocol| wholes.iter().map(move |whole| (protocol, whole.clone())))
            .collect()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn guarded() -> Option<Lab> {
    let addresses = vec![OWN4.into(), OWN6.parse().unwrap()];
    let statics = vec![Static { mac: mac(0), vlan: 0, port: "p0".into(), addresses }];
    let flags = PortFlags { source_guard: true, dhcp_guard: true, ra_guard: true, ..PortFlags::default() };
    let rules = vec![PortRule { flags, ..PortRule::new(Pattern::new("p0")) }];
    Lab::with_ports(2, Settings { rules, statics, flood_limit: 0, ..settings() })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn guests_that_know_the_guards_get_nothing_past_them() {
    let Some(mut lab) = guarded() else { return };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("BM_SEED").unwrap_or(clock.as_nanos() as u64).max(1);
    let seconds = Duration::from_secs(number("BM_GUARD_SECONDS").unwrap_or(20));
    println!("BM_SEED={seed}");
    let (mut choice, begin) = (Choice(seed), Instant::now());
    let (mut tried, mut rounds) = (BTreeSet::new(), 0);
    while begin.elapsed() < seconds {
        let message = forbidden(&mut choice);
        let (mut all, mut victim) = (Victim::default(), Victim::default());
        let sent = frames(&mut choice, false, &message);
        for frame in &sent {
            all.receive(frame);
            let (action, came) = lab.run(0, frame);
            let is_ip = matches!(inside(&came), Some((0x0800 | 0x0806 | 0x86dd, _)));
            assert!(action != XDP_PASS || !is_ip, "BM_SEED={seed}: Linux gets {frame:02x?}");
            if action == XDP_REDIRECT {
                victim.receive(&came);
            }
        }
        assert!(victim.found.is_empty(), "BM_SEED={seed}: {:?} in {sent:02x?}", victim.found);
        tried.extend(all.found);
        let message = allowed(&mut choice);
        for frame in frames(&mut choice, true, &message) {
            assert_eq!(lab.run(0, &frame).0, XDP_REDIRECT, "BM_SEED={seed}: a host's {frame:02x?}");
        }
        rounds += 1;
    }
    println!("{rounds} rounds, with {tried:?}");
    assert!(rounds < 5000 || tried.len() == 8, "the guest must try everything: {tried:?}");
}

#[test]
fn nothing_hides_behind_the_tag_of_an_access_port() {
    let vlans =
        |port: &str, vlans: Vlans| PortRule { vlans: Some(vlans), ..PortRule::new(Pattern::new(port)) };
    let rules = vec![
        vlans("p0", Vlans::Access(10)),
        vlans("p1", Vlans::Trunk { native: Some(10), tagged: vec![(20, 20)] }),
    ];
    let Some(mut lab) = Lab::with_ports(2, Settings { rules, ..settings() }) else { return };
    let plain = frame(BROADCAST, mac(0), "plain");
    for hops in [tagged(&tagged(&plain, 20), 10), tagged(&tagged(&plain, 20), 0xe000), tagged(&plain, 20)] {
        let before = lab.count(0, "drop_vlan");
        assert_eq!(lab.run(0, &hops).0, XDP_DROP, "{hops:02x?}");
        assert_eq!(lab.count(0, "drop_vlan"), before + 1);
    }
    // One tag is as good as none, and trunks may do what access ports may not.
    assert_eq!(lab.run(0, &tagged(&plain, 0xe000)).0, XDP_REDIRECT);
    assert_eq!(lab.run(0, &tagged(&plain, 10)).0, XDP_REDIRECT);
    assert_eq!(lab.run(1, &tagged(&frame(BROADCAST, mac(1), "trunk"), 10)).0, XDP_REDIRECT);
}

#[test]
fn only_protocols_of_the_link_reach_linux_by_reserved_addresses() {
    let flags = PortFlags { locked: true, ..PortFlags::default() };
    let statics = vec![Static { mac: mac(0), vlan: 0, port: "p0".into(), addresses: Vec::new() }];
    let rules = vec![PortRule { flags, ..PortRule::new(Pattern::new("p0")) }];
    let Some(mut lab) = Lab::with_ports(2, Settings { rules, statics, ..settings() }) else { return };
    let to = |from: u8, kind: &[u8]| {
        let mut frame = [&[1, 0x80, 0xc2, 0, 0, 3][..], &mac(from), kind].concat();
        frame.resize(60, 0);
        frame
    };
    let of_link: [&[u8]; 4] = [&[0x88, 0xcc], &[0x88, 0x09], &[0x88, 0x8e], &[0, 38, 0x42, 0x42, 3]];
    let others: [&[u8]; 6] = [
        &[8, 0, 0x45],
        &[8, 6],
        &[0x86, 0xdd],
        &[0x81, 0, 0, 5, 8, 0],
        &[0, 38, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        &[0x88, 0xb5],
    ];
    for from in [0, 9] {
        for kind in of_link {
            // 802.1X is how an unknown host opens the port.
            let passes = from == 0 || kind == [0x88, 0x8e];
            let expected = if passes { XDP_PASS } else { XDP_DROP };
            assert_eq!(lab.run(0, &to(from, kind)).0, expected, "{from} {kind:02x?}");
        }
        for kind in others {
            let before = lab.count(0, "drop_reserved");
            assert_eq!(lab.run(0, &to(from, kind)).0, XDP_DROP, "{kind:02x?}");
            assert_eq!(lab.count(0, "drop_reserved"), before + 1);
        }
    }
}
