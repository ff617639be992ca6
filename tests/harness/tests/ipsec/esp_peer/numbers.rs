//! No sequence number and no IV twice, whatever happens to the daemon: the peer refuses a number that is not above all
//! before it, and an IV that it has seen.

use super::*;

const STREAM: &str = "stream";

/// The highest number of each SPI that the peer has seen.
pub fn highest(peer: &mut Peer) -> BTreeMap<String, u64> {
    serde_json::from_value(peer.ask(&json!({ "do": "numbers" }))).expect("numbers")
}

/// Does something to the daemon while the host sends; returns how many packets the peer got.
fn during<T>(peer: &mut Peer, action: impl FnOnce() -> T) -> (T, u64) {
    peer.begin(&json!({ "do": STREAM }));
    let done = action();
    peer.begin(&json!("enough"));
    (done, peer.answer().as_u64().expect("a number"))
}

/// What was received before a reload is not received again.
fn refuses_repeated(peer: &mut Peer, daemon: &Daemon<'_>) {
    let before = drops(daemon);
    let count = peer.number(&json!({ "do": "repeat" }));
    let counted = adversary::grown_by(count, &before, daemon);
    assert_eq!(counted, BTreeMap::from([("ipsec_replay".to_owned(), count)]));
}

#[test]
fn no_number_is_used_twice_over_reloads_kills_and_restarts() {
    let lab = Lab::new("esp-numbers");
    let tunnels = adversary::attacked();
    let Some(mut peer) = lab.peer("esp-numbers") else { return };
    let Some(mut daemon) = lab.start(&tunnels) else { return };
    peer.has(&tunnels);
    let one = json!({ "do": "exchange", "rounds": 1 });
    peer.ask(&one);
    let mut packets = 0;
    for round in 1..=3 {
        // A reload that changes nothing of the SAs: not one number is left out.
        peer.ask(&json!({ "do": "remember" }));
        let before = highest(&mut peer);
        daemon.ask(&["reload"]);
        refuses_repeated(&mut peer, &daemon);
        peer.ask(&one);
        for (spi, number) in highest(&mut peer) {
            assert_eq!(number, before[&spi] + 1, "SPI {spi} after reload {round}");
        }
        packets += during(&mut peer, || drop(daemon.ask(&["reload"]))).1;
        // Another lifetime restarts the workers.
        lab.write(&lab.config(&tunnels, &format!("soft_packets = {}", 1_000_000 + round)));
        packets += during(&mut peer, || drop(daemon.ask(&["reload"]))).1;
        refuses_repeated(&mut peer, &daemon);
        let before = highest(&mut peer);
        let again = || lab.start(&tunnels).expect("it has started before");
        let (started, got) = during(&mut peer, || {
            daemon.kill();
            again()
        });
        (daemon, packets) = (started, packets + got);
        for (spi, number) in highest(&mut peer) {
            assert!(number > before[&spi], "SPI {spi} after kill {round}");
        }
        let before = highest(&mut peer);
        daemon.stop();
        daemon = again();
        peer.ask(&one);
        for (spi, number) in highest(&mut peer) {
            assert_eq!(number, before[&spi] + 1, "SPI {spi} after stop {round}");
        }
    }
    report::say(&format!("esp-numbers: {packets} packets meanwhile"));
    daemon.stop();
}
