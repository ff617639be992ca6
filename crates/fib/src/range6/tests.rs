use super::*;
use Change::{Remove, Set};

fn p(text: &str) -> Prefix<u128> {
    text.parse().unwrap()
}

fn at(table: &Range6, text: &str) -> u32 {
    let (address, fib) = (p(text).first(), &table.writer.fib);
    let single = fib.lookup(address);
    for form in Form::all() {
        let mut hops = [NextHop(u32::MAX)];
        fib.lookup_burst_by(form, &[address], &mut hops);
        assert_eq!((hops[0], fib.lookup_by(form, address)), (single, single), "{text}, {form}");
    }
    single.0
}

fn build(routes: &[(&str, u32)], readers: &Readers) -> Range6 {
    Range6::build(routes.iter().map(|(prefix, hop)| (p(prefix), NextHop(*hop))), readers).unwrap()
}

/// One route a window and border: in the root, at its end, in each window, at the last bit.
const NESTED: [(&str, u32); 12] = [
    ("::/0", 1),
    ("2000::/3", 2),
    ("2001:d00::/24", 3),
    ("2001:db8::/32", 4),
    ("2001:db8:0:4000::/50", 5),
    ("2001:db8:0:5000::/52", 6),
    ("2001:db8:0:5100::/56", 7),
    ("2001:db8:0:5180::/64", 8),
    ("2001:db8:0:5180:8000::/84", 9),
    ("2001:db8:0:5180:8000:100::/100", 10),
    ("2001:db8:0:5180:8000:100:0:8000/116", 11),
    ("2001:db8:0:5180:8000:100:0:8fff/128", 12),
];

/// An address of each route above that no longer one holds.
const SEEN: [&str; 12] = [
    "fe80::1",
    "3fff::",
    "2001:d00::",
    "2001:db8::",
    "2001:db8:0:4000::",
    "2001:db8:0:5000::",
    "2001:db8:0:5100::",
    "2001:db8:0:5180::",
    "2001:db8:0:5180:8000::",
    "2001:db8:0:5180:8000:100::",
    "2001:db8:0:5180:8000:100:0:8000",
    "2001:db8:0:5180:8000:100:0:8fff",
];

#[test]
fn nested_routes_through_all_windows() {
    let mut table = build(&NESTED, &Readers::new());
    let expected: Vec<u32> = (1..=12).collect();
    assert_eq!(SEEN.map(|address| at(&table, address)).to_vec(), expected);
    for left in (0..12).rev() {
        table.apply(&[Remove(p(NESTED[left].0))]).unwrap();
        let seen = SEEN.map(|address| at(&table, address));
        assert_eq!(seen.map(|hop| hop.min(left as u32)), seen);
        assert_eq!(seen[..left], expected[..left]);
        assert!(seen[left..].iter().all(|hop| *hop == left as u32));
    }
    assert!(table.writer.fib.root.iter().all(|value| value.load(Acquire) == 0));
}

#[test]
fn the_same_by_changes_in_any_order() {
    for turn in 0..12 {
        let mut table = build(&[], &Readers::new());
        let changes: Vec<_> =
            (0..12).map(|i| NESTED[(i * 5 + turn) % 12]).map(|(to, hop)| Set(p(to), NextHop(hop))).collect();
        table.apply(&changes).unwrap();
        assert_eq!(SEEN.map(|address| at(&table, address)), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    }
}

#[test]
fn a_change_of_the_shorter_leaves_the_longer_alone() {
    let mut table = build(&NESTED, &Readers::new());
    let changes: Vec<_> = NESTED.iter().step_by(2).map(|(to, hop)| Set(p(to), NextHop(hop + 100))).collect();
    table.apply(&changes).unwrap();
    assert_eq!(SEEN.map(|address| at(&table, address)), [101, 2, 103, 4, 105, 6, 107, 8, 109, 10, 111, 12]);
}

#[test]
fn ascending_and_descending_routes_keep_the_tree_low() {
    let hosts = |i: u128| Prefix::host(p("2001:db8::/64").first() | i << 3);
    for descending in [false, true] {
        let mut table = build(&[], &Readers::new());
        let n = 5000;
        for i in 0..n {
            let i = if descending { n - 1 - i } else { i };
            table.apply(&[Set(hosts(i), NextHop(i as u32 + 1))]).unwrap();
        }
        for i in 0..n {
            assert_eq!(table.reader().lookup(hosts(i).first()).0, i as u32 + 1);
            assert_eq!(table.reader().lookup(hosts(i).first() + 1), NextHop::NONE);
        }
        // 10,000 ranges; half-full leaves would be 2500, and their forks.
        assert!(table.writer.arena.ever_used() < 6000, "{}", table.writer.arena.ever_used());
        let mut steps = 0;
        let mut word = Word(table.writer.fib.root[slot(hosts(0).first())].load(Acquire));
        for depth in 0.. {
            steps += word.height() + 1;
            // The last leaf has nothing but next hops.
            let below = table.writer.find(word, key(hosts(0).first(), depth));
            let Some(Link::Cell { line, cell }) = below else { break };
            word = Word(table.writer.arena.cells(line)[cell]);
            if !word.is_tree() {
                break;
            }
        }
        assert!(steps <= 16, "{steps}");
    }
}

/// Next hops on both sides of what two bytes can tell come, go and change places.
#[test]
fn any_next_hop_stands_beside_any_other() {
    let hop = |i: u32| NextHop([1, 65_534, 65_535, 65_536, 7, 0x7fff_ffff, 65_533, 2][i as usize % 8]);
    let to = |i: u32| Prefix::containing(p("2001:db8::/32").first() | u128::from(i) << 80, 48).unwrap();
    let mut table = build(&[("::/0", 3)], &Readers::new());
    for turn in 0..6 {
        for i in 0..200 {
            table.apply(&[Set(to(i), hop(i * (turn + 1) / 3 + turn))]).unwrap();
        }
        let addresses: Vec<u128> = (0..220).map(|i| to(i).first() | 1).collect();
        for form in Form::all() {
            let mut hops = vec![NextHop(u32::MAX); addresses.len()];
            table.reader().lookup_burst_by(form, &addresses, &mut hops);
            for (i, found) in (0..).zip(&hops) {
                let expected = if i < 200 { hop(i * (turn + 1) / 3 + turn) } else { NextHop(3) };
                assert_eq!((*found, table.reader().lookup(to(i).last())), (expected, expected), "{form} {i}");
            }
        }
    }
}

/// The greatest key of a leaf that is not full is past no unused end.
#[test]
fn the_last_key_of_a_window_follows_changes_in_place() {
    let hosts: Vec<(String, u32)> = (0..40).map(|i| (format!("2001:ffff:ff{i:02x}::/48"), i)).collect();
    let mut routes: Vec<(&str, u32)> = hosts.iter().map(|(to, hop)| (&to[..], *hop)).collect();
    routes.push(("2001:ffff:ffff::/48", 1));
    let mut table = build(&routes, &Readers::new());
    for hop in 2..40 {
        table.apply(&[Set(p("2001:ffff:ffff::/48"), NextHop(hop))]).unwrap();
        assert_eq!(at(&table, "2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), hop);
    }
}

#[test]
fn nodes_come_back_only_after_all_readers_moved_on() {
    let readers = Readers::new();
    let mut reader = readers.register();
    let mut table = build(&[], &readers);
    let flap = [Set(p("2001:db8::1/128"), NextHop(1)), Remove(p("2001:db8::1/128"))];
    (0..10).for_each(|_| table.apply(&flap).unwrap());
    // Forks and a leaf of the first window, a leaf of each deeper one.
    let used = table.writer.arena.ever_used();
    assert_eq!(used, (LOW as usize + 4) * 10);
    reader.quiescent();
    (0..10).for_each(|_| table.apply(&flap).unwrap());
    assert_eq!(table.writer.arena.ever_used(), used);
}

#[test]
fn refuses_what_does_not_fit_and_stays_as_it_was() {
    let mut table = build(&[("2001:db8::/32", 1)], &Readers::new());
    let changes = [
        Set(p("2001:db8:1::/48"), NextHop(2)),
        Set(p("2001:db8:2::/48"), NextHop(1 << 31)),
        Set(p("2001:db8:3::/48"), NextHop(3)),
    ];
    let refused = table.apply(&changes).unwrap_err();
    let shortage = Shortage::NextHop(NextHop(1 << 31));
    assert_eq!(refused, TableFull { prefix: p("2001:db8:2::/48"), applied: 1, shortage });
    assert_eq!(["2001:db8:1::", "2001:db8:2::", "2001:db8:3::"].map(|a| at(&table, a)), [2, 1, 1]);
    assert_eq!(table.rib().len(), 2);
}

#[test]
fn a_full_arena_refuses_and_keeps_what_it_had() {
    let mut table = build(&NESTED, &Readers::new());
    table.writer.arena.leave(0);
    let refused = table.apply(&[Set(p("2001:db8:0:5180:8000:100:0:8ffe/128"), NextHop(13))]).unwrap_err();
    assert_eq!(refused.shortage, Shortage::Blocks);
    let refused = table.apply(&[Set(p("2001:db8::/33"), NextHop(13))]).unwrap_err();
    assert_eq!(refused.shortage, Shortage::Blocks);
    assert_eq!(SEEN.map(|address| at(&table, address)), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(table.rib().len(), 12);
    table.apply(&[Set(p("3fff::/16"), NextHop(13))]).unwrap();
    assert_eq!(at(&table, "3fff::"), 13);
}

#[test]
fn bursts_of_any_length_agree_with_single_lookups() {
    let table = build(&NESTED, &Readers::new());
    for len in [0, 1, 5, 6, 15, 16, 17, 63, 64, 65, 70, 79, 200] {
        let addresses: Vec<u128> = (0..len).map(|i| p(SEEN[i * 7 % 12]).first() + i as u128).collect();
        let mut hops = vec![NextHop(99); len + 1];
        table.reader().lookup_burst(&addresses, &mut hops);
        let singly: Vec<NextHop> = addresses.iter().map(|a| table.reader().lookup(*a)).collect();
        assert_eq!((&hops[..len], hops[len]), (&singly[..], NextHop(99)));
    }
}

/// Many changes at once take another way than few; both must come to the same.
#[test]
fn in_bulk_as_one_by_one() {
    let base = p("2001:db8::/32").first();
    let host = |i: u128| {
        Prefix::containing(base | (i % 700) << 80 | (i % 3) << 40, [40, 47, 48, 64, 128][i as usize % 5])
            .unwrap()
    };
    let change =
        |i: u128| if i % 4 == 3 { Remove(host(i / 2)) } else { Set(host(i), NextHop(i as u32 % 9 + 1)) };
    let changes: Vec<_> = (0..4000)
        .map(change)
        .chain([Set(p("2001::/16"), NextHop(77)), Set(p("::/0"), NextHop(78))])
        .collect();
    let (mut bulk, mut singly) = (build(&NESTED, &Readers::new()), build(&NESTED, &Readers::new()));
    assert!(bulk.bulk(&changes));
    changes.iter().for_each(|change| singly.apply(&[*change]).unwrap());
    assert!(bulk.rib().iter().eq(singly.rib().iter()));
    for i in 0..4000 {
        for address in [host(i).first(), host(i).last(), host(i).last() + 1] {
            assert_eq!(bulk.reader().lookup(address), singly.reader().lookup(address));
        }
    }
}

#[test]
fn in_bulk_all_or_nothing() {
    let mut table = build(&NESTED, &Readers::new());
    table.writer.arena.leave(40);
    let before: Vec<_> = table.rib().iter().collect();
    let changes: Vec<_> =
        (0..2000u128).map(|i| Set(Prefix::host(p("2001:db8::/64").first() | i << 4), NextHop(7))).collect();
    assert!(!table.bulk(&changes));
    assert!(table.rib().iter().eq(before));
    assert_eq!(SEEN.map(|address| at(&table, address)), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let refused = table.apply(&changes).unwrap_err();
    assert_eq!((refused.shortage, refused.prefix), (Shortage::Blocks, changes[refused.applied].prefix()));
    assert_eq!(table.rib().len(), NESTED.len() + refused.applied);
    for (i, change) in changes.iter().enumerate() {
        let expected = if i < refused.applied { 7 } else { 4 };
        assert_eq!(table.reader().lookup(change.prefix().first()), NextHop(expected), "{i}");
    }
}

/// More ranges in a slot than trees of the usual height hold: lanes have further to go.
#[test]
fn high_trees_agree_with_single_lookups() {
    let base = p("2001::/16").first();
    let routes =
        (0..30_000u128).map(|i| (Prefix::containing(base | i << 85, 48).unwrap(), NextHop(i as u32 + 1)));
    let table = Range6::build(routes.clone(), &Readers::new()).unwrap();
    let word = Word(table.writer.fib.root[0x2001].load(Acquire));
    assert!(word.is_tree_of(LOW + 1), "{}", word.height());
    let mut addresses: Vec<u128> =
        routes.flat_map(|(to, _)| [to.first(), to.last(), to.last() + 1]).collect();
    addresses.extend(SEEN.map(|address| p(address).first()));
    let single: Vec<NextHop> =
        addresses.iter().map(|a| table.rib.longest_match(*a).map_or(NextHop::NONE, |(_, hop)| hop)).collect();
    for form in Form::all() {
        let mut hops = vec![NextHop(u32::MAX); addresses.len()];
        table.reader().lookup_burst_by(form, &addresses, &mut hops);
        assert_eq!(hops, single, "{form}");
    }
}
