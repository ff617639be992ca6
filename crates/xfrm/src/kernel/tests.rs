use super::*;
use crate::layout::attribute;
use crate::testing::{GCM, KEY, OWN, PEER, algorithm, new_policy, new_sa, sa_info, with};

fn is_local(address: IpAddr) -> bool {
    address == OWN.parse::<IpAddr>().unwrap()
}

/// An SA from this machine to the peer, added at this time.
fn out(spi: u32, added_s: u64) -> Vec<u8> {
    let mut body = new_sa(OWN, PEER, spi, 1, &[spi as u8; 20]);
    body[ADDED..ADDED + 8].copy_from_slice(&added_s.to_ne_bytes());
    body
}

fn inbound(spi: u32) -> Vec<u8> {
    new_sa(PEER, OWN, spi, 1, &KEY)
}

/// The policies of a tunnel: out, fwd and in, with the indexes 9, 10 and 8.
fn policies() -> Vec<Vec<u8>> {
    let numbered = |direction: u8, ends| {
        let mut policy = new_policy(direction, 100, Some(ends));
        policy[policy_at::INDEX..][..4].copy_from_slice(&(8 + u32::from(direction)).to_ne_bytes());
        policy
    };
    vec![numbered(1, [OWN, PEER]), numbered(2, [PEER, OWN]), numbered(0, [PEER, OWN])]
}

fn listing(sas: &[Vec<u8>], policies: &[Vec<u8>]) -> Listing {
    let mut listing = Listing::default();
    // The kernel lists the last one first.
    sas.iter().rev().for_each(|sa| listing.add_sa(sa));
    policies.iter().rev().for_each(|policy| listing.add_policy(policy));
    listing
}

/// What is done when the tunnel is seen first.
const ALL: [&str; 4] = ["add Out 0x1001", "add In 0x1002", "policy 1 Out 0x1001", "policy 2 In 0x0"];

/// The SPIs of SAs for CPUs, then that of the others.
fn spis(sas: &SaList) -> String {
    let own = sas.own.iter().map(|id| format!("{:#x} ", id.spi)).collect::<String>();
    format!("{own}{:#x}{}", sas.fallback.map_or(0, |id| id.spi), if sas.asks { " asks" } else { "" })
}

/// The changes in words.
fn shown(update: &Update) -> Vec<String> {
    let change = |change: &Change| match change {
        Change::AddSa { sa, .. } => format!("add {:?} {:#x}", sa.direction, sa.spi),
        Change::RemoveSa(id) => format!("remove {:#x}", id.spi),
        Change::AddPolicy { order, policy, sas } => {
            format!("policy {order} {:?} {}", policy.direction, spis(sas))
        }
        Change::RemovePolicy { order } => format!("no policy {order}"),
        Change::RemoveAllPolicies => "no policies".into(),
        Change::LeaveSa(id, why) => format!("leave {:#x}: {why}", id.spi),
        Change::Current { template, sas } => format!("template {template} {}", spis(sas)),
    };
    update.changes.iter().map(change).collect()
}

#[test]
fn a_tunnel_is_used_and_its_policies_are_applied() {
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[out(0x1001, 5), inbound(0x1002)], &policies()), &is_local);
    assert_eq!(shown(&update), ALL);
    // Those of out and fwd; in is about packets to this machine.
    assert_eq!(tables.applied(), BTreeSet::from([9, 10]));
    let again = tables.update(listing(&[out(0x1001, 5), inbound(0x1002)], &policies()), &is_local);
    assert!(again.changes.is_empty() && again.left.is_empty());
}

#[test]
fn policies_of_an_xfrm_interface_use_its_sas() {
    let of = |body: Vec<u8>| with(body, attribute::INTERFACE, &[42, 0, 0, 0]);
    let interface: Vec<_> = policies().into_iter().map(of).collect();
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[out(0x1001, 5), inbound(0x1002)], &interface), &is_local);
    assert_eq!(shown(&update), ALL[..2], "SAs of none");
    let sas = [of(out(0x1003, 5)), of(inbound(0x1004))];
    let update = KernelTables::default().update(listing(&sas, &interface), &is_local);
    assert_eq!(shown(&update)[2..], ["policy 1 Out 0x1003", "policy 2 In 0x0"]);
    let if_ids = update.changes.iter().filter_map(|change| match change {
        Change::AddSa { sa, .. } => Some(sa.if_id),
        Change::AddPolicy { policy, .. } => Some(policy.if_id),
        _ => None,
    });
    assert_eq!(if_ids.collect::<Vec<_>>(), [42; 4]);
}

#[test]
fn a_policy_without_an_sa_is_left_to_linux_until_there_is_one() {
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[inbound(0x1002)], &policies()), &is_local);
    assert_eq!(shown(&update), ["add In 0x1002", "policy 2 In 0x0"]);
    assert_eq!(tables.applied(), BTreeSet::from([10]));
    let update = tables.update(listing(&[inbound(0x1002), out(0x1001, 5)], &policies()), &is_local);
    assert_eq!(shown(&update), ["add Out 0x1001", "policy 1 Out 0x1001"]);
    assert_eq!(tables.applied(), BTreeSet::from([9, 10]));
}

#[test]
fn the_newest_sa_is_used_and_an_old_one_goes_after_no_policy_uses_it() {
    let mut tables = KernelTables::default();
    let _first = tables.update(listing(&[out(0x1001, 5), inbound(0x1002)], &policies()), &is_local);
    let both = [out(0x1001, 5), inbound(0x1002), out(0x1003, 5)];
    let update = tables.update(listing(&both, &policies()), &is_local);
    assert_eq!(shown(&update), ["add Out 0x1003", "template 0 0x1003"]);
    let update = tables.update(listing(&[inbound(0x1002), out(0x1003, 5)], &policies()), &is_local);
    assert_eq!(shown(&update), ["remove 0x1001"]);
    let update = tables.update(listing(&[], &[]), &is_local);
    assert_eq!(shown(&update), ["no policy 1", "no policy 2", "remove 0x1002", "remove 0x1003"]);
    assert!(tables.applied().is_empty());
}

#[test]
fn an_sa_that_has_changed_is_another_one() {
    let mut tables = KernelTables::default();
    let _first = tables.update(listing(&[out(0x1001, 5)], &policies()), &is_local);
    let update = tables.update(listing(&[new_sa(OWN, PEER, 0x1001, 1, &[9; 20])], &policies()), &is_local);
    // Workers choose anew, since the one they had chosen is gone.
    assert_eq!(shown(&update), ["remove 0x1001", "add Out 0x1001", "template 0 0x1001"]);
}

#[test]
fn what_workers_do_not_support_is_left_to_linux_with_a_reason() {
    let mut transport = inbound(0x1002);
    transport[sa_at::MODE] = 0;
    let unknown = with(sa_info(OWN, PEER, 0x1005, 1), attribute::AEAD, &algorithm(GCM, Some(64), &KEY));
    // What a kernel in lockdown hands out.
    let zeros = new_sa(OWN, PEER, 0x1006, 1, &[0; 20]);
    let reserved = sa_info(OWN, PEER, 0x1007, 1);
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[transport, unknown, zeros, reserved], &policies()), &is_local);
    assert!(update.changes.is_empty() && tables.applied().is_empty());
    assert_eq!(update.left.len(), 3, "{:?}", update.left);
    let why = |spi| update.left.iter().find(|(id, _)| id.spi == spi).map(|(_, why)| why.as_str()).unwrap();
    assert!(why(0x1002).contains("transport mode"), "{}", why(0x1002));
    assert!(why(0x1005).contains("supported"), "{}", why(0x1005));
    assert!(why(0x1006).contains("zero"), "{}", why(0x1006));
}

#[test]
fn an_excluded_sa_stays_linuxs_until_it_is_gone() {
    let all = [out(0x1001, 5), inbound(0x1002)];
    let mut tables = KernelTables::default();
    let _first = tables.update(listing(&all, &policies()), &is_local);
    tables.exclude(SaId { spi: 0x1001, destination: PEER.parse().unwrap() }, "Linux sends on it".into());
    let update = tables.update(listing(&all, &policies()), &is_local);
    assert_eq!(shown(&update), ["no policy 1", "remove 0x1001"]);
    assert_eq!(update.left.len(), 1);
    assert_eq!(tables.applied(), BTreeSet::from([10]));
    assert!(tables.update(listing(&all, &policies()), &is_local).changes.is_empty());
    // Another SA with the same SPI is a new one.
    let _gone = tables.update(listing(&[], &policies()), &is_local);
    let update = tables.update(listing(&all, &policies()), &is_local);
    // The policies were there all the time.
    assert_eq!(shown(&update), ALL);
}

#[test]
fn an_sa_that_was_added_again_is_another_one() {
    let mut tables = KernelTables::default();
    let _first = tables.update(listing(&[out(0x1001, 5)], &policies()), &is_local);
    // With the same keys, but its numbers begin anew.
    let update = tables.update(listing(&[out(0x1001, 6)], &policies()), &is_local);
    // Workers choose anew, since the one they had chosen is gone.
    assert_eq!(shown(&update), ["remove 0x1001", "add Out 0x1001", "template 0 0x1001"]);
}

#[test]
fn workers_send_on_one_sa_with_the_same_keys_and_on_none_with_a_selector() {
    let twin = new_sa(OWN, "203.0.113.1", 0x1001, 2, &[0x01; 20]);
    let mut selects = out(0x1003, 6);
    selects[..20].copy_from_slice(&[10, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 0, 0]);
    selects[40] = 2;
    (selects[42], selects[43]) = (16, 16);
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[out(0x1001, 5), twin, selects], &policies()), &is_local);
    assert_eq!(shown(&update), ["add Out 0x1001", "policy 1 Out 0x1001"]);
    let why: Vec<&str> = update.left.iter().map(|(_, why)| why.as_str()).collect();
    assert!(why.len() == 2 && why[0].contains("same keys") && why[1].contains("selector"), "{why:?}");
}

#[test]
fn an_sa_for_one_address_family_is_not_used_for_the_other() {
    // As the kernel shows an SA without the flag af-unspec.
    let mut six = out(0x1001, 5);
    six[40] = 10;
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[six.clone()], &policies()), &is_local);
    assert_eq!(shown(&update), ["add Out 0x1001"]);
    six[40] = 2;
    let update = tables.update(listing(&[six], &policies()), &is_local);
    assert_eq!(shown(&update), ["policy 1 Out 0x1001"]);
}

#[test]
fn an_sa_keeps_its_direction() {
    let mut tables = KernelTables::default();
    let all = [out(0x1001, 5), inbound(0x1002)];
    let _first = tables.update(listing(&all, &policies()), &is_local);
    // The address is gone for a moment.
    assert!(tables.update(listing(&all, &policies()), &|_| false).changes.is_empty());
    // Before it is there, nobody knows.
    let update = KernelTables::default().update(listing(&all, &policies()), &|_| false);
    assert!(update.changes.is_empty() && update.left.len() == 2);
}

#[test]
fn limits_are_what_is_left_of_them() {
    let mut body = out(0x1001, 5);
    body[sa_at::LIMITS..][..16].copy_from_slice(&[800u64, 1000].map(u64::to_ne_bytes).concat());
    body[BYTES..BYTES + 8].copy_from_slice(&300u64.to_ne_bytes());
    let mut tables = KernelTables::default();
    let update = tables.update(listing(&[body.clone()], &policies()), &is_local);
    let [Change::AddSa { sa, .. }, ..] = &update.changes[..] else { panic!("it is new") };
    assert_eq!(sa.limits.bytes, Limit { soft: Some(500), hard: Some(700) });
    // Limits that are over are reached with the next packet.
    let over = remaining(sa.limits, 900, 0);
    assert_eq!(over.bytes, Limit { soft: None, hard: Some(1) });
    // More use does not make it another SA.
    body[BYTES..BYTES + 8].copy_from_slice(&400u64.to_ne_bytes());
    assert!(tables.update(listing(&[body], &policies()), &is_local).changes.is_empty());
}

#[test]
fn what_is_cut_off_is_left_out() {
    let whole = out(0x1001, 5);
    for end in 0..whole.len() {
        let mut listing = Listing::default();
        listing.add_sa(&whole[..end]);
        listing.add_policy(&policies()[0][..end.min(100)]);
        let mut tables = KernelTables::default();
        assert!(tables.update(listing, &is_local).changes.is_empty());
    }
}

#[test]
fn each_cpu_has_its_newest_sa_and_the_others_the_one_without() {
    let of_cpu = |spi, added_s, cpu: u32| with(out(spi, added_s), attribute::CPU, &cpu.to_ne_bytes());
    let mut policies = policies();
    policies[0][policy_at::FLAGS] = policy_at::CPU_ACQUIRE;
    let mut tables = KernelTables::default();
    let mut sas = vec![out(0x1001, 5), of_cpu(0x1003, 6, 0), of_cpu(0x1004, 7, 3)];
    let update = tables.update(listing(&sas, &policies), &is_local);
    assert_eq!(shown(&update)[3..], ["policy 1 Out 0x1004 0x1003 0x1001 asks"]);
    // A new SA of a CPU replaces the old one; the others stay.
    sas.push(of_cpu(0x1005, 8, 0));
    let update = tables.update(listing(&sas, &policies), &is_local);
    assert_eq!(shown(&update), ["add Out 0x1005", "template 0 0x1005 0x1004 0x1001 asks"]);
    // Without the fallback, workers use what there is.
    let update = tables.update(listing(&sas[2..], &policies), &is_local);
    assert_eq!(shown(&update), ["template 0 0x1005 0x1004 0x0 asks", "remove 0x1001", "remove 0x1003"]);
    assert_eq!(tables.applied(), BTreeSet::from([9]));
}

#[test]
fn what_has_a_mark_is_for_workers_only_if_unmarked_packets_match() {
    let marked = |body: Vec<u8>, value: u32, mask: u32| {
        with(body, attribute::MARK, &[value.to_ne_bytes(), mask.to_ne_bytes()].concat())
    };
    for (value, mask, is_used) in [(0, 0xff, true), (0, 0, true), (0x2a, 0xff, false), (1, 0, false)] {
        let mut tables = KernelTables::default();
        let of_policy: Vec<_> = policies().into_iter().map(|policy| marked(policy, value, mask)).collect();
        let sas = [out(0x1001, 5), inbound(0x1002)];
        let update = tables.update(listing(&sas, &of_policy), &is_local);
        let expected = if is_used { &ALL[..] } else { &["add Out 0x1001", "add In 0x1002"] };
        assert_eq!(shown(&update), expected);
        let update = KernelTables::default()
            .update(listing(&[marked(out(0x1001, 5), value, mask)], &policies()), &is_local);
        assert_eq!((update.changes.len(), update.left.len()), if is_used { (2, 0) } else { (0, 1) });
        for (_, why) in &update.left {
            assert!(why.contains(&format!("its mark {value:#x}/{mask:#x}")), "{why}");
        }
    }
}

#[test]
fn the_kernel_is_told_what_to_ask_for() {
    let mut tables = KernelTables::default();
    let _first = tables.update(listing(&[out(0x1001, 5)], &policies()), &is_local);
    let ends = ["10.1.0.2", "10.2.0.3"].map(|text| text.parse().unwrap());
    let packet = Key::new(ends, 6, None, bm_filter::Kind::Ports, 0);
    assert_eq!(tables.acquire(7, &packet, None), None, "no such template");
    let acquire = tables.acquire(0, &packet, Some(1)).unwrap();
    // The ends of the tunnel, the packet, the policy as it was listed, the template, the CPU.
    assert_eq!(
        (&acquire[..4], acquire[20], &acquire[24..28]),
        (&[198, 51, 100, 1][..], 50, &[192, 0, 2, 1][..])
    );
    assert_eq!((&acquire[40..44], &acquire[56..60]), (&[10, 2, 0, 3][..], &[10, 1, 0, 2][..]));
    assert_eq!(acquire[96..96 + policy_at::LENGTH], policies()[0][..policy_at::LENGTH]);
    assert_eq!(
        acquire[280..],
        with(policies()[0][policy_at::LENGTH..].to_vec(), attribute::CPU, &[1, 0, 0, 0])
    );
}
