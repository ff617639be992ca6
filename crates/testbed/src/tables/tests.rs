use super::histogram::{IPV4, IPV6};
use super::*;

fn small(seed: u64) -> Table {
    let options = TableOptions { seed: Seed(seed), ipv4: 20_000, ipv6: 5_000, next_hops: 16 };
    generate(&options).unwrap()
}

/// Sorted strictly upwards, which also excludes duplicates; returns count and more-specifics by length.
fn audit<A: Space>(routes: &[Route<A>]) -> Vec<Share> {
    assert!(routes.windows(2).all(|pair| pair[0].prefix < pair[1].prefix));
    let mut shares: Vec<Share> = (0..=A::WIDTH).map(|length| Share { length, count: 0, nested: 0 }).collect();
    let mut around: Vec<Prefix<A>> = Vec::new();
    for Route { prefix, .. } in routes {
        assert!(!space::is_reserved(prefix), "{prefix} is reserved");
        while around.last().is_some_and(|outer| !outer.covers(prefix)) {
            around.pop();
        }
        let share = &mut shares[usize::from(prefix.length())];
        share.count += 1;
        share.nested += usize::from(!around.is_empty());
        around.push(*prefix);
    }
    shares.retain(|share| share.count > 0);
    shares
}

#[test]
fn the_same_seed_gives_the_same_result() {
    assert_eq!(small(1), small(1));
    assert_ne!(small(1), small(2));
}

#[test]
fn has_the_histogram_of_the_full_table_at_any_size() {
    let table = small(3);
    assert_eq!(audit(&table.ipv4), histogram::scaled(IPV4, 20_000));
    assert_eq!(audit(&table.ipv6), histogram::scaled(IPV6, 5_000));
}

#[test]
fn a_full_table_is_nested_like_a_real_one() {
    let table = generate(&TableOptions::default()).unwrap();
    let (ipv4, ipv6) = (audit(&table.ipv4), audit(&table.ipv6));
    let counts = |shares: &[Share]| shares.iter().map(|s| (s.length, s.count)).collect::<Vec<_>>();
    assert_eq!(counts(&ipv4), counts(IPV4));
    assert_eq!(counts(&ipv6), counts(IPV6));
    let nested = |shares: &[Share]| shares.iter().map(|s| s.nested).sum::<usize>();
    assert!((600_000..660_000).contains(&nested(&ipv4)), "{}", nested(&ipv4));
    assert!((145_000..160_000).contains(&nested(&ipv6)), "{}", nested(&ipv6));
}

#[test]
fn uses_exactly_the_given_next_hops() {
    let options = TableOptions { ipv4: 50_000, ipv6: 0, next_hops: NEXT_HOPS_MAX, ..TableOptions::default() };
    let table = generate(&options).unwrap();
    let mut used: Vec<u16> = table.ipv4.iter().map(|route| route.next_hop).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!((used.first(), used.last()), (Some(&1), Some(&NEXT_HOPS_MAX)));
    assert!(used.len() > 1_000);
    let folded = table.folded(16);
    assert_eq!(folded.next_hop_max(), 16);
    assert!(folded.ipv4.iter().all(|route| route.next_hop >= 1));
}

#[test]
fn rejects_impossible_sizes() {
    let options = TableOptions { next_hops: 0, ..TableOptions::default() };
    assert_eq!(generate(&options), Err(TableError::NextHops { wanted: 0 }));
    let options = TableOptions { next_hops: 1024, ..TableOptions::default() };
    assert_eq!(generate(&options).unwrap_err().to_string(), "1024 next hops are not possible: use 1 to 1023");
}

#[test]
fn thins_evenly() {
    let thin = small(1).thinned(100, 7);
    assert_eq!((thin.ipv4.len(), thin.ipv6.len()), (100, 7));
    audit(&thin.ipv4);
    assert!(thin.ipv4[99].prefix.first() > 200 << 24);
}
