//! A running capture: the attached programs, the packets from them, and the names of interfaces and programs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bm_capture::{CaptureError, Join, Options, Outcome, Packet, Port, Taps};
use bm_cli::Failure;
use bm_daemon::log;
use bm_port_xdp::STEER_COUNTERS;
use rustix::time::{ClockId, clock_gettime};

/// The program that steers packets to workers.
pub const STEER: &str = "steer";
/// How long to wait for packets at a time.
const WAIT: Duration = Duration::from_millis(100);
/// How often to look for new programs of the ports.
const FOLLOW: Duration = Duration::from_secs(1);

/// The programs that show packets, attached until this is dropped.
pub struct Session {
    taps: Taps,
    join: Join,
    ports: Vec<Port>,
    followed: Instant,
    is_cut_off: bool,
    /// The time since 1970 at which the clock of packets began.
    begin_ns: u64,
    /// Names of interfaces that packets have mentioned.
    names: HashMap<u32, String>,
}

impl Session {
    /// Attaches to the ports.
    pub fn start(options: Options, ports: Vec<Port>) -> Result<Self, Failure> {
        bm_lua::end_on_signals().map_err(Failure::failed)?;
        let names = ports.iter().map(|port| (port.ifindex, port.name.clone())).collect();
        let taps = Taps::attach(options, ports.clone()).map_err(Failure::failed)?;
        let all: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        log::say(&format!("showing packets at {}; ^C ends it", all.join(", ")));
        let (join, followed) = (Join::default(), Instant::now());
        Ok(Self { taps, join, ports, followed, is_cut_off: false, begin_ns: since_1970(), names })
    }

    /// Names and indices of the ports.
    pub fn names(&self) -> Vec<(u32, String)> {
        self.ports.iter().map(|port| (port.ifindex, port.name.clone())).collect()
    }

    /// Waits for packets; returns none if none came within a tenth of a second.
    pub fn next(&mut self) -> Result<Vec<Packet>, Failure> {
        if self.followed.elapsed() > FOLLOW {
            self.followed = Instant::now();
            self.begin_ns = since_1970();
            self.follow();
        }
        let records = self.taps.poll(WAIT).map_err(Failure::failed)?;
        let mut packets = self.join.packets(records, nanoseconds(ClockId::Monotonic));
        packets.retain(|packet| !is_seen_again(self, packet));
        for packet in &packets {
            self.look_up(packet.ifindex);
            target(packet).into_iter().for_each(|to| self.look_up(to));
        }
        Ok(packets)
    }

    /// Attaches to programs that ports have got since. A daemon that ends is no error: another one may start.
    fn follow(&mut self) {
        match self.taps.follow() {
            Ok(()) => self.is_cut_off = false,
            Err(error) if !self.is_cut_off => {
                self.is_cut_off = true;
                let hint = match error {
                    CaptureError::NoProgram { .. } => "; the capture goes on when a daemon has started",
                    _ => "",
                };
                log::say(&format!("{error}{hint}"));
            }
            Err(_) => {}
        }
    }

    /// Looks up the name of an interface, if it is not known yet.
    fn look_up(&mut self, ifindex: u32) {
        let name = self.names.entry(ifindex);
        name.or_insert_with(|| {
            bm_sys::interface::name(ifindex).unwrap_or_else(|_| format!("interface {ifindex}"))
        });
    }

    /// The name of an interface that a packet mentions.
    pub fn name(&self, ifindex: u32) -> &str {
        self.names.get(&ifindex).map_or("?", String::as_str)
    }

    /// The name of the program that received a packet.
    pub fn program(&self, packet: &Packet) -> &str {
        self.taps.program(packet.ifindex).unwrap_or_default()
    }

    /// The time of a packet since 1970.
    pub fn time(&self, packet: &Packet) -> u64 {
        self.begin_ns + packet.time_ns
    }

    /// Records that were lost because the buffer was full.
    pub fn lost(&self) -> u64 {
        self.taps.lost()
    }
}

/// Now, since 1970.
pub fn now() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// Now, by the clock of packets.
pub fn clock_of_packets() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The difference between the clock since 1970 and the one that starts with the machine.
fn since_1970() -> u64 {
    nanoseconds(ClockId::Realtime).saturating_sub(nanoseconds(ClockId::Monotonic))
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The interface that a packet was redirected to.
pub fn target(packet: &Packet) -> Option<u32> {
    match packet.outcome {
        Outcome::Decided { to, .. } => to,
        _ => None,
    }
}

/// Whether a worker hands a packet back to Linux, so that it passes the program a second time.
fn is_seen_again(session: &Session, packet: &Packet) -> bool {
    session.program(packet) == STEER && counter_of(packet, &STEER_COUNTERS) == Some("delivered")
}

/// The name of the counter by which a program has counted a packet.
pub fn counter_of<'a>(packet: &Packet, names: &[&'a str]) -> Option<&'a str> {
    match packet.outcome {
        Outcome::Decided { counter: Some(counter), .. } => names.get(usize::from(counter)).copied(),
        _ => None,
    }
}
