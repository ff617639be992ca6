//! Swaps slots between a burst and a ring: what happens to frames at every step.

/// Swaps the contents of `a` and `b`, slot by slot.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn swap_places<F>(a: &mut [Option<F>], b: &mut [Option<F>]) {
    #[cfg(target_arch = "x86_64")]
    if a.len() >= WORTH && is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU was just asked.
        return unsafe { by_fours(a, b) };
    }
    a.swap_with_slice(b);
}

/// Fewer slots are swapped as quickly as the CPU's features can be checked.
#[cfg(target_arch = "x86_64")]
const WORTH: usize = 8;

/// Written so that the compiler uses vectors of four slots.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn by_fours<F>(a: &mut [Option<F>], b: &mut [Option<F>]) {
    a.swap_with_slice(b);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::freelist::{FramePool, Freelist};

    #[test]
    fn every_place_changes_sides() {
        let frame_pool = FramePool::new(128, 2048).unwrap();
        let mut list = Freelist::new(frame_pool.clone(), 128);
        for count in [0, 1, 7, 8, 31, 64] {
            let mut side = |gap: usize| -> Vec<Option<Frame>> {
                (0..count)
                    .map(|n| if n % 5 == gap { None } else { list.allocate_with(&[gap as u8; 3]) })
                    .collect()
            };
            let (mut a, mut b) = (side(1), side(3));
            let lines = |side: &[Option<Frame>]| -> Vec<_> {
                side.iter().map(|place| place.as_ref().map(|frame| frame.data().as_ptr())).collect()
            };
            let before = (lines(&a), lines(&b));
            swap_places(&mut a, &mut b);
            assert_eq!((lines(&b), lines(&a)), before, "{count} places");
            a.into_iter().chain(b).flatten().for_each(|frame| list.free(frame));
        }
        drop(list);
        assert_eq!(frame_pool.available(), 128);
    }
}
