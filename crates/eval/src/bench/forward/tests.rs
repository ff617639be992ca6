//! The bench on small tables: what it reports, and that it notices errors.

use bm_testbed::tables::{Route, TableOptions, generate};

use super::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count of what each thread requests.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more.
        let _ended = ASKED.try_with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; `memory` came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn bed() -> Bed {
    let options = TableOptions { ipv4: 5_000, ipv6: 2_000, ..TableOptions::default() };
    Bed::new(generate(&options).unwrap(), Bed::frame_pool().unwrap()).unwrap()
}

fn turns() -> Turns {
    Turns { runs: 3, slot: Duration::from_millis(2), warm_up: Duration::from_millis(1) }
}

#[test]
fn forwards_every_frame_of_every_pattern() {
    let bed = bed();
    for case in Case::ALL {
        let rows = measured(&case, &bed);
        let subjects: Vec<_> = rows.iter().map(|row| row.subject.as_str()).collect();
        assert_eq!(subjects, ["brickmoon", "source-sink", "lookup", "headers"]);
        assert!(rows.iter().all(|row| row.case == case.name() && row.median > 0.0 && row.runs == 3));
        assert!(
            rows[0].detail.get("over_parts").and_then(|over| over.as_f64()).is_some_and(|over| over > 0.0)
        );
        assert!(rows[0].ns > rows[1].ns, "the router cannot be quicker than its ports alone");
    }
}

fn measured(case: &Case, bed: &Bed) -> Vec<Row> {
    match case.family {
        "ipv4" => measure::<u32>(case, bed, turns()).unwrap(),
        _ => measure::<u128>(case, bed, turns()).unwrap(),
    }
}

#[test]
fn forwards_frames_of_every_size_with_the_router_and_without() {
    let bed = bed();
    let of = |sizes: Sizes| Case::all(sizes).filter(|case| case.pattern != Pattern::Uniform);
    for case in Sizes::ALL.into_iter().filter(|&sizes| sizes != SMALLEST).flat_map(of) {
        let rows = measured(&case, &bed);
        let subjects: Vec<_> = rows.iter().map(|row| row.subject.as_str()).collect();
        assert_eq!(subjects, ["brickmoon", "source-sink"]);
        for row in rows {
            assert!(row.case.ends_with(&format!("-{}", case.sizes)) && row.median > 0.0, "{}", row.case);
            let bytes = row.detail["frame_bytes"].as_f64().unwrap() + 4.0;
            let gbit_s = row.detail["gbit_s"].as_f64().unwrap();
            assert!((gbit_s - row.median * bytes * 8.0 / 1000.0).abs() < 0.02, "{row:?}");
        }
    }
    let mix = Case { sizes: Sizes::Imix, ..Case::ALL[0] };
    assert_eq!((mix.name(), rounded(mix.mean_bytes())), ("ipv4-full-prefix-imix".into(), 357.83));
}

/// All sizes of the mix occur, each with its share.
#[test]
fn a_mix_is_seven_four_one() {
    let bed = bed();
    let destinations: Arc<[u32]> = routable(Pattern::Prefix, &bed.ipv4);
    let mut ports = bed.source_sink(&destinations, Sizes::Imix).unwrap();
    ports.sample.begin();
    let mut left = Vec::new();
    while left.len() < 6000 {
        ports.engine.breathe();
        left.extend(ports.sample.end());
        ports.sample.begin();
    }
    let shares = [60, 590, 1514].map(|length| left.iter().filter(|(_, bytes)| bytes.len() == length).count());
    assert_eq!(shares.iter().sum::<usize>(), left.len());
    for (found, of_twelve) in shares.into_iter().zip([7, 4, 1]) {
        let wanted = left.len() * of_twelve / 12;
        assert!(found.abs_diff(wanted) * 50 < left.len(), "{shares:?}");
    }
}

#[test]
fn a_running_worker_does_not_allocate() {
    fn asked<A: BenchFamily>(bed: &Bed, pattern: Pattern) -> (u64, u64) {
        let destinations = routable(pattern, A::table(bed));
        let mut router = bed.router(&destinations, Batching::default()).unwrap();
        breathe(&mut router);
        let before = ASKED.get();
        let forwarded = (0..10).map(|_| breathe(&mut router)).sum();
        (ASKED.get() - before, forwarded)
    }
    let bed = bed();
    for (asked, forwarded) in [asked::<u32>(&bed, Pattern::Prefix), asked::<u128>(&bed, Pattern::Prefix)] {
        assert!(forwarded > 10_000, "{forwarded} packets");
        assert_eq!(asked, 0, "allocations for {forwarded} packets");
    }
    let before = ASKED.get();
    std::hint::black_box(Box::new(1));
    assert_eq!(ASKED.get() - before, 1, "this test must be able to fail");
}

#[test]
fn detects_wrong_output_ports() {
    let mut bed = bed();
    let destinations: Arc<[u32]> = routable(Pattern::Prefix, &bed.ipv4);
    let mut router = bed.router(&destinations, Batching::default()).unwrap();
    // The oracle has another default route than the router.
    bed.ipv4.oracle =
        bm_testbed::oracle::Oracle::new(&[Route { prefix: "0.0.0.0/0".parse().unwrap(), next_hop: 16 }]);
    let wrong = check(&Case::ALL[0], &bed.ipv4, &mut router).unwrap_err();
    assert!(matches!(wrong, BenchError::Wrong { .. }), "{wrong}");
}

#[test]
fn detects_frames_that_are_not_forwarded() {
    let bed = bed();
    // The router's own network: nothing is forwarded to a group.
    let destinations: Arc<[u32]> = Arc::new([0x0808_0808, 0xe000_0001]);
    let mut router = bed.router(&destinations, Batching::default()).unwrap();
    let lost = check(&Case::ALL[0], &bed.ipv4, &mut router).unwrap_err().to_string();
    assert!(lost.contains("router/left: received") && lost.contains("slow path"), "{lost}");
}

#[test]
fn detects_a_router_that_forwards_nothing() {
    let bed = bed();
    let destinations = routable(Pattern::Prefix, &bed.ipv4);
    let idle = Batching { receive: 0, ..Batching::default() };
    let mut router = bed.router::<u32>(&destinations, idle).unwrap();
    let outcome = check(&Case::ALL[0], &bed.ipv4, &mut router);
    assert!(matches!(outcome, Err(BenchError::NothingLeft { .. })), "{outcome:?}");
}

#[test]
fn reports_unknown_cases() {
    let file = std::env::temp_dir().join(format!("bm-bench-forward-{}", std::process::id()));
    std::fs::write(&file, "192.0.2.0/24 10.0.0.1\n").unwrap();
    let asked = |case: &str| {
        let rib = vec![file.clone()];
        forward(&Options { rib, seconds: 1, case: Some(case.into()), ..Options::default() })
    };
    let outcomes = ["ipv6", "ipv5"].map(asked);
    std::fs::remove_file(&file).unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(BenchError::NoCase { .. }))));
}
