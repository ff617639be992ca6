//! ESP: SAs and policies as a configuration could have them, packets to encrypt, and packets from anywhere.
//!
//! Checks: an SA without problems can be built and one with problems cannot; what one end encrypts, the other decrypts to
//! the same bytes; a packet that is changed on the way is refused, and bytes of a stranger change nothing; the policy
//! that is found is the first that matches.

use std::net::IpAddr;

use bm_filter::{AnyPrefix, Key};
use bm_ipsec::{
    Action, Buffer, Df, Direction, Dscp, Ecn, Failure, Inbound, Limit, Limits, Located, Mode, Numbers,
    Outbound, Policies, Policy, Sa, SaId, Secret, Selector, Suite, UdpPorts, key, locate, problems,
};
use bm_wire::prefix::Prefix;

use crate::input::Input;

/// Room in front of packets and behind them.
const ROOM: usize = 128;

/// Builds an SA and sends packets through it.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let sa = sa(&mut input);
    let policies: Vec<Policy> = (0..input.byte() % 8).map(|at| policy(&mut input, at, &sa)).collect();
    let found = problems(std::slice::from_ref(&sa), &policies, &[]);
    assert!(found.iter().all(|problem| !problem.to_string().is_empty()));
    search(&policies, input.counted());
    let numbers =
        Numbers::after(u64::from_le_bytes(input.array()), sa.esn).reserve(u64::from(input.byte()) + 1);
    let Ok(numbers) = numbers else { return };
    let (first, mask) = (numbers.next(), u64::from_le_bytes(input.array()));
    let (outbound, inbound) = (Outbound::new(&sa, numbers, mask, 0), Inbound::new(&sa, 0));
    let is_wrong = problems(std::slice::from_ref(&sa), &[], &[]).first().cloned();
    assert_eq!(
        [outbound.as_ref().err().cloned(), inbound.as_ref().err().cloned()],
        [is_wrong.clone(), is_wrong]
    );
    let (Ok(mut outbound), Ok(mut inbound)) = (outbound, inbound) else { return };
    inbound.resume(first - 1);
    while !input.is_empty() {
        match input.byte() % 3 {
            0 => stranger(&mut inbound, input.counted()),
            _ => through(&mut outbound, &mut inbound, input.byte(), input.counted()),
        }
    }
}

/// A packet that need not be one.
fn stranger(inbound: &mut Inbound, packet: &[u8]) {
    let before = (*inbound.used(), inbound.highest());
    let mut slot = slot(packet);
    let Ok(Located::Esp(esp)) = locate(packet) else { return };
    let mut buffer = Buffer::new(&mut slot, ROOM..ROOM + packet.len()).expect("it is in the slot");
    if inbound.decrypt(&mut buffer, &esp, 0).is_err() {
        assert_eq!((*inbound.used(), inbound.highest()), before);
    }
}

/// Encrypts, and decrypts with or without a change on the way.
fn through(outbound: &mut Outbound, inbound: &mut Inbound, change: u8, packet: &[u8]) {
    let mut slot = slot(packet);
    let mut buffer = Buffer::new(&mut slot, ROOM..ROOM + packet.len()).expect("it is in the slot");
    let left = outbound.numbers().left();
    if outbound.encrypt(&mut buffer, 0).is_err() {
        assert_eq!(outbound.numbers().left(), left);
        return;
    }
    assert_eq!(outbound.numbers().left(), left - 1);
    // In transport mode the destination is the packet's own, and the IPv6 header may be more than is walked.
    let Ok(Located::Esp(esp)) = locate(buffer.data()) else { return };
    assert_eq!(esp.spi(buffer.data()), outbound.id().spi);
    let range = buffer.range();
    let highest = inbound.highest();
    if change >= 128 {
        // The last byte is part of the ICV.
        slot[range.end - 1] ^= change;
        let mut buffer = Buffer::new(&mut slot, range).expect("it is in the slot");
        let outcome = inbound.decrypt(&mut buffer, &esp, 0);
        assert!(matches!(outcome, Err(Failure::Integrity | Failure::Lifetime)), "{outcome:?}");
        assert_eq!(inbound.highest(), highest);
        return;
    }
    let mut buffer = Buffer::new(&mut slot, range).expect("it is in the slot");
    match inbound.decrypt(&mut buffer, &esp, 0) {
        Ok(()) => {
            assert!(inbound.highest() > highest);
            same(&packet[..buffer.len()], buffer.data());
        }
        // No next header in transport mode is a dummy; in UDP the checksum of what has no room for it cannot be filled.
        Err(Failure::Selector | Failure::Dummy | Failure::NextHeader) => assert!(inbound.highest() > highest),
        Err(Failure::Lifetime) => {}
        Err(failure) => panic!("{failure:?}"),
    }
}

/// Whether only checksums differ, which transport mode fills in: of the IP header, and in UDP of TCP and UDP.
fn same(sent: &[u8], received: &[u8]) {
    assert!(
        sent.iter().zip(received).filter(|(one, other)| one != other).count() <= 4,
        "{sent:02x?} {received:02x?}"
    );
}

fn slot(packet: &[u8]) -> Vec<u8> {
    [&[0; ROOM], packet, &[0; ROOM]].concat()
}

fn sa(input: &mut Input<'_>) -> Sa {
    let flags = input.byte();
    let [source, destination] = [(); 2].map(|()| match flags & 1 {
        0 => IpAddr::from(input.array::<4>()),
        _ => IpAddr::from(input.array::<16>()),
    });
    let id = SaId { spi: u32::from_le_bytes(input.array()), destination };
    let suite = *input.one_of(&Suite::ALL);
    let [encryption_key, integrity_key] =
        [suite.encryption_key_len(), suite.integrity_key_len()].map(|expected| secret(input, expected));
    let limits = Limits { bytes: limit(input), packets: limit(input), ..Limits::default() };
    Sa {
        mode: if flags & 2 == 0 { Mode::Tunnel } else { Mode::Transport },
        encryption_key,
        integrity_key,
        esn: flags & 4 != 0,
        replay_window: input.number().into(),
        udp: (flags & 8 != 0).then_some(UdpPorts { source: 4500, destination: 4500 }),
        limits,
        df: *input.one_of(&[Df::Copy, Df::Set, Df::Clear]),
        dscp: if flags & 16 == 0 { Dscp::Copy } else { Dscp::Set(input.byte() % 66) },
        ecn: if flags & 32 == 0 { Ecn::Normal } else { Ecn::Compatibility },
        ttl: input.byte(),
        path_mtu: input.number(),
        selectors: (0..flags >> 6).map(|_| selector(input)).collect(),
        ..Sa::new(Direction::Out, id, source, suite)
    }
}

/// A key that mostly has the right length.
fn secret(input: &mut Input<'_>, expected: usize) -> Secret {
    let byte = input.byte();
    let length = if byte < 250 { expected } else { usize::from(byte) - 250 };
    Secret::new(&vec![byte; length])
}

fn limit(input: &mut Input<'_>) -> Limit {
    match input.byte() {
        0..=127 => Limit::default(),
        soft => Limit { soft: Some(u64::from(soft - 128)), hard: Some(input.number().into()) },
    }
}

fn policy(input: &mut Input<'_>, at: u8, sa: &Sa) -> Policy {
    let direction = *input.one_of(&[Direction::Out, Direction::In]);
    let action = *input.one_of(&[Action::Discard, Action::Bypass, Action::Protect(sa.id())]);
    Policy {
        at: at.into(),
        direction,
        priority: (input.byte() % 4).into(),
        if_id: 0,
        selector: selector(input),
        action,
    }
}

fn selector(input: &mut Input<'_>) -> Selector {
    let has = input.byte();
    let [source, destination] =
        [2, 4].map(|bit| if has & bit == 0 { None } else { prefix(input, has & 1 != 0) });
    let ports = (has & 8 != 0).then(|| input.number()).map(|port| port..=port.saturating_add(100));
    let protocol = (has & 16 != 0 || ports.is_some()).then_some(17);
    Selector {
        source,
        destination,
        protocol,
        source_ports: None,
        destination_ports: ports,
        ..Selector::default()
    }
}

fn prefix(input: &mut Input<'_>, six: bool) -> Option<AnyPrefix> {
    match six {
        false => Prefix::containing(u32::from_be_bytes(input.array()), input.byte() % 33).map(AnyPrefix::V4),
        true => Prefix::containing(u128::from_be_bytes(input.array()), input.byte() % 129).map(AnyPrefix::V6),
    }
}

/// The policy that is found is the first by priority among those that match alone.
fn search(policies: &[Policy], packet: &[u8]) {
    let Some(key) = key(packet) else { return };
    let find = |policies: &[Policy], key: &Key| {
        let built = Policies::new(policies.to_vec()).expect("there is room for a few");
        [Direction::Out, Direction::In].map(|direction| built.find(direction, key).cloned())
    };
    let mut sorted = policies.to_vec();
    sorted.sort_by_key(|policy| policy.priority);
    let first =
        |at: usize| sorted.iter().find_map(|policy| find(std::slice::from_ref(policy), &key)[at].clone());
    assert_eq!(find(policies, &key), [first(0), first(1)]);
    // The same, added one after the other.
    let mut grown = Policies::default();
    for (order, policy) in (0..).zip(policies) {
        grown = grown.with(order, policy.clone()).expect("there is room for a few");
    }
    let found = [Direction::Out, Direction::In].map(|direction| grown.find(direction, &key).cloned());
    assert_eq!(found, [first(0), first(1)]);
}
