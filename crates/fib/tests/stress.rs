//! Readers look up while the writer churns: is every answer one that was right in its window?
//!
//! The writer numbers its steps. Each address watched has its own prefixes, whose next hops name the
//! address and tell how recent they are; an answer may be no older than what stood when the lookup
//! began, and no newer than what stands when it has ended.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Chunk17, Dir18, Dir24_8, Dxr, Dxr18, Fib, NextHop, Range6};
use bm_wire::prefix::Prefix;
use common::{Number, Seeded};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Addresses watched, and rounds of change; next hops are `1 + address * ROUNDS + round`.
const WATCHED: usize = 48;
const ROUNDS: u64 = 400;

struct Watched<A> {
    address: A,
    /// The round that its routes were last brought to, and the one that is being brought in.
    done: AtomicU64,
    begun: AtomicU64,
}

fn hop(which: usize, round: u64) -> NextHop {
    NextHop(1 + which as u32 * ROUNDS as u32 + round as u32)
}

/// The two prefixes that take turns: a host route, and one that covers it. Between them there is
/// always one, so no route at all is a wrong answer.
fn turns<A: Number>(address: A, length: u8, which: usize, round: u64) -> Vec<Change<A>> {
    let wide = Prefix::containing(address, length).unwrap();
    let host = Prefix::host(address);
    if round.is_multiple_of(2) {
        vec![Change::Set(host, hop(which, round)), Change::Set(wide, hop(which, round))]
    } else {
        vec![Change::Set(wide, hop(which, round)), Change::Remove(host)]
    }
}

fn reader<A: Number>(
    fib: &dyn Fib<Address = A>,
    watched: &[Watched<A>],
    readers: &Readers,
    stop: &AtomicBool,
) {
    let mut me = readers.register();
    let addresses: Vec<A> = watched.iter().map(|watched| watched.address).collect();
    let mut hops = vec![NextHop::NONE; addresses.len()];
    while !stop.load(Relaxed) {
        let before: Vec<u64> = watched.iter().map(|watched| watched.done.load(Acquire)).collect();
        fib.lookup_burst(&addresses, &mut hops);
        for (which, found) in hops.iter().enumerate() {
            let after = watched[which].begun.load(SeqCst);
            let allowed = hop(which, before[which])..=hop(which, after);
            assert!(allowed.contains(found), "address {which}: {found}, not of {allowed:?}");
        }
        me.quiescent();
    }
}

/// Other routes come and go around, so that blocks and nodes are freed and used again all the time.
fn noise<A: Number>(address: A, length: u8, seeded: &mut Seeded) -> [Change<A>; 2] {
    let near = Prefix::containing(address, length.max(A::WIDTH - 16)).unwrap();
    let mut other = || loop {
        // Few places, so that what comes also goes.
        let place = near.first().either(A::number(seeded.below(32) as u128 * 67));
        let prefix = Prefix::containing(place, A::WIDTH - seeded.below(4) as u8).unwrap();
        if !prefix.contains(address) {
            return prefix;
        }
    };
    [Change::Set(other(), NextHop(1)), Change::Remove(other())]
}

fn stress<B: BuildFib>(base: B::Address, spread: u8, length: u8)
where
    B::Address: Number,
{
    let readers = Readers::new();
    let watched: Vec<Watched<B::Address>> = (0..WATCHED)
        .map(|i| Watched {
            address: base.either(B::Address::number((i as u128) << spread)),
            done: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        })
        .collect();
    let mut table = B::build([], &readers).unwrap();
    for (which, watched) in watched.iter().enumerate() {
        table.apply(&turns(watched.address, length, which, 0)).unwrap();
    }
    let (stop, fib, mut seeded) = (AtomicBool::new(false), table.reader(), Seeded(7));
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(|| reader(&*fib, &watched, &readers, &stop))).collect();
        for round in 1..ROUNDS {
            for (which, watched) in watched.iter().enumerate() {
                watched.begun.store(round, SeqCst);
                table.apply(&turns(watched.address, length, which, round)).unwrap();
                watched.done.store(round, SeqCst);
                table.apply(&noise(watched.address, length, &mut seeded)).unwrap();
            }
            if all.iter().any(|reader| reader.is_finished()) {
                break; // it found a wrong answer
            }
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn dir24_8_under_churn() {
    // A host route each in slots of their own; what covers it is a /20.
    stress::<Dir24_8>(0x0a00_0001, 12, 20);
}

#[test]
fn dir18_under_churn() {
    // Four host routes in each slot of the root, under a /20 or a /24 each.
    stress::<Dir18>(0x0a00_0001, 12, 20);
    stress::<Dir18>(0x0a00_0001, 12, 24);
}

#[test]
fn range6_under_churn() {
    // Neighboring host routes in one /64, so that they share nodes, each under a /112.
    stress::<Range6>(0x2001_0db8 << 96 | 1, 16, 112);
}

#[test]
fn range6_under_churn_of_short_routes() {
    stress::<Range6>(0x2001_0000 << 96 | 1, 100, 28);
}

#[test]
fn chunk17_under_churn() {
    // A host route each, many to a slot, so that blocks are deep and large.
    stress::<Chunk17>(0x0a00_0001, 12, 20);
}

#[test]
fn d18r_under_churn() {
    // A host route each, four to a slot.
    stress::<Dxr18>(0x0a00_0001, 12, 20);
}

#[test]
fn d16x4r_under_churn() {
    // The slots of one extension come and go one by one.
    stress::<Dxr<16, 4>>(0x0a00_0001, 12, 20);
}
