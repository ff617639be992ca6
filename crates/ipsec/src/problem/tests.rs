//! Each thing that can be wrong is found, where it is, and nothing else is.

use super::*;
use crate::lifetime::Limits;
use crate::sa::{Direction, UdpPorts};
use crate::testing::sa;

fn found(change: impl Fn(&mut Sa)) -> Vec<What> {
    let mut sa = sa(Suite::Aes128Gcm, Direction::Out);
    sa.at = 77;
    change(&mut sa);
    let problems = problems(&[sa], &[], &[]);
    assert!(problems.iter().all(|problem| problem.at == 77));
    problems.into_iter().map(|problem| problem.what).collect()
}

#[test]
fn nothing_is_wrong_with_any_suite() {
    for suite in Suite::ALL {
        assert_eq!(problems(&[sa(suite, Direction::In)], &[], &[]), [], "{suite}");
    }
}

#[test]
fn wrong_keys() {
    let short = found(|sa| sa.encryption_key = Secret::new(&[1; 16]));
    let what = What::KeyLength { key: "encryption_key", suite: Suite::Aes128Gcm, found: 16, expected: 20 };
    assert_eq!(short, [what]);
    assert_eq!(
        short[0].to_string(),
        "encryption_key has 16 bytes: aes128gcm16 needs 20, of which the last 4 are the salt"
    );
    assert_eq!(found(|sa| sa.integrity_key = Secret::new(&[1])), [What::NoIntegrityKey(Suite::Aes128Gcm)]);
    assert_eq!(found(|sa| sa.encryption_key = Secret::new(&[0; 20])), [What::ZeroKey("encryption_key")]);
    let none = found(|sa| *sa = crate::testing::sa(Suite::Aes256Sha1, Direction::In)).is_empty();
    assert!(none);
    let mut cbc = sa(Suite::Aes256Sha1, Direction::In);
    cbc.integrity_key = Secret::none();
    assert!(matches!(
        problems(&[cbc], &[], &[])[..],
        [Problem { what: What::KeyLength { key: "integrity_key", found: 0, expected: 20, .. }, .. }]
    ));
}

#[test]
fn wrong_settings() {
    let limit = |soft, hard| Limit { soft, hard };
    assert_eq!(found(|sa| sa.spi = 255), [What::Spi(255)]);
    assert_eq!(found(|sa| sa.replay_window = 4097), [What::Window(4097)]);
    assert_eq!(found(|sa| (sa.esn, sa.replay_window) = (true, 0)), [What::EsnWithoutWindow]);
    assert_eq!(found(|sa| sa.replay_window = 0), []);
    assert_eq!(found(|sa| sa.dscp = Dscp::Set(64)), [What::Dscp(64)]);
    assert_eq!(found(|sa| sa.ttl = 0), [What::Ttl]);
    assert!(matches!(found(|sa| sa.path_mtu = 600)[..], [What::PathMtu { found: 600, least: 681 }]));
    assert_eq!(found(|sa| sa.udp = Some(UdpPorts { source: 4500, destination: 0 })), [What::UdpPort]);
    let any = |direction| {
        let udp = Some(UdpPorts { source: 0, destination: 4500 });
        found(|sa| (sa.direction, sa.udp) = (direction, udp))
    };
    assert_eq!((any(Direction::Out), any(Direction::In)), (vec![What::UdpPort], vec![]));
    let zero = |limits: Limits| found(|sa| sa.limits = limits);
    assert_eq!(
        zero(Limits { bytes: limit(None, Some(0)), ..Limits::default() }),
        [What::ZeroLifetime("bytes")]
    );
    assert_eq!(
        zero(Limits { time_ns: limit(Some(0), None), ..Limits::default() }),
        [What::ZeroLifetime("time")]
    );
    let soft = Limits { packets: limit(Some(10), Some(10)), ..Limits::default() };
    assert_eq!(zero(soft), [What::SoftLifetime("packets")]);
    let multicast = "224.0.0.1".parse().unwrap();
    assert_eq!(found(|sa| sa.destination = multicast), [What::Address(multicast)]);
    assert!(matches!(found(|sa| sa.source = "2001:db8::1".parse().unwrap())[..], [What::Families { .. }]));
    let ports = Selector { source_ports: Some(1..=2), ..Selector::default() };
    assert_eq!(found(|sa| sa.selectors = vec![ports.clone()]), [What::SelectorPorts]);
}

#[test]
fn duplicates_and_overlaps_say_where_the_first_is() {
    let [mut one, mut other] = [Suite::Aes128Gcm, Suite::Aes256Gcm].map(|suite| sa(suite, Direction::In));
    (one.at, other.at) = (10, 20);
    let id = one.id();
    let duplicate = Problem { at: 20, what: What::Duplicate { id, first: 10 } };
    assert_eq!(problems(&[one.clone(), other.clone()], &[], &[]), [duplicate]);
    other.spi += 1;
    let policy = |at, priority, destination: &str, action| Policy {
        at,
        direction: Direction::In,
        priority,
        if_id: 0,
        selector: Selector { destination: Some(destination.parse().unwrap()), ..Selector::default() },
        action,
    };
    let policies = [
        policy(1, 5, "10.0.0.0/8", Action::Protect(id)),
        policy(2, 6, "10.1.0.0/16", Action::Bypass),
        policy(3, 5, "10.1.0.0/16", Action::Bypass),
        policy(4, 5, "192.0.2.0/24", Action::Protect(SaId { spi: 999, ..id })),
        Policy { direction: Direction::Out, ..policy(5, 5, "10.0.0.0/8", Action::Protect(id)) },
    ];
    let expected = [
        Problem { at: 4, what: What::NoSa(SaId { spi: 999, ..id }) },
        Problem { at: 5, what: What::OtherDirection(id) },
        Problem { at: 3, what: What::Overlap { priority: 5, first: 1 } },
    ];
    assert_eq!(problems(&[one, other], &policies, &[]), expected);
}

#[test]
fn lists_of_sas_have_one_place_for_each_and_the_same_ends() {
    let sas: Vec<Sa> = (0..4)
        .map(|number| {
            let mut sa = sa(Suite::Aes128Gcm, Direction::Out);
            (sa.spi, sa.at) = (0x1000 + number, number as usize);
            sa
        })
        .collect();
    let id = |number: usize| sas[number].id();
    let problems = |change: &dyn Fn(&mut Vec<Sa>), lists: &[Vec<SaId>]| {
        let mut sas = sas.clone();
        change(&mut sas);
        let policy = |(at, _): (usize, _)| Policy {
            at: 50 + at,
            direction: Direction::Out,
            priority: at as u32,
            if_id: 0,
            selector: Selector::default(),
            action: Action::OneOf(at as u32),
        };
        let policies: Vec<Policy> = lists.iter().enumerate().map(policy).collect();
        problems(&sas, &policies, lists)
    };
    let none = |_: &mut Vec<Sa>| {};
    let of = |at, what| vec![Problem { at, what }];
    assert_eq!(problems(&none, &[vec![id(0), id(1)], vec![id(0), id(1), id(2)], vec![id(3)]]), []);
    assert_eq!(problems(&none, &[vec![id(0), id(0)]]), of(50, What::Twice(id(0))));
    let elsewhere = What::OtherPlace { id: id(1), first: 50 };
    assert_eq!(problems(&none, &[vec![id(0), id(1)], vec![id(1)]]), of(51, elsewhere));
    let other = What::OtherEnds { id: id(1), from: id(0) };
    let lists = [vec![id(0), id(1)]];
    let transport = |sas: &mut Vec<Sa>| sas[1].mode = crate::sa::Mode::Transport;
    assert_eq!(problems(&transport, &lists), of(50, other.clone()));
    let elsewhere = |sas: &mut Vec<Sa>| sas[1].source = [203, 0, 113, 9].into();
    assert_eq!(problems(&elsewhere, &lists), of(50, other));
    let missing = SaId { spi: 9999, ..id(0) };
    assert_eq!(problems(&none, &[vec![id(0), missing]]), of(50, What::NoSa(missing)));
    let inbound = problems(&|sas| sas[1].direction = Direction::In, &lists);
    assert_eq!(inbound, of(50, What::OtherDirection(id(1))));
}
