//! Packets from hosts to hosts: UDP datagrams with numbers, sent at a rate, looked at where they arrive.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_testbed::testbed::TestbedError;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::DemoError;
use super::delays::Delays;
use super::matrix::{DATA, Matrix, Turns, offered};
use super::mesh::Mesh;

/// Flows from each host to each other.
const FLOWS: usize = 8;
/// Source port of the first flow, and the destination port.
const PORT: u16 = 5000;
/// How often a sender wakes up.
const TICK: Duration = Duration::from_millis(1);
/// What a sender that was kept waiting sends at once, at most.
const OWED: Duration = Duration::from_millis(20);
/// How long late packets are waited for.
pub const LATE: Duration = Duration::from_millis(300);
/// Room for what arrives while a receiver is kept waiting.
const ROOM: usize = 16 << 20;

/// Which addresses of hosts packets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those on the external ports of nodes.
    Hosts,
    /// Those behind the hosts, in the prefixes that FRR has learned.
    Learned,
}

impl Addresses {
    fn of(self, node: usize) -> Ipv4Addr {
        match self {
            Self::Hosts => host(node),
            Self::Learned => Ipv4Addr::new(10, 100, node as u8, 1),
        }
    }
}

/// The address of a host.
pub fn host(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, node as u8, 2)
}

/// What became of the packets from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Of these, those that came after a later one of their flow.
    pub late: u64,
    /// The longest time without a packet.
    pub gap: Duration,
}

/// Packets from each host to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By source, then destination.
    pub pairs: Vec<Vec<Pair>>,
    /// How long packets were on their way, by source and destination.
    pub delays: Vec<Vec<Delays>>,
}

impl Traffic {
    /// None yet, between so many hosts.
    pub fn none(hosts: usize) -> Self {
        Self {
            pairs: vec![vec![Pair::default(); hosts]; hosts],
            delays: vec![vec![Delays::default(); hosts]; hosts],
        }
    }

    /// The delays between those pairs that `is_meant`.
    pub fn delays(&self, is_meant: impl Fn(usize, usize) -> bool) -> Delays {
        let mut sum = Delays::default();
        for (from, to_all) in self.delays.iter().enumerate() {
            let meant = to_all.iter().enumerate().filter(|(to, _)| is_meant(from, *to));
            meant.for_each(|(_, delays)| sum.merge(delays));
        }
        sum
    }

    /// The sum over those pairs that `is_meant`; of gaps the longest.
    pub fn sum(&self, is_meant: impl Fn(usize, usize) -> bool) -> Pair {
        let mut sum = Pair::default();
        let all = self.pairs.iter().enumerate();
        for (from, to, pair) in
            all.flat_map(|(from, to_all)| (0..).zip(to_all).map(move |(to, pair)| (from, to, pair)))
        {
            if is_meant(from, to) {
                sum.sent += pair.sent;
                sum.arrived += pair.arrived;
                sum.late += pair.late;
                sum.gap = sum.gap.max(pair.gap);
            }
        }
        sum
    }
}

impl Pair {
    /// Packets that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrived)
    }
}

type SentCounts = Vec<u64>;
type Deliveries = Vec<(Pair, Delays)>;

/// Packets on their way. Dropping it stops them.
pub struct Run {
    stop: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    senders: Vec<JoinHandle<io::Result<SentCounts>>>,
    receivers: Vec<JoinHandle<io::Result<Deliveries>>>,
}

impl Run {
    /// Starts to send a matrix at a rate.
    ///
    /// # Errors
    /// A thread cannot be started, or a socket not be made.
    pub fn start(mesh: &Mesh, matrix: Matrix, rate: u32, addresses: Addresses) -> Result<Self, DemoError> {
        let (hosts, began) = (mesh.hosts.len(), Instant::now());
        let (stop, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut run = Self { stop, ends, senders: Vec::new(), receivers: Vec::new() };
        for (node, space) in mesh.hosts.iter().enumerate() {
            let (handle, ends) = (space.handle()?, run.ends.clone());
            let (ready, is_ready) = std::sync::mpsc::channel();
            run.receivers.push(spawn(move || {
                handle.join_this_thread()?;
                let socket = receiver(addresses.of(node))?;
                let _listening = ready.send(());
                receive(&socket, hosts, began, &ends)
            })?);
            // An error is found at the end.
            let _ended = is_ready.recv();
        }
        for (node, space) in mesh.hosts.iter().enumerate() {
            let Some(turns) = Turns::of(matrix, hosts, node) else { continue };
            let (handle, stop) = (space.handle()?, run.stop.clone());
            let interval = Duration::from_secs_f64(1.0 / (f64::from(rate) * offered(matrix, hosts, node)));
            let sender = Sender { node, hosts, addresses, began };
            run.senders.push(spawn(move || {
                handle.join_this_thread()?;
                sender.send(turns, interval, &stop)
            })?);
        }
        Ok(run)
    }

    /// Stops, and returns what became of the packets.
    ///
    /// # Errors
    /// A socket failed.
    pub fn end(mut self) -> Result<Traffic, DemoError> {
        let hosts = self.receivers.len();
        let mut traffic = Traffic::none(hosts);
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = Vec::new();
        for sender in self.senders.drain(..) {
            sent.push(sender.join().unwrap_or_else(|_| Err(panicked())).map_err(failed)?);
        }
        std::thread::sleep(LATE);
        self.ends.store(true, Ordering::Relaxed);
        for (to, receiver) in self.receivers.drain(..).enumerate() {
            let arrived = receiver.join().unwrap_or_else(|_| Err(panicked())).map_err(failed)?;
            for (from, (pair, delays)) in arrived.into_iter().enumerate() {
                (traffic.pairs[from][to], traffic.delays[from][to]) = (pair, delays);
            }
        }
        // Each says how much it has sent in the place of its own node.
        for of_one in sent {
            let from = (0..hosts).find(|from| of_one[*from] == u64::MAX).unwrap_or(0);
            for (to, sent) in of_one.into_iter().enumerate().filter(|(to, _)| *to != from) {
                traffic.pairs[from][to].sent = sent;
            }
        }
        Ok(traffic)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ends.store(true, Ordering::Relaxed);
        self.senders.drain(..).for_each(|thread| drop(thread.join()));
        self.receivers.drain(..).for_each(|thread| drop(thread.join()));
    }
}

pub fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}

pub fn failed(error: io::Error) -> DemoError {
    DemoError::Testbed(TestbedError::system("send or receive packets")(error))
}

fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, TestbedError> {
    let failed = TestbedError::system("start a thread that sends or receives");
    std::thread::Builder::new().spawn(work).map_err(failed)
}

/// Who sends, from when on times of packets are counted.
struct Sender {
    node: usize,
    hosts: usize,
    addresses: Addresses,
    began: Instant,
}

impl Sender {
    /// Sends until it is stopped; returns how many to each host, and in the place of its own the largest number.
    fn send(self, mut turns: Turns, interval: Duration, stop: &AtomicBool) -> io::Result<SentCounts> {
        let Self { node, hosts, addresses, began } = self;
        let sockets = (1..=FLOWS)
            .map(|flow| UdpSocket::bind((addresses.of(node), PORT + flow as u16)))
            .collect::<io::Result<Vec<_>>>()?;
        let (mut sent, mut numbers) = (vec![0; hosts], vec![[0u32; FLOWS]; hosts]);
        let (mut due, mut random) = (Instant::now(), 0x9e37_79b9_u32 ^ node as u32);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < due {
                std::thread::sleep(TICK);
                continue;
            }
            due = (due + interval).max(now.checked_sub(OWED).unwrap_or(now));
            let to = turns.next();
            // Xorshift: which of the flows does not matter, as long as they mix.
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let flow = random as usize % FLOWS;
            let mut data = [0; DATA];
            data[0] = node as u8;
            data[1] = flow as u8;
            data[2..6].copy_from_slice(&numbers[to][flow].to_be_bytes());
            data[6..14].copy_from_slice(&(began.elapsed().as_nanos() as u64).to_be_bytes());
            match sockets[flow].send_to(&data, (addresses.of(to), PORT)) {
                Ok(_) => {
                    numbers[to][flow] += 1;
                    sent[to] += 1;
                }
                // The interface has no room, or is down: it was not sent.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        sent[node] = u64::MAX;
        Ok(sent)
    }
}

/// Errors of a moment: no room, an interface that is down, an ICMP error for an earlier packet.
pub fn is_passing(error: &io::Error) -> bool {
    let codes = [libc::ENOBUFS, libc::EAGAIN, libc::EINTR, libc::ENETDOWN, libc::ENETUNREACH];
    let refused = [libc::EHOSTUNREACH, libc::ECONNREFUSED];
    error.raw_os_error().is_some_and(|code| codes.contains(&code) || refused.contains(&code))
}

fn receiver(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, PORT))?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    set_socket_recv_buffer_size_force(&socket, ROOM)?;
    Ok(socket)
}

/// Receives until all is over.
fn receive(socket: &UdpSocket, hosts: usize, began: Instant, ends: &AtomicBool) -> io::Result<Deliveries> {
    let mut arrived = vec![(Pair::default(), Delays::default()); hosts];
    let (mut next, mut last) = (vec![[0u32; FLOWS]; hosts], vec![None::<Instant>; hosts]);
    let mut data = [0; 2 * DATA];
    while !ends.load(Ordering::Relaxed) {
        let length = match socket.recv(&mut data) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let (from, flow) = (usize::from(data[0]), usize::from(data[1]));
        if length != DATA || from >= hosts || flow >= FLOWS {
            continue;
        }
        let number = u32::from_be_bytes([data[2], data[3], data[4], data[5]]);
        let ((pair, delays), next, now) = (&mut arrived[from], &mut next[from][flow], Instant::now());
        let sent = data[6..14].iter().fold(0, |ns, byte| ns << 8 | u64::from(*byte));
        delays.add(now.duration_since(began).saturating_sub(Duration::from_nanos(sent)));
        pair.arrived += 1;
        pair.late += u64::from(number < *next);
        *next = (*next).max(number + 1);
        pair.gap = last[from].map_or(pair.gap, |last| pair.gap.max(now - last));
        last[from] = Some(now);
    }
    Ok(arrived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_add_up() {
        let mut traffic = Traffic::none(4);
        traffic.pairs[0][1] = Pair { sent: 10, arrived: 8, late: 1, gap: Duration::from_millis(5) };
        traffic.pairs[2][3] = Pair { sent: 5, arrived: 5, late: 0, gap: Duration::from_millis(9) };
        let all = traffic.sum(|_, _| true);
        assert_eq!((all.sent, all.lost(), all.late, all.gap), (15, 2, 1, Duration::from_millis(9)));
        assert_eq!(traffic.sum(|from, to| from != 2 && to != 2).sent, 10);
    }
}
