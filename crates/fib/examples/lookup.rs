//! What do a lookup, a build and an update cost, on one core, with the table in the cache and out of it?
//!
//!     cargo run --release -p bm-fib --example lookup -- [RIB.gz]...
//!
//! A RIB has `PREFIX/LENGTH NEXT_HOP` lines of one family. Without any, two small tables are made up.
#![allow(clippy::unwrap_used)] // a tool for whoever works on this crate

use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Dir18, Dir24_8, Fib, Form, NextHop, Range6};
use bm_wire::prefix::{Address, Prefix};
use std::hint::black_box;
use std::io::Read;
use std::str::FromStr;
use std::time::{Duration, Instant};

const ADDRESSES: usize = 1 << 20;
const BURST: usize = 64;
const UPDATES: usize = 200_000;
const TURNS: usize = 7;

/// splitmix64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn bits(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[(self.next() % items.len() as u64) as usize]
    }
}

type Routes<A> = Vec<(Prefix<A>, NextHop)>;

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let mut seeded = Seeded(1);
    if files.is_empty() {
        let routes = (0..300_000).map(|_| made_up(&mut seeded, [16, 20, 22, 24, 24, 24], |bits| bits as u32));
        measure::<Dir24_8>("made up", routes.collect(), |bits| bits as u32);
        let number = |bits: u128| bits >> 16 & 0x3fff << 96 | 0x2a00 << 112 | bits & u128::MAX >> 32;
        let routes = (0..60_000).map(|_| made_up(&mut seeded, [29, 32, 40, 44, 48, 48], number));
        measure::<Range6>("made up", routes.collect(), |bits| bits);
    }
    for file in files {
        let mut text = String::new();
        let opened = std::fs::File::open(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        flate2::read::GzDecoder::new(opened).read_to_string(&mut text).unwrap();
        if text.lines().next().unwrap_or_default().contains(':') {
            measure::<Range6>(&file, parsed(&text), |bits| bits);
        } else {
            measure::<Dir24_8>(&file, parsed(&text), |bits| bits as u32);
            measure::<Dir18>(&file, parsed(&text), |bits| bits as u32);
        }
    }
}

fn made_up<A: Address>(
    seeded: &mut Seeded,
    lengths: [u8; 6],
    number: impl Fn(u128) -> A,
) -> (Prefix<A>, NextHop) {
    let prefix = Prefix::containing(number(seeded.bits()), *seeded.pick(&lengths)).unwrap();
    (prefix, NextHop(seeded.next() as u32 % 1023 + 1))
}

fn parsed<A>(text: &str) -> Routes<A>
where
    Prefix<A>: FromStr<Err: std::fmt::Debug>,
{
    let route = |line: &str| {
        let (prefix, hop) = line.split_once(' ').unwrap();
        (prefix.parse().unwrap(), NextHop(hop.parse().unwrap()))
    };
    text.lines().map(route).collect()
}

fn measure<B: BuildFib>(name: &str, routes: Routes<B::Address>, number: fn(u128) -> B::Address) {
    let readers = Readers::new();
    println!("{name}: {} routes", routes.len());
    let (table, took) = timed(|| B::build(routes.iter().copied(), &readers).unwrap());
    let mut rib = bm_fib::rib::Rib::new();
    let (_, rib_took) = timed(|| rib.extend(routes.iter().copied()));
    println!("  build {:.3} s, of which rib {:.3}", took.as_secs_f64(), rib_took.as_secs_f64());
    lookups(&table, &routes, number);
    updates(table, &routes, number);
}

fn lookups<B: BuildFib>(table: &B, routes: &Routes<B::Address>, number: fn(u128) -> B::Address) {
    let mut seeded = Seeded(2);
    let uniform: Vec<_> = (0..ADDRESSES).map(|_| number(seeded.bits())).collect();
    let within: Vec<_> =
        (0..ADDRESSES).map(|_| any_within(seeded.pick(routes).0, number(seeded.bits()))).collect();
    let flows: Vec<_> = within[..100_000].to_vec();
    let flows: Vec<_> = (0..ADDRESSES).map(|_| flows[zipf(&mut seeded, 100_000)]).collect();
    let one = vec![within[0]; ADDRESSES];
    let fib = table.reader();
    for (case, addresses) in [("uniform", uniform), ("in-prefix", within), ("zipf", flows), ("one", one)] {
        let singles = best(|| addresses.iter().for_each(|address| _ = black_box(fib.lookup(*address))));
        let ns = |took: Duration| took.as_nanos() as f64 / ADDRESSES as f64;
        print!("  {case:9} {:5.2} ns one by one, in bursts of {BURST}:", ns(singles));
        for (form, took) in by_form(&*fib, &addresses) {
            print!("  {form} {:5.2}", ns(took));
        }
        println!();
    }
}

/// The shortest turn of each form; they take turns.
fn by_form<A: Address>(fib: &dyn Fib<Address = A>, addresses: &[A]) -> Vec<(Form, Duration)> {
    let mut forms: Vec<_> = Form::all().into_iter().map(|form| (form, Duration::MAX)).collect();
    for _ in 0..TURNS {
        for (form, best) in &mut forms {
            *best = timed(|| burst(fib, *form, addresses)).1.min(*best);
        }
    }
    forms
}

fn burst<A: Address>(fib: &dyn Fib<Address = A>, form: Form, addresses: &[A]) {
    let mut hops = [NextHop::NONE; BURST];
    for addresses in addresses.chunks_exact(BURST) {
        fib.lookup_burst_by(form, addresses, &mut hops);
        black_box(&hops);
    }
}

/// A rank by Zipf's law of exponent 1, near enough: its logarithm is uniform.
fn zipf(seeded: &mut Seeded, n: usize) -> usize {
    let uniform = seeded.next() as f64 / u64::MAX as f64;
    ((n as f64).powf(uniform) as usize - 1).min(n - 1)
}

fn any_within<A: Address>(prefix: Prefix<A>, address: A) -> A {
    prefix.first().or(address.and(A::mask(prefix.length()).not()))
}

/// Of a real table: a route goes, another comes back or changes; and new longer ones come.
fn updates<B: BuildFib>(mut table: B, routes: &Routes<B::Address>, number: fn(u128) -> B::Address) {
    let mut seeded = Seeded(3);
    let changes: Vec<_> = (0..UPDATES)
        .map(|_| {
            let (prefix, hop) = *seeded.pick(routes);
            let other = NextHop(hop.0 % 1023 + 1);
            match seeded.next() % 4 {
                0 => Change::Remove(prefix),
                1 | 2 => Change::Set(prefix, other),
                _ => {
                    let length = (prefix.length() + 2).min(B::Address::WIDTH);
                    let longer = Prefix::containing(any_within(prefix, number(seeded.bits())), length);
                    Change::Set(longer.unwrap(), other)
                }
            }
        })
        .collect();
    let mut whole = B::build(routes.iter().copied(), &Readers::new()).unwrap();
    let ((), bulk) = timed(|| whole.apply(&changes).unwrap());
    let before = table.memory_bytes();
    let mut slowest = Duration::ZERO;
    let ((), took) = timed(|| {
        for change in &changes {
            let ((), took) = timed(|| table.apply(std::slice::from_ref(change)).unwrap());
            slowest = slowest.max(took);
        }
    });
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "  {:.0} updates/s in bulk, {:.0} one by one, slowest {:.0} us; {:.2} MiB, after updates {:.2}; rib {:.2} MiB",
        UPDATES as f64 / bulk.as_secs_f64(),
        UPDATES as f64 / took.as_secs_f64(),
        slowest.as_secs_f64() * 1e6,
        mib(before),
        mib(table.memory_bytes()),
        mib(table.rib().memory_bytes()),
    );
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (run(), start.elapsed())
}

/// The shortest of some turns, the first of which warms up.
fn best(mut run: impl FnMut()) -> Duration {
    (0..TURNS).map(|_| timed(&mut run).1).min().unwrap_or_default()
}
