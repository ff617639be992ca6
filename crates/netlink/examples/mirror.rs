//! Mirrors the kernel's tables and prints counts, times and memory.
//!
//! ```text
//! mirror                              mirror what is there, then print changes until killed
//! mirror load V4 V6 LINK [objects]    put V4 and V6 routes over LINK into table 1000 first, with two
//!                                     gateways each or two next-hop objects; then mirror, compare,
//!                                     delete, and say what each step took
//! ```
//! Run it in a network namespace of its own: `ip netns exec NAME mirror load 1000000 200000 LINK`.

use bm_netlink::{Batch, Change, Error, Hop, NextHop, Object, Options, RouteBody, Via, Watch};
use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::time::{Duration, Instant};

const TABLE: u32 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => follow()?,
        ["load", four, six, link] => load(four.parse()?, six.parse()?, link, false)?,
        ["load", four, six, link, "objects"] => load(four.parse()?, six.parse()?, link, true)?,
        _ => return Err("usage: mirror [load V4 V6 LINK [objects]]".into()),
    }
    Ok(())
}

fn follow() -> Result<(), Error> {
    let mut watch = open()?;
    loop {
        watch.wait(Duration::from_secs(3600))?;
        for change in watch.process(Instant::now())? {
            println!("{change:?}");
        }
    }
}

fn open() -> Result<Watch, Error> {
    let (before, busy, start) = (resident(), busy(), Instant::now());
    let watch = Watch::open(Options::default())?;
    let (took, mirror) = (start.elapsed(), watch.mirror());
    let count = mirror.ipv4().len() + mirror.ipv6().len();
    let memory = mirror.ipv4().memory() + mirror.ipv6().memory();
    println!(
        "mirrored {} IPv4 and {} IPv6 prefixes, {} + {} bodies, {} links, {} neighbors, {} next hops in {took:.2?}",
        mirror.ipv4().len(),
        mirror.ipv6().len(),
        mirror.ipv4().body_count(),
        mirror.ipv6().body_count(),
        mirror.links().count(),
        mirror.neighbors().count(),
        mirror.next_hops().count(),
    );
    println!(
        "memory: routes {:.1} MiB, {:.1} bytes a prefix; process grew by {:.1} MiB",
        mib(memory),
        memory as f64 / count.max(1) as f64,
        mib(resident().saturating_sub(before)),
    );
    let (own, system) = (self::busy().0 - busy.0, self::busy().1 - busy.1);
    println!("of that time on a core: {own:.2?} here, {system:.2?} in the kernel");
    Ok(watch)
}

/// Now: by the clock, and by the core time of the kernel for us.
fn begin() -> (Instant, Duration) {
    (Instant::now(), busy().1)
}

/// Core time of this process so far, its own and the kernel's for it.
fn busy() -> (Duration, Duration) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    (Duration::from_millis(ticks(11) * 10), Duration::from_millis(ticks(12) * 10))
}

/// Prefixes all over the address space, all different: the multiplication never repeats a value.
fn four(index: u32) -> Ipv4Prefix {
    let address = 0x0100_0000 + index.wrapping_mul(0x9e37_79b1) % 0xdf_0000 * 256;
    Prefix::containing(address, 24).unwrap_or_default()
}

fn six(index: u32) -> Ipv6Prefix {
    let address = 0x2000_u128 << 112 | u128::from(index.wrapping_mul(0x9e37_79b1)) << 80;
    Prefix::containing(address, 48).unwrap_or_default()
}

/// Twenty bodies, as if twenty peers had announced the routes.
fn bodies<A: Address>(ifindex: u32, gateway: impl Fn(u32) -> A, objects: bool) -> Vec<RouteBody> {
    let via = |index: u32| match objects {
        true => Via::Object(100 + u32::from(A::WIDTH) + index % 2),
        false => Via::One(Hop::via(gateway(index).show(), ifindex)),
    };
    let body = |index| RouteBody { protocol: 186, priority: 20, via: via(index), ..RouteBody::default() };
    (0..20).map(body).collect()
}

fn load(v4: u32, v6: u32, link: &str, objects: bool) -> Result<(), Error> {
    let ifindex = Watch::open(Options::default())?.mirror().link_named(link).map_or(0, |link| link.ifindex);
    let four_bodies = bodies::<u32>(ifindex, |index| 0x0a00_0002 + index, objects);
    let six_bodies = bodies::<u128>(ifindex, |index| (0xfd00 << 112) + 2 + u128::from(index), objects);
    let mut batch = Batch::open()?;
    if objects {
        for (base, gateway) in [(132, "10.0.0.2"), (133, "10.0.0.3"), (228, "fd00::2"), (229, "fd00::3")] {
            let hop = Hop::via(gateway.parse().expect("an address"), ifindex);
            batch.put_next_hop(&NextHop { id: base, protocol: 186, object: Object::Hop(hop) })?;
        }
    }
    let pick = |bodies: &[RouteBody], index: u32| bodies[index as usize % bodies.len()].clone();
    let start = begin();
    for index in 0..v4 {
        batch.add_route(TABLE, four(index), &pick(&four_bodies, index))?;
    }
    report("loaded IPv4", batch.finish()?, start);
    let start = begin();
    for index in 0..v6 {
        batch.add_route(TABLE, six(index), &pick(&six_bodies, index))?;
    }
    report("loaded IPv6", batch.finish()?, start);

    let mut watch = open()?;
    let start = Instant::now();
    let audit = watch.compare()?;
    println!("compared in {:.2?}: {} differences", start.elapsed(), audit.findings.count);
    watch.process(Instant::now())?;

    churn(&mut watch, &mut batch, v4.min(100_000), &four_bodies)?;

    let start = begin();
    for index in 0..v4 {
        batch.delete_route(
            TABLE,
            four(index),
            &pick(&four_bodies, index + u32::from(index < v4.min(100_000))),
        )?;
    }
    for index in 0..v6 {
        batch.delete_route(TABLE, six(index), &pick(&six_bodies, index))?;
    }
    report("deleted", batch.finish()?, start);
    settle(&mut watch)?;
    let left = watch.mirror().ipv4().get(TABLE, four(0)).len();
    println!(
        "after deletion: {} + {} prefixes left, {left} of the first; {:?}",
        watch.mirror().ipv4().len(),
        watch.mirror().ipv6().len(),
        watch.statistics()
    );
    let audit = watch.compare()?;
    println!("compared: {} differences", audit.findings.count);
    Ok(())
}

/// Gives routes another gateway, all at once, and applies the events.
fn churn(watch: &mut Watch, batch: &mut Batch, count: u32, bodies: &[RouteBody]) -> Result<(), Error> {
    let start = begin();
    for index in 0..count {
        batch.replace_route(TABLE, four(index), &bodies[(index as usize + 1) % bodies.len()])?;
    }
    report("replaced", batch.finish()?, start);
    let (start, core, before) = (Instant::now(), busy(), watch.statistics().events);
    let changes = settle(watch)?;
    let (took, events) = (start.elapsed(), watch.statistics().events - before);
    let (own, system) = (busy().0 - core.0, busy().1 - core.1);
    let rate = events as f64 / took.as_secs_f64();
    println!("applied {events} events in {took:.2?}, {rate:.0} a second; {changes} changes");
    println!("of that time on a core: {own:.2?} here, {system:.2?} in the kernel");
    Ok(())
}

/// Processes until nothing more comes; the number of changes of routes.
fn settle(watch: &mut Watch) -> Result<usize, Error> {
    let mut changes = 0;
    loop {
        let new = watch.process(Instant::now())?;
        let routes =
            new.iter().filter(|change| matches!(change, Change::Route4 { .. } | Change::Route6 { .. }));
        changes += routes.count();
        if new.is_empty() && watch.timeout(Instant::now()) != Some(Duration::ZERO) {
            return Ok(changes);
        }
    }
}

fn report(what: &str, outcome: bm_netlink::Outcome, start: (Instant, Duration)) {
    let (took, core) = (start.0.elapsed(), busy().1 - start.1);
    let rate = outcome.sent as f64 / took.as_secs_f64();
    println!(
        "{what}: {} routes in {took:.2?}, {rate:.0} a second, {core:.2?} of core in the kernel, {} refused",
        outcome.sent, outcome.refused
    );
    for refusal in outcome.first.iter().take(3) {
        println!("  request {}: {}", refusal.index, refusal.error);
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
