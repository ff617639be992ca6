//! Compares a structure with a plain trie, on random nested tables and on real ones, with random updates.

use super::{Number, Plain, Seeded, real_table};
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Fib, Form, NextHop};
use bm_wire::prefix::Prefix;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Compares single lookups, bursts and the oracle.
pub fn compare<A: Number>(fib: &dyn Fib<Address = A>, plain: &Plain, addresses: &[A]) {
    let expected: Vec<NextHop> = addresses.iter().map(|address| plain.lookup(*address)).collect();
    for form in Form::all() {
        let mut hops = vec![NextHop(u32::MAX); addresses.len()];
        fib.lookup_burst_by(form, addresses, &mut hops);
        for ((address, hop), expected) in addresses.iter().zip(hops).zip(&expected) {
            assert_eq!(hop, *expected, "burst by {form}, {}", address.show());
        }
    }
    for (address, expected) in addresses.iter().zip(expected) {
        assert_eq!(fib.lookup(*address), expected, "single, {}", address.show());
    }
}

/// Builds from the first half of the changes, applies the rest, and compares around every prefix.
pub fn check<B: BuildFib>(changes: &[Change<B::Address>], seed: u64)
where
    B::Address: Number,
{
    let (first, rest) = changes.split_at(changes.len() / 2);
    let (mut plain, mut routes) = (Plain::default(), BTreeMap::new());
    for change in first {
        plain.apply(change);
        match *change {
            Change::Set(prefix, hop) => routes.insert(prefix, hop),
            Change::Remove(prefix) => routes.remove(&prefix),
        };
    }
    let readers = Readers::new();
    let mut reader = readers.register();
    let mut table = B::build(routes, &readers).unwrap();
    let mut seeded = Seeded(seed);
    let mut addresses: Vec<B::Address> = changes.iter().flat_map(|c| seeded.around(c.prefix())).collect();
    addresses.extend((0..100).map(|_| seeded.address::<B::Address>()));
    compare(&*table.reader(), &plain, &addresses);
    for batch in rest.chunks(4) {
        table.apply(batch).unwrap();
        batch.iter().for_each(|change| plain.apply(change));
        compare(&*table.reader(), &plain, &addresses);
        reader.quiescent();
    }
}

/// Nested and adjacent prefixes: few bits vary, around the borders between levels of the structures.
pub fn changes<A: Number>(borders: &'static [u8], n: usize) -> impl Strategy<Value = Vec<Change<A>>> {
    let part = (0..borders.len(), 0u8..16);
    let address = prop::collection::vec(part, 0..4).prop_map(move |parts| {
        parts.iter().fold(A::default(), |address, (border, bits)| {
            // Four bits across the border.
            let end = borders[*border].saturating_add(2).min(A::WIDTH);
            address.or(A::number(u128::from(*bits) << (A::WIDTH - end)))
        })
    });
    let length = prop_oneof![
        3 => (0..borders.len(), 0u8..5).prop_map(move |(i, by)| (borders[i] + by).saturating_sub(2).min(A::WIDTH)),
        1 => 0..=A::WIDTH,
    ];
    let change =
        (address, length, prop::option::weighted(0.7, 0u32..6)).prop_map(|(address, length, hop)| {
            let prefix = Prefix::containing(address, length).unwrap();
            hop.map_or(Change::Remove(prefix), |hop| Change::Set(prefix, NextHop(hop)))
        });
    prop::collection::vec(change, 0..n)
}

/// The whole real table, then `n` random updates: a third deletes routes, a third adds them again or changes their
/// next hop, a third adds new ones. Compares around each.
pub fn churn<B: BuildFib>(name: &str, n: usize, at_once: usize)
where
    B::Address: Number,
    Prefix<B::Address>: std::str::FromStr<Err: std::fmt::Debug>,
{
    let Some(routes) = real_table::<B::Address>(name) else { return };
    let mut plain = Plain::default();
    routes.iter().for_each(|(prefix, hop)| plain.apply(&Change::Set(*prefix, *hop)));
    let (readers, mut seeded) = (Readers::new(), Seeded(1));
    let mut reader = readers.register();
    let mut table = B::build(routes.iter().copied(), &readers).unwrap();
    assert_eq!(table.rib().len(), routes.len());
    let all: Vec<B::Address> =
        routes.iter().flat_map(|(prefix, _)| [prefix.first(), prefix.last()]).collect();
    compare(&*table.reader(), &plain, &all);
    for _ in 0..n / at_once {
        let batch: Vec<_> = (0..at_once).map(|_| random_change(&routes, &mut seeded)).collect();
        table.apply(&batch).unwrap();
        batch.iter().for_each(|change| plain.apply(change));
        reader.quiescent();
        let addresses: Vec<B::Address> = batch.iter().flat_map(|c| seeded.around(c.prefix())).collect();
        compare(&*table.reader(), &plain, &addresses);
    }
    compare(&*table.reader(), &plain, &all);
}

fn random_change<A: Number>(routes: &[(Prefix<A>, NextHop)], seeded: &mut Seeded) -> Change<A> {
    let (prefix, _) = routes[seeded.below(routes.len())];
    let hop = NextHop(seeded.below(1023) as u32 + 1);
    match seeded.below(3) {
        0 => Change::Remove(prefix),
        1 => Change::Set(prefix, hop),
        _ => {
            let more = seeded.below(9) as u8;
            let length = (prefix.length() + more).min(A::WIDTH);
            Change::Set(Prefix::containing(seeded.within(prefix), length).unwrap(), hop)
        }
    }
}
