//! A sender of few packets at exact times, like a host, to find the gap when a router dies.
//!
//! The generator spins; this one sleeps between packets, so it takes no CPU time from a daemon that restarts on
//! the same machine.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, SendFlags, SocketFlags};
use rustix::thread::{clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{Stream, layout};
use crate::testbed::{Testbed, TestbedError, cores};

/// Real-time priority of the sender.
const PRIORITY: i32 = 20;

/// A running sender, ended on drop.
pub struct Paced {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<PacedSent>>>,
}

/// What was sent, and how evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacedSent {
    pub packets: u64,
    /// Time from the first to the last packet.
    pub time: Duration,
    /// The longest time between two packets: a gap at the sink that is not much longer is not the router's.
    pub gap_max: Duration,
}

impl Paced {
    /// Begins to send a stream, which must have a rate, from the source of a test bed; returns once it sends.
    pub fn start(testbed: &Testbed, stream: &Stream) -> Result<Self, TestbedError> {
        let index = testbed.source.index(&testbed.interfaces.source)?;
        let rate = stream.rate.expect("a paced stream has a rate");
        let stop = Arc::new(AtomicBool::new(false));
        let (namespace, stream, stopped) = (testbed.source.handle()?, stream.clone(), stop.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("paced".into()).spawn(move || {
            namespace.join_this_thread()?;
            // Pinning waits for all cores, which may take long on a busy machine.
            let socket = packet_socket(index)?;
            wake_exactly()?;
            let _ = ready.send(());
            send_all(&socket, &stream, Duration::from_secs_f64(1.0 / rate), &stopped)
        });
        let thread = thread.map_err(TestbedError::system("start the paced sender's thread"))?;
        // An error means that the thread has ended: `stop` reports why.
        let _ = is_ready.recv();
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<PacedSent, TestbedError> {
        self.end().map_err(TestbedError::system("send paced packets"))
    }

    fn end(&mut self) -> io::Result<PacedSent> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(PacedSent::default()) };
        thread.join().map_err(|_| io::Error::other("the thread panicked"))?
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn send_all(
    socket: &OwnedFd,
    stream: &Stream,
    interval: Duration,
    stop: &AtomicBool,
) -> io::Result<PacedSent> {
    let began = monotonic();
    let (mut sent, mut due, mut last) = (PacedSent::default(), began, began);
    while !stop.load(Ordering::Relaxed) {
        let now = monotonic();
        if now < due {
            sleep_until(due);
            continue;
        }
        // A sender that was delayed sends the missing packets at once, but at most those of 20 ms.
        due = (due + interval).max(now.saturating_sub(Duration::from_millis(20)));
        let frame = layout::frame(stream, sent.packets as u32, now.as_nanos() as u64);
        send(socket, &frame)?;
        sent.gap_max = sent.gap_max.max(now.saturating_sub(last));
        sent.packets += 1;
        sent.time = now - began;
        last = now;
    }
    Ok(sent)
}

/// The clock that BPF programs read as well.
pub fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(super) fn sleep_until(due: Duration) {
    let time = Timespec { tv_sec: due.as_secs() as _, tv_nsec: due.subsec_nanos().into() };
    let _woken_early = clock_nanosleep_absolute(ClockId::Monotonic, &time);
}

/// Timers of ordinary threads may be 50 us late, and on a busy machine such a thread may wait for milliseconds; not
/// this one, which uses little CPU time.
fn wake_exactly() -> io::Result<()> {
    set_current_timer_slack(Some(NonZero::<u64>::MIN))?;
    cores::prioritise(0, PRIORITY)
}

/// A socket that sends whole frames through one interface, given by its number, and receives none.
///
/// # Errors
/// The system's error.
pub fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    bm_sys::packet_socket(index, 0, SocketFlags::empty())
}

/// Sends a frame. If the interface has no room it is lost, as on a wire.
fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    match net::send(socket, frame, SendFlags::empty()) {
        Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
