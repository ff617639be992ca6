//! Runs each target on its corpus and on mutations of it, for two seconds or `BM_FUZZ_SECONDS`.

use bm_fuzz::replay::replay;

fn run(name: &str) {
    let target = bm_fuzz::target(name).expect("the target is in the list");
    if let Some(missing) = (target.missing)() {
        eprintln!("skipped: {missing}");
        return;
    }
    let tried = replay(target);
    println!("{name}: {} inputs of the corpus, {} mutations of them", tried.corpus, tried.mutations);
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_target_is_a_test() {
            let names: Vec<&str> = bm_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(
    router,
    netlink,
    linux_only,
    config,
    filter,
    http,
    rib,
    capture,
    lua_packets,
    lua_filter,
    ipsec,
    xfrm,
    xdp
);
