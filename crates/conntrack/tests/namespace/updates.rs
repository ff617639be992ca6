//! Changing connections, many at once.

use super::bed::{Bed, Tcp, Udp, many, until};
use bm_conntrack::{Tuple, Update, status};
use std::io::{self, Read, Write};

fn refresh(original: Tuple, timeout_s: u32) -> Update {
    Update { original, zone: 0, timeout_s: Some(timeout_s), liberal: false, status: None }
}

fn errno(result: &io::Result<()>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

#[test]
fn timeouts_liberal_windows_and_status() {
    let Some(mut bed) = Bed::new("ct-update") else { return };
    for address in ["127.0.0.1", "::1"] {
        let (tcp, udp) = (Tcp::open(address), Udp::open(address));
        udp.answer();
        let before = bed.get(&udp.tuple()).status;
        let updates = [
            Update { liberal: true, ..refresh(tcp.tuple(), 77_777) },
            Update { liberal: true, status: Some(before | status::ASSURED), ..refresh(udp.tuple(), 7777) },
        ];
        let results = bed.conntrack.update(&updates).unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let (tcp, udp) = (bed.get(&tcp.tuple()), bed.get(&udp.tuple()));
        assert!(tcp.timeout_s.is_some_and(|timeout| (77_000..=77_777).contains(&timeout)), "{tcp:?}");
        assert_eq!((tcp.liberal, tcp.tcp_state), (Some(true), Some(3)));
        assert!(udp.timeout_s.is_some_and(|timeout| (7000..=7777).contains(&timeout)), "{udp:?}");
        assert_eq!((udp.liberal, udp.status), (None, before | status::ASSURED));
        let list = bed.conntrack.list(None).unwrap();
        assert!(list.iter().any(|listed| listed.id == tcp.id && listed.liberal == Some(true)));
    }
}

/// Bytes that pass without being tracked: more than any window.
const UNSEEN: usize = 16 << 20;

/// Sends a byte from the client to the server.
fn send(tcp: &mut Tcp) {
    tcp.client.write_all(b"c").unwrap();
}

#[test]
fn liberal_windows_let_pass_what_comes_after_unseen_packets() {
    let Some(mut bed) = Bed::new("ct-liberal") else { return };
    let (mut liberal, mut strict) = (Tcp::open("127.0.0.1"), Tcp::open("127.0.0.1"));
    let update = Update { liberal: true, ..refresh(liberal.tuple(), 5000) };
    assert!(bed.conntrack.update(&[update]).unwrap()[0].is_ok());
    let unseen = "nft 'add counter inet t wrong; add rule inet t seen ct state invalid counter name wrong drop; \
        add rule inet t zones meta l4proto tcp notrack'";
    assert!(bed.namespace.shell(unseen));
    for tcp in [&mut liberal, &mut strict] {
        let mut client = tcp.client.try_clone().unwrap();
        let sender = std::thread::spawn(move || client.write_all(&vec![0; UNSEEN]).unwrap());
        tcp.server.read_exact(&mut vec![0; UNSEEN]).unwrap();
        sender.join().unwrap();
    }
    assert!(bed.namespace.shell("nft flush chain inet t zones"));
    send(&mut liberal);
    liberal.server.read_exact(&mut [0]).unwrap();
    let wrong = || !bed.namespace.shell("nft list counter inet t wrong | grep -q 'packets 0 '");
    assert!(!wrong(), "no packet of it is invalid");
    send(&mut strict);
    until("a packet is invalid without", || wrong().then_some(()));
}

#[test]
fn what_is_not_named_stays() {
    let Some(mut bed) = Bed::new("ct-keep") else { return };
    let tcp = Tcp::open("127.0.0.1");
    let update = Update { timeout_s: None, liberal: true, ..refresh(tcp.tuple(), 0) };
    let before = bed.get(&tcp.tuple());
    assert!(bed.conntrack.update(&[update]).unwrap()[0].is_ok());
    let after = bed.get(&tcp.tuple());
    assert!(after.timeout_s.is_some_and(|timeout| timeout > 400_000), "{after:?}");
    assert_eq!((after.id, after.status, after.mark), (before.id, before.status, before.mark));
    assert!(bed.conntrack.update(&[refresh(tcp.tuple(), 100)]).unwrap()[0].is_ok());
    assert_eq!(bed.get(&tcp.tuple()).liberal, Some(true), "a refresh keeps it");
}

#[test]
fn only_some_bits_of_the_status_can_be_set() {
    let Some(mut bed) = Bed::new("ct-status") else { return };
    let udp = Udp::open("127.0.0.1");
    let before = bed.get(&udp.tuple()).status;
    let mut set = |status| {
        let update = Update { status: Some(status), ..refresh(udp.tuple(), 5000) };
        errno(&bed.conntrack.update(&[update]).unwrap()[0])
    };
    assert_eq!(set(before | status::DYING), Some(libc::EBUSY));
    assert_eq!(set(before & !status::CONFIRMED), Some(libc::EBUSY));
    assert_eq!(set(before | status::SEQ_ADJUST), None);
    assert_eq!(set(before | status::FIXED_TIMEOUT), None);
    assert_eq!(set(before | status::FIXED_TIMEOUT), Some(libc::EPERM), "its timeout is fixed now");
    assert_eq!(bed.get(&udp.tuple()).status, before | status::FIXED_TIMEOUT, "no sequence adjustment");
}

#[test]
fn refusals_are_those_of_their_updates() {
    let Some(mut bed) = Bed::new("ct-refuse") else { return };
    // More than fit one send.
    let tuples = many(1300);
    for gone in tuples.iter().step_by(3) {
        assert!(bed.conntrack.delete(gone, 0, None).unwrap());
    }
    let unconfirmed = status::SEEN_REPLY;
    let updates = (0..).zip(&tuples).map(|(number, tuple)| Update {
        status: (number % 7 == 1).then_some(unconfirmed),
        ..refresh(*tuple, 4000)
    });
    let updates = updates.collect::<Vec<_>>();
    let results = bed.conntrack.update(&updates).unwrap();
    assert_eq!(results.len(), tuples.len());
    for (number, result) in results.iter().enumerate() {
        let expected = match number {
            _ if number % 3 == 0 => Some(libc::ENOENT),
            _ if number % 7 == 1 => Some(libc::EBUSY),
            _ => None,
        };
        assert_eq!(errno(result), expected, "{number}: {result:?}");
    }
    let list = bed.conntrack.list(None).unwrap();
    let refreshed = list.iter().filter(|connection| connection.timeout_s.is_some_and(|left| left > 3000));
    assert_eq!(refreshed.count(), tuples.len() - tuples.len().div_ceil(3));
    assert!(bed.conntrack.update(&[]).unwrap().is_empty());
}
