use super::blocks::Values;
use super::*;
use crate::Change::Set;
use crate::published::Readers;
use crate::{BuildFib, Shortage, TableFull};
use bm_wire::prefix::Prefix;

fn p(text: &str) -> Prefix<u32> {
    text.parse().unwrap()
}

fn build(routes: &[(&str, u32)], readers: &Readers) -> Result<Dir18, TableFull<u32>> {
    Dir18::build(routes.iter().map(|(prefix, hop)| (p(prefix), NextHop(*hop))), readers)
}

fn at(table: &Dir18, text: &str) -> u32 {
    let (address, fib) = (p(text).first(), table.reader());
    for form in Form::all() {
        let mut hops = [NextHop(u32::MAX); 16];
        fib.lookup_burst_by(form, &[address; 16], &mut hops);
        assert_eq!(hops, [fib.lookup(address); 16], "{form}");
    }
    fib.lookup(address).0
}

#[test]
fn holds_next_hops_of_any_size_below_the_mark() {
    let routes = [
        ("10.0.0.0/24", 65_535),
        ("10.0.1.0/24", 65_536),
        ("10.0.2.64/26", 1 << 30),
        ("10.0.2.65/32", BLOCK - 1),
        ("11.0.0.0/8", BLOCK - 1),
    ];
    let table = build(&routes, &Readers::new()).unwrap();
    let seen = ["10.0.0.1", "10.0.1.1", "10.0.2.63", "10.0.2.64", "10.0.2.65", "10.0.2.128", "11.2.3.4"];
    let expected = [65_535, 65_536, 0, 1 << 30, BLOCK - 1, 0, BLOCK - 1];
    assert_eq!(seen.map(|address| at(&table, address)), expected);
}

/// A small block is cut from a free larger one if no word is left, and the rest of that one is used as well.
#[test]
fn free_blocks_are_divided_when_no_word_is_left() {
    let mut table = build(&[], &Readers::new()).unwrap();
    let blocks = &mut table.blocks;
    // 64 values of 16 bits and their bitmap, in three lines.
    blocks.exhaust(24);
    let mut values = Values::new();
    (0..64).for_each(|bit| values.push(bit, 1 + bit));
    let large = blocks.entry(&values, 0).unwrap();
    assert_eq!(blocks.fork([1, 2, 3, 4]), Err(Shortage::Blocks));
    let mut pieces = Vec::new();
    blocks.behind(large, &mut pieces);
    blocks.commit();
    blocks.retire(pieces);
    let mut forks: Vec<_> = std::iter::from_fn(|| blocks.fork([1, 2, 3, 4]).ok()).collect();
    forks.iter_mut().for_each(|fork| *fork &= INDEX);
    forks.sort_unstable();
    let first = large & INDEX;
    assert_eq!(forks, (first..first + 24).step_by(2).collect::<Vec<_>>());
}

#[test]
fn the_last_24_of_a_slot_may_be_divided() {
    let table = build(&[("10.0.0.0/18", 1), ("10.0.63.64/26", 2)], &Readers::new()).unwrap();
    let seen =
        ["10.0.0.0", "10.0.62.255", "10.0.63.63", "10.0.63.64", "10.0.63.127", "10.0.63.128", "10.0.64.0"];
    assert_eq!(seen.map(|address| at(&table, address)), [1, 1, 1, 2, 2, 1, 0]);
}

#[test]
fn refuses_what_does_not_fit_and_stays_as_it_was() {
    let refused = build(&[("10.0.0.0/8", BLOCK)], &Readers::new()).unwrap_err();
    assert_eq!((refused.prefix, refused.shortage), (p("10.0.0.0/8"), Shortage::NextHop(NextHop(BLOCK))));

    let mut table = build(&[("10.0.0.0/8", 1)], &Readers::new()).unwrap();
    let changes = [Set(p("10.1.0.0/16"), NextHop(2)), Set(p("10.2.0.0/24"), NextHop(BLOCK))];
    let refused = table.apply(&changes).unwrap_err();
    assert_eq!((refused.prefix, refused.applied), (p("10.2.0.0/24"), 1));
    assert_eq!(["10.1.0.0", "10.2.0.0"].map(|a| at(&table, a)), [2, 1]);

    table.blocks.exhaust(8);
    let changes = [
        Set(p("10.3.0.0/16"), NextHop(3)),
        // One line holds four small blocks, of which the host route would take three.
        Set(p("10.4.0.0/24"), NextHop(4)),
        Set(p("10.7.0.0/24"), NextHop(7)),
        Set(p("10.5.0.1/32"), NextHop(5)),
        Set(p("10.6.0.0/16"), NextHop(6)),
    ];
    let refused = table.apply(&changes).unwrap_err();
    assert_eq!(refused, TableFull { prefix: p("10.5.0.1/32"), applied: 3, shortage: Shortage::Blocks });
    let seen = ["10.3.0.0", "10.4.0.1", "10.4.1.0", "10.5.0.1", "10.6.0.0"];
    assert_eq!(seen.map(|a| at(&table, a)), [3, 4, 1, 1, 1]);
    assert_eq!(table.rib().len(), 5);
    table.apply(&changes[4..]).unwrap();
    assert_eq!(at(&table, "10.6.0.0"), 6);
}

#[test]
fn a_block_comes_back_only_after_all_readers_moved_on() {
    let readers = Readers::new();
    let mut reader = readers.register();
    let mut table = build(&[("10.0.0.0/8", 1), ("10.0.0.1/32", 1)], &readers).unwrap();
    let host = p("10.0.0.1/32");
    table.blocks.exhaust(16);
    table.apply(&[Set(host, NextHop(2))]).unwrap();
    table.apply(&[Set(host, NextHop(1))]).unwrap();
    let full = (0..9).find_map(|i| table.apply(&[Set(host, NextHop(3 + i))]).err()).unwrap();
    assert_eq!(full.shortage, Shortage::Blocks, "what was unlinked may still be read");
    reader.quiescent();
    table.apply(&[Set(host, NextHop(9))]).unwrap();
    assert_eq!(["10.0.0.0", "10.0.0.1", "10.0.0.2"].map(|a| at(&table, a)), [1, 9, 1]);
}

#[test]
fn bursts_of_any_length_agree_with_single_lookups_in_every_form() {
    let routes = [
        ("0.0.0.0/1", 1),
        ("10.0.0.0/25", 2),
        ("10.0.1.7/32", 70_000),
        ("10.0.65.0/24", 3),
        ("10.0.67.0/24", 4),
    ];
    let table = build(&routes, &Readers::new()).unwrap();
    let fib = table.reader();
    for (form, len) in
        Form::all().into_iter().flat_map(|form| [0u32, 1, 15, 16, 63, 64, 65, 95, 200].map(|len| (form, len)))
    {
        let addresses: Vec<u32> = (0..len).map(|i| 0x0a00_0000 + i * 151 % 512 + i % 3 * 0x4100).collect();
        let mut hops = vec![NextHop(99); len as usize + 1];
        fib.lookup_burst_by(form, &addresses, &mut hops);
        let singly: Vec<NextHop> = addresses.iter().map(|a| fib.lookup(*a)).collect();
        assert_eq!((&hops[..len as usize], hops[len as usize]), (&singly[..], NextHop(99)), "{form}");
    }
}
