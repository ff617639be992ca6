//! Packets that come from another address or UDP port than their SA has: only those of the peer are reported.

use bm_frame::{FramePool, Freelist};
use bm_graph::{Engine, Network, PortApp, Waker};
use bm_port::{MemoryPort, Wire};
use bm_stats::{Account, Registry, Scope};

use super::super::live::Receiver;
use super::super::{Controls, Decryption, IpsecWorker, Moved};
use super::*;

/// A worker with decryption alone.
struct Worker {
    engine: Engine,
    wire: Wire,
    controls: Controls,
}

impl Worker {
    fn new(sa: &Sa, number: u64) -> Self {
        let (plan, _more) = plan(sa, number - 1);
        let registry = Registry::anonymous(2048).unwrap();
        let account = |name: &str| Account::open(&registry, Scope::Other(name)).unwrap();
        let (mut workers, controls) = IpsecWorker::all(&[Waker::new().unwrap()], 16);
        let (mut network, wire) = (Network::new(), Wire::new());
        let port = PortApp::new(Box::new(MemoryPort::new(wire.clone())), account("in"), account("out"));
        let app = Decryption::new(&plan, &mut workers[0], vec!["p0".into()], &tables(), account("d"), 0);
        let app = app.unwrap();
        network.app("p0", Box::new(port)).unwrap();
        network.app("decryption", Box::new(app)).unwrap();
        network.link("p0.output -> decryption.p0").unwrap();
        network.link("decryption.p0 -> p0.input").unwrap();
        let pool = FramePool::new(256, 2048).unwrap();
        let engine = Engine::new(network, Freelist::new(pool, 64)).unwrap();
        Self { engine, wire, controls }
    }

    /// A packet arrives; how many go on, and what is reported.
    fn takes(&mut self, packet: &[u8]) -> (usize, Vec<Moved>) {
        self.wire.send(&arrives(OUTSIDE, packet));
        for _ in 0..2 {
            self.engine.breathe();
        }
        (self.wire.take().len(), self.controls.moved())
    }
}

#[test]
fn only_authentic_packets_from_elsewhere_are_reported() {
    for Recorded { line, sa, number, sent, .. } in RECORDED.lines().map(recorded) {
        let sa = Sa { direction: Direction::In, ..sa };
        let mut forged = sent.clone();
        *forged.last_mut().unwrap() ^= 1;
        let other: IpAddr =
            if sa.source.is_ipv4() { [203, 0, 113, 9].into() } else { "2001:db8::9".parse().unwrap() };
        let at_other = Sa { source: other, ..sa.clone() };
        let at_other_port = Sa { udp: sa.udp.map(|udp| UdpPorts { source: 1025, ..udp }), ..sa.clone() };
        let without_window = Sa { replay_window: 0, esn: false, ..at_other.clone() };
        let moved = Moved { id: sa.id(), source: sa.source, port: 4500 };
        let moved: Vec<_> = sa.udp.map(|_| moved).into_iter().collect();
        for (of, expected) in [(&sa, &[][..]), (&at_other, &moved), (&at_other_port, &moved)] {
            let mut worker = Worker::new(of, number);
            assert_eq!(worker.takes(&forged), (0, vec![]), "{line}");
            assert_eq!(worker.takes(&sent), (1, expected.to_vec()), "{line}");
            assert_eq!(worker.takes(&sent), (0, vec![]), "{line}: a replay");
        }
        if !sa.esn {
            assert_eq!(Worker::new(&without_window, number).takes(&sent), (1, vec![]), "{line}");
        }
    }
}

#[test]
fn an_sa_is_reported_once_a_second() {
    let Recorded { mut sa, .. } = recorded(RECORDED.lines().nth(2).unwrap());
    sa.direction = Direction::In;
    let inbound = bm_ipsec::Inbound::new(&sa, 0).unwrap();
    let mut receiver = Receiver::new(&sa, inbound, Arc::default());
    let times = [0, 1, 999_999_999, 1_000_000_000, 1_999_999_999, 2_000_000_000];
    let reported = times.map(|now| receiver.report(sa.source, 7, now).is_some());
    assert_eq!(reported, [true, false, false, true, false, true]);
}
