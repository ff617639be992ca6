//! Runs a target as a test: its corpus, then seeded mutations of it until the time is up.
//!
//! An input that fails is written to `target/fuzz`, and the message says how to repeat it.

use crate::Target;
use crate::mutate::{Numbers, mutated};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

/// How long a target runs in a test, unless `BM_FUZZ_SECONDS` is set.
const SECONDS: f64 = 2.0;
/// An input that takes longer than this counts as a hang, even on a busy machine.
const HANGS: Duration = Duration::from_secs(20);

/// The inputs of a run.
pub struct Tried {
    /// Number of inputs of the corpus.
    pub corpus: usize,
    /// Number of mutations of them.
    pub mutations: u64,
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The inputs of a target's corpus, in the order of their names.
///
/// # Panics
/// If they cannot be read: they are part of this crate.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = folder().join("corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &PathBuf| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

fn setting<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => otherwise,
    }
}

/// Runs a target on its corpus and on mutations of it; on the file `BM_FUZZ_INPUT` alone, if that is set.
///
/// # Panics
/// As the target does, or if its corpus is empty.
pub fn replay(target: &Target) -> Tried {
    if let Ok(file) = env::var("BM_FUZZ_INPUT") {
        let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        (target.run)(&bytes);
        return Tried { corpus: 1, mutations: 0 };
    }
    let corpus = corpus(target.name);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    for bytes in &corpus {
        try_one(target, bytes);
    }
    let seconds = Duration::from_secs_f64(setting("BM_FUZZ_SECONDS", SECONDS));
    let mut numbers = Numbers(setting("BM_SEED", 1));
    let (start, mut mutations) = (Instant::now(), 0);
    while start.elapsed() < seconds {
        try_one(target, &mutated(&corpus, &mut numbers));
        mutations += 1;
    }
    Tried { corpus: corpus.len(), mutations }
}

fn try_one(target: &Target, bytes: &[u8]) {
    let start = Instant::now();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))) {
        keep(target.name, bytes, "fails");
        resume_unwind(panic);
    }
    let took = start.elapsed();
    if took > HANGS {
        keep(target.name, bytes, "hangs");
        panic!("an input took {took:?}");
    }
}

/// Writes an input to a file, and prints how to repeat it.
fn keep(name: &str, bytes: &[u8], what: &str) {
    let folder = folder().join("../target/fuzz");
    let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let file = folder.join(format!("{name}-{digest:016x}"));
    match fs::create_dir_all(&folder).and_then(|()| fs::write(&file, bytes)) {
        Ok(()) => eprintln!(
            "{name} {what} on an input of {} bytes. To repeat it:\n    BM_FUZZ_INPUT={} cargo test --release -p bm-fuzz --test targets {name}",
            bytes.len(),
            file.display()
        ),
        Err(error) => eprintln!("{name} {what} on {bytes:02x?} ({}: {error})", file.display()),
    }
}
