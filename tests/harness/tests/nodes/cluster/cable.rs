//! A cable between two nodes that somebody has: it records, repeats, changes, delays and loses frames, in one direction or in
//! both, while addresses come and go and daemons are restarted.
//!
//! `BM_SEED` repeats a run, `BM_CABLE_SECONDS` makes it longer than 20 s.

use crate::cluster::mesh::{Mesh, NODES, link};
use bm_tests::daemon::{Daemon, eventually};
use bm_tests::netns::Namespace;
use bm_tests::rulesets::Random;
use bm_tests::sys::{self, PacketSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The nodes at both ends.
const ENDS: [usize; 2] = [0, 3];
/// EtherType of messages between nodes.
const MESSAGE: [u8; 2] = [0x88, 0xb5];
/// Recorded frames; then each new one takes the place of an old one.
const RECORDED: usize = 4000;
const BURST: usize = 12;
const PAUSE: Duration = Duration::from_millis(4);

/// What the cable does to frames from each end.
#[derive(Clone, Copy, Default)]
struct Treatment {
    loses_messages: [bool; 2],
    delay: [Duration; 2],
}

struct Cable {
    treatment: Arc<Mutex<Treatment>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _between: Namespace,
}

impl Cable {
    /// Puts itself between the two nodes.
    fn new(mesh: &Mesh, seed: u64) -> Self {
        let between = Namespace::new("cl-cable", "x");
        let [(near, near_link), (far, far_link)] =
            [(0, 1), (1, 0)].map(|(end, other)| (&mesh.routers[ENDS[end]], format!("fab{}", ENDS[other])));
        near.ip(&format!("link del {near_link}\n"));
        for (router, name, end) in [(near, &near_link, "x0"), (far, &far_link, "x1")] {
            router.ip(&format!("link add {name} up type veth peer name {end} netns {}\n", between.name()));
            between.ip(&format!("link set {end} up\n"));
            between.run(&format!("ethtool -K {end} gro on tx off"));
        }
        let sockets = ["x0", "x1"].map(|end| between.packet_socket(end));
        let (treatment, stop) = (Arc::<Mutex<Treatment>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (treatment, stop) = (Arc::clone(&treatment), Arc::clone(&stop));
            std::thread::spawn(move || carry(&sockets, &treatment, &stop, Random::from_seed(seed)))
        };
        Self { treatment, stop, thread: Some(thread), _between: between }
    }

    fn treat(&self, change: impl FnOnce(&mut Treatment)) {
        change(&mut self.treatment.lock().unwrap());
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn carry(sockets: &[PacketSocket; 2], treatment: &Mutex<Treatment>, stop: &AtomicBool, mut random: Random) {
    let mut recorded: [Vec<Vec<u8>>; 2] = Default::default();
    let mut delayed: Vec<(Instant, usize, Vec<u8>)> = Vec::new();
    let mut attack = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let _timed_out = sys::wait_readable(&[&sockets[0], &sockets[1]], PAUSE);
        let now = Treatment::clone(&treatment.lock().unwrap());
        for from in 0..2 {
            while let Ok(Some(captured)) = sockets[from].receive() {
                let frame = captured.frame;
                let is_message = frame.get(12..14) == Some(&MESSAGE);
                if is_message {
                    record(&mut recorded[from], &frame, &mut random);
                }
                if is_message && now.loses_messages[from] {
                    continue;
                }
                delayed.push((Instant::now() + now.delay[from], from, frame));
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = delayed.drain(..).partition(|(at, ..)| *at <= Instant::now());
        delayed = later;
        for (_, from, frame) in due {
            let _full = sockets[1 - from].send(&frame);
        }
        if attack.elapsed() >= PAUSE {
            attack = Instant::now();
            repeat(sockets, &recorded, &mut random);
        }
    }
}

fn record(recorded: &mut Vec<Vec<u8>>, frame: &[u8], random: &mut Random) {
    if recorded.len() < RECORDED {
        recorded.push(frame.to_vec());
    } else {
        recorded[random.below(RECORDED)] = frame.to_vec();
    }
}

/// Sends some recorded messages again, and some of them with other bits.
fn repeat(sockets: &[PacketSocket; 2], recorded: &[Vec<Vec<u8>>; 2], random: &mut Random) {
    for _ in 0..random.below(BURST) {
        let from = random.below(2);
        if recorded[from].is_empty() {
            continue;
        }
        let mut frame = recorded[from][random.below(recorded[from].len())].clone();
        if random.below(4) == 0 {
            let at = 14 + random.below(frame.len() - 14);
            frame[at] ^= 1 << random.below(8);
        }
        // To the other end, or back to the one that has sent it.
        let to = if random.below(8) == 0 { from } else { 1 - from };
        let _full = sockets[to].send(&frame);
    }
}

/// What happens meanwhile.
struct Story<'m> {
    mesh: &'m Mesh,
    cable: Cable,
    daemons: Vec<Option<Daemon<'m>>>,
    random: Random,
    /// Prefixes at the far end now, and those that were.
    prefixes: Vec<u64>,
    gone: Vec<u64>,
    last: u64,
}

impl Story<'_> {
    fn has(&self, prefix: u64) -> bool {
        !self.mesh.routers[ENDS[0]].run(&format!("ip route show 10.9.{prefix}.0/24")).is_empty()
    }

    fn set(&self, prefix: u64, what: &str) {
        self.mesh.routers[ENDS[1]].ip(&format!("addr {what} 10.9.{prefix}.1/24 dev ext0\n"));
    }

    fn nothing_returns(&self) {
        for prefix in &self.gone {
            assert!(!self.has(*prefix), "10.9.{prefix}.0/24 is back: an old announcement was accepted");
        }
    }

    /// As soon as messages arrive, the near end has what the far end has, whatever is repeated.
    fn all_is_known(&self) {
        self.cable.treat(|treatment| *treatment = Treatment::default());
        eventually("the near end has all prefixes", || {
            self.nothing_returns();
            self.prefixes.iter().all(|prefix| self.has(*prefix))
        });
    }

    fn step(&mut self) {
        let (end, ms) = (self.random.below(2), Duration::from_millis(self.random.below(800) as u64));
        match self.random.below(7) {
            0 | 1 => {
                self.last += 1;
                self.set(self.last, "add");
                self.prefixes.push(self.last);
                self.all_is_known();
            }
            2 if !self.prefixes.is_empty() => {
                let prefix = self.prefixes.remove(self.random.below(self.prefixes.len()));
                self.set(prefix, "del");
                self.cable.treat(|treatment| *treatment = Treatment::default());
                eventually("the near end has lost the prefix", || !self.has(prefix));
                self.gone.push(prefix);
            }
            3 => {
                let node = ENDS[end];
                self.daemons[node].take().unwrap().kill();
                self.daemons[node] = self.mesh.start(node, "key", 7);
            }
            4 => self.cable.treat(|treatment| treatment.loses_messages[end] = true),
            5 => self.cable.treat(|treatment| treatment.delay[end] = ms / 40),
            _ => self.cable.treat(|treatment| *treatment = Treatment::default()),
        }
        let until = Instant::now() + ms;
        while Instant::now() < until {
            self.nothing_returns();
            std::thread::sleep(PAUSE * 10);
        }
    }
}

#[test]
fn a_cable_brings_nothing_back_and_keeps_nothing_away() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("BM_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let time = Duration::from_secs(number("BM_CABLE_SECONDS").unwrap_or(20));
    println!("BM_SEED={seed}");
    let Some(mesh) = Mesh::new("cl-cable") else { return };
    let cable = Cable::new(&mesh, seed);
    let Some(daemons) = (0..NODES).map(|n| mesh.start(n, "key", 7).map(Some)).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let random = Random::from_seed(seed);
    let (prefixes, gone) = (Vec::new(), Vec::new());
    let mut story = Story { mesh: &mesh, cable, daemons, random, prefixes, gone, last: 0 };
    story.set(0, "add");
    story.prefixes.push(0);
    story.all_is_known();
    // At least one prefix is gone, and the daemon that announced it as well.
    story.set(0, "del");
    story.prefixes.clear();
    eventually("the near end has lost the prefix", || !story.has(0));
    story.gone.push(0);
    story.daemons[ENDS[1]].take().unwrap().kill();
    story.daemons[ENDS[1]] = mesh.start(ENDS[1], "key", 7);
    let begin = Instant::now();
    while begin.elapsed() < time {
        story.step();
    }
    story.all_is_known();
    eventually("both ends find each other up, and nothing wrong", || {
        ENDS.iter().zip(ENDS.iter().rev()).all(|(end, other)| {
            let node = story.daemons[*end].as_ref().unwrap().ask(&["show", "cluster"]);
            let link = link(&node, &format!("fab{other}"));
            link["state"] == "up" && link["trouble"].is_null()
        })
    });
    // A node is drained and joins again, while the cable goes on.
    for (command, drained) in [("drain", true), ("join", false)] {
        story.daemons[ENDS[1]].as_ref().unwrap().ask(&["cluster", command]);
        eventually(command, || {
            let node = story.daemons[ENDS[0]].as_ref().unwrap().ask(&["show", "cluster"]);
            link(&node, "fab3")["drained"] == drained
        });
    }
    println!("{} prefixes came, {} of them went", story.last + 1, story.gone.len());
    story.daemons.into_iter().flatten().for_each(Daemon::stop);
}
