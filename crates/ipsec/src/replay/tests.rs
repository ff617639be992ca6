//! The window against a set of all numbers that were ever accepted.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn accept(window: &mut Window, low: u32) -> Result<u64, Failure> {
    window.check(low).inspect(|number| window.advance(*number))
}

#[test]
fn inside_left_and_duplicate() {
    let mut window = Window::new(64, false);
    assert_eq!(accept(&mut window, 0), Err(Failure::Replay));
    for low in [1, 2, 64, 3] {
        assert_eq!(accept(&mut window, low), Ok(low.into()));
        assert_eq!(accept(&mut window, low), Err(Failure::Replay));
    }
    assert_eq!(accept(&mut window, 68), Ok(68));
    // 68 - 64 is left of the window, 5 is in it.
    assert_eq!(
        [4, 5, 64].map(|low| accept(&mut window, low)),
        [Err(Failure::Replay), Ok(5), Err(Failure::Replay)]
    );
}

#[test]
fn window_moves_only_on_request() {
    let window = Window::new(32, false);
    assert_eq!((window.check(1_000), window.check(1)), (Ok(1_000), Ok(1)));
    assert_eq!(window.top(), 0);
}

#[test]
fn without_a_window_anything_is_accepted() {
    let mut window = Window::new(0, false);
    assert_eq!([7, 7, 0, 3].map(|low| accept(&mut window, low)), [Ok(7), Ok(7), Ok(0), Ok(3)]);
}

#[test]
fn high_half_is_inferred_across_the_boundary() {
    let high = 1u64 << 32;
    let mut window = Window::new(64, true);
    // Nothing is before the first subspace.
    assert_eq!(window.check(u32::MAX), Err(Failure::Replay));
    window.resume(high - 10);
    assert_eq!(accept(&mut window, u32::MAX), Ok(high - 1));
    assert_eq!(accept(&mut window, 3), Ok(high + 3));
    assert_eq!(accept(&mut window, u32::MAX - 1), Ok(high - 2));
    assert_eq!(accept(&mut window, u32::MAX), Err(Failure::Replay));
    assert_eq!(accept(&mut window, 0), Ok(high));
    assert_eq!(accept(&mut window, 200), Ok(high + 200));
    // Left of the window now: the next subspace, whose packets fail the check of the ICV.
    assert_eq!(window.check(100), Ok(2 * high + 100));
}

#[test]
fn resumed_window_refuses_what_is_below() {
    let mut window = Window::new(128, false);
    window.resume(1_000);
    assert_eq!([999, 1_000, 873].map(|low| window.check(low)), [Err(Failure::Replay); 3]);
    let all = [1_001, 1_003, 1_002, 1_300, 1_250];
    assert_eq!(all.map(|low| accept(&mut window, low)), all.map(|low| Ok(low.into())));
    assert_eq!(accept(&mut window, 1_001), Err(Failure::Replay));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The same answers as from a set of all numbers, for windows of any size, with jumps of any length.
    #[test]
    fn window_equals_a_set(
        size in 1u32..=WINDOW_MAX,
        start in prop_oneof![Just(0u64), (1u64 << 32) - 6_000..(1 << 32) + 6_000, 5u64 << 32..6 << 32],
        steps in prop::collection::vec((-6_000i64..6_000, 0u32..8), 1..400),
    ) {
        let mut window = Window::new(size, true);
        window.resume(start);
        let (mut top, mut seen) = (start, HashSet::new());
        for (step, jump) in steps {
            let step = if jump == 0 { step * 1_000 } else { step };
            let number = top.saturating_add_signed(step).max(1);
            let is_new = number > top || (number > start && top - number < u64::from(size) && !seen.contains(&number));
            // What is far to the left looks as if it were far to the right.
            let wraps = number <= top && top - number >= u64::from(size);
            let found = window.check(number as u32);
            match found {
                Ok(found) if wraps => prop_assert_eq!(found, number + (1 << 32)),
                Ok(found) => {
                    prop_assert!(is_new, "{} accepted, top {}", number, top);
                    prop_assert_eq!(found, number);
                    window.advance(found);
                    seen.insert(number);
                    top = top.max(number);
                }
                Err(_) => prop_assert!(!is_new, "{} refused, top {} size {}", number, top, size),
            }
            prop_assert_eq!(window.top(), top);
        }
    }

    /// The same without ESN, where numbers are what they are.
    #[test]
    fn window_of_32_bits_equals_a_set(size in 1u32..=300, numbers in prop::collection::vec(0u32..2_000, 1..600)) {
        let mut window = Window::new(size, false);
        let (mut top, mut seen) = (0u32, HashSet::new());
        for number in numbers {
            let is_new = number > 0 && (number > top || (top - number < size && !seen.contains(&number)));
            prop_assert_eq!(accept(&mut window, number).is_ok(), is_new);
            if is_new {
                seen.insert(number);
                top = top.max(number);
            }
        }
    }
}
