//! Requests of programs, byte by byte: what is stored, answered, sent as events, and given to workers.

use bm_filter::{Key, Kind};
use bm_ipsec::{Action, Direction, SaId, SaList, Suite};
use proptest::prelude::*;

use crate::layout::{attribute, errno as number, kind, policy, sa as at};
use crate::message::{Bytes, number as read};
use crate::testing::*;
use crate::{Answer, Change, Messages, Now, Raw, Usage};

mod cpus;
mod marks;
mod moving;

fn only(replies: &[Bytes]) -> Raw<'_> {
    let [reply] = replies else { panic!("{} replies", replies.len()) };
    Messages(reply).next().unwrap()
}

fn id(destination: &str, spi: u32) -> SaId {
    SaId { spi, destination: destination.parse().unwrap() }
}

fn kinds(answer: &Answer) -> Vec<&'static str> {
    let name = |change: &Change| match change {
        Change::AddSa { .. } => "add",
        Change::RemoveSa(_) => "remove",
        Change::LeaveSa(..) => "leave",
        Change::AddPolicy { .. } => "policy",
        Change::RemovePolicy { .. } => "no policy",
        Change::RemoveAllPolicies => "no policies",
        Change::Current { .. } => "current",
    };
    answer.changes.iter().map(name).collect()
}

#[test]
fn an_sa_is_taken_shown_without_its_key_and_deleted() {
    let mut lab = Lab::default();
    (lab.client.process, lab.client.port) = (42, 4242);
    let added = lab.ask(kind::NEW_SA, 5, &new_sa(OWN, PEER, 0x1001, 1, &KEY));
    let [Change::AddSa { sa, sent: 0, received: 0, used: None }] = &added.changes[..] else { panic!() };
    assert_eq!((sa.id(), sa.suite, sa.reqid), (id(PEER, 0x1001), Suite::Aes128Gcm, 1));
    assert_eq!((sa.direction, sa.replay_window, sa.encryption_key.bytes()), (Direction::Out, 32, &KEY[..]));
    let ack = only(&added.replies);
    assert_eq!((ack.kind, ack.sequence, ack.port, ack.body.len()), (2, 77, 4242, 20));
    assert_eq!(ack.body[..4], [0; 4]);
    // The event has no key, the answer to another process neither, that to the same one has it.
    assert!(!added.events[0].1.windows(20).any(|bytes| bytes == KEY));
    lab.now = Now { epoch_s: 1_000, ns: 9_000_000_000 };
    lab.usage = Usage { bytes: 500, packets: 5, number: 6, failures: 1, first_ns: 7_000_000_000 };
    for (process, shown) in [(42, KEY), (43, [0; 20])] {
        lab.client.process = process;
        let answer = lab.ask(kind::GET_SA, 1, &sa_id(PEER, 0x1001));
        let found = only(&answer.replies);
        let mut expected = sa_info(OWN, PEER, 0x1001, 1);
        (expected[at::USED], expected[at::USED + 1], expected[at::USED + 8]) = (0xf4, 1, 5);
        expected[at::USED + 24..][..2].copy_from_slice(&998u16.to_ne_bytes());
        expected[at::FAILURES + 8] = 1;
        let expected = with(expected, attribute::AEAD, &algorithm(GCM, Some(128), &shown));
        let expected = with(expected, attribute::REPLAY, &[5, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        // Out.
        let expected = with(expected, attribute::DIRECTION, &[2]);
        assert_eq!((found.kind, found.body), (kind::NEW_SA, &expected[..]));
    }
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, 0x1001, 1, &[8; 20])), number::EXISTS);
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, 0x1002, 1, &KEY)), number::EXISTS, "the same key");
    let gone = lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1001));
    assert_eq!((kinds(&gone), errno(&gone)), (vec!["remove"], 0));
    assert_eq!(lab.errno(kind::DELETE_SA, &sa_id(PEER, 0x1001)), number::NO_PROCESS);
}

#[test]
fn suites_are_read_from_names_and_lengths() {
    let cbc = |auth: &str, icv, integrity: &[u8], encryption: &[u8]| {
        let body =
            with(sa_info(OWN, PEER, 0x1001, 1), attribute::CRYPT, &algorithm("cbc(aes)", None, encryption));
        with(body, attribute::AUTH_TRUNCATED, &algorithm(auth, Some(icv), integrity))
    };
    let aead = |name: &str, icv, key: &[u8]| {
        with(sa_info(OWN, PEER, 0x1001, 1), attribute::AEAD, &algorithm(name, Some(icv), key))
    };
    for (body, suite) in [
        (aead(GCM, 128, &[1; 20]), Suite::Aes128Gcm),
        (aead(GCM, 128, &[1; 36]), Suite::Aes256Gcm),
        (aead("rfc7539esp(chacha20,poly1305)", 128, &[1; 36]), Suite::ChaCha20Poly1305),
        (cbc("hmac(sha256)", 128, &[1; 32], &[2; 16]), Suite::Aes128Sha256),
        (cbc("hmac(sha256)", 128, &[1; 32], &[2; 32]), Suite::Aes256Sha256),
        (cbc("hmac(sha1)", 96, &[1; 20], &[2; 16]), Suite::Aes128Sha1),
        (cbc("hmac(sha1)", 96, &[1; 20], &[2; 32]), Suite::Aes256Sha1),
    ] {
        let added = Lab::default().ask(kind::NEW_SA, 5, &body);
        let Some(Change::AddSa { sa, .. }) = added.changes.first() else {
            panic!("{suite}: {}", errno(&added))
        };
        assert_eq!(sa.suite, suite);
    }
    for body in [
        aead(GCM, 64, &[1; 20]),
        aead(GCM, 128, &[1; 28]),
        aead("rfc4309(ccm(aes))", 128, &[1; 19]),
        cbc("hmac(sha256)", 96, &[1; 32], &[2; 16]),
        cbc("hmac(md5)", 96, &[1; 16], &[2; 16]),
        sa_info(OWN, PEER, 0x1001, 1),
    ] {
        assert_eq!(Lab::default().errno(kind::NEW_SA, &body), number::NOT_IMPLEMENTED);
    }
    assert_eq!(
        Lab::default().errno(kind::NEW_SA, &aead(GCM, 128, &[0; 20])),
        number::INVALID,
        "a key of zeros"
    );
}

#[test]
fn what_is_not_supported_is_refused_with_a_text() {
    let mut lab = Lab::default();
    lab.client.texts = true;
    let base = || new_sa(OWN, PEER, 0x1001, 1, &KEY);
    let changed = |at: usize, value: u8| {
        let mut body = base();
        body[at] = value;
        body
    };
    for (body, text) in [
        (changed(at::PROTOCOL, 51), "only ESP"),
        (changed(at::MODE, 4), "only tunnel and transport"),
        (changed(at::FLAGS, 2), "flags 0x2"),
        (with(base(), attribute::SET_MARK, &[1, 0, 0, 0]), "marks of ESP packets"),
        (with(base(), attribute::MARK, &[1, 0, 0, 0]), "a mark that is cut off"),
        (with(base(), attribute::CPU, &[0, 32, 0, 0]), "CPU 8192: the highest number is 8191"),
        (with(base(), attribute::CPU, &[0, 32]), "message of 2 bytes"),
        (with(base(), attribute::INTERFACE, &[1, 0]), "if_id"),
        (with(changed(at::MODE, 0), attribute::INTERFACE, &[1, 0, 0, 0]), "tunnel mode"),
        (with(base(), attribute::OFFLOAD, &[1, 0, 0, 0, 0, 0, 0, 0]), "offload"),
        (with(base(), attribute::TFC, &[1, 0, 0, 0]), "tfcpad"),
    ] {
        let answer = lab.ask(kind::NEW_SA, 5, &body);
        let refusal = only(&answer.replies);
        assert!([number::NOT_SUPPORTED, number::INVALID].contains(&errno(&answer)), "{text}");
        let shown = String::from_utf8_lossy(refusal.body);
        assert!(shown.contains(text), "{text}: {shown}");
        assert!(!refusal.body.windows(20).any(|bytes| bytes == KEY), "no key");
        assert!(answer.changes.is_empty() && answer.events.is_empty());
    }
    // A mark with a mask of zero matches everything.
    assert_eq!(lab.errno(kind::NEW_SA, &with(base(), attribute::MARK, &[0; 8])), 0);
}

#[test]
fn an_spi_is_reserved_for_an_inbound_sa_and_freed_when_nobody_uses_it() {
    let mut lab = Lab::default();
    let range = |least: u32, most: u32| {
        [sa_info(PEER, OWN, 0, 7), least.to_ne_bytes().into(), most.to_ne_bytes().into()].concat()
    };
    let answer = lab.ask(kind::ALLOCATE_SPI, 1, &range(0xc000_0000, 0xcfff_ffff));
    let reply = only(&answer.replies);
    let spi = u32::from_be_bytes(*reply.body[at::SPI..].first_chunk().unwrap());
    assert_eq!((reply.kind, spi >> 28), (kind::NEW_SA, 0xc));
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(PEER, OWN, spi, 7, &KEY)), number::EXISTS);
    let updated = lab.ask(kind::UPDATE_SA, 5, &new_sa(PEER, OWN, spi, 7, &KEY));
    let Some(Change::AddSa { sa, .. }) = updated.changes.first() else { panic!("{}", errno(&updated)) };
    assert_eq!((sa.direction, sa.spi), (Direction::In, spi));
    assert_eq!(lab.errno(kind::UPDATE_SA, &new_sa(PEER, OWN, spi, 7, &KEY)), number::NOT_SUPPORTED);
    assert_eq!(lab.errno(kind::UPDATE_SA, &new_sa(PEER, OWN, 0x9999, 7, &KEY)), number::NO_PROCESS);
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &range(255, 300)), number::INVALID);
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &range(300, 299)), number::INVALID);
    // A range of one SPI.
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &range(256, 256)), 0);
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &range(256, 256)), number::NO_ENTRY);
    lab.now.ns = 165_000_000_000;
    let expired = lab.with(|database, _, context| database.expire(context));
    assert_eq!(kinds(&expired), Vec::<&str>::new(), "workers do not know it");
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &range(256, 256)), 0);
}

#[test]
fn policies_use_the_newest_sa_of_their_template() {
    let mut lab = Lab::default();
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, 0x1001, 1, &[1; 20])), 0);
    let added = lab.ask(kind::NEW_POLICY, 5, &new_policy(1, 100, Some([OWN, PEER])));
    let [Change::AddPolicy { order, policy, sas }] = &added.changes[..] else { panic!() };
    assert!(matches!(policy.action, Action::Template(0, template) if template.reqid == 1), "{policy:?}");
    let of = |spi| SaList::of(Some(id(PEER, spi)));
    assert_eq!((policy.priority, *order & !(1 << 62), sas), (100, 1, &of(0x1001)));
    assert_eq!(policy.selector.destination.unwrap().to_string(), "10.2.0.0/24");
    assert_eq!(lab.errno(kind::NEW_POLICY, &new_policy(1, 50, None)), number::EXISTS);
    // Another reqid is for others; the same one is used at once, and the old one again if the new one goes.
    assert_eq!(kinds(&lab.ask(kind::NEW_SA, 5, &new_sa(OWN, PEER, 0x1002, 2, &[2; 20]))), ["add"]);
    let rekeyed = lab.ask(kind::NEW_SA, 5, &new_sa(OWN, PEER, 0x1003, 1, &[3; 20]));
    let [Change::AddSa { .. }, Change::Current { template: 0, sas }] = &rekeyed.changes[..] else { panic!() };
    assert_eq!(*sas, of(0x1003));
    assert_eq!(kinds(&lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1001))), ["remove"]);
    let gone = lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1003));
    let [Change::Current { template: 0, sas }, Change::RemoveSa(_)] = &gone.changes[..] else { panic!() };
    assert_eq!(*sas, SaList::of(None));
    // Without an SA it is asked for, once in a while.
    let packet = Key::new(
        ["10.1.0.2", "10.2.0.3"].map(|text| text.parse().unwrap()),
        6,
        Some((1024, 80)),
        Kind::Ports,
        0,
    );
    let asked = lab.with(|database, _, context| database.acquire(0, None, &packet, context)).events;
    let acquire = Messages(&asked[0].1).next().unwrap();
    assert_eq!((asked[0].0, acquire.kind, acquire.body[20]), (1, kind::ACQUIRE, 50));
    let selector = &acquire.body[40..96];
    assert_eq!((&selector[..4], &selector[16..20]), (&[10, 2, 0, 3][..], &[10, 1, 0, 2][..]));
    assert_eq!(selector[32..45], [0, 80, 255, 255, 4, 0, 255, 255, 2, 0, 32, 32, 6]);
    assert!(lab.with(|database, _, context| database.acquire(0, None, &packet, context)).events.is_empty());
    let flushed = lab.ask(kind::FLUSH_POLICIES, 5, &[]);
    assert_eq!(kinds(&flushed), ["no policies"]);
}

#[test]
fn each_interface_has_sas_and_policies_of_its_own() {
    let mut lab = Lab::default();
    let of = |body: Vec<u8>, if_id: u32| with(body, attribute::INTERFACE, &if_id.to_ne_bytes());
    let sa = |spi: u32, if_id| of(new_sa(OWN, PEER, spi, 1, &[spi as u8; 20]), if_id);
    let policy = |if_id| of(new_policy(1, 100, Some([OWN, PEER])), if_id);
    assert_eq!(lab.errno(kind::NEW_SA, &sa(0x1001, 42)), 0);
    // What arrives on the TUN device has lost its mark.
    let marked = with(policy(42), attribute::MARK, &[5, 0, 0, 0, 0xff, 0, 0, 0]);
    assert_eq!(lab.errno(kind::NEW_POLICY, &marked), number::NOT_SUPPORTED);
    // The same selector for each of them, and for none; an SA of another one is not used.
    let mut sas = Vec::new();
    for if_id in [0, 42, 43] {
        let added = lab.ask(kind::NEW_POLICY, 5, &policy(if_id));
        let [Change::AddPolicy { policy, sas: all, .. }] = &added.changes[..] else {
            panic!("{}", errno(&added))
        };
        assert!(matches!(policy.action, Action::Template(_, template) if template.if_id == if_id));
        assert_eq!(policy.if_id, if_id);
        sas.push(all.fallback.map(|id| id.spi));
    }
    assert_eq!(sas, [None, Some(0x1001), None]);
    assert_eq!(lab.errno(kind::NEW_POLICY, &policy(43)), number::EXISTS);
    let added = lab.ask(kind::NEW_SA, 5, &sa(0x1002, 43));
    assert!(matches!(added.changes[..], [Change::AddSa { .. }, Change::Current { template: 2, .. }]));
    // Both are shown with it.
    let attribute_of = |body: &[u8], fixed: usize| {
        let found = crate::message::attributes(body, fixed).unwrap();
        found.iter().find(|(kind, _)| *kind == attribute::INTERFACE).map(|(_, value)| value.to_vec())
    };
    let answer = lab.ask(kind::GET_SA, 1, &sa_id(PEER, 0x1001));
    assert_eq!(attribute_of(only(&answer.replies).body, at::LENGTH), Some(vec![42, 0, 0, 0]));
    let dump = lab.ask(kind::GET_POLICY, 0x301, &[]);
    let all =
        dump.replies.iter().flat_map(|reply| Messages(reply)).filter(|raw| raw.kind == kind::NEW_POLICY);
    let shown: Vec<_> = all.map(|raw| attribute_of(raw.body, policy::LENGTH)).collect();
    assert_eq!(shown, [None, Some(vec![42, 0, 0, 0]), Some(vec![43, 0, 0, 0])]);
    // What asks for an SA, and what says that one expires, have it too.
    let asked = lab.with(|database, _, context| database.acquire(0, None, &Key::default(), context)).events;
    assert_eq!(attribute_of(Messages(&asked[0].1).next().unwrap().body, 280), None);
    assert_eq!(lab.errno(kind::DELETE_SA, &sa_id(PEER, 0x1002)), 0);
    let asked = lab.with(|database, _, context| database.acquire(2, None, &Key::default(), context)).events;
    assert_eq!(attribute_of(Messages(&asked[0].1).next().unwrap().body, 280), Some(vec![43, 0, 0, 0]));
    // One of another interface is not deleted.
    let id = |if_id| of([selector_of("10.1.0.0", "10.2.0.0"), vec![0; 4], vec![1, 0, 0, 0]].concat(), if_id);
    assert_eq!(lab.errno(kind::DELETE_POLICY, &id(44)), number::NO_ENTRY);
    assert_eq!([42, 0, 43].map(|if_id| lab.errno(kind::DELETE_POLICY, &id(if_id))), [0; 3]);
    assert_eq!(lab.errno(kind::DELETE_POLICY, &id(42)), number::NO_ENTRY);
}

#[test]
fn policies_are_listed_found_and_deleted_by_index_or_selector() {
    let mut lab = Lab::default();
    for direction in [0, 1, 2] {
        assert_eq!(lab.errno(kind::NEW_POLICY, &new_policy(direction, 7, None)), 0);
    }
    let dump = lab.ask(kind::GET_POLICY, 0x301, &[]);
    let all: Vec<_> = dump.replies.iter().flat_map(|reply| Messages(reply)).collect();
    assert_eq!(
        all.iter().map(|raw| raw.kind).collect::<Vec<_>>(),
        [kind::NEW_POLICY, kind::NEW_POLICY, kind::NEW_POLICY, 3]
    );
    assert!(all.iter().all(|raw| raw.flags == 2 && raw.sequence == 77));
    let index: u32 = read(all[1].body, policy::INDEX);
    assert_eq!(index & 7, 1, "the lower bits are the direction");
    let by_index = [&[0; 56][..], &index.to_ne_bytes(), &[1, 0, 0, 0]].concat();
    assert_eq!(only(&lab.ask(kind::GET_POLICY, 1, &by_index).replies).kind, kind::NEW_POLICY);
    let by_selector = [selector_of("10.1.0.0", "10.2.0.0"), vec![0; 4], vec![2, 0, 0, 0]].concat();
    assert_eq!(lab.errno(kind::DELETE_POLICY, &by_selector), 0);
    assert_eq!(lab.errno(kind::DELETE_POLICY, &by_selector), number::NO_ENTRY);
    assert_eq!(lab.errno(kind::DELETE_POLICY, &by_index), 0);
    let info = lab.ask(kind::GET_POLICY_INFO, 1, &[0; 4]);
    assert_eq!(only(&info.replies).body[8..20], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "one, for in");
}

#[test]
fn lifetimes_are_reported_and_end_sas() {
    let mut lab = Lab::default();
    let mut body = new_sa(OWN, PEER, 0x1001, 1, &KEY);
    body[at::LIMITS..][..16].copy_from_slice(&[1000u64.to_ne_bytes(), 2000u64.to_ne_bytes()].concat());
    assert_eq!(lab.errno(kind::NEW_SA, &body), 0);
    let mut expire = |bytes| {
        lab.usage = Usage { bytes, packets: 1, ..Usage::default() };
        lab.with(|database, _, context| database.expire(context))
    };
    assert!(expire(999).events.is_empty());
    let soft = expire(1000);
    let event = Messages(&soft.events[0].1).next().unwrap();
    assert_eq!((soft.events[0].0, event.kind, event.body.len()), (2, kind::EXPIRE, 232));
    assert_eq!((&event.body[at::SPI..][..4], event.body[224]), (&[0, 0, 0x10, 1][..], 0));
    assert!(soft.changes.is_empty() && expire(1500).events.is_empty(), "once");
    let hard = expire(2000);
    assert_eq!(Messages(&hard.events[0].1).next().unwrap().body[224], 1);
    assert_eq!(kinds(&hard), ["remove"]);
}

#[test]
fn numbers_of_an_sa_that_moves_go_on() {
    let mut lab = Lab::default();
    let body =
        with(new_sa(OWN, PEER, 0x1001, 1, &KEY), attribute::REPLAY, &[9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    let added = lab.ask(kind::NEW_SA, 5, &body);
    assert!(matches!(added.changes[..], [Change::AddSa { sent: 9, received: 5, used: None, .. }]));
    let mut body = new_sa(OWN, PEER, 0x1002, 1, &[9; 20]);
    body[at::FLAGS] = 128;
    let words = [4u32, 10, 20, 1, 2, 128, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let added = lab.ask(kind::NEW_SA, 5, &with(body, attribute::REPLAY_ESN, &words));
    let [Change::AddSa { sa, sent, received, .. }] = &added.changes[..] else { panic!() };
    assert_eq!((*sent, *received, sa.replay_window, sa.esn), (1 << 32 | 10, 2 << 32 | 20, 128, true));
}

#[test]
fn every_cut_of_a_message_is_refused_and_changes_nothing() {
    for (kind, body) in [
        (kind::NEW_SA, new_sa(OWN, PEER, 0x1001, 1, &KEY)),
        (kind::NEW_POLICY, new_policy(1, 100, Some([OWN, PEER]))),
        (kind::DELETE_SA, sa_id(PEER, 1)),
    ] {
        let fixed = if kind == kind::NEW_POLICY { policy::LENGTH } else { body.len() };
        for length in (0..body.len()).filter(|length| *length != fixed) {
            let mut lab = Lab::default();
            let answer = lab.ask(kind, 5, &body[..length]);
            assert!(answer.changes.is_empty() || length > fixed, "{kind} {length}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_bytes_are_answered(kind in 0u16..0x30, flags: u16, body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut lab = Lab::default();
        let answer = lab.ask(kind, flags, &body);
        prop_assert!(answer.replies.iter().all(|reply| Messages(reply).count() >= 1));
    }
}

#[test]
fn what_workers_could_not_use_is_refused_and_changes_nothing() {
    let mut lab = Lab::default();
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, CONFIGURED, 1, &KEY)), number::EXISTS);
    assert_eq!(lab.errno(kind::GET_SA, &sa_id(PEER, CONFIGURED)), number::NO_PROCESS);
    let policy = |number: u8| {
        let mut body = new_policy(1, 7, None);
        body[2] = number;
        body
    };
    for number in 0..POLICIES as u8 {
        assert_eq!(lab.errno(kind::NEW_POLICY, &policy(number)), 0);
    }
    let refused = lab.ask(kind::NEW_POLICY, 5, &policy(200));
    assert_eq!((errno(&refused), refused.events.len()), (number::NO_SPACE, 0));
    assert!(refused.changes.is_empty(), "workers go on with those that there were");
    assert_eq!(lab.errno(kind::UPDATE_POLICY, &policy(7)), 0, "in place of another one");
    // One fewer makes room for it.
    assert_eq!(
        lab.errno(kind::DELETE_POLICY, &{
            let mut body = selector_of("10.1.0.0", "10.2.0.0");
            body[2] = 3;
            body.extend([0, 0, 0, 0, 1, 0, 0, 0]);
            body
        }),
        0
    );
    assert_eq!(lab.errno(kind::NEW_POLICY, &policy(200)), 0);
}
