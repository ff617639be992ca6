//! Readers look up addresses while the writer changes the table: every result must have been correct at some time
//! during the lookup.
//!
//! The writer numbers its rounds. Each watched address has its own prefixes, whose next hops encode the address and
//! the round. A result must not be older than the table when the lookup began, nor newer than when it ended.

use super::{Number, Seeded};
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Fib, NextHop};
use bm_wire::prefix::Prefix;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Addresses watched, and rounds of change; next hops are `1 + address * ROUNDS + round`.
const WATCHED: usize = 48;
const ROUNDS: u64 = 400;

struct Watched<A> {
    address: A,
    /// The last round that is complete for its routes, and the round that is in progress.
    done: AtomicU64,
    begun: AtomicU64,
}

fn hop(which: usize, round: u64) -> NextHop {
    NextHop(1 + which as u32 * ROUNDS as u32 + round as u32)
}

/// Two prefixes that alternate: a host route, and one that covers it. One of them always exists, so finding no route
/// is an error.
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

/// Other routes nearby are added and deleted, so that blocks and nodes are freed and reused all the time.
fn noise<A: Number>(address: A, length: u8, seeded: &mut Seeded) -> [Change<A>; 2] {
    let near = Prefix::containing(address, length.max(A::WIDTH - 16)).unwrap();
    let mut other = || loop {
        // Few prefixes, so that each is also deleted.
        let place = near.first().either(A::number(seeded.below(32) as u128 * 67));
        let prefix = Prefix::containing(place, A::WIDTH - seeded.below(4) as u8).unwrap();
        if !prefix.contains(address) {
            return prefix;
        }
    };
    [Change::Set(other(), NextHop(1)), Change::Remove(other())]
}

pub fn stress<B: BuildFib>(base: B::Address, spread: u8, length: u8)
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
                break; // a reader found a wrong result
            }
        }
        stop.store(true, Relaxed);
    });
}
