//! Marks: which objects workers get, and how requests find the others.

use super::*;

fn marked(body: Vec<u8>, value: u32, mask: u32) -> Vec<u8> {
    with(body, attribute::MARK, &[value.to_ne_bytes(), mask.to_ne_bytes()].concat())
}

fn by_selector() -> Vec<u8> {
    [selector_of("10.1.0.0", "10.2.0.0"), vec![0; 4], vec![1, 0, 0, 0]].concat()
}

#[test]
fn sas_for_other_marks_are_kept_shown_and_deleted_but_not_used() {
    let mut lab = Lab::default();
    let sa = |key: u8| new_sa(OWN, PEER, 0x1001, 1, &[key; 20]);
    assert_eq!(kinds(&lab.ask(kind::NEW_SA, 5, &marked(sa(1), 0x2a, 0xff))), ["leave"]);
    // Linux looks for an SA with the mark of the new one, and finds none.
    assert_eq!(kinds(&lab.ask(kind::NEW_SA, 5, &marked(sa(2), 0, 0xff))), ["add"]);
    for mark in [0x2a, 0x12a] {
        assert_eq!(lab.errno(kind::NEW_SA, &marked(sa(3), mark, u32::MAX)), number::EXISTS);
    }
    assert_eq!(lab.errno(kind::NEW_SA, &sa(3)), number::EXISTS);
    lab.usage = Usage { packets: 5, ..Usage::default() };
    let mut shown = |mark: Option<(u32, u32)>| {
        let body = sa_id(PEER, 0x1001);
        let body = mark.map_or(body.clone(), |(value, mask)| marked(body, value, mask));
        let answer = lab.ask(kind::GET_SA, 1, &body);
        let found = only(&answer.replies);
        (found.kind == kind::NEW_SA).then(|| {
            let attributes = crate::message::attributes(found.body, at::LENGTH).unwrap();
            let mark = attributes.iter().find(|(kind, _)| *kind == attribute::MARK).unwrap().1;
            (read::<u32>(mark, 0), read::<u32>(mark, 4), read::<u64>(found.body, at::USED + 8))
        })
    };
    // What workers have done is the other one's.
    assert_eq!(shown(None), Some((0, 0xff, 5)));
    assert_eq!(shown(Some((0x2a, u32::MAX))), Some((0x2a, 0xff, 0)));
    assert_eq!(shown(Some((0x2b, u32::MAX))), None);
    let gone = lab.ask(kind::DELETE_SA, 5, &marked(sa_id(PEER, 0x1001), 0x2a, u32::MAX));
    assert_eq!((kinds(&gone), errno(&gone)), (vec![], 0));
    assert_eq!(kinds(&lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1001))), ["remove"]);
}

#[test]
fn policies_with_the_same_selector_differ_by_their_marks() {
    let mut lab = Lab::default();
    let policy = || new_policy(1, 100, Some([OWN, PEER]));
    assert_eq!(lab.errno(kind::NEW_POLICY, &policy()), 0);
    let added = lab.ask(kind::NEW_POLICY, 5, &marked(policy(), 0x2a, 0xff));
    let [Change::AddPolicy { policy: of_mark, .. }] = &added.changes[..] else { panic!("{}", errno(&added)) };
    assert!(!of_mark.selector.mark.matches_unmarked());
    let policies = bm_ipsec::Policies::new(vec![(**of_mark).clone()]).unwrap();
    let packet =
        Key::new(["10.1.0.2", "10.2.0.3"].map(|text| text.parse().unwrap()), 6, None, Kind::Ports, 0);
    assert!(policies.find(Direction::Out, &packet).is_none() && !policies.has(Direction::Out));
    assert_eq!(policies.all().len(), 1, "it is shown");
    assert_eq!(lab.errno(kind::NEW_POLICY, &marked(policy(), 0x2a, 0xff)), number::EXISTS);
    assert_eq!(lab.errno(kind::NEW_POLICY, &marked(policy(), 0, 0xff)), 0, "unmarked packets match");
    // By selector and by index, only with the same mark.
    let dump = lab.ask(kind::GET_POLICY, 0x301, &[]);
    let all: Vec<_> = dump.replies.iter().flat_map(|reply| Messages(reply)).collect();
    let marks: Vec<_> = all[..3]
        .iter()
        .map(|raw| {
            crate::mark::mark(&crate::message::attributes(raw.body, policy::LENGTH).unwrap()).to_string()
        })
        .collect();
    assert_eq!(marks, ["0x0/0x0", "0x2a/0xff", "0x0/0xff"]);
    let index: u32 = read(all[1].body, policy::INDEX);
    let by_index = [&[0; 56][..], &index.to_ne_bytes(), &[1, 0, 0, 0]].concat();
    for body in [by_index.clone(), marked(by_selector(), 0x2a, 0xfe), marked(by_index.clone(), 0, 0xff)] {
        assert_eq!(lab.errno(kind::DELETE_POLICY, &body), number::NO_ENTRY);
    }
    assert_eq!(
        only(&lab.ask(kind::GET_POLICY, 1, &marked(by_index, 0x2a, 0xff)).replies).kind,
        kind::NEW_POLICY
    );
    let gone = lab.ask(kind::DELETE_POLICY, 5, &marked(by_selector(), 0x2a, 0xff));
    assert!(
        crate::message::attributes(Messages(&gone.events[0].1).next().unwrap().body, 64).unwrap().len() >= 3
    );
    for body in [by_selector(), marked(by_selector(), 0, 0xff)] {
        assert_eq!(lab.errno(kind::DELETE_POLICY, &body), 0);
    }
    assert_eq!(lab.errno(kind::DELETE_POLICY, &by_selector()), number::NO_ENTRY);
}

#[test]
fn an_acquire_has_the_mark_of_its_policy() {
    let mut lab = Lab::default();
    assert_eq!(lab.errno(kind::NEW_POLICY, &marked(new_policy(1, 100, Some([OWN, PEER])), 0, 0xff)), 0);
    let packet =
        Key::new(["10.1.0.2", "10.2.0.3"].map(|text| text.parse().unwrap()), 6, None, Kind::Ports, 0);
    let asked = lab.with(|database, _, context| database.acquire(0, None, &packet, context)).events;
    let event = &asked[0].1;
    assert_eq!(event[event.len() - 12..], [12, 0, 21, 0, 0, 0, 0, 0, 0xff, 0, 0, 0]);
}
