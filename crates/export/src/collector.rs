//! The socket of a collector, which never waits. What could not be sent is counted and forgotten.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What happened to the samples for a collector.
#[derive(Debug, Default)]
pub struct Tallies {
    samples: AtomicU64,
    unfit: AtomicU64,
    sent: AtomicU64,
    refused: AtomicU64,
    full: AtomicU64,
    failed: AtomicU64,
}

/// What a collector got, up to one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples of packets in datagrams, whatever became of these.
    pub samples: u64,
    /// Samples that the format cannot describe: IPFIX describes IP packets only.
    pub unfit: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that were answered with ICMP port unreachable, and count as sent, too.
    pub refused: u64,
    /// Datagrams not sent because the socket's buffer was full.
    pub full: u64,
    /// Datagrams not sent for another reason, such as no route to the collector.
    pub failed: u64,
}

impl Tallies {
    /// Counts a sample, which the format has a place for or not.
    pub fn add(&self, fits: bool) {
        (if fits { &self.samples } else { &self.unfit }).fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> Tally {
        Tally {
            samples: self.samples.load(Relaxed),
            unfit: self.unfit.load(Relaxed),
            sent: self.sent.load(Relaxed),
            refused: self.refused.load(Relaxed),
            full: self.full.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }
}

/// Sends datagrams to a collector.
pub struct Collector {
    address: SocketAddr,
    /// `None` while there is no route to the collector.
    socket: Option<UdpSocket>,
    tallies: Arc<Tallies>,
}

impl Collector {
    /// Nothing is sent yet; without a route to the collector, each datagram tries again.
    pub fn open(address: SocketAddr, tallies: Arc<Tallies>) -> Self {
        Self { address, socket: connect(address).ok(), tallies }
    }

    /// The address from which this machine sends to the collector; `None` without a route to it.
    pub fn source(&self) -> Option<IpAddr> {
        Some(self.socket.as_ref()?.local_addr().ok()?.ip())
    }

    /// Sends a datagram, or counts why not.
    pub fn send(&mut self, datagram: &[u8]) {
        if self.socket.is_none() {
            self.socket = connect(self.address).ok();
        }
        let Some(socket) = &self.socket else {
            self.tallies.failed.fetch_add(1, Relaxed);
            return;
        };
        let mut sent = socket.send(datagram);
        // The error is that of an earlier datagram, and is now gone: this one has not been sent.
        if sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            self.tallies.refused.fetch_add(1, Relaxed);
            sent = socket.send(datagram);
        }
        let count = match sent {
            Ok(_) => &self.tallies.sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => &self.tallies.full,
            Err(_) => {
                // A socket keeps the source address that it had when it was connected, which this machine may have lost.
                self.socket = None;
                &self.tallies.failed
            }
        };
        count.fetch_add(1, Relaxed);
    }
}

fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn open(address: SocketAddr) -> (Collector, Arc<Tallies>) {
        let tallies = Arc::<Tallies>::default();
        (Collector::open(address, tallies.clone()), tallies)
    }

    #[test]
    fn a_collector_gets_datagrams_whole() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (mut collector, tallies) = open(socket.local_addr().unwrap());
        assert_eq!(collector.source(), Some("127.0.0.1".parse().unwrap()));
        collector.send(&[1, 2, 3]);
        let mut buffer = [0; 10];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 3);
        assert_eq!(tallies.read(), Tally { sent: 1, ..Tally::default() });
    }

    #[test]
    fn a_collector_where_nobody_listens_is_counted() {
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (mut collector, tallies) = open(address);
        for _ in 0..100 {
            collector.send(&[1]);
            std::thread::sleep(Duration::from_millis(5));
            if tallies.read().refused > 0 {
                break;
            }
        }
        let tally = tallies.read();
        assert!(tally.refused >= 1 && tally.sent > tally.refused && tally.failed == 0, "{tally:?}");
    }

    #[test]
    fn a_datagram_that_cannot_be_sent_is_counted_at_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut collector, tallies) = open(socket.local_addr().unwrap());
        collector.send(&vec![0; 70_000]);
        assert_eq!(tallies.read(), Tally { failed: 1, ..Tally::default() });
    }
}
