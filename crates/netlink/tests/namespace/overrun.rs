//! More events than the receive buffer holds: afterwards the tables equal the kernel's (docs/conformance.md 109).

use super::netns::Namespace;
use super::support::{alone, listed, watch};
use bm_netlink::{Batch, Change, Hop, Options, RouteBody, Via, Watch};
use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix, Prefix};
use std::time::{Duration, Instant};

const TABLE: u32 = 1000;

fn four(index: u32) -> Ipv4Prefix {
    Prefix::containing(0x0b00_0000 + index * 256, 24).unwrap()
}

fn six(index: u32) -> Ipv6Prefix {
    Prefix::containing((0x2a00 << 112) + (u128::from(index) << 80), 48).unwrap()
}

fn body(gateway: &str, ifindex: u32) -> RouteBody {
    let via = Via::One(Hop::via(gateway.parse().unwrap(), ifindex));
    RouteBody { protocol: 186, priority: 20, via, ..RouteBody::default() }
}

/// Processes events until the mirror follows the kernel again; returns the changes. That the watch has nothing to do at
/// the moment is not enough: it may wait before it reads the tables again.
fn rest(watch: &mut Watch) -> Vec<Change> {
    let (start, mut all) = (Instant::now(), Vec::new());
    loop {
        all.extend(watch.process(Instant::now()).unwrap());
        if watch.is_settled() {
            return all;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the watch must follow the kernel: {:?}",
            watch.statistics()
        );
        watch.wait(Duration::from_millis(10)).unwrap();
    }
}

#[test]
fn two_hundred_thousand_routes_through_a_tiny_buffer() {
    let Some(namespace) = Namespace::new("overrun").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(Options { receive_buffer: 8192, ..alone() });
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    let (via4, via6) = (body("192.0.2.2", a), body("2001:db8:a::2", a));
    let before = watch.mirror().ipv4().len();
    let mut batch = Batch::open().unwrap();
    for index in 0..180_000 {
        batch.add_route(TABLE, four(index), &via4).unwrap();
    }
    for index in 0..20_000 {
        batch.add_route(TABLE, six(index), &via6).unwrap();
    }
    let outcome = batch.finish().unwrap();
    assert_eq!((outcome.sent, outcome.refused), (200_000, 0), "{:?}", outcome.first);
    let changes = rest(&mut watch);
    assert!(watch.statistics().overruns > 0, "{:?}", watch.statistics());
    assert_eq!(watch.mirror().ipv4().len(), before + 180_000);
    let routes =
        changes.iter().filter(|change| matches!(change, Change::Route4 { .. } | Change::Route6 { .. }));
    assert!(routes.count() >= 200_000, "every route must be among the changes");
    assert!(!changes.contains(&Change::Everything));

    // Some are replaced and some deleted, again without being read, and while the tables are being compared.
    watch.request_audit(Instant::now());
    watch.process(Instant::now()).unwrap();
    let other = body("192.0.2.3", a);
    for index in (0..180_000).step_by(3) {
        batch.replace_route(TABLE, four(index), &other).unwrap();
    }
    for index in (1..180_000).step_by(3) {
        batch.delete_route(TABLE, four(index), &via4).unwrap();
    }
    assert_eq!(batch.finish().unwrap().refused, 0);
    rest(&mut watch);
    assert_eq!(watch.mirror().ipv4().len(), before + 120_000);
    let audit = watch.compare().unwrap();
    assert_eq!(audit.findings.count, 0, "{}", listed(&audit.findings));
}

#[test]
fn overruns_during_the_dump() {
    let Some(namespace) = Namespace::new("flood").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(Options { receive_buffer: 65_536, ..alone() });
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    let (one, two) = (body("192.0.2.2", a), body("192.0.2.3", a));
    let mut batch = Batch::open().unwrap();
    for index in 0..20_000 {
        batch.add_route(TABLE, four(index), &one).unwrap();
    }
    batch.finish().unwrap();
    let name = namespace.name.clone();
    let flood = std::thread::spawn(move || {
        std::mem::ManuallyDrop::new(Namespace { name }).enter();
        let mut batch = Batch::open().unwrap();
        for round in 0..6 {
            for index in 0..20_000 {
                let body = if round % 2 == 0 { &two } else { &one };
                batch.replace_route(TABLE, four(index), body).unwrap();
            }
        }
        batch.finish().unwrap()
    });
    while !flood.is_finished() {
        watch.process(Instant::now()).unwrap();
    }
    assert_eq!(flood.join().unwrap().refused, 0);
    // A dump during replacements requests an audit, which is a day away here; the test runs its own.
    let start = Instant::now();
    while watch.timeout(Instant::now()) == Some(Duration::ZERO)
        || start.elapsed() < Duration::from_millis(300)
    {
        watch.process(Instant::now()).unwrap();
    }
    println!("{:?}", watch.statistics());
    let audit = watch.compare().unwrap();
    assert_eq!(audit.findings.count, 0, "{}", listed(&audit.findings));
}

#[test]
fn ipv6_dumps_during_deletions_lose_nothing() {
    let Some(namespace) = Namespace::new("shift").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(Options { audit_delay: Duration::from_secs(86_400), ..Options::default() });
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    let via = body("2001:db8:a::2", a);
    let mut batch = Batch::open().unwrap();
    // Routes at the front are added and deleted; a dump that continues by count then skips some of the rest.
    for index in 0..30_000 {
        batch.add_route(TABLE, six(index), &via).unwrap();
    }
    batch.finish().unwrap();
    let name = namespace.name.clone();
    let walker = std::thread::spawn(move || {
        std::mem::ManuallyDrop::new(Namespace { name }).enter();
        let mut batch = Batch::open().unwrap();
        for _ in 0..40 {
            (0..500).for_each(|index| batch.delete_route(TABLE, six(index), &via).unwrap());
            batch.flush().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            (0..500).for_each(|index| batch.add_route(TABLE, six(index), &via).unwrap());
            batch.flush().unwrap();
        }
    });
    while !walker.is_finished() {
        let audit = watch.compare().unwrap();
        assert_eq!(audit.findings.count, 0, "{}", listed(&audit.findings));
    }
    walker.join().unwrap();
    println!("{:?}", watch.statistics());
    assert!(watch.statistics().repeated > 0, "some dump must have been disturbed: {:?}", watch.statistics());
}
