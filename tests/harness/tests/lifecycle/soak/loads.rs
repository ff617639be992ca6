//! The loads that run all the time: changes of routes, neighbors and a link, and reloads.

use crate::soak::Plan;
use crate::soak::clients;
use bm_tests::lab::{LOW_MTU, Lab, Side};
use bm_tests::netlink::{Prefix, Requests};
use bm_tests::packet::Ip4;
use bm_tests::subject::Router;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of neighbors that routes lead to: 3 to 9 of the sink.
const NEXT_HOPS: u32 = 7;
/// One route in this many is an IPv6 route.
const IPV6_EVERY: u32 = 20;
/// Neighbors that are added, changed and deleted, and the number of such changes a second.
const NEIGHBORS: u32 = 4000;
const NEIGHBOR_CHANGES: f64 = 1000.0;
/// Packets a second to neighbors that do not exist, and the number of such neighbors. The neighbor table's limit of
/// 1024 entries is shared by all namespaces of the machine.
const SCANS: f64 = 200.0;
const SCANNED: u32 = 60;
/// Requests for statistics a second, and the number of connections for them.
const STATISTICS: f64 = 1000.0;
const READERS: u32 = 4;

/// Tells the loads when to stop.
#[derive(Debug, Default)]
pub struct Loads(AtomicBool);

impl Loads {
    /// Whether they must stop.
    pub fn are_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `action` with 0, 1, 2 and so on, `rate` times a second; after a pause, with everything that was due in it.
    fn paced(&self, rate: f64, mut action: impl FnMut(std::ops::Range<u64>)) -> u64 {
        let start = Instant::now();
        let mut done = 0;
        while !self.are_over() {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            if due > done {
                // Not everything at once after a long pause, so that the stop is noticed soon.
                let until = due.min(done + 50_000);
                action(done..until);
                done = until;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        done
    }

    fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Results of the loads.
#[derive(Debug)]
pub struct Done {
    /// Changes of routes, and how many the kernel refused.
    pub routes: u64,
    pub refused: u64,
    /// Times that the file of counters was read.
    pub counters: u64,
    /// Changes of neighbors.
    pub neighbors: u64,
    /// Packets to neighbors that do not exist.
    pub scans: u64,
    /// Times that the link went down and up.
    pub flaps: u64,
    /// Number of reloads, and the message of the first that failed.
    pub reloads: u64,
    pub reload_failed: Option<String>,
    /// The reader of statistics.
    pub statistics: clients::Asked,
    /// Bytes read by slow readers.
    pub slow_bytes: u64,
}

/// The route with this number. The routes that the stream uses are among them.
pub fn prefix(number: u32) -> Prefix {
    if number.is_multiple_of(IPV6_EVERY) {
        let net = u128::from(0x2001_0db9_u32) << 96 | u128::from(number) << 80;
        (IpAddr::V6(Ipv6Addr::from(net)), 48)
    } else {
        (IpAddr::from(((32 << 24) + (number << 8)).to_be_bytes()), 24)
    }
}

/// A destination address of this route.
pub fn address(number: u32) -> String {
    match prefix(number).0 {
        IpAddr::V4(net) => std::net::Ipv4Addr::from(u32::from(net) + 9).to_string(),
        IpAddr::V6(net) => Ipv6Addr::from(u128::from(net) + 9).to_string(),
    }
}

fn via(number: u32, turn: u32) -> IpAddr {
    let neighbor = (3 + number.wrapping_add(turn) % NEXT_HOPS) as u8;
    let text =
        if number.is_multiple_of(IPV6_EVERY) { Side::Snk.v6(neighbor) } else { Side::Snk.v4(neighbor) };
    text.parse().expect("an address of the lab")
}

/// Adds all routes to Linux. Returns how long that took.
pub fn fill(lab: &Lab, routes: u32) -> Duration {
    let start = Instant::now();
    let mut requests = Requests::about(&lab.rtr, Side::Snk.router());
    (0..routes).for_each(|number| requests.replace_route(prefix(number), via(number, 0)));
    let (refused, why) = requests.finish();
    assert_eq!(refused, 0, "routes that Linux refused: {why:?}");
    start.elapsed()
}

/// Runs all loads until `action` has returned.
pub fn during<T>(lab: &Lab, router: &Router, plan: &Plan, action: impl FnOnce() -> T) -> (T, Done) {
    let loads = Loads::default();
    let socket = router.socket().expect("a daemon");
    let socket = Path::new(&socket);
    let counters = clients::open_counters(socket);
    std::thread::scope(|scope| {
        let routes = scope.spawn(|| change_routes(lab, plan, &loads));
        let neighbors = scope.spawn(|| change_neighbors(lab, &loads));
        let scans = scope.spawn(|| scan(lab, &loads));
        let flaps = scope.spawn(|| flap(lab, &loads));
        let reloads = scope.spawn(|| reload(router, plan, &loads));
        let read = || clients::read_statistics(socket, STATISTICS / f64::from(READERS), &loads);
        let statistics: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let (counters, loads) = (&counters, &loads);
        let read = |due: std::ops::Range<u64>| due.for_each(|_| clients::read_counters(counters));
        let counters = scope.spawn(move || loads.paced(STATISTICS, read));
        let slow: Vec<_> = (0..4).map(|_| scope.spawn(|| clients::read_slowly(socket, loads))).collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        loads.end();
        let (routes, refused) = routes.join().expect("routes change");
        let (reloads, reload_failed) = reloads.join().expect("reloads continue");
        let all = Done {
            routes,
            refused,
            neighbors: neighbors.join().expect("neighbors change"),
            scans: scans.join().expect("the scan continues"),
            flaps: flaps.join().expect("the link flaps"),
            reloads,
            reload_failed,
            counters: counters.join().expect("counters are read"),
            statistics: statistics
                .into_iter()
                .map(|reader| reader.join().expect("statistics are read"))
                .fold(clients::Asked::default(), clients::Asked::and),
            slow_bytes: slow.into_iter().map(|slow| slow.join().expect("slow readers do not panic")).sum(),
        };
        (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), all)
    })
}

/// Most routes move to another neighbor, including those of the stream. Of every 64 routes, eight are deleted and
/// added again; the stream uses none of those.
fn change_routes(lab: &Lab, plan: &Plan, loads: &Loads) -> (u64, u64) {
    let mut requests = Requests::about(&lab.rtr, Side::Snk.router());
    let mut refused = 0;
    let done = loads.paced(plan.changes, |due| {
        for change in due {
            // An odd step reaches all numbers before any repeats.
            let number = (change.wrapping_mul(7919) % u64::from(plan.routes)) as u32;
            let turn = (change / u64::from(plan.routes)) as u32;
            if comes_and_goes(number) && turn.is_multiple_of(2) {
                requests.delete_route(prefix(number));
            } else {
                requests.replace_route(prefix(number), via(number, turn + 1));
            }
        }
        refused += requests.finish().0 as u64;
    });
    (done, refused)
}

/// Whether a route is one of those that are deleted and added again.
pub fn comes_and_goes(number: u32) -> bool {
    number % 64 >= 56
}

fn change_neighbors(lab: &Lab, loads: &Loads) -> u64 {
    let mut requests = Requests::about(&lab.rtr, Side::Snk.router());
    let address = |number: u32| IpAddr::from(((10 << 24 | 200 << 16) + number).to_be_bytes());
    let done = loads.paced(NEIGHBOR_CHANGES, |due| {
        for change in due {
            let number = (change % u64::from(NEIGHBORS)) as u32;
            match (change / u64::from(NEIGHBORS)) % 3 {
                2 => requests.delete_neighbor(address(number)),
                turn => requests.replace_neighbor(
                    address(number),
                    [2, 0, 9, turn as u8, (number >> 8) as u8, number as u8],
                ),
            }
        }
        requests.finish();
    });
    (0..NEIGHBORS).for_each(|number| requests.delete_neighbor(address(number)));
    requests.finish();
    done
}

/// Sends packets to addresses of a connected network that do not exist.
fn scan(lab: &Lab, loads: &Loads) -> u64 {
    let socket = lab.src.packet_socket(Side::Src.host());
    loads.paced(SCANS, |due| {
        for number in due {
            let to = format!("198.51.100.{}", 100 + number % u64::from(SCANNED));
            let packet = Ip4::udp(&Side::Src.v4(2), &to, 20).bytes();
            // This is only a load, so losses at our own end do not matter.
            let _sent = socket.send(&Side::Src.to_router(&packet));
        }
    })
}

/// The third link loses and regains its carrier, and changes its MTU.
fn flap(lab: &Lab, loads: &Loads) -> u64 {
    let mut flaps = 0;
    while !loads.are_over() {
        lab.snk.ip("link set k1 down");
        std::thread::sleep(Duration::from_millis(500));
        lab.snk.ip("link set k1 up");
        lab.rtr.ip(&format!("link set r2 mtu {}", LOW_MTU - (flaps % 8) as usize));
        std::thread::sleep(Duration::from_millis(1500));
        flaps += 1;
    }
    lab.rtr.ip(&format!("link set r2 mtu {LOW_MTU}"));
    flaps
}

/// The configuration with which a router is started, and those of later reloads.
pub fn config(router: &Router, plan: &Plan, turn: u32) -> String {
    let mut text = format!(
        "[[filter.rule]]\nname = 'turn-{}'\naction = 'drop'\nprotocol = 'udp'\ndestination_ports = {}\n",
        turn % 2,
        10_000 + turn % 1000
    );
    if !router.is_kernel() {
        text += &format!("[[hook]]\nfile = '{}'\nstage = 'ingress'\n", plan.hook);
    }
    text
}

/// Writes a hook that counts. A local variable gets another name each time, so that the file differs.
pub fn write_hook(plan: &Plan, turn: u32) {
    let text = format!(
        "local hook = require('brickmoon.hook')\nlocal seen{turn} = hook.counter('seen')\n\
         return function (burst) seen{turn}:add(burst.count) end\n"
    );
    std::fs::write(&plan.hook, text).unwrap_or_else(|error| panic!("{}: {error}", plan.hook));
}

/// Changes filters and the hook each second.
fn reload(router: &Router, plan: &Plan, loads: &Loads) -> (u64, Option<String>) {
    let mut failure = None;
    let done = loads.paced(1.0, |due| {
        // After a pause, once is enough.
        let turn = due.end as u32;
        write_hook(plan, turn);
        let done = router.reload_with(&config(router, plan, turn)).expect("a daemon");
        if !done.status.success() {
            failure.get_or_insert(String::from_utf8_lossy(&done.stderr).into_owned());
        }
    });
    (done, failure)
}
