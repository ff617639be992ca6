//! SAs for single CPUs (RFC 9611), as strongSwan's `per_cpu_sas` adds them: one for all others first, then one for each
//! CPU that has asked.

use super::*;

fn of_cpu(spi: u32, cpu: u32) -> Vec<u8> {
    let body = new_sa(OWN, PEER, spi, 1, &[spi as u8; 20]);
    with(with(body, attribute::DIRECTION, &[2]), attribute::CPU, &cpu.to_ne_bytes())
}

/// A policy whose CPUs ask for SAs.
fn asking() -> Vec<u8> {
    let mut body = new_policy(1, 100, Some([OWN, PEER]));
    body[policy::FLAGS] = 4;
    body
}

fn packet() -> Key {
    Key::new(["10.1.0.2", "10.2.0.3"].map(|text| text.parse().unwrap()), 6, None, Kind::Ports, 0)
}

fn acquire(lab: &mut Lab, cpu: Option<u32>) -> Vec<(u32, Bytes)> {
    lab.with(|database, _, context| database.acquire(0, cpu, &packet(), context)).events
}

/// The SAs of the policy after a change: those of CPUs, and the fallback.
fn current(answer: &Answer) -> (Vec<u32>, Option<u32>) {
    let mut lists = answer.changes.iter().filter_map(|change| match change {
        Change::Current { template: 0, sas } | Change::AddPolicy { sas, .. } => Some(sas),
        _ => None,
    });
    let sas = lists.next_back().unwrap();
    (sas.own.iter().map(|id| id.spi).collect(), sas.fallback.map(|id| id.spi))
}

#[test]
fn a_cpu_asks_for_its_sa_and_uses_it_when_it_comes() {
    let mut lab = Lab::default();
    assert_eq!(current(&lab.ask(kind::NEW_POLICY, 5, &asking())), (vec![], None));
    // Without any SA, one for all is asked for first.
    let events = acquire(&mut lab, None);
    let first = Messages(&events[0].1).next().unwrap();
    assert_eq!(first.kind, kind::ACQUIRE);
    let fixed = 280;
    let attributes_of = |raw: &Raw<'_>| crate::message::attributes(raw.body, fixed).unwrap().len();
    assert_eq!(attributes_of(&first), 1, "the template");
    assert_eq!(
        current(&lab.ask(kind::NEW_SA, 5, &new_sa(OWN, PEER, 0x1001, 1, &[1; 20]))),
        (vec![], Some(0x1001))
    );
    assert!(acquire(&mut lab, None).is_empty());
    let events = acquire(&mut lab, Some(1));
    let asked = Messages(&events[0].1).next().unwrap();
    // The flag is that of the policy; the CPU is the last attribute.
    assert_eq!(asked.body[96 + policy::FLAGS], 4);
    assert_eq!(asked.body[asked.body.len() - 8..], [8, 0, 35, 0, 1, 0, 0, 0]);
    assert!(acquire(&mut lab, Some(1)).is_empty(), "once in a while");
    assert_eq!(acquire(&mut lab, Some(0)).len(), 1, "each CPU for itself");
    lab.now.ns = 10_000_000_000;
    assert_eq!(acquire(&mut lab, Some(1)).len(), 1);
    let added = lab.ask(kind::NEW_SA, 5, &of_cpu(0x1002, 1));
    let [Change::AddSa { sa, .. }, ..] = &added.changes[..] else { panic!("{}", errno(&added)) };
    assert_eq!(
        (sa.cpu, sa.direction, current(&added)),
        (Some(1), Direction::Out, (vec![0x1002], Some(0x1001)))
    );
    assert!(acquire(&mut lab, Some(1)).is_empty());
    // The newest one of each CPU; and what is left if one goes.
    assert_eq!(current(&lab.ask(kind::NEW_SA, 5, &of_cpu(0x1003, 0))), (vec![0x1003, 0x1002], Some(0x1001)));
    assert_eq!(current(&lab.ask(kind::NEW_SA, 5, &of_cpu(0x1004, 1))), (vec![0x1004, 0x1003], Some(0x1001)));
    assert_eq!(kinds(&lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1002))), ["remove"], "it was not used");
    assert_eq!(current(&lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1001))), (vec![0x1004, 0x1003], None));
    assert_eq!(current(&lab.ask(kind::DELETE_SA, 5, &sa_id(PEER, 0x1004))), (vec![0x1003], None));
    lab.now.ns = 30_000_000_000;
    assert_eq!(acquire(&mut lab, None).len(), 1, "there is no fallback");
}

#[test]
fn without_the_flag_no_cpu_asks() {
    let mut lab = Lab::default();
    assert_eq!(lab.errno(kind::NEW_POLICY, &new_policy(1, 100, Some([OWN, PEER]))), 0);
    assert_eq!(lab.errno(kind::NEW_SA, &new_sa(OWN, PEER, 0x1001, 1, &[1; 20])), 0);
    assert!(acquire(&mut lab, Some(1)).is_empty());
}

#[test]
fn the_cpu_is_in_what_is_said_of_an_sa() {
    let mut lab = Lab::default();
    let mut body = of_cpu(0x1002, 15);
    body[at::LIMITS + 40..][..8].copy_from_slice(&100u64.to_ne_bytes());
    let added = lab.ask(kind::NEW_SA, 5, &body);
    assert_eq!(errno(&added), 0);
    let cpu = [8, 0, 35, 0, 15, 0, 0, 0];
    let has_cpu = |bytes: &[u8]| bytes.windows(8).filter(|part| *part == cpu).count();
    assert_eq!(has_cpu(&added.events[0].1), 1);
    for (kind, body) in
        [(kind::GET_SA, sa_id(PEER, 0x1002)), (kind::GET_AE, [sa_id(PEER, 0x1002), vec![0; 24]].concat())]
    {
        assert_eq!(has_cpu(only(&lab.ask(kind, 1, &body).replies).body), 1);
    }
    assert_eq!(has_cpu(&lab.ask(kind::GET_SA, 0x301, &[]).replies[0]), 1);
    lab.now.ns = 100_000_000_000;
    let ended = lab.with(|database, _, context| database.expire(context));
    assert_eq!(ended.events.iter().map(|(_, event)| has_cpu(event)).collect::<Vec<_>>(), [1, 1]);
    // Requests for SPIs and updates may have it, too.
    let range = [sa_info(PEER, OWN, 0, 7), 256u32.to_ne_bytes().into(), 256u32.to_ne_bytes().into()].concat();
    assert_eq!(lab.errno(kind::ALLOCATE_SPI, &with(range, attribute::CPU, &3u32.to_ne_bytes())), 0);
    let update = with(new_sa(PEER, OWN, 256, 7, &KEY), attribute::CPU, &3u32.to_ne_bytes());
    let updated = lab.ask(kind::UPDATE_SA, 5, &update);
    let [Change::AddSa { sa, .. }] = &updated.changes[..] else { panic!("{}", errno(&updated)) };
    assert_eq!((sa.cpu, sa.direction), (Some(3), Direction::In));
}

#[test]
fn inbound_sas_in_udp_take_any_port_and_outbound_ones_have_one() {
    // strongSwan does not know the ports of the peer's SAs, so it sets 0.
    let mut lab = Lab::default();
    let udp = |body, source: u16| {
        let ports = [&[2, 0][..], &source.to_be_bytes(), &4500u16.to_be_bytes(), &[0; 18]].concat();
        with(body, attribute::ENCAPSULATION, &ports)
    };
    assert_eq!(lab.errno(kind::NEW_SA, &udp(new_sa(PEER, OWN, 0x1001, 1, &KEY), 0)), 0);
    assert_eq!(lab.errno(kind::NEW_SA, &udp(new_sa(OWN, PEER, 0x1001, 1, &KEY), 0)), number::INVALID);
    assert_eq!(lab.errno(kind::GET_SA, &sa_id(PEER, 0x1001)), number::NO_PROCESS, "nothing was added");
    let mut moved = |address: &str, port| {
        lab.now.ns += 1_000_000_000;
        let sender = (address.parse().unwrap(), port);
        lab.with(|database, _, context| database.mapping(id(OWN, 0x1001), sender, context)).events.len()
    };
    assert_eq!((moved(PEER, 50_001), moved(PEER, 4500), moved("203.0.113.7", 50_001)), (0, 0, 1));
}
