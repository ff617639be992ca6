use bm_vlb::{Mode, Rule};

use super::*;
use crate::options::{Matrix, Shape};

fn run(options: Options) -> Report {
    simulate(&options).unwrap_or_else(|failed| panic!("{options:?}: {failed}"))
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let options = Options { time_ns: 20_000_000, faults: true, ..Options::default() };
    let (one, same) = (run(options), run(options));
    assert_eq!(one, same);
    assert_ne!(one, run(Options { seed: 2, ..options }));
}

#[test]
fn permutations_load_links_with_two_shares() {
    let options = Options {
        shape: Shape::Mesh(64),
        matrix: Matrix::Permutation,
        load_percent: 100,
        time_ns: 150_000_000,
        ..Options::default()
    };
    let report = run(options);
    assert!(report.busiest_link < 2.1 && report.busiest_link > 1.9, "{report:?}");
    assert!(report.c < 3.05 && report.served_percent > 99.9, "{report:?}");
}

#[test]
fn the_adversarial_matrix_loads_a_link_with_three() {
    for rule in [Rule::OneShare, Rule::TwoShares] {
        let mode = Mode::DirectVlb(rule);
        let matrix = Matrix::Adversarial;
        let report =
            run(Options { matrix, mode, load_percent: 100, time_ns: 300_000_000, ..Options::default() });
        assert!((2.7..3.3).contains(&report.busiest_link), "{report:?}");
        assert!(report.c < 3.1, "{report:?}");
    }
}

#[test]
fn direct_only_cannot_serve_a_permutation() {
    let matrix = Matrix::Permutation;
    let report = run(Options { matrix, mode: Mode::DirectOnly, ..Options::default() });
    assert!(report.served_percent < 50.0 && report.lost.link_full > 0, "{report:?}");
}

#[test]
fn flowlets_keep_the_order_that_single_packets_lose() {
    let options = Options { matrix: Matrix::Permutation, load_percent: 80, ..Options::default() };
    let with = run(options);
    let without = run(Options { delta_ns: Some(0), ..options });
    assert!(
        without.reordered_percent > 4.0 * with.reordered_percent,
        "{} {}",
        with.reordered_percent,
        without.reordered_percent
    );
}

#[test]
fn a_fly_serves_what_is_admissible() {
    for matrix in [Matrix::Uniform, Matrix::Permutation] {
        let report = run(Options { shape: Shape::Fly { k: 2, n: 3 }, matrix, ..Options::default() });
        assert!(report.served_percent > 99.9, "{report:?}");
        assert!(report.delays.iter().all(|delay| delay.links == 4 || delay.links == 8), "{report:?}");
    }
}

/// Short runs with faults, each of a different cluster: every loss has a reason, nothing is misdelivered, all sums are
/// right.
#[test]
fn many_seeds_with_faults() {
    for seed in 0..120 {
        let options = Options::of_seed(seed);
        let report = run(options);
        assert!(report.delivered > report.offered / 3, "{options:?}: {report:?}");
    }
}

#[test]
fn old_epochs_are_refused_and_counted() {
    let epochs: u64 = (0..40)
        .map(|seed| run(Options { faults: true, time_ns: 60_000_000, seed, ..Options::default() }).lost.epoch)
        .sum();
    assert!(epochs > 0, "a node that stood still has sent frames of an old epoch");
}

#[test]
fn options_that_cannot_run_are_refused() {
    let failed = simulate(&Options { load_percent: 0, ..Options::default() }).expect_err("no load");
    assert!(failed.to_string().contains("the load must be"), "{failed}");
}
