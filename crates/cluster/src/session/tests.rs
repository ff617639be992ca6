mod adversary;

use super::*;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

const MS: u64 = 1_000_000;

/// Numbers that are all different.
fn random() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn session(own: u16, peer: u16) -> Session {
    let node = |number| Node::new(number).expect("small");
    Session::new(node(own), &format!("n{own}"), node(peer), Epochs::only(Epoch::new(1)), random)
}

/// What a daemon sends at each tick.
fn exchange(one: &mut Session, two: &mut Session, now: u64) {
    one.hellos(1, now).into_iter().for_each(|hello| _ = two.receive(hello, now));
    two.hellos(1, now).into_iter().for_each(|hello| _ = one.receive(hello, now));
}

fn meet(one: &mut Session, two: &mut Session, now: u64) {
    for _ in 0..3 {
        exchange(one, two, now);
    }
    assert!(one.hears(now) && two.hears(now));
    one.set_answers(true);
}

fn offer(from: &mut Session) -> Message {
    from.hellos(1, 0).into_iter().find(|hello| hello.peer_nonce == 0).expect("it hears nothing")
}

fn own(last: u8) -> Entry {
    Entry::Own(IpAddr::from([192, 0, 2, last]))
}

#[test]
fn two_nodes_exchange_entries() {
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    assert_eq!(one.state(0), State::Down);
    assert_eq!(one.announcement(1, &[own(1)], 0), []);
    meet(&mut one, &mut two, 5);
    assert_eq!((one.state(5), two.state(5)), (State::Up, State::NoProgram));
    assert!(!one.is_known() && !two.is_known());
    let many: Vec<_> = (0..=255).map(own).collect();
    let parts = two.announcement(7, &many, 6);
    assert!(parts.len() > 1);
    let changed: Vec<_> = parts.into_iter().rev().map(|part| one.receive(part, 6)).collect();
    // In reverse order: after the last part, the others have lower sequence numbers and are ignored.
    assert!(changed.iter().all(|changed| !changed));
    for part in two.announcement(7, &many, 6) {
        one.receive(part, 6);
    }
    assert_eq!((one.entries(), one.is_known()), (&many[..], true));
    exchange(&mut one, &mut two, 7);
    assert_ne!(two.announcement(7, &many, 7), [], "it has them, but does not act on them yet");
    one.set_applied();
    exchange(&mut one, &mut two, 7);
    assert_eq!(two.announcement(7, &many, 7), [], "it acts on them");
    assert_eq!(two.announcement(8, &[], 7).len(), 1, "an empty announcement is sent as well");
}

#[test]
fn replayed_messages_are_ignored() {
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    meet(&mut one, &mut two, 5);
    let old = two.announcement(7, &[own(1)], 6);
    let new = two.announcement(8, &[own(2)], 6);
    assert!(one.receive(new[0].clone(), 6));
    assert!(!one.receive(old[0].clone(), 6));
    assert_eq!(one.entries(), [own(2)]);
    // After a restart of the receiver, and after one of the sender.
    let mut again = session(1, 2);
    assert!(!again.receive(new[0].clone(), 7) && !again.has_announced());
    let recorded = two.announcement(9, &[own(3)], 7);
    let mut two = session(2, 1);
    meet(&mut one, &mut two, 8);
    assert!(!one.receive(recorded[0].clone(), 9));
    assert_eq!(one.entries(), [own(2)]);
}

#[test]
fn a_flood_of_old_offers_changes_nothing() {
    let mut old = session(2, 1);
    let offer = offer(&mut old);
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    meet(&mut one, &mut two, 5);
    for at in 0..50 {
        let now = at * 100 * MS;
        (0..1000).for_each(|_| assert!(!one.receive(offer.clone(), now)));
        assert!(one.hellos(1, now).len() <= 2, "one answer to all of them");
        exchange(&mut one, &mut two, now);
        let parts = two.announcement(at + 1, &[own(at as u8)], now);
        assert!(parts.into_iter().all(|part| one.receive(part, now)), "it learns");
        assert_eq!((one.entries(), one.refused(now)), (&[own(at as u8)][..], None));
        one.set_applied();
    }
}

#[test]
fn an_offer_is_accepted_for_a_short_time() {
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    two.receive(offer(&mut one), 0);
    let answer = two.hellos(1, 0);
    // Both nonces that it may have used have been replaced.
    for at in 1..=2 {
        one.hellos(1, at * OFFERED_NS);
    }
    answer.into_iter().for_each(|message| _ = one.receive(message, 3 * OFFERED_NS));
    assert!(!one.hears(3 * OFFERED_NS));
}

#[test]
fn a_restarted_daemon_keeps_its_entries() {
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    meet(&mut one, &mut two, 0);
    for part in two.announcement(7, &[own(1)], 1) {
        one.receive(part, 1);
    }
    let later = 2 * SILENT_NS;
    assert_eq!((one.state(later), one.entries()), (State::NoDaemon, &[own(1)][..]));
    let mut two = session(2, 1);
    for _ in 0..3 {
        exchange(&mut one, &mut two, later);
    }
    assert_eq!((one.state(later), one.entries()), (State::Up, &[own(1)][..]));
    for part in two.announcement(1, &[own(2)], later) {
        one.receive(part, later);
    }
    assert_eq!(one.entries(), [own(2)]);
    assert!(one.set_answers(false) && !one.set_answers(false));
    assert_eq!(one.entries(), [], "and no probe comes back");
    assert_eq!(one.state(later + SILENT_NS), State::Down);
}

#[test]
fn reports_why_a_peer_is_rejected() {
    let mut one = session(1, 2);
    let mut three = session(3, 1);
    assert!(!one.receive(offer(&mut three), 5));
    assert_eq!(one.refused(5), Some(&Refusal::Peer("n3".into(), 3)));
    let mut two = session(2, 9);
    one.receive(offer(&mut two), 6);
    assert_eq!(one.refused(6), Some(&Refusal::Receiver("n2".into(), 9)));
    let mut two = Session { epochs: Epochs::only(Epoch::new(2)), ..session(2, 1) };
    one.receive(offer(&mut two), 7);
    assert_eq!(one.refused(7), Some(&Refusal::Epoch(Epoch::new(2))));
    assert_eq!(one.refused(7 + 4000 * MS), None);
    assert_eq!(one.state(7), State::Down);
}

#[test]
fn nodes_may_change_their_epoch_one_after_the_other() {
    let (mut one, mut two) = (session(1, 2), session(2, 1));
    meet(&mut one, &mut two, 5);
    let (old, new) = (Epoch::new(1), Epoch::new(2));
    two.set_epochs(Epochs::only(old).change(new));
    let hello = two.hellos(1, 6).remove(0);
    assert!(one.receive(hello, 6), "routes have to follow");
    assert_eq!((one.peer_epoch(), one.is_behind(6), one.refused(6)), (new, true, None));
    let hello = one.hellos(1, 6).remove(0);
    assert!(!two.receive(hello, 6));
    assert_eq!((two.peer_epoch(), two.is_behind(6)), (old, true), "it gets what it accepts");
    one.set_epochs(Epochs::only(old).change(new));
    exchange(&mut one, &mut two, 7);
    assert_eq!((one.peer_epoch(), two.peer_epoch(), two.is_behind(7)), (new, new, false));
    // A second change before the first has reached all is one too many.
    let third = Epoch::new(3);
    two.set_epochs(Epochs::only(old).change(new).change(third));
    let mut late = session(3, 2);
    late.peer = two.own;
    let message = two.hellos(1, 7).remove(0);
    assert_eq!(late.refusal(&Message { receiver: 3, ..message }), Some(Refusal::Epoch(third)));
}
