//! Many packets of one SA at once: each must leave as it does alone, in order, whichever library encrypts.

use std::collections::BTreeSet;

use super::*;

/// The frames that left, and how many were dropped for each reason.
type Seen = (Vec<Vec<u8>>, Vec<(Reason, u64)>);

/// Recorded SAs of CBC and GCM in tunnels.
fn tunnels() -> impl Iterator<Item = Recorded<'static>> {
    RECORDED.lines().map(recorded).filter(|recorded| recorded.sa.mode == Mode::Tunnel)
}

/// Packets of several sizes for a tunnel, as they arrive.
fn packets(count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|at| ipv4(28 + at * 37 % 1300, 0)).collect()
}

/// What leaves if all are sent at once, and what leaves if each is sent alone.
fn both(of: impl Fn() -> IpsecPlan, port: usize, frames: &[Vec<u8>]) -> [Seen; 2] {
    both_with(LINES, of, port, frames)
}

fn both_with(lines: &str, of: impl Fn() -> IpsecPlan, port: usize, frames: &[Vec<u8>]) -> [Seen; 2] {
    let (mut at_once, mut alone) = (Lab::with_ipsec(lines, of()), Lab::with_ipsec(lines, of()));
    frames.iter().for_each(|frame| at_once.send(port, frame));
    at_once.run();
    for frame in frames {
        alone.send(port, frame);
        alone.run();
    }
    // Also what comes out of the tunnel leaves by the default route.
    [at_once, alone].map(|lab| (lab.take(OUTSIDE), lab.drops()))
}

/// A plan with numbers in several blocks, of 20 and then 45.
fn plan_with_blocks(sa: &Sa) -> IpsecPlan {
    let (mut plan, mut more) = plan(sa, 0);
    let mut numbers = Numbers::new(sa.esn);
    let first = numbers.reserve(20).unwrap();
    for count in [45, 1000] {
        more.push(numbers.reserve(count).unwrap()).unwrap();
    }
    if let Some(of_sa) = &mut plan.sas[0].numbers {
        of_sa.block = first;
    }
    // The ring stays readable when its producer is gone.
    drop(more);
    plan
}

#[test]
fn bursts_leave_as_single_packets_do() {
    for Recorded { line, sa, .. } in tunnels() {
        let frames: Vec<_> = packets(90).iter().map(|packet| arrives(INSIDE, packet)).collect();
        let [at_once, alone] = both(|| plan_with_blocks(&sa), INSIDE, &frames);
        assert_eq!(at_once.0.len(), 90, "{line}: {:?}", at_once.1);
        assert!(at_once == alone, "{line}");
    }
}

#[test]
fn bursts_come_out_as_single_packets_do() {
    for Recorded { line, sa, .. } in tunnels() {
        let clear: Vec<_> = packets(70).iter().map(|packet| arrives(INSIDE, packet)).collect();
        let [(encrypted, _), _] = both(|| plan_with_blocks(&sa), INSIDE, &clear);
        let mut frames: Vec<_> = encrypted.iter().map(|frame| arrives(OUTSIDE, &frame[14..])).collect();
        // One is damaged, and one comes twice, in the same burst.
        *frames[9].last_mut().unwrap() ^= 1;
        frames.insert(30, frames[25].clone());
        let inbound = Sa { direction: Direction::In, ..sa };
        let [at_once, alone] = both(|| plan(&inbound, 0).0, OUTSIDE, &frames);
        assert_eq!((at_once.0.len(), at_once.1.len()), (69, 2), "{line}: {:?}", at_once.1);
        assert!(
            at_once.1.contains(&(Reason::IpsecReplay, 1)) && at_once.1.contains(&(Reason::IpsecIntegrity, 1))
        );
        assert!(at_once == alone, "{line}");
    }
}

#[test]
fn each_packet_of_a_burst_takes_its_own_route() {
    let lines = format!(
        "{LINES}
        neighbor 203.0.113.8 outside 02:00:00:00:02:08
        route 10.2.0.8/32 via 203.0.113.8 outside
        route 10.2.0.9/32 group 203.0.113.8 outside 1 203.0.113.9 outside 1"
    );
    let transport = RECORDED.lines().map(recorded).find(|recorded| recorded.sa.mode == Mode::Transport);
    let sa = transport.unwrap().sa;
    let frames: Vec<_> = (0..60u8)
        .map(|at| {
            let mut packet = ipv4(100, 0);
            (packet[15], packet[19]) = (10 + at % 20, 7 + at % 3);
            arrives(INSIDE, &hops(&packet, 0))
        })
        .collect();
    let [at_once, alone] = both_with(&lines, || plan_with_blocks(&sa), INSIDE, &frames);
    assert_eq!(at_once.0.len(), 60, "{:?}", at_once.1);
    assert!(at_once == alone);
    // One next hop for each of the first two addresses, and both for the third.
    let by = |last: u8| -> BTreeSet<u8> {
        at_once.0.iter().filter(|frame| frame[33] == last).map(|frame| frame[5]).collect()
    };
    assert_eq!([by(7), by(8), by(9)], [[9].into(), [8].into(), [8, 9].into()]);
}
