//! A namespace whose kernel tracks the connections over its loopback interface, and connections.

use super::netns::Namespace;
use bm_conntrack::{Connection, Conntrack, Settings, Tuple};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Connections are tracked in a namespace with a rule that looks at them.
const TRACKED: &str = "nft 'add table inet t; add chain inet t seen { type filter hook input priority 0; }; \
    add rule inet t seen ct state new accept; add chain inet t zones { type filter hook output priority -300; };'";

/// A namespace that the calling thread is in, and conntrack there.
pub struct Bed {
    pub namespace: Namespace,
    pub conntrack: Conntrack,
}

impl Bed {
    /// `None`, with a message, without root or conntrack.
    pub fn new(tag: &str) -> Option<Self> {
        let namespace = Namespace::new(tag)?;
        namespace.ip("link set lo up");
        if !namespace.shell(TRACKED) {
            eprintln!("skipped: {tag} needs nft, and a kernel with nf_tables and conntrack");
            return None;
        }
        namespace.enter();
        if Settings::read().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            eprintln!("skipped: {tag} needs a kernel with conntrack");
            return None;
        }
        let mut conntrack = Conntrack::open().unwrap();
        if let Err(error) = conntrack.list(None) {
            eprintln!("skipped: {tag} needs a kernel with ctnetlink (module nf_conntrack_netlink): {error}");
            return None;
        }
        Some(Self { namespace, conntrack })
    }

    /// The connection, which must exist.
    pub fn get(&mut self, tuple: &Tuple) -> Connection {
        self.conntrack.get(tuple, 0).unwrap().unwrap()
    }
}

/// Both ends of a TCP connection through which a byte went each way.
pub struct Tcp {
    pub client: TcpStream,
    pub server: TcpStream,
}

impl Tcp {
    pub fn open(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"a").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"b").unwrap();
        client.read_exact(&mut [0]).unwrap();
        Self { client, server }
    }

    /// Its original tuple.
    pub fn tuple(&self) -> Tuple {
        tuple(6, self.client.local_addr().unwrap(), self.server.local_addr().unwrap())
    }
}

/// Both ends of a UDP connection through which one packet went to the server.
pub struct Udp {
    pub client: UdpSocket,
    pub server: UdpSocket,
}

impl Udp {
    pub fn open(address: &str) -> Self {
        let [client, server] = [(); 2].map(|()| UdpSocket::bind((address, 0)).unwrap());
        client.connect(server.local_addr().unwrap()).unwrap();
        server.connect(client.local_addr().unwrap()).unwrap();
        client.send(b"a").unwrap();
        server.recv(&mut [0]).unwrap();
        Self { client, server }
    }

    /// Sends a packet back.
    pub fn answer(&self) {
        self.server.send(b"b").unwrap();
        self.client.recv(&mut [0]).unwrap();
    }

    /// Its original tuple.
    pub fn tuple(&self) -> Tuple {
        tuple(17, self.client.local_addr().unwrap(), self.server.local_addr().unwrap())
    }
}

fn tuple(protocol: u8, from: SocketAddr, to: SocketAddr) -> Tuple {
    let [source, destination] = [from.ip(), to.ip()];
    Tuple { source, destination, source_port: from.port(), destination_port: to.port(), protocol }
}

/// The tuple of packets in the other direction, without NAT.
pub fn reverse(tuple: &Tuple) -> Tuple {
    Tuple {
        source: tuple.destination,
        destination: tuple.source,
        source_port: tuple.destination_port,
        destination_port: tuple.source_port,
        protocol: tuple.protocol,
    }
}

/// A UDP connection to each of so many ports, from one port; their original tuples. Nobody receives the packets.
pub fn many(count: u16) -> Vec<Tuple> {
    let address: IpAddr = "127.0.0.1".parse().unwrap();
    let client = UdpSocket::bind((address, 0)).unwrap();
    let from = client.local_addr().unwrap();
    (20_000..20_000 + count)
        .map(|port| {
            // The ICMP error about an earlier packet is reported instead of sending this one.
            while client.send_to(b"a", (address, port)).is_err() {}
            tuple(17, from, (address, port).into())
        })
        .collect()
}

/// Waits until `done` returns something, for at most a minute.
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
