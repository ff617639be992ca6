//! An adversary that writes hooks which never return: each hangs in a place that a seed chooses, in a way that it
//! chooses, at a stage that it chooses. Each must be interrupted, the earlier version must decide about the burst, and
//! everything must work afterwards.
//!
//! `BM_SEED` repeats a run, `BM_HANG_SECONDS` makes it longer than the 20 s of `make test`.

use std::time::{Duration, Instant};

use bm_graph::Stage;
use bm_lua::hook::{Health, HookSpec, OnHang};

use crate::{IN, Rig};

const LEFT: usize = 0;
/// How long a hook may hang on a very busy machine.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// Names, and what is done again and again.
const PLACES: [(&str, &str); 33] = [
    ("nothing", ""),
    ("counting", "n = n + 1"),
    ("a loop that ends", "for i = 1, 1e6 do n = n + i end"),
    ("a long copy", "ffi.copy(memory, memory + HALF, HALF)"),
    ("a long move", "C.memmove(memory + 1, memory, HALF)"),
    ("a long fill", "ffi.fill(memory, HALF, n)"),
    ("a long comparison", "n = n + C.memcmp(memory, memory, HALF)"),
    ("a long search", "C.memchr(memory, 77, HALF)"),
    ("short copies", "ffi.copy(memory, memory + 64, 40)"),
    ("a string of C", "n = n + tonumber(C.strlen('abc'))"),
    ("printf", "C.snprintf(memory, 64ULL, '%d %s', ffi.cast('int', n), 'abc')"),
    ("malloc", "C.free(C.malloc(100))"),
    ("much malloc", "C.free(C.malloc(2^26))"),
    ("sleeping", "C.usleep(1000000)"),
    ("sleeping briefly", "C.usleep(10)"),
    ("waiting for a pipe", "C.poll(nil, 0ULL, -1)"),
    ("a system call", "C.getppid()"),
    ("a clock", "n = n + os.clock()"),
    ("errors", "pcall(error, 'again')"),
    ("errors with a handler", "xpcall(error, function () n = n + 1 end)"),
    ("errors of C data", "pcall(function () return memory.nothing end)"),
    ("coroutines", "coroutine.wrap(function () coroutine.yield(1) end)()"),
    ("tables", "t = { t = { 'x'..n } } n = n + 1"),
    ("garbage", "collectgarbage()"),
    ("long strings", "n = #('x'):rep(2^20)"),
    ("patterns", "n = n + #(('a'):rep(50):gsub('a*a*b', ''))"),
    ("a pattern that never ends", "(('a'):rep(40)):find(('a*'):rep(20)..'b')"),
    ("sorting", "local s = {} for i = 1, 1000 do s[i] = i * 7919 % 1009 end table.sort(s)"),
    ("formats", "n = #string.format('%g %s', n, 'abc')"),
    ("a file", "local f = io.open('/proc/self/stat') f:read('*a') f:close()"),
    ("publishing", "hook.publish('name', { n = n })"),
    ("reading what is published", "hook.publish('name', n) n = hook.shared('name')"),
    ("looking up routes", "n = n + burst.route4(0x08080808)"),
];

/// What the place is inside of; `%` stands for it.
const WAYS: [&str; 7] = [
    "while true do % end",
    "while true do pcall(function () % end) end",
    "while true do pcall(function () while true do % end end) end",
    "local function again () % return again() end again()",
    "coroutine.wrap(function () while true do % end end)()",
    "for i = 1, 1e300 do % end",
    "xpcall(function () error('x') end, function () while true do % end end)",
];

/// Xorshift.
struct Choice(u64);

impl Choice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }
}

fn text(place: &str, way: &str, interpreted: bool) -> String {
    let (jit, body) = (if interpreted { "jit.off()" } else { "" }, way.replace('%', place));
    format!(
        "{jit}
        local hook, ffi = require('brickmoon.hook'), require('ffi')
        local C, HALF = ffi.C, 2^23
        ffi.cdef[[
           void *memmove (void *, const void *, size_t); int memcmp (const void *, const void *, size_t);
           void *memchr (const void *, int, size_t); size_t strlen (const char *);
           int snprintf (char *, size_t, const char *, ...); void *malloc (size_t); void free (void *);
           int usleep (unsigned); int poll (void *, unsigned long, int); int getppid (void);
        ]]
        local memory = hook.memory('memory', 'char', 2 * HALF + 8)
        return function (burst) local n, t = 0 {body} end"
    )
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Sends a packet to a version that hangs; returns how long it did.
fn hang(rig: &mut Rig, what: &str) -> Duration {
    let set = rig.set.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let supervisor = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(20)).is_err() {
            drop(set.supervise(OnHang::Interrupt));
        }
    });
    let begin = Instant::now();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence(), "{what}: the earlier version drops the packet");
    let lasted = begin.elapsed();
    stop.send(()).unwrap();
    supervisor.join().unwrap();
    lasted
}

#[test]
fn hooks_that_hang_anywhere_are_interrupted() {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("BM_SEED").unwrap_or(clock.as_nanos() as u64 | 1);
    let seconds = Duration::from_secs(number("BM_HANG_SECONDS").unwrap_or(20));
    println!("BM_SEED={seed}");
    let (mut choice, begin) = (Choice(seed.max(1)), Instant::now());
    let mut slowest = (Duration::ZERO, String::new());
    let mut rounds = 0;
    while begin.elapsed() < seconds || rounds < PLACES.len() {
        // Every place once, and then any.
        let at = if rounds < PLACES.len() {
            (rounds + seed as usize) % PLACES.len()
        } else {
            choice.below(PLACES.len())
        };
        let (name, place) = PLACES[at];
        let (way, interpreted) = (WAYS[choice.below(WAYS.len())], choice.below(3) == 0);
        let stage = [Stage::Ingress, Stage::Lookup, Stage::Egress][choice.below(3)];
        let what = format!("BM_SEED={seed}: {name} in `{way}` at {} ({interpreted})", stage.name());
        let before = "local hook = require('brickmoon.hook')
            hook.reason('before')
            return function (burst) for i in burst.each() do burst.drop(i, 'before') end end";
        let mut rig = Rig::with(|spec| HookSpec { stage: Some(stage), ..spec }, before);
        rig.reload(&text(place, way, interpreted)).unwrap_or_else(|why| panic!("{what}: {why}"));
        let lasted = hang(&mut rig, &what);
        let report = rig.report();
        assert_eq!((report.health, report.running), (Health::Hung, Some(1)), "{what}: {:?}", report.error);
        assert!(lasted < FREED_WITHIN, "{what}: {lasted:?}");
        assert!(rig.lab.exchange(LEFT, &IN).is_silence(), "{what}");
        assert_eq!((rig.count("hangs"), rig.count("drop/before")), (1, 2), "{what}");
        slowest = slowest.max((lasted, what));
        rounds += 1;
    }
    println!("{rounds} hooks hung; the slowest for {:?}: {}", slowest.0, slowest.1);
}
