//! The choices of several workers, and what becomes of a packet that is handed from one to another.

use super::*;
use proptest::prelude::*;

fn id(spi: u32) -> SaId {
    SaId { spi, destination: [192, 0, 2, 2].into() }
}

fn member(spi: u32) -> Member {
    (id(spi), Arc::new(SaStatus::default()))
}

/// The owners of SAs as a worker sees them.
fn owners(worker: usize, sas: &[(u32, usize)]) -> SaTable<Owner> {
    let mut table = SaTable::new();
    for (at, (spi, owner)) in sas.iter().enumerate() {
        let owner = if *owner == worker { Owner::Mine(at) } else { Owner::Other(*owner) };
        table.insert(id(*spi), owner).unwrap();
    }
    table
}

const LIST: List = List::Template(0);

fn of(sas: &PolicySas, owners: &SaTable<Owner>) -> (Option<u32>, Wants) {
    let choices = Choices::new(&[], std::slice::from_ref(sas), owners);
    (choices.now(LIST).map(|id| id.spi), choices.wants(LIST))
}

#[test]
fn a_worker_uses_its_own_sa_then_the_fallback_then_any() {
    let sas = PolicySas { own: vec![member(10), member(11)], fallback: Some(member(9)), asks: true };
    let all = [(9, 0), (10, 0), (11, 1)];
    let found = [0, 1, 2].map(|worker| of(&sas, &owners(worker, &all)));
    assert_eq!(
        found,
        [(Some(10), Wants::Nothing), (Some(11), Wants::Nothing), (Some(9), Wants::Own)],
        "the fallback is nobody's own, as in Linux"
    );
    let silent = PolicySas { asks: false, ..sas.clone() };
    assert_eq!(of(&silent, &owners(2, &all)), (Some(9), Wants::Nothing));
    // One that the worker does not know cannot be used.
    assert_eq!(of(&sas, &owners(2, &all[1..])), (Some(10), Wants::Fallback));
    assert_eq!(of(&sas, &owners(2, &[])), (None, Wants::Fallback));
    for (ended, expected) in [(1, Some(9)), (9, Some(10)), (0, Some(11))] {
        let member = if ended == 9 { sas.fallback.as_ref().unwrap() } else { &sas.own[ended] };
        assert!(member.1.end() && !member.1.end());
        assert_eq!(of(&sas, &owners(1, &all)).0, expected);
    }
    // All have ended: the worker's own drops packets, for the reason that it has.
    assert_eq!([1, 2].map(|worker| of(&sas, &owners(worker, &all)).0), [Some(11), Some(9)]);
    sas.own[0].1.begin();
    assert_eq!(of(&sas, &owners(1, &all)).0, Some(10));
}

#[test]
fn what_was_asked_for_is_asked_for_again_after_a_second_or_a_change() {
    let all = [(9, 0), (10, 1)];
    let owners = owners(1, &all);
    let without = PolicySas { fallback: Some(member(9)), asks: true, ..PolicySas::default() };
    let mut choices = Choices::default();
    choices.set(0, without.clone(), &owners);
    assert_eq!(choices.wants(LIST), Wants::Own);
    assert!(choices.is_due(0, 5) && !choices.is_due(0, 5 + ASKS_EVERY_NS - 1));
    assert!(choices.is_due(0, 5 + ASKS_EVERY_NS) && !choices.is_due(7, 5));
    choices.set(0, PolicySas { own: vec![member(10)], ..without.clone() }, &owners);
    assert_eq!(choices.wants(LIST), Wants::Nothing);
    choices.set(0, without, &owners);
    assert!(choices.is_due(0, 6));
}

proptest! {
    /// A packet is encrypted with an SA that has not ended if there is one, whatever each worker knows, and is dropped by
    /// an owner otherwise. It meets each worker a few times at most.
    #[test]
    fn packets_find_an_sa_that_has_not_ended(
        given in prop::collection::vec((0usize..4, any::<bool>()), 1..6),
        fallback in 0usize..6,
        events in prop::collection::vec((0usize..4, any::<bool>()), 1..40),
    ) {
        let all: Vec<(u32, usize)> = given.iter().zip(0..).map(|((worker, _), spi)| (spi, *worker)).collect();
        let members: Vec<Member> = all.iter().map(|(spi, _)| member(*spi)).collect();
        let fallback = members.get(fallback).cloned();
        let sas = PolicySas { own: members.clone(), fallback, asks: false };
        let tables: Vec<_> = (0..4).map(|worker| owners(worker, &all)).collect();
        let mut choices: Vec<_> =
            tables.iter().map(|owners| Choices::new(&[], std::slice::from_ref(&sas), owners)).collect();
        // Which SAs cannot encrypt any more: only their owners find out, with a packet.
        let mut over: Vec<bool> = given.iter().map(|(_, over)| *over).collect();
        for (start, refresh) in events {
            if refresh {
                choices.iter_mut().zip(&tables).for_each(|(choices, owners)| choices.choose(owners));
            }
            let (mut worker, mut hops) = (start, 0);
            let encrypted = loop {
                let Some(now) = choices[worker].now(LIST) else { break None };
                match tables[worker].get(now) {
                    Some(Owner::Other(next)) => worker = *next,
                    Some(Owner::Mine(_)) if !over[now.spi as usize] => break Some(now.spi),
                    Some(Owner::Mine(_)) => {
                        if members[now.spi as usize].1.end() {
                            choices[worker].choose(&tables[worker]);
                        }
                        if choices[worker].now(LIST) == Some(now) {
                            break None;
                        }
                    }
                    None => unreachable!("all workers know all SAs"),
                }
                hops += 1;
                if hops > 4 {
                    // The next push of each worker begins with a look at what has ended.
                    choices[worker].choose(&tables[worker]);
                }
                prop_assert!(hops < 40, "it goes round in circles");
            };
            prop_assert_eq!(encrypted.is_some(), over.iter().any(|over| !over));
            if hops % 3 == 2 {
                over[start % given.len()] = true;
            }
        }
    }
}
