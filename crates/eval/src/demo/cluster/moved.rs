//! A neighbor that moves from one node to another while a host sends to it: how long it cannot be reached.
//!
//! ```text
//! host 0 ── node 0 ══ node 1 ── host 1 with 10.0.50.9, until it leaves
//!                 ╚══ node 2 ── host 2 with 10.0.50.9 from then on
//! ```

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::TestbedError;
use bm_testbed::testbed::namespace::Namespace;

use super::mesh::{Mesh, host_mac};
use super::traffic::{self, Pair, panicked};
use super::{AFTER_EVENT, BEFORE_EVENT, DemoError};

/// The address that moves, the nodes between which it does, and the host that sends.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 50, 9);
const FROM: usize = 1;
const TO: usize = 2;
const SENDER: usize = 0;
/// Where packets arrive.
const PORT: u16 = 4999;
/// Between two packets.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long a receiver waits before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(20);

/// When packets arrived, with their numbers.
type Arrivals = Vec<(Instant, u32)>;

/// Packets on their way to the address. Dropping it stops them.
struct Stream {
    stop: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    sender: Option<JoinHandle<io::Result<u32>>>,
    receivers: Vec<JoinHandle<io::Result<Arrivals>>>,
}

/// What became of the stream, and how long after the move the first packet arrived at the new place.
pub struct MoveResult {
    pub stream: Pair,
    pub found: Duration,
}

/// Moves the address during a stream, and back to nowhere afterwards.
///
/// # Errors
/// What failed.
pub fn during_a_stream(mesh: &Mesh) -> Result<MoveResult, DemoError> {
    for n in [FROM, TO] {
        mesh.hosts[n].ip_batch(&format!("addr add {ADDRESS}/32 dev lo\n"))?;
    }
    set_neighbor(mesh, FROM, true)?;
    interrupt::sleep(BEFORE_EVENT)?;
    let stream = Stream::start(mesh)?;
    interrupt::sleep(BEFORE_EVENT)?;
    let left = Instant::now();
    // At the same time: on a busy machine each command may take half a second.
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| set_neighbor(mesh, FROM, false));
        set_neighbor(mesh, TO, true)?;
        leaves.join().unwrap_or(Ok(()))
    })?;
    let moved = Instant::now();
    interrupt::sleep(AFTER_EVENT)?;
    let moved = stream.end(left, moved)?;
    set_neighbor(mesh, TO, false)?;
    for n in [FROM, TO] {
        mesh.hosts[n].ip_batch(&format!("addr del {ADDRESS}/32 dev lo\n"))?;
    }
    Ok(moved)
}

/// Makes the host with the address a neighbor of its node, or no longer.
fn set_neighbor(mesh: &Mesh, n: usize, is_there: bool) -> Result<(), TestbedError> {
    let mac = host_mac(n);
    let lines = match is_there {
        true => format!("neigh replace {ADDRESS} lladdr {mac} dev ext0\nroute replace {ADDRESS} dev ext0\n"),
        false => format!("neigh del {ADDRESS} dev ext0\nroute del {ADDRESS} dev ext0\n"),
    };
    mesh.nodes[n].ip_batch(&lines)
}

impl Stream {
    fn start(mesh: &Mesh) -> Result<Self, DemoError> {
        let (stop, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut stream = Self { stop, ends, sender: None, receivers: Vec::new() };
        for n in [FROM, TO] {
            let ends = stream.ends.clone();
            stream.receivers.push(within(&mesh.hosts[n], move |ready| receive(&ends, &ready))?);
        }
        let stop = stream.stop.clone();
        stream.sender = Some(within(&mesh.hosts[SENDER], move |ready| {
            let _started = ready.send(());
            send(&stop)
        })?);
        Ok(stream)
    }

    /// Packets that arrive at the old place after the address has left it are lost.
    fn end(mut self, left: Instant, moved: Instant) -> Result<MoveResult, DemoError> {
        self.stop.store(true, Ordering::Relaxed);
        let sender = self.sender.take().ok_or_else(panicked).map_err(traffic::failed)?;
        let sent = sender.join().unwrap_or_else(|_| Err(panicked())).map_err(traffic::failed)?;
        std::thread::sleep(traffic::LATE);
        self.ends.store(true, Ordering::Relaxed);
        let (mut arrivals, mut found) = (Vec::new(), Duration::MAX);
        for (n, receiver) in [FROM, TO].into_iter().zip(self.receivers.drain(..)) {
            let mut arrived = receiver.join().unwrap_or_else(|_| Err(panicked())).map_err(traffic::failed)?;
            arrived.retain(|(at, _)| n == TO || *at <= left);
            // That of the new place is the last.
            found =
                arrived.first().map_or(Duration::MAX, |(first, _)| first.saturating_duration_since(moved));
            arrivals.extend(arrived);
        }
        Ok(MoveResult { stream: pair(sent, arrivals), found })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ends.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            let _counted = sender.join();
        }
        self.receivers.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Runs a thread in a namespace, and waits until it says that it is ready.
fn within<T: Send + 'static>(
    space: &Namespace,
    run: impl FnOnce(std::sync::mpsc::Sender<()>) -> io::Result<T> + Send + 'static,
) -> Result<JoinHandle<io::Result<T>>, DemoError> {
    let handle = space.handle()?;
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new()
        .spawn(move || handle.join_this_thread().and_then(|()| run(ready)))
        .map_err(TestbedError::system("start a thread"))?;
    // An error is found at the end.
    let _ended = is_ready.recv();
    Ok(thread)
}

fn send(stop: &AtomicBool) -> io::Result<u32> {
    let socket = UdpSocket::bind((traffic::host(SENDER), PORT))?;
    let (mut sent, mut due) = (0u32, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += INTERVAL;
        match socket.send_to(&sent.to_be_bytes(), (ADDRESS, PORT)) {
            Ok(_) => sent += 1,
            Err(error) if traffic::is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

fn receive(ends: &AtomicBool, ready: &std::sync::mpsc::Sender<()>) -> io::Result<Arrivals> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let _listening = ready.send(());
    let (mut arrivals, mut data) = (Vec::new(), [0; 4]);
    while !ends.load(Ordering::Relaxed) {
        match socket.recv(&mut data) {
            Ok(4) => arrivals.push((Instant::now(), u32::from_be_bytes(data))),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(arrivals)
}

fn pair(sent: u32, mut arrivals: Arrivals) -> Pair {
    arrivals.sort();
    let mut pair = Pair { sent: sent.into(), arrived: arrivals.len() as u64, ..Pair::default() };
    for two in arrivals.windows(2) {
        pair.gap = pair.gap.max(two[1].0 - two[0].0);
        pair.late += u64::from(two[1].1 < two[0].1);
    }
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_at_both_places_are_one_stream() {
        let start = Instant::now();
        let at = |ms, number| (start + Duration::from_millis(ms), number);
        // At the new place first, as the receivers are asked.
        let pair = pair(7, vec![at(40, 5), at(41, 4), at(42, 6), at(0, 0), at(1, 1)]);
        assert_eq!((pair.lost(), pair.late, pair.gap), (2, 1, Duration::from_millis(39)));
    }
}
