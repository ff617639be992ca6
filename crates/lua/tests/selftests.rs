//! Runs `selftest()` of every module in the binary that has one. `BM_SELFTEST=core.lib` runs only that of one module.

use std::sync::Arc;

use bm_lua::{NoNatives, Outcome, PAYLOAD, Program, ProgramSource, World, embedded};

fn run(world: &World, module: &str) -> Result<Outcome, String> {
    let program = Program {
        source: ProgramSource::Test(module.into()),
        arguments: Vec::new(),
        world: world.clone(),
        setup: None,
        workers: 1,
    };
    program.run().map_err(|error| error.to_string())
}

#[test]
fn modules_pass_their_selftests() {
    let only = std::env::var("BM_SELFTEST").ok();
    let world = World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).unwrap();
    let mut failed = Vec::new();
    for (path, bytes) in embedded().filter(|(path, _)| path.ends_with(".lua")) {
        let module = path.trim_end_matches(".lua").replace('/', ".");
        let has_test = String::from_utf8_lossy(bytes).contains("selftest");
        if !has_test
            || module == "core.startup"
            || module.ends_with("_test")
            || only.as_ref().is_some_and(|only| *only != module)
        {
            continue;
        }
        match run(&world, &module) {
            Ok(Outcome::Done | Outcome::Exit(0)) => println!("{module}: passed"),
            Ok(Outcome::Exit(43)) => println!("{module}: skipped"),
            Ok(Outcome::Exit(status)) => failed.push(format!("{module}: exit status {status}")),
            Err(error) => failed.push(format!("{module}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
