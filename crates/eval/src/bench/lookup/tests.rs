use bm_testbed::tables::{Route, TableOptions, generate};

use super::*;

fn table() -> Table {
    let options = TableOptions { ipv4: 20_000, ipv6: 4_000, next_hops: NEXT_HOPS, ..TableOptions::default() };
    generate(&options).unwrap()
}

fn of<A: Family>(routes: &[Route<A>]) -> Vec<Contender<A>> {
    A::structures().map(|structure| Contender::ours(structure, None, routes).unwrap()).collect()
}

fn churned<A: Family>(table: &Table, peers: bool, mut contenders: Vec<Contender<A>>) {
    let routes = A::routes(table);
    let probes = Probes::new(routes, SEED, peers);
    probes.check(A::NAME, &contenders).unwrap();
    let churn = Churn::new(routes, NEXT_HOPS, 2_000, SEED);
    for contender in contenders.iter_mut().filter(|contender| contender.has_updates()) {
        for singly in [false, true] {
            contender.update(&churn.there, singly).unwrap();
            let changed = probes.check(A::NAME, std::slice::from_ref(contender)).unwrap_err().to_string();
            assert!(changed.contains(&contender.name), "{changed}");
            contender.update(&churn.back, singly).unwrap();
        }
    }
    probes.check(A::NAME, &contenders).unwrap();
}

#[test]
fn every_structure_agrees_with_the_oracle_before_and_after_churn() {
    let table = table();
    churned(&table, false, of::<u32>(&table.ipv4));
    churned(&table, false, of::<u128>(&table.ipv6));
}

#[test]
fn peers_agree_with_the_oracle() {
    let core = cores::allowed()[0];
    let peers = match Peers::start(core) {
        Ok(peers) => peers,
        Err(missing) => {
            eprintln!("SKIPPED: {missing}");
            return;
        }
    };
    let table = table();
    let four =
        u32::PEERS.iter().map(|of| Contender::<u32>::peer(peers.build(*of, &table.ipv4).unwrap(), 0.0));
    churned(&table, true, four.collect());
    let six =
        u128::PEERS.iter().map(|of| Contender::<u128>::peer(peers.build(*of, &table.ipv6).unwrap(), 0.0));
    churned(&table, true, six.collect());
}

#[test]
fn names_every_case_once() {
    let cases = Operation::cases("ipv4");
    let names: Vec<&str> = cases.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..5],
        [
            "ipv4-full-uniform",
            "ipv4-full-prefix",
            "ipv4-full-zipf",
            "ipv4-full-flow",
            "ipv4-full-prefix-batch-1"
        ]
    );
    assert_eq!(
        names[12..],
        [
            "ipv4-full-prefix-batch-256",
            "ipv4-full-updates-bulk",
            "ipv4-full-updates-single",
            "ipv4-full-build"
        ]
    );
}

#[test]
fn rejects_unknown_structures() {
    let options = LookupOptions { structure: Some("dir42".into()), ..LookupOptions::default() };
    let output = lookup(&options).unwrap_err().to_string();
    assert!(output.starts_with("there is no structure \"dir42\": use all or one of "), "{output}");
    assert!(output.contains("dir24_8, ") && output.contains(", rte_fib-2b"), "{output}");
}
