//! Filters, frame by frame.

use super::*;
use crate::filters::FilterInputs;
use crate::layout::{INGRESSES, INTERFACES};
use bm_fib::sets::SetWriter;
use bm_filter::{Action as Say, Filters, Flat, Key, Kind, Rate, Rule, Tree, UNMATCHED};
use bm_wire::ReversePath;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Instant;

/// TCP from 192.0.2.1 to 198.51.100.7 with 20 bytes of it.
fn tcp4(rest: &[u8]) -> Vec<u8> {
    let frame = [&IPV4[..34], rest].concat();
    let length = (rest.len() as u16 + 20).to_be_bytes();
    with(&with(&frame, 16, &length), 23, &[6])
}

const SYN: [u8; 20] = [0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];

fn rule(action: Say) -> Rule {
    Rule { action, ..Rule::default() }
}

/// The lab forwards everything; its filters are these rules, each with the counter of its place.
fn filtered(rules: &[Rule]) -> Option<Lab> {
    let mut lab = lab()?;
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    lab.filter(rules, |_| {});
    Some(lab)
}

impl Lab {
    fn filter(&mut self, rules: &[Rule], more: impl Fn(&mut Filters)) {
        let flat = |(at, rule): (usize, &Rule)| Flat::from_rule(rule, at as u16, None).collect::<Vec<_>>();
        let flat = rules.iter().enumerate().flat_map(flat).collect();
        let mut filters = Filters { tree: Tree::grow(flat).unwrap(), ..Filters::default() };
        more(&mut filters);
        self.configuration.filters = Some(Arc::new(filters));
        self.configuration.interfaces[0].looked_at = true;
        self.publish();
    }

    fn check_drop(&mut self, frame: &[u8], reason: &str) {
        let before = self.count(reason);
        let (verdict, out) = self.pass(frame);
        assert_eq!((verdict, out.as_slice()), (XDP_DROP, frame), "{reason} {:?}", self.kernel.counters(0));
        assert_eq!(self.count(reason) - before, 1, "{reason}: {:?}", self.kernel.counters(0));
    }

    fn check_forwarded(&mut self, frame: &[u8]) {
        assert_eq!(self.pass(frame).0, XDP_REDIRECT, "{:?}", self.kernel.counters(0));
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let dns = Rule { protocol: Some(17), destination_ports: Some(53..=53), ..rule(Say::Accept) };
    let net = Rule { source: Some("192.0.2.0/24".parse().unwrap()), ..rule(Say::Drop) };
    let six = Rule { destination: Some("2001:db8:2::/48".parse().unwrap()), ..rule(Say::Drop) };
    let Some(mut lab) = filtered(&[dns, net, six]) else { return };
    lab.check_forwarded(&IPV4);
    lab.check_forwarded(&IPV6);
    lab.check_drop(&with(&IPV4, 36, &[0, 54]), "drop_filter");
    lab.check_drop(&with(&IPV6, 56, &[0, 54]), "drop_filter");
    lab.check_forwarded(&with(&with(&IPV4, 36, &[0, 54]), 26, &[192, 0, 3, 1]));
    lab.check_forwarded(&with(&with(&IPV6, 56, &[0, 54]), 38, &[0x20, 1, 0xd, 0xb8, 0, 3]));
    let counts: Vec<u64> = (0..3).map(|at| lab.kernel.rule_count(at).unwrap()).collect();
    assert_eq!((counts, lab.kernel.rule_count(UNMATCHED).unwrap()), (vec![2, 1, 1], 2));
    lab.kernel.clear_rule_count(0).unwrap();
    assert_eq!(lab.kernel.rule_count(0).unwrap(), 0);
    // Without filters the program is the one without them.
    lab.configuration.filters = None;
    lab.publish();
    lab.check_forwarded(&with(&IPV4, 36, &[0, 54]));
}

#[test]
fn packets_left_to_linux_are_filtered_as_well() {
    let net = Rule { source: Some("192.0.2.0/24".parse().unwrap()), ..rule(Say::Drop) };
    let six = Rule { protocol: Some(17), ..rule(Say::Drop) };
    let Some(mut lab) = filtered(&[net, six]) else { return };
    // Options, a later fragment, a used-up TTL, tags, an unknown next hop.
    let options = [&IPV4[..34], &[1, 1, 1, 0], &IPV4[34..]].concat();
    let options = with(&with(&options, 14, &[0x46]), 16, &[0, 36]);
    let tagged = [&IPV4[..12], &[0x81, 0, 0x20, 7], &IPV4[12..]].concat();
    let twice = [&IPV4[..12], &[0x88, 0xa8, 0, 9, 0x81, 0, 0x20, 7], &IPV4[12..]].concat();
    let mut of_vlan = tagged.clone();
    of_vlan[5] = 0x77;
    let skipped = [&IPV6[..54], &[17, 0, 1, 4, 0, 0, 0, 0], &IPV6[54..]].concat();
    let skipped = with(&with(&skipped, 18, &[0, 20]), 20, &[60]);
    let frames = [options, with(&IPV4, 20, &[0, 9]), with(&IPV4, 22, &[1]), tagged, twice, of_vlan, skipped];
    for frame in &frames {
        lab.check_drop(frame, "drop_filter");
    }
    // Linux may forward frames for the MACs of interfaces on the port, and what a rule makes unicast.
    lab.check_drop(&with(&IPV4, 0, &[2, 0, 0, 0, 0, 9]), "drop_filter");
    lab.check_drop(&with(&IPV4, 0, &[0xff; 6]), "drop_filter");
    // Linux drops what is broken.
    lab.check_linux(&IPV4[..33], "linux_header");
    lab.configuration.interfaces[0].forward = [false; 2];
    lab.publish();
    lab.check_drop(&IPV4, "drop_filter");
}

#[test]
fn packets_to_this_machine_are_left_to_linux() {
    let Some(mut lab) = filtered(&[rule(Say::Drop)]) else { return };
    lab.check_drop(&IPV4, "drop_filter");
    lab.check_drop(&IPV6, "drop_filter");
    let own: Ipv6Addr = "2001:db8:2::fe".parse().unwrap();
    lab.configuration.local_ipv6 = vec![own];
    lab.publish();
    let host = lab.hops.add(Action::Host, Gateway::default(), 0).unwrap();
    lab.set4("192.0.2.254/32", host);
    lab.set6("2001:db8:2::fe/128", host);
    lab.set4("203.0.113.0/24", host);
    lab.check_linux(&with(&IPV4, 30, &[192, 0, 2, 254]), "linux_local");
    lab.check_linux(&with(&IPV6, 38, &own.octets()), "linux_local");
    lab.check_drop(&with(&IPV4, 30, &[203, 0, 113, 9]), "drop_filter");
    // Routes for this machine that no address has made: of type local, broadcast or anycast.
    let local = lab.hops.add_local().unwrap();
    lab.set4("203.0.113.128/25", local);
    lab.set6("2001:db8:2::/128", local);
    lab.check_linux(&with(&IPV4, 30, &[203, 0, 113, 129]), "linux_local");
    lab.check_linux(&with(&IPV6, 38, &"2001:db8:2::".parse::<Ipv6Addr>().unwrap().octets()), "linux_local");
    // Sources that Linux may refuse are no destinations for this machine.
    lab.configuration.all_doubtful = true;
    lab.publish();
    lab.check_drop(&with(&IPV4, 30, &[203, 0, 113, 9]), "drop_filter");
    // Groups, broadcasts and the link's own: routing daemons and neighbor discovery live by them.
    lab.check_linux(&with(&IPV4, 30, &[224, 0, 0, 5]), "linux_header");
    lab.check_linux(&with(&IPV4, 30, &[255; 4]), "linux_header");
    lab.check_linux(&with(&IPV6, 38, &[0xff, 2]), "linux_header");
    lab.check_linux(&with(&IPV6, 38, &[0xfe, 0x80]), "linux_header");
    // The same to the MAC of a group, or of an interface on the port.
    for mac in [[1, 0, 0x5e, 0, 0, 5], [0xff; 6], [2, 0, 0, 0, 0, 9]] {
        for destination in [[224, 0, 0, 5], [255; 4], [192, 0, 2, 254]] {
            lab.check_linux(&with(&with(&IPV4, 0, &mac), 30, &destination), "linux_other_mac");
        }
    }
}

#[test]
fn tiny_fragments_are_dropped_if_configured() {
    let Some(mut lab) = filtered(&[]) else { return };
    // Eight bytes of TCP with more to come, the fragment that would overwrite its flags, a whole header.
    let tiny = with(&tcp4(&SYN[..8]), 20, &[0x20, 0]);
    let overwriting = with(&tcp4(&SYN[8..]), 20, &[0, 1]);
    let whole = with(&tcp4(&SYN), 20, &[0x20, 0]);
    // The same of IPv6: a fragment header, then too little.
    let fragment = |rest: &[u8]| {
        let frame = [&IPV6[..54], &[6, 0, 0, 1, 0, 0, 0, 1], rest].concat();
        let length = (rest.len() as u16 + 8).to_be_bytes();
        with(&with(&frame, 18, &length), 20, &[44])
    };
    for frame in [&tiny, &overwriting, &fragment(&SYN[..16])] {
        assert_ne!(lab.pass(frame).0, XDP_DROP, "not by default");
    }
    lab.filter(&[], |filters| filters.drop_tiny_fragments = true);
    for frame in [&tiny, &overwriting, &fragment(&SYN[..16])] {
        lab.check_drop(frame, "drop_tiny_fragment");
    }
    for frame in [&whole, &fragment(&SYN), &tcp4(&SYN), &with(&tiny, 23, &[17])] {
        assert_ne!(lab.pass(frame).0, XDP_DROP);
    }
}

#[test]
fn sources_without_a_reverse_path_are_dropped() {
    let Some(mut lab) = lab() else { return };
    let there = lab.hop(1);
    let back = Action::Forward { mac: [2; 6], interface: 0 };
    let back = lab.hops.add(back, Gateway::default(), 0).unwrap();
    let gateway = Gateway { address: None, interface: 0 };
    let unresolved = lab.hops.add(Action::Resolve, gateway, 0).unwrap();
    let nowhere = lab.hops.add(Action::Blackhole, Gateway::default(), 0).unwrap();
    let group = lab.hops.add_group(&[(there, 300), (back, 1)]).unwrap();
    lab.set4("198.51.100.0/24", there);
    lab.set6("2001:db8:2::/48", there);
    // Strict, then loose: whether each is fine.
    let cases = [(there, [false, true]), (back, [true; 2]), (unresolved, [true; 2]), (group, [true; 2])];
    let all = cases.into_iter().chain([(nowhere, [false; 2]), (NextHop::NONE, [false; 2])]);
    for (hop, fine) in all {
        lab.set4("192.0.2.0/24", hop);
        lab.set6("2001:db8:1::/48", hop);
        for (check, fine) in [ReversePath::Strict, ReversePath::Loose].into_iter().zip(fine) {
            lab.configuration.interfaces[0].check = check;
            lab.filter(&[], |_| {});
            for frame in [&IPV4[..], &IPV6[..]] {
                match fine {
                    true => lab.check_forwarded(frame),
                    false => lab.check_drop(frame, "drop_reverse_path"),
                }
            }
        }
    }
    // Where only Linux knows the routes of a family, nobody can tell.
    lab.configuration.unknown = [true, false];
    lab.publish();
    lab.check_forwarded(&IPV4);
    lab.check_drop(&IPV6, "drop_reverse_path");
    lab.configuration.unknown = [false, true];
    lab.publish();
    lab.check_drop(&IPV4, "drop_reverse_path");
    lab.check_forwarded(&IPV6);
    lab.configuration.unknown = [false; 2];
    lab.publish();
    // DHCP's 0.0.0.0, and sources of the link, have no way back and need none.
    lab.check_linux(&with(&IPV4, 26, &[0; 4]), "linux_header");
    lab.check_linux(&with(&IPV6, 22, &[0xfe, 0x80]), "linux_header");
    lab.check_linux(&with(&IPV6, 22, &[0; 16]), "linux_header");
}

#[test]
fn packets_from_other_interfaces_are_checked_as_from_none() {
    let Some(mut lab) = lab() else { return };
    let last = INTERFACES as u16 - 1;
    let other = Interface { index: last, ifindex: 99, check: ReversePath::Strict, ..Interface::default() };
    lab.configuration.interfaces.push(other);
    lab.filter(&[], |_| {});
    // Two tags: none of our interfaces, not even the last.
    let twice = [&IPV4[..12], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7], &IPV4[12..]].concat();
    lab.check_linux(&twice, "linux_other_type");
}

#[test]
fn sources_may_use_any_feasible_path() {
    let Some(mut lab) = lab() else { return };
    let there = lab.hop(1);
    for prefix in ["198.51.100.0/24", "192.0.2.0/24"] {
        lab.set4(prefix, there);
    }
    for prefix in ["2001:db8:2::/48", "2001:db8:1::/48"] {
        lab.set6(prefix, there);
    }
    // The best way back is the other interface; worse ones lead out of 0 and 1, then of others alone.
    let sources = lab.kernel.source(Part::Sources4).unwrap();
    let mut ways4 = Chunk17::build_in(&mut [].into_iter(), &lab.readers, &sources).unwrap();
    let mut sets4 = SetWriter::with_width_in(INTERFACES, &lab.readers, &sources).unwrap();
    let sources = lab.kernel.source(Part::Sources6).unwrap();
    let mut ways6 = Range6::build_in(&mut [].into_iter(), &lab.readers, &sources).unwrap();
    let mut sets6 = SetWriter::with_width_in(INTERFACES, &lab.readers, &sources).unwrap();
    lab.configuration.interfaces[0].check = ReversePath::Feasible;
    lab.configuration.feasible = true;
    lab.filter(&[], |_| {});
    let cases: [(&[u16], bool); 5] =
        [(&[], false), (&[0, 1], true), (&[1, 64, 1023], false), (&[0, 1023], true), (&[1, 2], false)];
    for (ways, fine) in cases {
        let prefix = "192.0.2.0/24".parse().unwrap();
        ways4.apply(&[Change::Set(prefix, sets4.take(ways))]).unwrap();
        let prefix = "2001:db8:1::/48".parse().unwrap();
        ways6.apply(&[Change::Set(prefix, sets6.take(ways))]).unwrap();
        for frame in [&IPV4[..], &IPV6[..]] {
            match fine {
                true => lab.check_forwarded(frame),
                false => lab.check_drop(frame, "drop_reverse_path"),
            }
        }
    }
    // The best way back needs no entry among the others.
    let back = Action::Forward { mac: [2; 6], interface: 0 };
    let back = lab.hops.add(back, Gateway::default(), 0).unwrap();
    lab.set4("192.0.2.0/24", back);
    lab.check_forwarded(&IPV4);
    // Nobody asks any more: the program is the one without those tables.
    lab.configuration.interfaces[0].check = ReversePath::Strict;
    lab.configuration.feasible = false;
    lab.publish();
    lab.check_drop(&IPV6, "drop_reverse_path");
    assert!(lab.kernel.tables.sources.is_none());
}

#[test]
fn a_source_may_send_a_burst_and_then_the_rate() {
    const RATE: u32 = 4;
    const BURST: usize = 5;
    let Some(mut lab) = filtered(&[]) else { return };
    let limit = |filters: &mut Filters| {
        filters.rate = Some(Rate { packets: RATE, burst: BURST as u32, lengths: [24, 48] });
    };
    lab.filter(&[], limit);
    // What fails is dropped, and counted under its name.
    let burst = |lab: &mut Lab, frame: &[u8]| {
        let before = lab.count("drop_rate_limit");
        let sent = (0..50).filter(|_| lab.pass(frame).0 == XDP_REDIRECT).count();
        assert_eq!(lab.count("drop_rate_limit") - before, 50 - sent as u64);
        sent
    };
    // However slow the machine: no less than the rate has allowed for sure, and no more than it may have.
    let earned = |since: Instant| (since.elapsed() * RATE).as_secs() as usize;
    let start = Instant::now();
    let mut sent = burst(&mut lab, &IPV4);
    for frame in [&IPV6[..], &with(&IPV4, 28, &[3])] {
        let sent = burst(&mut lab, frame);
        assert!((BURST..=BURST + earned(start) + 1).contains(&sent), "{sent} packets at once");
    }
    // Of the same prefix.
    sent += burst(&mut lab, &with(&IPV4, 29, &[99]));
    assert!((BURST..=BURST + earned(start) + 1).contains(&sent), "{sent} packets of one prefix");
    // A bucket that was full since has earned nothing more.
    let emptied = Instant::now();
    std::thread::sleep(Duration::from_millis(600));
    let least = BURST.min(earned(emptied));
    let more = burst(&mut lab, &IPV4);
    assert!((2..=BURST).contains(&least) && more >= least, "{more} in {:?}", emptied.elapsed());
    sent += more;
    assert!(sent <= BURST + earned(start) + 1, "{sent} in {:?}", start.elapsed());
    std::thread::sleep(Duration::from_secs(2));
    let again = Instant::now();
    let sent = burst(&mut lab, &IPV4);
    assert!(
        (BURST..=BURST + earned(again) + 1).contains(&sent),
        "a bucket holds no more than a burst: {sent}"
    );
}

#[test]
fn ten_thousand_rules_match_as_in_user_space() {
    let mut seed = 5;
    let mut rules = Vec::new();
    for _ in 0..10_000 {
        let bits = next(&mut seed);
        let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
        let text =
            if a.is_multiple_of(3) { format!("10.{b}.{c}.{d}/32") } else { format!("10.{b}.{c}.0/24") };
        let first = u16::from(f) << 4;
        rules.push(Rule {
            source: Some(text.parse().unwrap()),
            destination: Some(format!("10.{e}.0.0/16").parse().unwrap()),
            protocol: (g.is_multiple_of(2)).then_some(17),
            destination_ports: (h.is_multiple_of(2)).then_some(first..=first + 100),
            ..rule(if h % 4 < 2 { Say::Drop } else { Say::Accept })
        });
    }
    let Some(mut lab) = filtered(&rules) else { return };
    let filters = lab.configuration.filters.clone().unwrap();
    let mut drops = 0;
    for rule in rules.iter().step_by(19) {
        let address = |prefix: &Option<bm_filter::AnyPrefix>| match prefix {
            Some(bm_filter::AnyPrefix::V4(prefix)) => (prefix.first() | 1).to_be_bytes(),
            _ => unreachable!("all are of IPv4"),
        };
        let (source, destination) = (address(&rule.source), address(&rule.destination));
        let port = rule.destination_ports.as_ref().map_or(7, |ports| ports.start() + 3);
        let frame = with(&with(&IPV4, 26, &source), 30, &destination);
        let frame = with(&frame, 36, &port.to_be_bytes());
        let addresses = [source, destination].map(std::net::IpAddr::from);
        let key = Key::new(addresses, 17, Some((0x1234, port)), Kind::Ports, 0);
        let drop = filters.tree.find(&key).is_some_and(|rule| rule.drops != 0);
        drops += usize::from(drop);
        assert_eq!(lab.pass(&frame).0, if drop { XDP_DROP } else { XDP_REDIRECT }, "{rule:?}");
    }
    assert!(drops > 50, "{drops}");
}

/// Rules of one leaf, since the interface is no field that is cut by: the one at `matching` drops everything, the
/// others ask for an interface that nobody has.
fn leaf_of(rules: u16, matching: u16) -> Arc<Filters> {
    let interface = |at| (at != matching).then_some(999);
    let flat = |at| Flat::from_rule(&rule(Say::Drop), at, interface(at)).collect::<Vec<_>>();
    let tree = Tree::grow((0..rules).flat_map(flat).collect()).unwrap();
    Arc::new(Filters { tree, ..Filters::default() })
}

#[test]
fn packets_see_one_complete_set_while_sets_change() {
    let Some(mut lab) = filtered(&[]) else { return };
    // Three sets, each of which drops the packet, by a rule far back in a leaf, by one in front, by its source.
    // One that met two of them would go on. The search through the long leaf takes most of the time.
    let strict = FilterInputs { checks: vec![(0, ReversePath::Strict)], ..FilterInputs::default() };
    let sets = [
        (leaf_of(400, 399), FilterInputs::default()),
        (leaf_of(400, 1), FilterInputs::default()),
        (Arc::new(Filters::default()), strict),
    ];
    let mut maps = lab.kernel.filters.take().unwrap();
    maps.publish(&sets[0].0, sets[0].1.clone());
    grace::wait().unwrap();
    let flips = std::thread::spawn(move || {
        for (filters, asked) in sets.iter().cycle().skip(1).take(90) {
            maps.publish(filters, asked.clone());
            grace::wait().unwrap();
        }
        maps
    });
    let mut context = [0u8; 24];
    context[4..8].copy_from_slice(&(IPV4.len() as u32).to_ne_bytes());
    context[12..16].copy_from_slice(&lab.ifindex.to_ne_bytes());
    while !flips.is_finished() {
        let (data_in, context_in) = (Some(&IPV4[..]), Some(&mut context[..]));
        let input = ProgramInput { data_in, context_in, repeat: 1 << 14, ..ProgramInput::default() };
        match program(&mut lab.kernel.object, forwards(bm_bpf::AttachType::Xdp)).test_run(input) {
            Ok(_) => {}
            // A signal to this thread ends the repetition early; what ran is counted.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    lab.kernel.filters = Some(flips.join().unwrap());
    let counters = lab.kernel.counters(0).unwrap();
    let dropped: u64 = counters.drops().map(|(_, frames)| frames).sum();
    // Linux's own multicast comes in on the interface meanwhile, and meets no filter.
    let others: u64 =
        counters.named().filter(|(name, _)| *name == "linux_other_mac").map(|(_, frames)| frames).sum();
    assert!(dropped > 0 && dropped + others == counters.received(), "{counters:?}");
}

/// Not a test of behaviour: `cargo test --release -p bm-fastpath what_filters_cost -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn what_filters_cost() {
    let rule = |seed: &mut u64| {
        let [a, b, c, d, e, f, ..] = next(seed).to_be_bytes();
        Rule {
            source: Some(format!("10.{a}.{b}.{c}").parse().unwrap()),
            destination: Some(format!("10.{d}.{e}.{f}").parse().unwrap()),
            protocol: Some(17),
            destination_ports: Some(53..=53),
            ..rule(Say::Drop)
        }
    };
    let Some(mut lab) = lab() else { return };
    let mut seed = 1;
    let rules: Vec<Rule> = (0..10_000).map(|_| rule(&mut seed)).collect();
    let frame = with(&with(&IPV4, 26, &[10, 1, 2, 3]), 30, &[10, 4, 5, 6]);
    let cost = |lab: &mut Lab| {
        let mut context = [0u8; 24];
        context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&lab.ifindex.to_ne_bytes());
        // No route, so the frame stays as it is from one run to the next.
        let input = ProgramInput {
            data_in: Some(&frame),
            context_in: Some(&mut context),
            repeat: 1 << 20,
            ..ProgramInput::default()
        };
        let done =
            program(&mut lab.kernel.object, forwards(bm_bpf::AttachType::Xdp)).test_run(input).unwrap();
        assert_eq!(done.return_value, XDP_PASS);
        done.duration.as_nanos()
    };
    for round in 0..5 {
        lab.configuration.filters = None;
        lab.publish();
        let without = cost(&mut lab);
        lab.filter(&[], |_| {});
        let empty = cost(&mut lab);
        lab.filter(&rules, |_| {});
        let full = cost(&mut lab);
        lab.filter(&[], |filters| {
            filters.rate = Some(Rate { packets: 10_000_000, burst: 10_000_000, lengths: [32, 64] })
        });
        let rate = cost(&mut lab);
        println!(
            "round {round}: {without} ns without, {empty} with no rules, {full} with 10,000, {rate} with a rate"
        );
    }
}

#[test]
fn sockets_of_two_interfaces_have_separate_slots() {
    let Some(mut lab) = lab() else { return };
    let twin = 2 * INGRESSES as u32 + lab.ifindex;
    run(&format!("link add name twin index {twin} type veth peer name twin2"));
    let claims = lab.kernel.take_claims(1536).unwrap();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let bind = |ifindex| claims.bind(ifindex, 0, nothing.as_fd()).unwrap_err().to_string();
    // The kernel wants a socket; so far did it get.
    assert!(bind(lab.ifindex).contains("adding a worker's socket"));
    assert!(bind(twin).starts_with("twin: its interface index (`ip link`) and that of in have the same"));
    run("link del in");
    assert!(bind(twin).contains("adding a worker's socket"), "nobody has the place any more");
}

#[test]
fn claimed_packets_go_to_linux_without_a_worker() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    let _claims = lab.kernel.take_claims(1536).unwrap();
    let dns = Rule { protocol: Some(17), destination_ports: Some(53..=53), ..rule(Say::Accept) };
    let no = Rule { source: Some("192.0.2.9".parse().unwrap()), ..rule(Say::Drop) };
    let flat = |rule: &Rule, counter| Flat::from_rule(rule, counter, None).collect::<Vec<_>>();
    let tree = Tree::grow_with(flat(&no, 0), flat(&dns, 1)).unwrap();
    lab.filter(&[], |filters| filters.tree = tree.clone());
    lab.check_linux(&IPV4, "linux_no_worker");
    lab.check_linux(&IPV6, "linux_no_worker");
    lab.check_forwarded(&with(&IPV4, 36, &[0, 54]));
    // Rules come first, and what is for this machine or too broken is nobody's to claim.
    lab.check_drop(&with(&IPV4, 26, &[192, 0, 2, 9]), "drop_filter");
    let host = lab.hops.add(Action::Host, Gateway::default(), 0).unwrap();
    lab.set4("192.0.2.254/32", host);
    lab.check_linux(&with(&IPV4, 30, &[192, 0, 2, 254]), "linux_local");
    lab.check_linux(&with(&IPV4, 0, &[2, 0, 0, 0, 0, 9]), "linux_other_mac");
    assert_eq!([0, 1].map(|counter| lab.kernel.rule_count(counter).unwrap()), [1, 2]);
    // Where nothing is forwarded, nothing is claimed.
    lab.configuration.interfaces[0].forward = [false, true];
    lab.publish();
    lab.check_linux(&IPV4, "linux_inactive");
}
