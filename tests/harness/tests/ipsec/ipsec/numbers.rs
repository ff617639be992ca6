//! Sequence numbers over reloads, restarts and their end. Which numbers peers accept is what counts, so all of it is seen
//! from the second gateway.

use super::*;

/// The first gateway's next number to send.
fn sequence(gateway: &Daemon<'_>) -> u64 {
    sa(&gateway.ask(&["show", "sas"]), "out")["sequence"].as_u64().expect("a number")
}

/// How many packets the first gateway's SA has encrypted.
fn packets_sent(gateway: &Daemon<'_>) -> Option<u64> {
    sa(&gateway.ask(&["show", "sas"]), "out")["packets"].as_u64()
}

fn state(gateway: &Daemon<'_>) -> String {
    sa(&gateway.ask(&["show", "sas"]), "out")["state"].as_str().unwrap_or_default().to_owned()
}

impl Net {
    /// Says in the first gateway's state file that this number and all below it are used.
    fn set_used(&self, used: u64) {
        let file = self.folder.join("g0.state");
        let text = std::fs::read_to_string(&file).expect("it has sent");
        let words: Vec<&str> = text.split_whitespace().collect();
        let line = format!("{} {} {used:016x}", words[0], words[1]);
        // FNV-1a, as in `record.rs`.
        let checksum = line
            .bytes()
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        std::fs::write(&file, format!("{line} {checksum:08x}\n")).expect("the file can be written");
    }
}

#[test]
fn reloads_and_clean_ends_use_up_no_numbers() {
    let net = Net::new("ipsec-numbers");
    let (Some(mut one), Some(two)) = (net.start(0, ""), net.start(1, "")) else { return };
    ping(&net.a, "10.2.0.2", 56, 62);
    for round in 1..=8 {
        let before = sequence(&one);
        // Another lifetime restarts the workers.
        net.write(0, &format!("soft_packets = {}", 1_000_000 + round), "");
        one.ask(&["reload"]);
        assert_eq!(sequence(&one), before, "reload {round}");
        ping(&net.a, "10.2.0.2", 56, 62);
        assert!((before + 1..before + 100).contains(&sequence(&one)), "reload {round}");
    }
    for start in 1..=3 {
        let before = sequence(&one);
        one.stop();
        one = net.start(0, "").expect("it has started before");
        assert_eq!(sequence(&one), before, "start {start}");
        ping(&net.a, "10.2.0.2", 56, 62);
    }
    assert_eq!(two.dropped("ipsec_replay"), 0);
    one.stop();
    two.stop();
}

/// A lifetime counts what an SA was used for by all daemons: a kill costs what was not written yet.
#[test]
fn lifetimes_go_on_after_restarts_and_kills() {
    let net = Net::new("ipsec-lifetimes");
    let limit = "hard_packets = 40";
    let (Some(mut one), Some(two)) = (net.start(0, limit), net.start(1, "")) else { return };
    let file = net.folder.join("g0.state.lifetimes");
    for is_killed in [true, false, true] {
        net.a.run("ping -c 10 -i 0.02 -W 2 10.2.0.2");
        let before = packets_sent(&one);
        let line = format!(" out {} {} ", before.unwrap_or(0) * 84, before.unwrap_or(0));
        eventually("it is written", || std::fs::read_to_string(&file).unwrap_or_default().contains(&line));
        if is_killed {
            one.kill()
        } else {
            one.stop()
        }
        one = net.start(0, limit).expect("it has started before");
        assert_eq!(packets_sent(&one), before);
    }
    let _partly_lost = net.a.try_run("ping -c 20 -i 0.02 -W 1 10.2.0.2");
    assert_eq!((packets_sent(&one), state(&one)), (Some(40), "expired".into()));
    assert_eq!(one.dropped("ipsec_lifetime"), 10);
    one.stop();
    two.stop();
}

#[test]
fn an_sa_without_numbers_stops_alone_and_by_name() {
    let net = Net::new("ipsec-used-up");
    let (Some(one), Some(two)) = (net.start(0, ""), net.start(1, "")) else { return };
    ping(&net.a, "10.2.0.2", 56, 62);
    one.stop();
    net.set_used(u64::from(u32::MAX) - 2);
    let one = net.start(0, "").expect("it has started before");
    let seen = net.net.packet_socket("m1");
    let _lost = net.a.try_run("ping -c 5 -i 0.1 -W 1 10.2.0.2");
    eventually("there are no numbers left", || one.dropped("ipsec_sequence_overflow") >= 3);
    let crossed = Net::crossed(&seen);
    assert!(crossed.iter().all(|(protocol, _)| *protocol == ESP), "nothing in clear");
    assert_eq!(state(&one), "exhausted");
    assert!(
        one.log().contains("SA out (") && one.log().contains("sequence numbers are left"),
        "{}",
        one.log()
    );
    // A reload and a start with what is left, which is nothing.
    net.write(0, "soft_packets = 1000000", "");
    one.ask(&["reload"]);
    assert_eq!(state(&one), "exhausted");
    one.stop();
    let one = net.start(0, "").expect("one SA without numbers keeps nothing else from starting");
    assert_eq!(state(&one), "exhausted");
    assert!(one.log().contains("all sequence numbers are used, so it sends nothing"), "{}", one.log());
    assert_eq!(sa(&one.ask(&["show", "sas"]), "in")["state"], "valid");
    let status = one.ask(&["status"]);
    assert!(
        status["notes"].to_string().contains("SA out (SPI 0x00001001 to 198.51.100.1) has used"),
        "{status}"
    );
    assert_eq!(status["exhausted_sas"], 1);
    // What needs no SA is forwarded.
    net.net.ip("route add 10.1.0.0/24 via 192.0.2.1");
    net.net.run("ping -c 1 -W 2 10.1.0.2");
    one.stop();
    two.stop();
}
