//! The daemon is stopped for longer than all of its time limits (SIGSTOP, as a frozen cgroup does it to a container),
//! while packets flow and Linux's tables change. Meanwhile Linux forwards, by its own tables; when the daemon continues,
//! no packet is forwarded by the tables of before, and brickmoon forwards again by itself.

use bm_tests::PATIENCE;
use bm_tests::daemon::eventually;
use bm_tests::flow::{self, Stream};
use bm_tests::lab::{Ends, Lab, SIDES, Side, by_linux};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{self, PacketSocket};
use bm_wire::Mac;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For how long it is stopped.
const STOPPED: Duration = Duration::from_secs(12);
/// How soon Linux must forward. Generous for busy machines; on an idle one it takes half a second at most.
const BOUND: Duration = Duration::from_secs(2);
/// Packets a second, to all destinations in turn.
const RATE: u32 = 4000;

/// Where the packets go, and what changes about each while the daemon is stopped.
const DESTINATIONS: [&str; 4] = ["10.9.9.9", "10.1.9.9", "10.5.5.5", "2001:db8:a000::9"];
/// Nothing changes.
const SAME: usize = 0;
/// The next hop gets another MAC address.
const NEIGHBOR: usize = 1;
/// A route for it forbids it.
const ROUTE: usize = 2;
/// It becomes an address of the router.
const ADDRESS: usize = 3;

const CHANGES: &str = "\
neigh replace 198.51.100.3 lladdr 02:00:00:00:01:33 dev r1 nud permanent
route add blackhole 10.5.0.0/16
addr add 2001:db8:a000::9/128 dev lo
";
const NEW_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x33]);

/// A packet that arrived.
struct Seen {
    number: u32,
    /// When it was sent: time since 1970.
    sent: Duration,
    to: Mac,
}

/// Receives until it is stopped.
fn receive(sockets: &[PacketSocket; 3], stop: &AtomicBool) -> Vec<Seen> {
    let (mut seen, mut stopped) = (Vec::new(), false);
    while !stopped {
        stopped = stop.load(Ordering::Relaxed);
        sys::wait_readable(&sockets.each_ref(), Duration::from_millis(50)).expect("open sockets");
        for (side, socket) in SIDES.into_iter().zip(sockets) {
            while let Some(captured) = socket.receive().expect("an open socket") {
                let arrival = flow::arrival(&captured.frame, captured.at, side);
                // The router's errors about packets to itself quote them.
                let Some(arrival) = arrival.filter(|arrival| arrival.side != Side::Src) else { continue };
                let to = Mac(*captured.frame.first_chunk().expect("an Ethernet header"));
                seen.push(Seen { number: arrival.number, sent: arrival.sent, to });
            }
        }
    }
    seen
}

/// Sends to all destinations while `action` runs; returns what it returns, how many were sent, and what arrived.
fn during<T>(lab: &Lab, action: impl FnOnce() -> T) -> (T, u32, Vec<Seen>) {
    let frames = Stream::to_all(&DESTINATIONS, RATE).frames();
    let sender = lab.src.packet_socket(Side::Src.host());
    // Opened before anything is sent: on a busy machine the thread that receives may start later than the other.
    let sockets = SIDES.map(|side| lab.host(side).packet_socket(side.host()));
    let [sent, received] = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&sockets, &received));
        let sending = scope.spawn(|| flow::send(|frame| sender.send(frame), frames, RATE, &sent));
        std::thread::sleep(Duration::from_millis(300));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        sent.store(true, Ordering::Relaxed);
        let count = sending.join().expect("the sender does not panic");
        std::thread::sleep(Duration::from_millis(500));
        received.store(true, Ordering::Relaxed);
        let seen = receiving.join().expect("the receiver does not panic");
        (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), count, seen)
    })
}

/// Waits until Linux forwards, for as long as that may take.
fn until_linux_forwards(lab: &Lab) -> Duration {
    let (before, since) = (by_linux(lab), Instant::now());
    while by_linux(lab) == before {
        assert!(since.elapsed() < PATIENCE, "Linux does not forward");
        std::thread::sleep(Duration::from_millis(1));
    }
    since.elapsed()
}

/// Waits until Linux has forwarded nothing for a while.
fn until_brickmoon_forwards(lab: &Lab) -> Duration {
    let since = Instant::now();
    loop {
        let (before, began) = (by_linux(lab), since.elapsed());
        std::thread::sleep(Duration::from_millis(200));
        if by_linux(lab) == before {
            return began;
        }
        assert!(began < PATIENCE, "brickmoon does not forward again by itself");
    }
}

/// Changes routes of which the daemon must hear as well: more than it reads in a moment.
fn many_routes(lab: &Lab) {
    let route = |n: u32| format!("route add 10.{}.{}.0/24 via 198.51.100.2\n", 100 + n / 250, n % 250);
    lab.rtr.ip(&(0..10_000).map(route).collect::<String>());
}

struct Times {
    /// From the stop on until Linux forwarded.
    linux: Duration,
    /// Since 1970, before and after the changes.
    changes: [Duration; 2],
    /// From the end of the stop on until brickmoon forwarded again.
    back: Duration,
}

/// Stops the daemon, changes tables, and continues it.
fn stop_and_continue(lab: &Lab, process: u32) -> Times {
    let begin = Instant::now();
    sys::signal(process, libc::SIGSTOP).expect("it is there");
    let linux = until_linux_forwards(lab);
    std::thread::sleep(Duration::from_secs(2));
    let before = sys::wall_clock();
    many_routes(lab);
    lab.rtr.ip(CHANGES);
    let changes = [before, sys::wall_clock()];
    std::thread::sleep(STOPPED.saturating_sub(begin.elapsed()));
    sys::signal(process, libc::SIGCONT).expect("it is there");
    Times { linux, changes, back: until_brickmoon_forwards(lab) }
}

/// Runs it on one path.
fn run(lab: &Lab, router: &mut Router) {
    let (name, process) = (router.name(), router.process().expect("a daemon"));
    let (times, count, seen) = during(lab, || {
        until_brickmoon_forwards(lab);
        stop_and_continue(lab, process)
    });
    let Times { linux, changes: [before, after], back } = times;
    report::say(&format!(
        "suspended: {name}: Linux forwards after {linux:?}, brickmoon again after {back:?}"
    ));
    assert_eq!(router.process(), Some(process), "{name}: the same daemon");
    assert!(linux < BOUND, "{name}: {linux:?}\n{}", router.log());
    let of = |destination: usize| {
        seen.iter().filter(move |seen| seen.number as usize % DESTINATIONS.len() == destination)
    };
    let later = |destination: usize| of(destination).filter(|seen| seen.sent > after);
    // Nothing is lost to where nothing changes.
    let mut numbers: Vec<_> = of(SAME).map(|seen| seen.number).collect();
    numbers.sort_unstable();
    let expected: Vec<_> =
        (0..count).filter(|number| *number as usize % DESTINATIONS.len() == SAME).collect();
    let missing: Vec<_> = expected.iter().filter(|number| numbers.binary_search(number).is_err()).collect();
    assert!(missing.is_empty(), "{name}: of {count} packets these were lost: {missing:?}\n{}", router.log());
    assert_eq!(numbers, expected, "{name}: some came twice");
    // Nothing that was sent after the changes is forwarded as before them.
    let old = Side::Snk.mac(3);
    assert!(of(NEIGHBOR).any(|seen| seen.to == old && seen.sent < before), "{name}");
    let stale = later(NEIGHBOR).filter(|seen| seen.to != NEW_MAC).count();
    let sum = later(NEIGHBOR).count();
    assert_eq!(stale, 0, "{name}: number of {sum} packets that were sent to the old MAC address");
    assert!(sum > RATE as usize, "{name}: {sum}");
    for destination in [ROUTE, ADDRESS] {
        assert!(of(destination).any(|seen| seen.sent < before), "{name}");
        let to = DESTINATIONS[destination];
        assert_eq!(later(destination).count(), 0, "{name}: packets to {to} were forwarded by old tables");
    }
    assert!(router.log().contains("the daemon did not run"), "{name}: {}", router.log());
}

#[test]
fn nothing_is_forwarded_with_tables_from_before_a_stop() {
    for subject in Subject::all("suspend").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("suspend", Ends::Silent);
        let mut router = subject.start(&lab);
        run(&lab, &mut router);
        router.settle();
        eventually("accounts", || router.status_text().contains("r0"));
        router.stop();
    }
}
