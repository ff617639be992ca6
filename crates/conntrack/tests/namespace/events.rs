//! Which connections have events, and what happens if there are more than fit.

use super::bed::{Bed, Tcp, Udp, many, until};
use bm_conntrack::{Arrival, Conntrack, Event, EventKind, Events, Tuple, Update, status};

const BOTH: [EventKind; 2] = [EventKind::Updated, EventKind::Destroyed];

/// The events that arrive until one is of this kind and connection, which is the last.
fn wait_for(events: &mut Events, kind: EventKind, original: &Tuple) -> Vec<Event> {
    let mut all = Vec::new();
    until("an event", || {
        match events.read().unwrap() {
            Arrival::Events(some) => all.extend(some),
            Arrival::Overrun => panic!("the buffer is large enough"),
        }
        let found =
            all.iter().position(|event| event.kind == kind && event.connection.original == *original)?;
        all.truncate(found + 1);
        Some(())
    });
    all
}

fn short(original: Tuple) -> Update {
    Update { original, zone: 0, timeout_s: Some(1), liberal: false, status: None }
}

#[test]
fn destroyed_by_a_request_and_by_timeout() {
    let Some(mut bed) = Bed::new("ct-events") else { return };
    let mut events = Events::open(&[EventKind::Destroyed], None, Events::BUFFER).unwrap();
    let (tcp, udp) = (Tcp::open("127.0.0.1"), Udp::open("::1"));
    let (removed, expired) = (bed.get(&tcp.tuple()), bed.get(&udp.tuple()));
    assert!(bed.conntrack.delete(&tcp.tuple(), 0, None).unwrap());
    let all = wait_for(&mut events, EventKind::Destroyed, &tcp.tuple());
    let [Event { kind: EventKind::Destroyed, connection }] = all[..] else { panic!("{all:?}") };
    assert_eq!((connection.id, connection.reply), (removed.id, removed.reply));
    assert_ne!(connection.status & status::DYING, 0);

    assert!(bed.conntrack.update(&[short(udp.tuple())]).unwrap()[0].is_ok());
    // A listing removes what has expired; otherwise it would take the collector's time.
    until("the connection expires", || {
        let list = bed.conntrack.list(None).unwrap();
        list.iter().all(|connection| connection.id != expired.id).then_some(())
    });
    let all = wait_for(&mut events, EventKind::Destroyed, &udp.tuple());
    assert_eq!(all.iter().map(|event| event.connection.id).collect::<Vec<_>>(), [expired.id]);
    let gone = bed.conntrack.update(&[short(udp.tuple())]).unwrap();
    assert!(gone[0].as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound), "{gone:?}");
}

#[test]
fn changes_by_packets_and_by_others() {
    let Some(mut bed) = Bed::new("ct-changes") else { return };
    let mut events = Events::open(&BOTH, Some(&bed.conntrack), Events::BUFFER).unwrap();
    let tcp = Tcp::open("127.0.0.1");
    let tuple = tcp.tuple();
    let state = |event: &Event| event.connection.tcp_state;
    let opened = until("established", || match events.read().unwrap() {
        Arrival::Events(some) => some.into_iter().find(|event| state(event) == Some(3)),
        Arrival::Overrun => panic!("the buffer is large enough"),
    });
    assert_eq!((opened.kind, opened.connection.original), (EventKind::Updated, tuple));

    // One's own changes are left out, those of another socket are not.
    let update = |timeout_s| Update { timeout_s: Some(timeout_s), liberal: true, ..short(tuple) };
    assert!(bed.conntrack.update(&[update(5000)]).unwrap()[0].is_ok());
    let mut other = Conntrack::open().unwrap();
    assert!(other.update(&[update(6000)]).unwrap()[0].is_ok());
    assert!(bed.conntrack.delete(&tuple, 0, None).unwrap());
    let all = wait_for(&mut events, EventKind::Destroyed, &tuple);
    let updated = all.iter().filter(|event| event.kind == EventKind::Updated);
    let timeouts: Vec<_> = updated.map(|event| event.connection.timeout_s.unwrap()).collect();
    assert!(matches!(timeouts[..], [5900..=6000]), "{timeouts:?}");
}

#[test]
fn connections_have_events_by_how_they_began() {
    let Some(mut bed) = Bed::new("ct-before") else { return };
    // With 2 alone it would depend on subscriptions of other tests.
    let set = |events| format!("sysctl -qw net.netfilter.nf_conntrack_events={events}");
    assert!(bed.namespace.shell(&set(0)));
    let without = Udp::open("127.0.0.1");
    assert!(bed.namespace.shell(&set(1)));
    let before = Udp::open("127.0.0.1");
    assert!(bed.namespace.shell(&set(2)));
    let mut events = Events::open(&BOTH, None, Events::BUFFER).unwrap();
    let after = Udp::open("127.0.0.1");
    without.answer();
    for udp in [&without, &before, &after] {
        assert!(bed.conntrack.delete(&udp.tuple(), 0, None).unwrap());
    }
    let all = wait_for(&mut events, EventKind::Destroyed, &after.tuple());
    let count = |udp: &Udp| all.iter().filter(|event| event.connection.original == udp.tuple()).count();
    assert_eq!((count(&without), count(&before), count(&after)), (0, 1, 1), "{all:?}");
    assert_eq!(bed.conntrack.get(&without.tuple(), 0).unwrap(), None, "but it can be asked for");
}

#[test]
fn more_events_than_fit_are_an_overrun() {
    let Some(mut bed) = Bed::new("ct-overrun") else { return };
    let mut events = Events::open(&[EventKind::Destroyed], None, 4096).unwrap();
    let tuples = many(300);
    for tuple in &tuples {
        assert!(bed.conntrack.delete(tuple, 0, None).unwrap());
    }
    let (mut overruns, mut read) = (0, 0);
    loop {
        match events.read().unwrap() {
            Arrival::Overrun => overruns += 1,
            Arrival::Events(some) if some.is_empty() => break,
            Arrival::Events(some) => read += some.len(),
        }
    }
    assert!(overruns > 0 && read < tuples.len(), "{overruns} overruns, {read} events");
    // It goes on.
    let last = Udp::open("127.0.0.1");
    assert!(bed.conntrack.delete(&last.tuple(), 0, None).unwrap());
    assert_eq!(wait_for(&mut events, EventKind::Destroyed, &last.tuple()).len(), 1);
}
