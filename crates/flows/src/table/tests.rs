use super::*;
use crate::Hit;
use crate::random::Random;
use bm_fib::published::{Epoch, ReaderHandle, Readers};
use bm_sys::{Access, Commit, memfd};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211];
const SECOND: u32 = 250;

fn table(max: usize) -> Table {
    let memory = Map::anonymous(bytes(max), Commit::OnDemand).unwrap();
    let table = Table::with_secret(memory, max, SECRET, SECOND).unwrap();
    table.set_families([true, true]);
    table
}

/// One of the actions of a key, none of which is that of another key: `version` selects it, and is its interface.
fn action(key: &Key, version: u16) -> Action {
    Action {
        out: version,
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port ^ version,
        destination_port: key.source_port.wrapping_add(version),
        connection: None,
    }
}

fn keys(random: &mut Random, count: usize) -> Vec<Key> {
    (0..count).map(|n| random.key(if n % 3 == 0 { 6 } else { 4 })).collect()
}

/// Inserts, and expects that there was room.
fn inserted(table: &mut Table, key: &Key, version: u16, now: u32) -> FlowIndex {
    match table.insert(key, &action(key, version), now) {
        Insert::Inserted(index) => index,
        other => panic!("{other:?}"),
    }
}

/// Inserts all of them at time 0.
fn fill(table: &mut Table, keys: &[Key], version: u16) -> Vec<FlowIndex> {
    keys.iter().map(|key| inserted(table, key, version, 0)).collect()
}

/// A grace period: nobody reads.
fn grace(table: &mut Table) {
    table.mark();
    table.reuse();
}

#[test]
fn finds_what_was_inserted_until_it_is_removed() {
    let (mut table, mut random) = (table(100), Random::new(1));
    let lookup = table.lookup();
    for family in [4, 6] {
        let key = random.key(family);
        assert_eq!(lookup.find(&key), None);
        let index = inserted(&mut table, &key, 7, 1000);
        let found = lookup.find(&key).unwrap();
        assert_eq!((found.index, found.action, found.translates), (index, action(&key, 7), true));
        assert_eq!(table.insert(&key, &action(&key, 7), 1001), Insert::Exists(index));
        lookup.count(index, 1514, 1005);
        lookup.count(index, 60, 1006);
        let shown =
            FlowRecord { key, action: action(&key, 7), packets: 2, bytes: 1574, used_at: 1006, ended: None };
        assert_eq!(table.get(index), shown);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(index, shown)]);
        assert!(table.remove(index) && !table.remove(index));
        assert_eq!((lookup.find(&key), table.len(), table.get(index)), (None, 0, shown));
    }
}

#[test]
fn a_flow_that_leaves_as_it_arrives_is_not_translated() {
    let (mut table, key) = (table(100), Random::new(2).key(4));
    let Key { source, destination, source_port, destination_port, .. } = key;
    let action = Action { out: 3, source, destination, source_port, destination_port, connection: None };
    let Insert::Inserted(index) = table.insert(&key, &action, 0) else { panic!() };
    let found = Hit { index, action, translates: false, sum_addresses: 0, sum_ports: 0 };
    assert_eq!(table.lookup().find(&key), Some(found));
}

#[test]
fn sums_are_of_what_changes() {
    let (mut table, key) = (table(100), Random::new(3).key(6));
    let new = Action { source: "2001:db8::1".parse().unwrap(), source_port: 9, ..action(&key, 5) };
    let _inserted = table.insert(&key, &new, 0);
    let found = table.lookup().find(&key).unwrap();
    let (old, new) = (PackedKey::new(&key).words, new.words(6));
    let expected = (new.addresses_grow(&old), new.ports_grow(&old));
    assert_eq!((found.sum_addresses, found.sum_ports), expected);
    assert!(expected.0 != 0 && expected.1 != 0);
}

#[test]
fn a_flow_that_ended_or_leaves_otherwise_gets_a_new_entry() {
    let (mut table, key) = (table(2), Random::new(4).key(4));
    let lookup = table.lookup();
    let first = inserted(&mut table, &key, 1, 0);
    lookup.end(first);
    assert_eq!((lookup.find(&key), table.get(first).ended), (None, Some(EndReason::Closed)));
    let renewed = table.insert(&key, &action(&key, 1), 5);
    let Insert::Renewed { index, replaced } = renewed else { panic!("{renewed:?}") };
    assert!(replaced == first && index != first && !table.remove(first));
    assert_eq!((table.len(), table.retired(), lookup.find(&key).unwrap().index), (1, 1, index));
    // Neither entry is free: what is wrong must go nevertheless.
    assert_eq!(table.insert(&key, &action(&key, 2), 6), Insert::Full);
    assert_eq!((lookup.find(&key), table.take_evicted()), (None, vec![index]));
    grace(&mut table);
    let second = inserted(&mut table, &key, 2, 7);
    let renewed = table.insert(&key, &action(&key, 3), 8);
    assert!(matches!(renewed, Insert::Renewed { replaced, .. } if replaced == second));
    assert_eq!(lookup.find(&key).unwrap().action, action(&key, 3));
}

#[test]
fn entries_are_reused_only_after_the_grace_period_of_their_mark() {
    let (mut table, keys) = (table(2), keys(&mut Random::new(5), 3));
    let first = inserted(&mut table, &keys[0], 0, 0);
    let second = inserted(&mut table, &keys[1], 0, 0);
    table.remove(first);
    table.mark();
    table.remove(second);
    assert_eq!(table.insert(&keys[2], &action(&keys[2], 0), 0), Insert::Full);
    table.mark();
    table.reuse();
    assert_eq!(table.retired(), 1, "the second was removed after the mark");
    assert_eq!(inserted(&mut table, &keys[2], 0, 0), first);
    table.reuse();
    assert_eq!(table.retired(), 1, "nobody has marked it");
    grace(&mut table);
    assert_eq!(inserted(&mut table, &keys[0], 0, 0), second);
    table.mark();
    table.remove(second);
    table.mark();
    table.reuse();
    assert_eq!(table.retired(), 1, "nothing had been removed at the first mark");
}

#[test]
fn void_takes_everything_out() {
    let (mut table, keys) = (table(200), keys(&mut Random::new(6), 200));
    let lookup = table.lookup();
    let indices = fill(&mut table, &keys, 1);
    table.set_generation(7);
    table.void();
    assert_eq!((table.len(), table.retired(), table.families()), (0, 200, [false, false]));
    table.set_families([true, true]);
    assert!(keys.iter().all(|key| lookup.find(key).is_none()));
    assert!(indices.into_iter().all(|index| !table.remove(index)) && table.iter().next().is_none());
    grace(&mut table);
    fill(&mut table, &keys, 2);
    assert!(keys.iter().all(|key| lookup.find(key).unwrap().action == action(key, 2)));
    assert_eq!(table.generation(), 7);
}

#[test]
fn only_packets_of_families_that_may_find_flows() {
    let (mut table, mut random) = (table(10), Random::new(7));
    let keys = [random.key(4), random.key(6)];
    fill(&mut table, &keys, 1);
    for families in [[false, false], [true, false], [false, true], [true, true]] {
        table.set_families(families);
        assert_eq!(
            (keys.map(|key| table.lookup().find(&key).is_some()), table.families()),
            (families, families)
        );
    }
}

/// Keys whose two buckets are the first two of a table.
fn crowd(table: &Table, random: &mut Random, count: usize) -> Vec<Key> {
    let random_keys = std::iter::repeat_with(|| random.key(4));
    let of_both = |key: &Key| matches!(table.place(&PackedKey::new(key)).buckets, [0, 1] | [1, 0]);
    random_keys.filter(of_both).take(count).collect()
}

#[test]
fn full_buckets_evict_the_least_recently_used_after_a_second() {
    let mut table = table(1000);
    let (lookup, keys) = (table.lookup(), crowd(&table, &mut Random::new(8), 20));
    let start = u32::MAX - 100;
    let now = |after: u32| start.wrapping_add(after);
    let indices: Vec<_> = (0..16).map(|n| inserted(&mut table, &keys[n as usize], 0, now(n))).collect();
    assert_eq!(table.insert(&keys[16], &action(&keys[16], 0), now(SECOND)), Insert::Full);
    assert!(table.take_evicted().is_empty());
    // The first is used again, by a program whose clock is ahead of the caller's.
    lookup.count(indices[0], 60, now(SECOND + 20));
    inserted(&mut table, &keys[16], 0, now(SECOND + 15));
    assert_eq!((table.take_evicted(), table.len()), (vec![indices[1]], 16));
    lookup.end(indices[9]);
    inserted(&mut table, &keys[17], 0, now(SECOND + 16));
    assert_eq!(table.take_evicted(), [indices[9]], "one that has ended");
    inserted(&mut table, &keys[18], 0, now(SECOND + 16));
    assert_eq!(table.take_evicted(), [indices[2]]);
    let found = keys.iter().filter(|key| lookup.find(key).is_some()).count();
    assert_eq!((found, table.retired()), (16, 3));
}

#[test]
fn numbers_move_to_their_other_buckets_before_anything_is_evicted() {
    let (mut table, mut random) = (table(1000), Random::new(9));
    let buckets = |table: &Table, key: &Key| table.place(&PackedKey::new(key)).buckets;
    // Eight flows that can only be in one bucket or elsewhere, and nine that can only be in this one.
    let mut all = std::iter::repeat_with(|| random.key(4));
    let elsewhere: Vec<_> = all.by_ref().filter(|key| buckets(&table, key)[0] == 5).take(8).collect();
    let only: Vec<_> = all.filter(|key| buckets(&table, key) == [5, 5]).take(9).collect();
    fill(&mut table, &elsewhere, 0);
    fill(&mut table, &only[..8], 0);
    let lookup = table.lookup();
    assert!(elsewhere.iter().chain(&only[..8]).all(|key| lookup.find(key).is_some()));
    assert_eq!(table.insert(&only[8], &action(&only[8], 0), 0), Insert::Full);
    assert_eq!((table.len(), table.take_evicted()), (16, vec![]));
}

#[test]
fn a_full_table_evicts_what_was_not_used_for_a_second() {
    let (mut table, keys) = (table(160), keys(&mut Random::new(10), 400));
    let lookup = table.lookup();
    let indices = fill(&mut table, &keys[..160], 0);
    assert_eq!(table.insert(&keys[160], &action(&keys[160], 0), SECOND), Insert::Full);
    assert!(table.take_evicted().is_empty());
    // All but one of them are in use.
    for index in indices.iter().filter(|index| **index != indices[100]) {
        lookup.count(*index, 60, SECOND);
    }
    let mut tries = 0;
    while table.insert(&keys[160], &action(&keys[160], 0), SECOND + 1) == Insert::Full {
        tries += 1;
        assert!(tries <= 160usize.div_ceil(64) + 1, "it looks at 64 each time");
        grace(&mut table);
    }
    assert_eq!(table.take_evicted(), [indices[100]]);
    // From then on new ones find entries without a wait: while some were evicted, some are left.
    for (n, key) in keys[161..].iter().enumerate() {
        if n > 0 && n % 5 == 0 {
            grace(&mut table);
        }
        let result = table.insert(key, &action(key, 0), (n as u32 + 3) * SECOND);
        assert!(n < 20 || matches!(result, Insert::Inserted(_)), "{n}: {result:?}");
    }
    assert_eq!(table.len() + table.retired() + table.free.len(), 160);
}

#[test]
fn a_table_at_95_percent_has_room_for_random_keys() {
    for max in [1, 10, 1000, 262_144] {
        let (mut table, mut random) = (table(max), Random::new(max as u64));
        for n in 0..(max * 95).div_ceil(100) {
            let key = random.key(if n % 2 == 0 { 4 } else { 6 });
            inserted(&mut table, &key, 0, 0);
        }
        assert!(table.take_evicted().is_empty());
    }
}

#[test]
fn each_table_has_a_key_of_its_own() {
    let secrets: HashSet<_> = (0..100)
        .map(|_| {
            let table = Table::new(Map::anonymous(bytes(1), Commit::OnDemand).unwrap(), 1).unwrap();
            let secret = table.secret;
            assert_eq!(table.area.head().key.each_ref().map(|word| word.load(Relaxed)), secret);
            assert!(secret[0] % 2 == 1 && secret[1] % 2 == 1 && secret[0] != secret[1]);
            assert!((100..=1000).contains(&table.jiffies_per_second), "CONFIG_HZ");
            assert!(!format!("{table:?} {:?}", table.lookup()).contains(&secret[0].to_string()));
            secret
        })
        .collect();
    assert_eq!(secrets.len(), 100);
}

#[test]
fn a_new_table_forgets_what_was_in_its_memory() {
    let file = File::from(memfd(c"bm-flows-test").unwrap());
    file.set_len(bytes(100) as u64).unwrap();
    let map = || Map::file(&file, 0, bytes(100), Access::ReadWrite).unwrap();
    let key = Random::new(11).key(4);
    let mut before = Table::with_secret(map(), 100, SECRET, SECOND).unwrap();
    before.set_families([true, true]);
    before.set_generation(3);
    inserted(&mut before, &key, 1, 0);
    let mut table = Table::with_secret(map(), 100, SECRET, SECOND).unwrap();
    assert_eq!((table.len(), table.families(), table.generation()), (0, [false, false], 0));
    assert!(table.epoch > before.epoch && table.iter().next().is_none());
    table.set_families([true, true]);
    assert!(table.lookup().find(&key).is_none() && before.lookup().find(&key).is_none());
    inserted(&mut table, &key, 2, 0);
    assert_eq!(before.lookup().find(&key).unwrap().action, action(&key, 2));
}

#[test]
fn epoch_0_is_left_out() {
    assert_eq!([after(0), after(1), after(u32::MAX)], [1, 2, 1]);
}

#[test]
fn errors_say_what_is_wrong() {
    let memory = |bytes| Map::anonymous(bytes, Commit::OnDemand).unwrap();
    let error = |bytes, max| Table::new(memory(bytes), max).unwrap_err().to_string();
    assert_eq!(error(8192, 0), "a table of 0 flows is not possible: give a number from 1 to 4000000");
    assert!(error(8192, MAX + 1).contains("4000001 flows"));
    assert_eq!(error(8192, 100), "a table of 100 flows needs 20992 bytes of memory, not 8192");
}

/// What the table must contain.
struct Model {
    table: Table,
    lookup: Lookup,
    flows: HashMap<Key, Expected>,
    /// Entries that were removed, and those of them that were there at the mark.
    removed: Vec<FlowIndex>,
    marked: Option<Vec<FlowIndex>>,
    now: u32,
}

#[derive(Clone, Copy)]
struct Expected {
    index: FlowIndex,
    version: u16,
    packets: u64,
    used_at: u32,
    ended: bool,
}

impl Model {
    fn is_marked(&self, index: FlowIndex) -> bool {
        self.marked.as_ref().is_some_and(|marked| marked.contains(&index))
    }

    fn insert(&mut self, key: &Key, version: u16) {
        let result = self.table.insert(key, &action(key, version), self.now);
        let before = self.flows.get(key).copied();
        let idle = |flow: &Expected| flow.ended || self.now.wrapping_sub(flow.used_at) > SECOND;
        for index in self.table.take_evicted() {
            let evicted = *self.flows.iter().find(|(_, flow)| flow.index == index).unwrap().0;
            assert!(idle(&self.flows[&evicted]) || (evicted == *key && result == Insert::Full));
            self.flows.remove(&evicted);
            self.removed.push(index);
        }
        let index = match (result, before) {
            (Insert::Exists(index), Some(flow)) => {
                assert!(flow.index == index && !flow.ended && flow.version == version);
                return;
            }
            (Insert::Renewed { index, replaced }, Some(flow)) => {
                assert!(flow.index == replaced && (flow.ended || flow.version != version));
                self.removed.push(replaced);
                index
            }
            (Insert::Inserted(index), None) => index,
            (Insert::Full, before) => {
                assert!(before.is_none_or(|flow| flow.ended || flow.version != version));
                assert!(!self.flows.contains_key(key), "what is wrong is gone");
                assert_eq!(self.table.len() + self.table.retired(), self.table.max());
                return;
            }
            (result, _) => panic!("{result:?}"),
        };
        assert!(!self.removed.contains(&index) && !self.is_marked(index), "{index:?} is not free");
        let flow = Expected { index, version, packets: 0, used_at: self.now, ended: false };
        self.flows.insert(*key, flow);
    }

    fn step(&mut self, random: &mut Random, keys: &[Key]) {
        let key = &keys[random.below(keys.len())];
        self.now = self.now.wrapping_add(random.below(2) as u32);
        let flow = self.flows.get_mut(key);
        match (random.below(1000), flow) {
            (0..500, _) => self.insert(key, random.below(20).saturating_sub(18) as u16),
            (500..650, Some(flow)) => {
                assert!(self.table.remove(flow.index));
                self.removed.push(flow.index);
                self.flows.remove(key);
            }
            (650..850, Some(flow)) => {
                self.lookup.count(flow.index, 60, self.now);
                (flow.packets, flow.used_at) = (flow.packets + 1, self.now);
            }
            (850..900, Some(flow)) => {
                self.lookup.end(flow.index);
                flow.ended = true;
            }
            (900..920, _) => {
                self.table.mark();
                let removed = &mut self.removed;
                self.marked.get_or_insert_with(|| std::mem::take(removed));
            }
            (920..940, _) => {
                self.table.reuse();
                self.marked = None;
            }
            (999, _) if random.below(5) == 0 => {
                self.table.void();
                self.table.set_families([true, true]);
                self.removed.extend(self.flows.drain().map(|(_, flow)| flow.index));
            }
            _ => {}
        }
    }

    fn check(&self, keys: &[Key]) {
        for key in keys {
            let flow = self.flows.get(key).filter(|flow| !flow.ended);
            let found = self.lookup.find(key).map(|found| (found.index, found.action));
            assert_eq!(found, flow.map(|flow| (flow.index, action(key, flow.version))));
        }
        let shown: HashMap<_, _> =
            self.table.iter().map(|(index, shown)| (shown.key, (index, shown))).collect();
        assert_eq!((shown.len(), self.table.len()), (self.flows.len(), self.flows.len()));
        for (key, flow) in &self.flows {
            let (packets, used_at) = (flow.packets, flow.used_at);
            let ended = flow.ended.then_some(EndReason::Closed);
            let (action, bytes) = (action(key, flow.version), 60 * packets);
            assert_eq!(
                shown[key],
                (flow.index, FlowRecord { key: *key, action, packets, bytes, used_at, ended })
            );
        }
        assert_eq!(self.table.retired(), self.removed.len() + self.marked.as_ref().map_or(0, Vec::len));
    }
}

#[test]
fn behaves_as_a_map_does() {
    for (seed, max) in [(1, 1), (2, 20), (3, 300), (4, 1000)] {
        let mut random = Random::new(seed);
        let keys = keys(&mut random, max * 3 / 2 + 1);
        let table = table(max);
        let (lookup, now) = (table.lookup(), u32::MAX - 1000);
        let (flows, removed, marked) = (HashMap::new(), Vec::new(), None);
        let mut model = Model { table, lookup, flows, removed, marked, now };
        for step in 0..100_000 {
            model.step(&mut random, &keys);
            if step % 500 == 0 {
                model.check(&keys);
            }
        }
        model.check(&keys);
    }
}

/// What the writer and a reader tell each other.
#[derive(Default)]
struct Told {
    /// The reader is to end.
    stop: AtomicBool,
    /// Flows that it has found.
    hits: AtomicUsize,
}

/// Looks up random keys until it is told to stop.
fn read(lookup: &Lookup, mut reader: ReaderHandle, keys: &[Key], told: &Told, seed: u64) {
    let mut random = Random::new(seed);
    while !told.stop.load(Relaxed) {
        for _ in 0..32 {
            let key = &keys[random.below(keys.len())];
            let Some(found) = lookup.find(key) else { continue };
            assert_eq!(found.action, action(key, found.action.out), "of another flow");
            let (old, new) = (PackedKey::new(key), found.action);
            let new = new.words(old.family);
            let sums = (new.addresses_grow(&old.words), new.ports_grow(&old.words));
            assert_eq!((found.sum_addresses, found.sum_ports), sums);
            told.hits.fetch_add(1, Relaxed);
            if random.below(64) == 0 {
                lookup.end(found.index);
            }
        }
        reader.quiescent();
    }
}

/// Changes the table at random, in so many steps at least, until `is_enough`; entries are reused once the readers have moved on.
fn write(
    table: &mut Table,
    readers: &Readers,
    keys: &[Key],
    steps: u32,
    is_enough: impl Fn() -> bool,
) -> usize {
    let (mut random, mut waits): (_, Option<Epoch>) = (Random::new(12), None);
    let (mut indices, mut reused) = (HashMap::new(), 0);
    for now in 0.. {
        if now >= steps && is_enough() {
            break;
        }
        let key = &keys[random.below(keys.len())];
        match (random.below(4000), indices.get(key)) {
            (0, _) => {
                table.void();
                table.set_families([true, true]);
                indices.clear();
            }
            (1..2000, Some(&index)) => {
                table.remove(index);
                indices.remove(key);
            }
            _ => match table.insert(key, &action(key, random.below(3) as u16), now) {
                Insert::Inserted(index) | Insert::Exists(index) | Insert::Renewed { index, .. } => {
                    indices.insert(key, index);
                }
                Insert::Full => {}
            },
        }
        let evicted: HashSet<_> = table.take_evicted().into_iter().collect();
        if !evicted.is_empty() {
            indices.retain(|_, index| !evicted.contains(index));
        }
        match waits {
            None => {
                table.mark();
                waits = Some(readers.begin_epoch());
            }
            Some(epoch) if readers.passed(epoch) => {
                reused += table.marked.unwrap_or(0);
                table.reuse();
                waits = None;
            }
            Some(_) => {}
        }
    }
    reused
}

#[test]
fn readers_never_see_what_belongs_to_another_flow() {
    // Nearly always full, so that entries go from flow to flow as fast as possible.
    let (mut table, keys) = (table(500), keys(&mut Random::new(13), 1000));
    let (readers, told) = (Readers::new(), [Told::default(), Told::default()]);
    let reused = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (seed, told) in (1..).zip(&told) {
            let (lookup, reader, keys) = (table.lookup(), readers.register(), &keys);
            threads.push(scope.spawn(move || read(&lookup, reader, keys, told, seed)));
        }
        // On a busy machine a reader may not get a core for long; one that has failed finds nothing more.
        let is_enough = || {
            let found = told.iter().all(|told| told.hits.load(Relaxed) > 1000);
            found || threads.iter().any(|thread| thread.is_finished())
        };
        let reused = write(&mut table, &readers, &keys, 2_000_000, is_enough);
        told.iter().for_each(|told| told.stop.store(true, Relaxed));
        reused
    });
    let hits = told.map(|told| told.hits.into_inner());
    assert!(hits.iter().all(|&hits| hits > 1000) && reused > 1000, "{hits:?} found, {reused} reused");
}
