//! Labs side by side, one for each subject: built in the same way, changed by the same commands, and sent the same frames
//! at the same time.

use crate::model::compare;
use crate::model::filters;
use crate::model::probes::Probe;
use crate::model::step::{Place, Step, Tool};
use bm_tests::PATIENCE;
use bm_tests::command::finish;
use bm_tests::counters::Counters;
use bm_tests::exchange::Seen;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::netlink::Requests;
use bm_tests::netns::Namespace;
use bm_tests::reassembly;
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{self, PacketSocket};
use std::fmt::Write;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A capture is complete, for the time being, when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(25);
/// Between two rounds of a stream.
const PAUSE: Duration = Duration::from_micros(500);
/// A port that no step touches. Its neighbor changes after each step, and the kernel announces changes in order.
const MARKER: [&str; 2] = ["m0", "m1"];
const MARKED: &str = "192.0.2.250";

/// What of Linux depends on time is switched off, beside the settings of every lab: entries of neighbors do not age, and
/// resolution fails at once; nothing is delayed by chance.
const CALM: [(&str, &str); 8] = [
    ("base_reachable_time_ms", "3600000"),
    ("delay_first_probe_time", "3600"),
    ("gc_stale_time", "3600"),
    ("mcast_solicit", "1"),
    ("ucast_solicit", "1"),
    ("retrans_time_ms", "10"),
    ("proxy_delay", "0"),
    ("locktime", "0"),
];

/// What a state consists of.
const LINUX: [&str; 9] = [
    "ip addr",
    "ip -4 rule",
    "ip -6 rule",
    "ip nexthop",
    "ip -4 route show table all",
    "ip -6 route show table all",
    "ip neigh",
    "nft list ruleset",
    "ip xfrm policy",
];
const DAEMON: [&[&str]; 6] = [
    &["status"],
    &["show", "ports"],
    &["show", "routes"],
    &["show", "nexthops"],
    &["show", "neighbors"],
    &["show", "drops"],
];

/// One of the routers.
pub struct Bed<'a> {
    pub lab: &'a Lab,
    pub router: Router<'a>,
    pub subject: &'a Subject,
    sockets: [(u32, PacketSocket); 3],
    marker: Requests,
    marks: u32,
    /// What Linux has reassembled and fragmented before the last exchange.
    counted: [u64; 6],
    /// Linux's counters before the last exchange.
    counters: Counters,
    /// The filters, in the words of their step.
    filters: String,
}

/// A step that was taken while packets passed.
pub struct Taken {
    /// Linux's messages.
    pub message: String,
    pub sent: u64,
    pub seen: Vec<Seen>,
}

/// Builds a lab for each subject, starts all routers, and runs `action`.
pub fn with<T>(subjects: &[Subject], action: impl FnOnce(&mut [Bed]) -> T) -> T {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let built: Vec<Lab> = std::thread::scope(|scope| {
        let build = |subject: &Subject| {
            let name = format!("m{number}-{subject}");
            scope.spawn(move || build(&name))
        };
        let threads: Vec<_> = subjects.iter().map(build).collect();
        threads.into_iter().map(join).collect()
    });
    let mut beds: Vec<Bed> = std::thread::scope(|scope| {
        let start = |(lab, subject)| scope.spawn(move || Bed::start(lab, subject));
        let threads: Vec<_> = built.iter().zip(subjects).map(start).collect();
        threads.into_iter().map(join).collect()
    });
    action(&mut beds)
}

/// Does something with all of them at the same time.
pub fn each<'a, T: Send>(beds: &mut [Bed<'a>], action: impl Fn(&mut Bed<'a>) -> T + Sync) -> Vec<T> {
    let action = &action;
    std::thread::scope(|scope| {
        let threads: Vec<_> = beds.iter_mut().map(|bed| scope.spawn(move || action(bed))).collect();
        threads.into_iter().map(join).collect()
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn build(name: &str) -> Lab {
    let lab = Lab::new(name, Ends::Silent);
    let [port, end] = MARKER;
    lab.rtr.ip(&format!(
        "link add {port} type veth peer name {end} netns {}\nlink set {port} addrgenmode none\nlink set {port} up\n",
        lab.snk.name()
    ));
    lab.snk.ip(&format!("link set {end} up\n"));
    lab.snk.run(&format!("ethtool -K {end} gro on"));
    for side in SIDES {
        let refused = set(&lab.rtr, &calm(side));
        assert!(refused.is_empty(), "{refused}");
    }
    lab
}

/// [`CALM`] for a port, as lines of [`Tool::Set`].
pub fn calm(side: Side) -> String {
    let mut lines = String::new();
    for family in ["ipv4", "ipv6"] {
        // IPv6 has no lock time.
        for (name, value) in CALM.iter().filter(|(name, _)| family == "ipv4" || *name != "locktime") {
            lines += &format!("net/{family}/neigh/{}/{name} {value}\n", side.router());
        }
    }
    lines.trim_end().to_owned()
}

impl<'a> Bed<'a> {
    fn start(lab: &'a Lab, subject: &'a Subject) -> Self {
        let ports: Vec<_> = SIDES.iter().map(|side| side.router()).chain([MARKER[0]]).collect();
        let router = subject.start_with(lab, &ports, &filters::config(""));
        let sockets = SIDES.map(|side| open(lab, side).expect("the lab's own links are there"));
        let marker = Requests::about(&lab.rtr, MARKER[0]);
        Self {
            lab,
            router,
            subject,
            sockets,
            marker,
            marks: 0,
            counted: [0; 6],
            counters: Counters::default(),
            filters: String::new(),
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        self.subject.to_string()
    }

    /// Makes a change, and waits until the daemon has read what the kernel announces; returns Linux's messages about it.
    pub fn take(&mut self, step: &Step) -> Result<String, String> {
        if step.tool == Tool::Filter {
            self.filters.clone_from(&step.text);
        }
        let message = self.make(step);
        if !self.router.is_brickmoon() && (step.tool == Tool::Filter || !self.filters.is_empty()) {
            self.filter_by_linux();
        }
        for (side, socket) in SIDES.into_iter().zip(&mut self.sockets) {
            let index = host_index(self.lab, side).unwrap_or(socket.0);
            if index != socket.0 {
                *socket = open(self.lab, side).unwrap_or_else(|| panic!("{side:?}: the link is gone again"));
            }
        }
        self.in_step()?;
        Ok(message)
    }

    /// Takes a step while packets are sent again and again; also returns what comes of them. The step must leave the
    /// links as they are.
    pub fn take_during(&mut self, step: &Step, probes: &[Probe], token: [u8; 4]) -> Result<Taken, String> {
        self.discard();
        let is_over = AtomicBool::new(false);
        let (message, sent) = std::thread::scope(|scope| {
            let (sockets, is_over) = (self.sockets.each_ref().map(|(_, socket)| socket), &is_over);
            let stream = move || {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    for (side, frame) in probes {
                        sent += u64::from(sockets[*side as usize].send(frame).is_ok());
                    }
                    std::thread::sleep(PAUSE);
                }
                sent
            };
            let stream = scope.spawn(stream);
            let message = self.make(step);
            let lags = mark(&mut self.marker, &mut self.marks, &self.router);
            is_over.store(true, Ordering::Relaxed);
            (lags.map(|()| message), join(stream))
        });
        let mut seen = Vec::new();
        while self.listen(QUIET, token, &mut seen) {}
        Ok(Taken { message: message?, sent, seen })
    }

    fn make(&self, step: &Step) -> String {
        let lines = step.lines(self.lab);
        let place = match step.place {
            Place::Router => &self.lab.rtr,
            Place::Source => &self.lab.src,
            Place::Sink => &self.lab.snk,
        };
        let message = match step.tool {
            Tool::Ip => feed(place, &["ip", "-force", "-batch", "-"], &lines),
            Tool::Ip6 => feed(place, &["ip", "-6", "-force", "-batch", "-"], &lines),
            Tool::Tc => feed(place, &["tc", "-force", "-batch", "-"], &lines),
            Tool::Nft => feed(place, &["nft", "-f", "-"], &lines),
            Tool::Set => set(place, &lines),
            Tool::Filter => self.reload(),
            Tool::Verify => self.verify(),
        };
        message.replace(self.lab.rtr.name(), "@rtr").replace(self.lab.snk.name(), "@snk")
    }

    /// Why brickmoon refuses its filters.
    fn reload(&self) -> String {
        let Some(output) = self.router.reload_with(&filters::config(&self.filters)) else {
            return String::new();
        };
        if output.status.success() { String::new() } else { String::from_utf8_lossy(&output.stderr).into() }
    }

    /// Puts the filters of Linux alone in their place again: they are gone with a ruleset that is flushed, and on older
    /// kernels with their interface.
    fn filter_by_linux(&self) {
        for side in SIDES {
            let port = side.router();
            let _none = feed(
                &self.lab.rtr,
                &["nft", "-f", "-"],
                &format!("delete table netdev {}", filters::table(port)),
            );
            if self.filters.is_empty() || self.lab.rtr.within(|| sys::interface_index(port).is_err()) {
                continue;
            }
            let refused = feed(&self.lab.rtr, &["nft", "-f", "-"], &filters::ruleset(&self.filters, port));
            assert!(refused.is_empty(), "{refused}");
        }
    }

    /// The differences that brickmoon itself finds between its tables and Linux's.
    fn verify(&self) -> String {
        let Some(output) = self.router.ask("verify", &[]) else { return String::new() };
        if output.status.success() {
            String::new()
        } else {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
    }

    /// Waits until the daemon has read all messages of the kernel so far; says so if that takes longer than
    /// [`PATIENCE`].
    fn in_step(&mut self) -> Result<(), String> {
        mark(&mut self.marker, &mut self.marks, &self.router)
    }

    fn discard(&self) {
        for (_, socket) in &self.sockets {
            // A link that is down is an error once.
            while !matches!(socket.receive(), Ok(None)) {}
        }
    }

    /// Sends all frames and returns what comes of them until nothing has come for a while.
    pub fn exchange(&mut self, probes: &[Probe], token: [u8; 4]) -> Vec<Seen> {
        self.counted = reassembly::counted(&self.lab.rtr);
        self.counters = Counters::read(self.lab);
        let _earlier = self.overflowed();
        self.discard();
        for (side, frame) in probes {
            // A link that is down, or shorter than a frame, refuses it.
            let _refused = self.sockets[*side as usize].1.send(frame);
        }
        let mut seen = Vec::new();
        while self.listen(QUIET, token, &mut seen) {}
        seen
    }

    /// Adds what has come, or comes within this time; `false` if nothing does.
    pub fn listen(&self, time: Duration, token: [u8; 4], seen: &mut Vec<Seen>) -> bool {
        let sockets = self.sockets.each_ref().map(|(_, socket)| socket);
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            sys::wait_readable(&sockets, left).expect("poll works on open sockets");
            let mut came = false;
            for (side, socket) in SIDES.into_iter().zip(sockets) {
                while let Ok(Some(captured)) = socket.receive() {
                    if compare::is_of_round(&captured.frame, token) {
                        came = true;
                        seen.push(Seen { side, frame: compare::comparable(captured.frame) });
                    }
                }
            }
            if came || left.is_zero() {
                return came;
            }
        }
    }

    /// Writes what Linux and the daemon know into a file beside the scripts.
    pub fn write_state(&self, seed: u64) {
        let Some(folder) = std::env::var_os("BM_MODEL_SCRIPTS") else { return };
        let mut text = String::new();
        for what in LINUX {
            let output = self.lab.rtr.try_run(what).stdout;
            text += &format!("# {what}\n{}", String::from_utf8_lossy(&output));
        }
        for what in DAEMON {
            let output = self.router.ask(what[0], &what[1..]).map(|output| output.stdout).unwrap_or_default();
            text += &format!("# brickmoon {}\n{}", what.join(" "), String::from_utf8_lossy(&output));
        }
        text += &self.router.log();
        let file = std::path::Path::new(&folder).join(format!("model-{seed}-{}.txt", self.name()));
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&file, text))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Frames that this machine has lost since the last exchange began: between this router and the test, or in the backlog
    /// of a processor, which all labs share.
    pub fn lost(&self) -> u64 {
        self.overflowed() + Counters::read(self.lab).lost_since(&self.counters)
    }

    /// Frames that the test's sockets had no room for since the last call.
    fn overflowed(&self) -> u64 {
        self.sockets.iter().map(|(_, socket)| u64::from(socket.overflowed().unwrap_or_default())).sum()
    }

    /// Whether Linux has failed to send an ICMP error or reply since the last exchange began.
    pub fn has_failed_to_tell(&self) -> bool {
        Counters::read(self.lab).failed_to_send_icmp_since(&self.counters)
    }

    /// Linux's counters that have grown otherwise here than in the other lab since the last exchange began, as
    /// `name here/there`.
    pub fn counters_beside(&self, other: &Self) -> String {
        let (here, there) = (Counters::read(self.lab), Counters::read(other.lab));
        let of_other = there.grown_since(&other.counters);
        let mut text = String::new();
        for (name, grown) in here.grown_since(&self.counters) {
            let beside = of_other.get(name).copied().unwrap_or_default();
            if grown != beside {
                let _ = write!(text, " {name} {grown}/{beside}");
            }
        }
        text
    }

    /// Whether Linux has reassembled or fragmented something since the last exchange began.
    pub fn has_reassembled(&self) -> bool {
        reassembly::counted(&self.lab.rtr) != self.counted
    }
}

/// Changes the marker's neighbor and waits until the daemon has it.
fn mark(marker: &mut Requests, marks: &mut u32, router: &Router) -> Result<(), String> {
    if !router.is_brickmoon() {
        return Ok(());
    }
    *marks += 1;
    let [.., a, b, c] = marks.to_be_bytes();
    let mac = [2, 0xb3, 0x7e, a, b, c];
    marker.replace_neighbor(MARKED.parse::<IpAddr>().expect("an address"), mac);
    if let (_, Some(error)) = marker.finish() {
        return Err(format!("the marker's neighbor: {error}"));
    }
    let wanted = bm_wire::Mac(mac).to_string();
    let begin = Instant::now();
    while !router.get("/v1/neighbors").is_some_and(|reply| reply.contains(&wanted)) {
        if begin.elapsed() > PATIENCE {
            return Err(format!("has not read what the kernel announced {PATIENCE:?} ago\n{}", router.log()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn host_index(lab: &Lab, side: Side) -> Option<u32> {
    lab.host(side).within(|| sys::interface_index(side.host()).ok())
}

fn open(lab: &Lab, side: Side) -> Option<(u32, PacketSocket)> {
    let index = host_index(lab, side)?;
    lab.host(side).within(|| PacketSocket::open(index).ok()).map(|socket| (index, socket))
}

/// The messages of a command that reads these lines.
fn feed(place: &Namespace, words: &[&str], lines: &str) -> String {
    let mut command = place.command(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let output = finish(words[0], child, format!("{lines}\n").as_bytes(), PATIENCE);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes settings; returns the errors.
fn set(place: &Namespace, lines: &str) -> String {
    let write = |line: &str| {
        let (path, value) = line.split_once(' ')?;
        let path = format!("/proc/sys/{path}");
        std::fs::write(&path, value).err().map(|error| format!("{path} failed: {error}\n"))
    };
    place.within(|| lines.lines().filter_map(write).collect())
}
