//! The process that watches the kernel path's tables after the daemon has ended.
//!
//! ```text
//! daemon ──► its netlink socket, the map `views` ──► watcher (brickmoon watch-tables)
//!            a stream that ends with the daemon ──►     │ sleeps until then
//!                                                       ▼
//!                      the first change in Linux: the lease ends, Linux forwards
//! ```
//!
//! The kernel path forwards only while it has a short lease. The daemon renews it while it runs; after its end this
//! process does, until the first change or the end of the grace time. If this process is killed as well, the lease ends.
//!
//! It is the same program, started by the daemon in a session of its own, so that it outlives the daemon. While the
//! daemon runs it reads no routes: the socket is the daemon's, and messages that the daemon has not read when it ends are
//! still there. In doubt (the daemon was in the middle of a change, messages were lost, an error, SIGTERM), Linux forwards.
//!
//! It ends at the first change, at the end of the grace time, or when another daemon has taken over ([`dismiss`]). A
//! daemon that ends normally, and leaves nothing running, ends it itself.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use bm_fastpath::{Lease, prioritize};
use bm_graph::Waker;
use bm_netlink::{FirstChange, first_change::Subject};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::time::{ClockId, clock_gettime};

/// Number of descriptors from the daemon: its socket for events, and the two parts of the lease.
const GIVEN: usize = 3;
/// How often the lease is renewed.
const RENEW_EVERY: Duration = Duration::from_millis(50);
/// A watcher that sleeps for this much longer than it wanted to has been stopped.
const LATE: Duration = Duration::from_millis(100);
/// Sent by the watcher when it is ready.
const READY: &[u8] = b"r";
/// How long the watcher may take to become ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// Why Linux forwards when a lifetime ends.
const LIFETIME: &str = "the lifetime of a route has ended";
/// The end of a lifetime that has none.
const NEVER: u64 = u64::MAX;
/// Maximum sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Abstract socket name at which a watcher without a daemon can be stopped; one per network namespace.
const ADDRESS: &[u8] = b"brickmoon/watch-tables";

/// Passes descriptors to the watcher at the other end, and waits until it is ready.
pub(crate) fn give(stream: &UnixStream, given: [BorrowedFd<'_>; GIVEN]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&given));
    sendmsg(stream, &[io::IoSlice::new(b"g")], &mut message, SendFlags::NOSIGNAL)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0];
    let count = (&*stream).read(&mut answer)?;
    stream.set_read_timeout(None)?;
    if answer[..count] == *READY { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Tells the watcher when the next lifetime of a route ends: 8 bytes, the time in nanoseconds since an arbitrary moment that
/// all processes share.
pub(crate) fn tell(stream: &UnixStream, ends: Option<Instant>) -> io::Result<()> {
    let ends = ends.map_or(NEVER, |at| now_ns() + nanoseconds(at.saturating_duration_since(Instant::now())));
    (&*stream).write_all(&ends.to_ne_bytes())
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    nanoseconds(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX / 2)
}

/// Ends a watcher of this network namespace whose daemon has ended: another daemon has taken over, or the program was
/// detached.
pub fn dismiss() {
    let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), SocketAddr::from_abstract_name(ADDRESS)) else {
        return;
    };
    // Usually there is none.
    let _none = socket.send_to_addr(b"end", &address);
}

fn take(stream: &UnixStream) -> io::Result<[OwnedFd; GIVEN]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [io::IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let rights = message.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let given: Vec<OwnedFd> = rights.flatten().collect();
    given.try_into().map_err(|_| io::ErrorKind::UnexpectedEof.into())
}

/// Why the watcher has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The grace time is over.
    Grace,
    /// Linux forwards because this has changed.
    Changed(Subject),
    /// Linux forwards because the daemon was in the middle of a change, or the watcher was stopped.
    Doubt(Subject),
}

/// Runs the watcher. `grace` is how long the tables stay in use without a daemon, zero for no limit; `stop` is woken if
/// the process is to end.
///
/// # Errors
/// The error of a system call. Linux forwards then, if the daemon has ended.
pub fn run(stream: &UnixStream, grace: Duration, stop: &Waker) -> io::Result<Ended> {
    let [events, views, beat] = take(stream)?;
    let lease = Lease::open(views.as_fd(), beat)?;
    let mut first = FirstChange::open(events).map_err(io::Error::other)?;
    prioritize();
    (&*stream).write_all(READY)?;
    stream.set_nonblocking(true)?;
    let mut ends = NEVER;
    let watched = wait_for_end(stream, &mut first, stop, &mut ends)
        .and_then(|is_late| after(&lease, &mut first, Limits { grace, ends }, stop, is_late));
    lease.expire();
    watched
}

/// Waits until the daemon has ended, which says when a lifetime ends. Returns whether this process has been stopped
/// meanwhile, so that it may be late.
fn wait_for_end(
    stream: &UnixStream,
    first: &mut FirstChange,
    stop: &Waker,
    ends: &mut u64,
) -> io::Result<bool> {
    loop {
        let now = Instant::now();
        let sleep = first.timeout(now).min(SLEEP_MAX);
        stop.wait(first.rulesets().chain([stream.as_fd()]), sleep);
        loop {
            let mut told = [0; 8];
            match (&*stream).read(&mut told) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(8) => *ends = u64::from_ne_bytes(told),
                // The daemon's end of the stream is closed.
                _ => return Ok(now.elapsed() > sleep + LATE),
            }
        }
        first.record_changes(Instant::now()).map_err(io::Error::other)?;
        // While the daemon runs, the daemon decides when to end.
        stop.clear();
    }
}

/// How long the tables may stay in use without a daemon.
struct Limits {
    /// Zero for no limit.
    grace: Duration,
    /// When the first lifetime of a route ends.
    ends: u64,
}

/// Renews the lease after the end of the daemon.
fn after(
    lease: &Lease,
    first: &mut FirstChange,
    limits: Limits,
    stop: &Waker,
    is_late: bool,
) -> io::Result<Ended> {
    let ended = Instant::now();
    if lease.is_busy() {
        return Ok(Ended::Doubt("the daemon was changing its tables when it ended"));
    }
    if now_ns() >= limits.ends {
        return Ok(Ended::Doubt(LIFETIME));
    }
    let mut leased = Leased { lease, renewed: None };
    if !is_late {
        // Renew first; a change is found soon after.
        leased.renew(ended)?;
    }
    if let Some(what) = first.take_over(ended).map_err(io::Error::other)? {
        return Ok(Ended::Changed(what));
    }
    let asked = SocketAddr::from_abstract_name(ADDRESS).and_then(|address| UnixDatagram::bind_addr(&address));
    let asked = asked.and_then(|socket| socket.set_nonblocking(true).map(|()| socket)).ok();
    loop {
        let now = Instant::now();
        if let Some(what) = first.find(now).map_err(io::Error::other)? {
            return Ok(Ended::Changed(what));
        }
        if now_ns() >= limits.ends {
            return Ok(Ended::Doubt(LIFETIME));
        }
        leased.renew(now)?;
        if !limits.grace.is_zero() && ended.elapsed() > limits.grace {
            return Ok(Ended::Grace);
        }
        if asked.as_ref().is_some_and(|asked| asked.recv(&mut [0]).is_ok()) {
            // The tables are no longer in use; if this was a mistake, Linux forwards.
            return Ok(Ended::Doubt("the watching process was told to end"));
        }
        if stopped(stop) {
            return Ok(Ended::Doubt("the watching process was told to end"));
        }
        let sleep = first.timeout(Instant::now()).min(RENEW_EVERY);
        stop.wait(first.as_fds().chain(asked.iter().map(AsFd::as_fd)), sleep);
    }
}

/// A lease, and when it was last renewed.
struct Leased<'a> {
    lease: &'a Lease,
    renewed: Option<Instant>,
}

impl Leased<'_> {
    fn renew(&mut self, now: Instant) -> io::Result<()> {
        if self.renewed.is_none_or(|then| now.saturating_duration_since(then) >= RENEW_EVERY) {
            self.lease.renew()?;
            self.renewed = Some(now);
        }
        Ok(())
    }
}

/// Whether the process is to end.
fn stopped(stop: &Waker) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut watched = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
