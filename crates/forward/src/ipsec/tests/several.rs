//! Policies with several SAs: which one encrypts, and what happens when one ends.

use super::*;
use crate::ipsec::PolicySas;
use bm_ipsec::Limits;

/// A plan whose policy has these SAs, all of the only worker, each with a key and `count` numbers of its own.
fn plan_of(sas: &[Sa], count: u64) -> IpsecPlan {
    let mut plans = Vec::new();
    for sa in sas {
        let (mut one, _) = plan(sa, 0);
        if let Some(numbers) = &mut one.sas[0].numbers {
            numbers.block = Numbers::new(sa.esn).reserve(count).unwrap();
        }
        plans.append(&mut one.sas);
    }
    let own: Vec<_> = plans.iter().map(|plan| (plan.sa.id(), plan.status.clone())).collect();
    let lists = vec![PolicySas { fallback: own.first().cloned(), own, asks: false }];
    let policies = Policies::new(vec![policy(sas[0].direction, Action::OneOf(0))]).unwrap().into();
    IpsecPlan { policies, lists, current: Vec::new(), sas: plans, of_kernel: false }
}

/// SAs like this one with other SPIs and keys.
fn like(sa: &Sa, count: u8) -> Vec<Sa> {
    let one = |number: u8| {
        let mut key = sa.encryption_key.bytes().to_vec();
        key[0] ^= number;
        Sa { spi: SPI + u32::from(number), encryption_key: Secret::new(&key), ..sa.clone() }
    };
    (0..count).map(one).collect()
}

/// SPI and number of each ESP packet.
fn esp(frames: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(*frame[at..].first_chunk().unwrap());
    frames.iter().map(|frame| (word(frame, 34) - SPI, word(frame, 38))).collect()
}

/// IPv4 tunnels of GCM, and of CBC, whose packets are encrypted together.
fn tunnels() -> Vec<Recorded<'static>> {
    let all = RECORDED.lines().map(recorded);
    all.filter(|one| one.sa.mode == Mode::Tunnel && one.sa.destination.is_ipv4() && one.sa.udp.is_none())
        .collect()
}

#[test]
fn when_an_sa_ends_in_a_burst_the_rest_of_it_takes_the_next_one() {
    for Recorded { line, sa, .. } in tunnels() {
        let mut sas = like(&sa, 3);
        for (sa, most) in sas.iter_mut().zip([5, 7]) {
            sa.limits = Limits { packets: Limit { soft: None, hard: Some(most) }, ..Limits::default() };
        }
        let plan = plan_of(&sas, 1000);
        let statuses: Vec<_> = plan.sas.iter().map(|plan| plan.status.clone()).collect();
        let mut lab = Lab::with_ipsec(LINES, plan);
        (0..20).for_each(|_| lab.send(INSIDE, &arrives(INSIDE, &ipv4(100, 0))));
        lab.run();
        let of = |sa: u32, count: u32| (1..=count).map(move |number| (sa, number));
        let expected: Vec<_> = of(0, 5).chain(of(1, 7)).chain(of(2, 8)).collect();
        assert_eq!((esp(&lab.take(OUTSIDE)), lab.drops()), (expected, Vec::new()), "{line}");
        // What was not lost is no failure of the SA.
        let seen: Vec<_> = statuses.iter().map(|of| (of.read().failures, of.has_ended())).collect();
        assert_eq!(seen, [(0, true), (0, true), (0, false)], "{line}");
    }
}

#[test]
fn when_all_have_ended_packets_are_dropped_for_that_reason() {
    let Recorded { sa, .. } = first();
    let mut sas = like(&sa, 2);
    for sa in &mut sas {
        sa.limits = Limits { packets: Limit { soft: None, hard: Some(2) }, ..Limits::default() };
    }
    let mut lab = Lab::with_ipsec(LINES, plan_of(&sas, 1000));
    for _ in 0..3 {
        (0..3).for_each(|_| lab.send(INSIDE, &arrives(INSIDE, &ipv4(100, 0))));
        lab.run();
    }
    assert_eq!(esp(&lab.take(OUTSIDE)), [(0, 1), (0, 2), (1, 1), (1, 2)]);
    assert_eq!(lab.drops(), [(Reason::IpsecLifetime, 5)]);
}

#[test]
fn numbers_that_are_used_up_end_an_sa_and_a_block_that_is_late_does_not() {
    let Recorded { sa, .. } = first();
    let sas = like(&Sa { esn: false, ..sa }, 2);
    let mut plan = plan_of(&sas, 1000);
    let last = Numbers::after((1 << 32) - 3, false).reserve(9).unwrap();
    plan.sas[0].numbers.as_mut().unwrap().block = last;
    plan.sas[1].numbers.as_mut().unwrap().block = Numbers::new(false).reserve(2).unwrap();
    let mut lab = Lab::with_ipsec(LINES, plan);
    (0..6).for_each(|_| lab.send(INSIDE, &arrives(INSIDE, &ipv4(100, 0))));
    lab.run();
    assert_eq!(esp(&lab.take(OUTSIDE)), [(0, u32::MAX - 1), (0, u32::MAX), (1, 1), (1, 2)]);
    assert_eq!(lab.drops(), [(Reason::IpsecNoSequenceNumbers, 2)]);
}

#[test]
fn what_comes_out_of_any_sa_of_the_list_passes() {
    let Recorded { sa, plain, .. } = first();
    let out = like(&Sa { direction: Direction::Out, ..sa }, 3);
    for (number, passes) in [(0, true), (1, true), (2, false)] {
        let (of_one, _more) = plan(&out[number], 0);
        let mut sender = Lab::with_ipsec(LINES, of_one);
        sender.send(INSIDE, &arrives(INSIDE, &hops(&plain, 1)));
        sender.run();
        let sent = sender.take(OUTSIDE).remove(0);
        let inbound: Vec<Sa> = out.iter().map(|sa| Sa { direction: Direction::In, ..sa.clone() }).collect();
        // All three are there, the policy has the first two.
        let mut of_both = plan_of(&inbound, 10);
        of_both.lists[0].own.truncate(2);
        let mut lab = Lab::with_ipsec(LINES, of_both);
        let answer = lab.exchange(OUTSIDE, &arrives(OUTSIDE, &sent[14..]));
        assert_eq!(answer.only().is_some(), passes, "{number}");
        assert_eq!(lab.drops(), if passes { vec![] } else { vec![(Reason::IpsecPolicy, 1)] });
    }
}
