//! A table is built in a memfd and read through a second mapping: both must agree, also after updates.

use super::{Number, Seeded};
use bm_fib::memory::memfd;
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Fib, NextHop, SharedFib, Source};
use bm_wire::prefix::Prefix;

fn random_change<A: Number>(seeded: &mut Seeded) -> Change<A> {
    let length = seeded.below(usize::from(A::WIDTH) + 1) as u8;
    // The first bits vary little, so that prefixes nest.
    let address =
        seeded.address::<A>().and(A::mask(6).not()).and(A::mask(24).or(A::mask(A::WIDTH - 4).not()));
    let prefix = Prefix::containing(address, length).unwrap();
    match seeded.below(3) {
        0 => Change::Remove(prefix),
        _ => Change::Set(prefix, NextHop(seeded.below(1000) as u32)),
    }
}

fn compare<A: Number>(fib: &dyn Fib<Address = A>, other: &dyn Fib<Address = A>, probes: &[A]) {
    let (mut hops, mut others) = (vec![NextHop::NONE; probes.len()], vec![NextHop::NONE; probes.len()]);
    fib.lookup_burst(probes, &mut hops);
    other.lookup_burst(probes, &mut others);
    assert_eq!(hops, others);
}

pub fn shared<B: BuildFib, F: SharedFib<Address = B::Address>>()
where
    B::Address: Number,
{
    let (readers, mut seeded) = (Readers::new(), Seeded(5));
    // Represents the readers of the second mapping for the writer.
    let mut elsewhere = readers.register();
    let file = memfd(c"table").unwrap();
    let routes: Vec<_> = (0..500)
        .filter_map(|_| match random_change(&mut seeded) {
            Change::Set(prefix, hop) => Some((prefix, hop)),
            Change::Remove(_) => None,
        })
        .collect();
    let mut table = B::build_in(routes, &readers, &Source::shared(&file).unwrap()).unwrap();
    let reader = F::attach(&Source::attached(&file).unwrap()).unwrap();
    for _ in 0..50 {
        let changes: Vec<Change<B::Address>> = (0..20).map(|_| random_change(&mut seeded)).collect();
        table.apply(&changes).unwrap();
        let probes: Vec<_> = changes.iter().flat_map(|change| seeded.around(change.prefix())).collect();
        compare(&*table.reader(), &reader, &probes);
        elsewhere.quiescent();
    }
}
