//! Which library encrypts: the fastest one on this machine for each suite, direction and size, as measured once.
//!
//! A process measures a suite when it first uses it, for a few milliseconds. Each library takes its turn a few times on
//! the same packets, and its best turn counts, so that other work on the machine matters little. The library that is
//! always there is replaced only by one that is clearly faster.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::bare::Bare;
use crate::library::{CLASSES, Choice, Library};
use crate::multi::Lanes;
use crate::sa::Direction;
use crate::suite::Suite;

/// Turns of each library.
const TURNS: usize = 6;
/// A library must need less than this share of the time.
const CLEARLY: f64 = 0.97;

/// The choice for a suite.
pub(crate) fn of(suite: Suite, direction: Direction) -> Choice {
    static CHOSEN: [[OnceLock<Choice>; 2]; Suite::ALL.len()] =
        [const { [const { OnceLock::new() }; 2] }; Suite::ALL.len()];
    let direction_at = usize::from(direction == Direction::Out);
    *CHOSEN[suite as usize][direction_at].get_or_init(|| measured(suite, direction))
}

/// Which library encrypts or decrypts with a suite, as `show sas` has it, such as `ipsec-mb-avx2, ring from 640 bytes`.
/// The first call for a suite measures.
pub fn library(suite: Suite, direction: Direction) -> String {
    of(suite, direction).to_string()
}

impl Lanes {
    /// For all SAs of a direction. The first call in a process measures which libraries are the fastest.
    pub fn new(direction: Direction) -> Self {
        let suites = Suite::ALL.into_iter().filter(|suite| !suite.is_aead());
        Self::with(suites.flat_map(|suite| of(suite, direction).libraries()))
    }
}

fn measured(suite: Suite, direction: Direction) -> Choice {
    let libraries = Library::all(suite);
    if let [only] = libraries[..] {
        return Choice::one(only);
    }
    let mut of_libraries: Vec<Bare> = libraries.iter().map(|&library| Bare::new(suite, library)).collect();
    let times = CLASSES.map(|(_, bytes)| times(&mut of_libraries, bytes, direction));
    if suite.is_aead() {
        Choice(times.map(|times| libraries[fastest(&times)]))
    } else {
        let sums: Vec<Duration> =
            (0..libraries.len()).map(|at| times.iter().map(|times| times[at]).sum()).collect();
        Choice::one(libraries[fastest(&sums)])
    }
}

/// The best turn of each library.
fn times(libraries: &mut [Bare], bytes: usize, direction: Direction) -> Vec<Duration> {
    let mut memory = vec![0x5a; Bare::memory(bytes)];
    let mut best = vec![Duration::MAX; libraries.len()];
    for _ in 0..TURNS {
        for (library, best) in libraries.iter_mut().zip(&mut best) {
            let mut start = Instant::now();
            library.seal(&mut memory, bytes);
            if direction == Direction::In {
                start = Instant::now();
                library.open(&mut memory, bytes);
            }
            *best = start.elapsed().min(*best);
        }
    }
    best
}

/// The place of the shortest time, or 0 if that is not clearly shorter than the first.
fn fastest(times: &[Duration]) -> usize {
    let shortest = (0..times.len()).min_by_key(|&at| times[at]).unwrap_or(0);
    if times[shortest].as_secs_f64() < times[0].as_secs_f64() * CLEARLY { shortest } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Manager;

    #[test]
    fn the_first_library_stays_unless_another_is_clearly_faster() {
        let times = |all: &[u64]| all.iter().copied().map(Duration::from_nanos).collect::<Vec<_>>();
        assert_eq!(fastest(&times(&[1000, 980, 2000])), 0);
        assert_eq!(fastest(&times(&[1000, 960, 900])), 2);
        assert_eq!(fastest(&times(&[1000])), 0);
    }

    #[test]
    fn choices_are_named_by_size() {
        let (ring, avx2) = (Library::Ring, Library::IpsecMb(Manager::Avx2));
        assert_eq!(Choice::one(ring).to_string(), "ring");
        assert_eq!(Choice([avx2, avx2, ring]).to_string(), "ipsec-mb-avx2, ring from 640 bytes");
        let classes = [0, 159, 160, 639, 640, 9000].map(Choice::class);
        assert_eq!(classes, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn every_suite_has_one_choice() {
        for suite in Suite::ALL {
            for direction in [Direction::In, Direction::Out] {
                let chosen = of(suite, direction);
                assert_eq!(of(suite, direction), chosen);
                assert!(chosen.libraries().iter().all(|library| Library::all(suite).contains(library)));
            }
        }
    }
}
