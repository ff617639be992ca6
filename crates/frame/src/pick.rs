//! Selects frames from a burst by a key: eight at a time with AVX-512, four with AVX2, or one by one.
//!
//! ```text
//! frames  a b c d      keys == key  1 0 1 1      picked  a c d _      left  0 b 0 0
//! ```
//!
//! The port through which a frame leaves is as good as random, so a branch for each frame would often be
//! mispredicted. Vector instructions need none: matching frames move to the front, all lanes are stored, and the next
//! store starts after those that matched.

use crate::mbuf::AnyFrame;

/// Moves the frames for whose slot `keys` contains `key` to the front of `vacant`, which are empty slots; returns how
/// many. The slots of moved frames are empty then.
///
/// # Panics
/// If there are fewer empty slots than frames.
#[inline]
pub fn pick_into<F: AnyFrame>(
    frames: &mut [Option<F>],
    keys: &[u16],
    key: u16,
    vacant: &mut [Option<F>],
) -> usize {
    let count = frames.len().min(keys.len());
    assert!(vacant.len() >= count, "there is room for all");
    pick(&mut frames[..count], &keys[..count], key, vacant)
}

/// Frames that were picked, and the sum of their lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PickedFrames {
    /// The number of frames.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Two columns about the frames of a burst, with an entry for each slot.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// The key by which the frame is picked, such as the number of its output.
    pub keys: &'a [u16],
    /// The length in bytes.
    pub lengths: &'a [u16],
}

/// Like [`pick_into`] for two different keys, each with empty slots of its own, in one pass.
///
/// # Panics
/// If there are fewer empty slots than frames, or if the columns are of different lengths.
#[inline]
pub fn pick_into_two<F: AnyFrame>(
    frames: &mut [Option<F>],
    columns: Columns<'_>,
    keys: [u16; 2],
    vacant: [&mut [Option<F>]; 2],
) -> [PickedFrames; 2] {
    let count = frames.len().min(columns.keys.len());
    let columns = Columns { keys: &columns.keys[..count], lengths: &columns.lengths[..count] };
    let [first, second] = vacant;
    let vacant = [&mut first[..count], &mut second[..count]];
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the CPU was just asked.
        return unsafe { wide::pick_two(&mut frames[..count], columns, keys, vacant) };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the CPU was just asked.
        return unsafe { vector::pick_two(&mut frames[..count], columns, keys, vacant) };
    }
    rest_two(&mut frames[..count], columns, keys, vacant)
}

/// [`pick_into_two`] without vector instructions.
#[inline]
fn rest_two<F: AnyFrame>(
    frames: &mut [Option<F>],
    Columns { keys, lengths }: Columns<'_>,
    wanted: [u16; 2],
    to: [&mut [Option<F>]; 2],
) -> [PickedFrames; 2] {
    let mut picked = [PickedFrames::default(); 2];
    for ((place, key), &length) in frames.iter_mut().zip(keys).zip(lengths) {
        let Some(way) = wanted.iter().position(|other| other == key) else { continue };
        if let Some(frame) = place.take() {
            to[way][picked[way].count] = Some(frame);
            picked[way].count += 1;
            picked[way].bytes += u64::from(length);
        }
    }
    picked
}

/// Moves the frames whose key is `key` to the front of `to`, which are as many empty slots at least; returns how many.
#[inline]
fn pick<F: AnyFrame>(frames: &mut [Option<F>], keys: &[u16], key: u16, to: &mut [Option<F>]) -> usize {
    debug_assert!(frames.len() == keys.len() && to.len() >= frames.len());
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the CPU was just asked.
        return unsafe { wide::pick(frames, keys, key, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the CPU was just asked.
        return unsafe { vector::pick(frames, keys, key, to) };
    }
    rest(frames, keys, key, to)
}

/// [`pick`] without vector instructions.
#[inline]
fn rest<F: AnyFrame>(frames: &mut [Option<F>], keys: &[u16], key: u16, to: &mut [Option<F>]) -> usize {
    let mut count = 0;
    for (place, _) in frames.iter_mut().zip(keys).filter(|(place, other)| **other == key && place.is_some()) {
        let Some(to) = to.get_mut(count) else { break };
        *to = place.take();
        count += 1;
    }
    count
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;

    use super::{AnyFrame, Columns, PickedFrames, rest, rest_two};

    /// Frames at once.
    const LANES: usize = 4;

    /// For each subset of four lanes, the halves of those lanes moved to the front.
    static FRONT: [[u32; 2 * LANES]; 1 << LANES] = {
        let mut all = [[0; 2 * LANES]; 1 << LANES];
        let mut set = 0;
        while set < all.len() {
            let (mut lane, mut to) = (0, 0);
            while lane < LANES {
                if set >> lane & 1 == 1 {
                    all[set][to] = 2 * lane as u32;
                    all[set][to + 1] = 2 * lane as u32 + 1;
                    to += 2;
                }
                lane += 1;
            }
            set += 1;
        }
        all
    };

    /// Like [`super::pick`].
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn pick<F: AnyFrame>(
        frames: &mut [Option<F>],
        keys: &[u16],
        key: u16,
        to: &mut [Option<F>],
    ) -> usize {
        let (frames_4, frames_rest) = frames.as_chunks_mut::<LANES>();
        let (keys_4, keys_rest) = keys.as_chunks::<LANES>();
        assert!(to.len() >= frames_4.len() * LANES, "there is room for all");
        let (start, mut count) = (to.as_mut_ptr(), 0);
        let key_4 = _mm256_set1_epi64x(i64::from(key));
        for (frames, keys) in frames_4.iter_mut().zip(keys_4) {
            // SAFETY: four places are read and written, each a pointer that is null where there is no frame
            // (`Frame` is one, and `Option` of it too). Each frame is written once to where it stays: to the
            // vacant places if its lane is chosen, else back to its own. Of the four vacant places written, those
            // behind the chosen lanes are written again or emptied below; all are within `to`, since
            // `count` grows by four at most for each four.
            unsafe {
                let places = frames.as_mut_ptr().cast::<__m256i>();
                let four = _mm256_loadu_si256(places);
                let keys = _mm256_cvtepu16_epi64(_mm_loadl_epi64(keys.as_ptr().cast()));
                let empty = _mm256_cmpeq_epi64(four, _mm256_setzero_si256());
                let chosen = _mm256_andnot_si256(empty, _mm256_cmpeq_epi64(keys, key_4));
                let set = _mm256_movemask_pd(_mm256_castsi256_pd(chosen)) as usize;
                let front = _mm256_loadu_si256(FRONT[set & 0xf].as_ptr().cast());
                let picked = _mm256_permutevar8x32_epi32(four, front);
                _mm256_storeu_si256(start.add(count).cast(), picked);
                _mm256_storeu_si256(places, _mm256_andnot_si256(chosen, four));
                count += set.count_ones() as usize;
            }
        }
        let written = (count + LANES).min(to.len());
        for place in &mut to[count..written] {
            // SAFETY: what stands there is a copy of a frame that is elsewhere; `Frame` has no destructor, and
            // this one is forgotten.
            unsafe { std::ptr::from_mut(place).write(None) };
        }
        count + rest(frames_rest, keys_rest, key, &mut to[count..])
    }

    /// Like [`super::pick_into_two`]; the slots are as many as there are frames.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn pick_two<F: AnyFrame>(
        frames: &mut [Option<F>],
        Columns { keys, lengths }: Columns<'_>,
        wanted: [u16; 2],
        mut to: [&mut [Option<F>]; 2],
    ) -> [PickedFrames; 2] {
        let (frames_4, frames_rest) = frames.as_chunks_mut::<LANES>();
        let ((keys_4, keys_rest), (lengths_4, lengths_rest)) =
            (keys.as_chunks::<LANES>(), lengths.as_chunks::<LANES>());
        let least = frames_4.len() * LANES;
        assert!(to[0].len() >= least && to[1].len() >= least, "there is room for all");
        let starts = [to[0].as_mut_ptr(), to[1].as_mut_ptr()];
        let (mut counts, mut sums) = ([0; 2], [_mm256_setzero_si256(); 2]);
        let wanted_4 = [_mm256_set1_epi64x(wanted[0].into()), _mm256_set1_epi64x(wanted[1].into())];
        for ((frames, keys), lengths) in frames_4.iter_mut().zip(keys_4).zip(lengths_4) {
            // SAFETY: as in `pick`, for each of the two: a lane is chosen for one of them at most.
            unsafe {
                let places = frames.as_mut_ptr().cast::<__m256i>();
                let four = _mm256_loadu_si256(places);
                let keys = _mm256_cvtepu16_epi64(_mm_loadl_epi64(keys.as_ptr().cast()));
                let lengths = _mm256_cvtepu16_epi64(_mm_loadl_epi64(lengths.as_ptr().cast()));
                let empty = _mm256_cmpeq_epi64(four, _mm256_setzero_si256());
                let mut left = four;
                for way in 0..2 {
                    let chosen = _mm256_andnot_si256(empty, _mm256_cmpeq_epi64(keys, wanted_4[way]));
                    let set = _mm256_movemask_pd(_mm256_castsi256_pd(chosen)) as usize;
                    let front = _mm256_loadu_si256(FRONT[set & 0xf].as_ptr().cast());
                    let picked = _mm256_permutevar8x32_epi32(four, front);
                    _mm256_storeu_si256(starts[way].add(counts[way]).cast(), picked);
                    sums[way] = _mm256_add_epi64(sums[way], _mm256_and_si256(chosen, lengths));
                    left = _mm256_andnot_si256(chosen, left);
                    counts[way] += set.count_ones() as usize;
                }
                _mm256_storeu_si256(places, left);
            }
        }
        for (to, &count) in to.iter_mut().zip(&counts) {
            let behind = &mut to[count..];
            if let Some(behind) = behind.first_chunk_mut::<LANES>() {
                // SAFETY: as in `pick`; four slots of null pointers, which are empty.
                unsafe { _mm256_storeu_si256(behind.as_mut_ptr().cast(), _mm256_setzero_si256()) };
                continue;
            }
            for place in behind {
                // SAFETY: as in `pick`.
                unsafe { std::ptr::from_mut(place).write(None) };
            }
        }
        let [first, second] = to;
        let rest_to = [&mut first[counts[0]..], &mut second[counts[1]..]];
        let columns = Columns { keys: keys_rest, lengths: lengths_rest };
        let mut picked = rest_two(frames_rest, columns, wanted, rest_to);
        for way in 0..2 {
            let mut lanes = [0u64; LANES];
            // SAFETY: as many bytes as the vector has.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums[way]) };
            picked[way].count += counts[way];
            picked[way].bytes += lanes.iter().sum::<u64>();
        }
        picked
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{AnyFrame, Columns, PickedFrames, rest, rest_two};

    /// Frames at once.
    const LANES: usize = 8;

    /// Like [`super::pick`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
    pub(super) fn pick<F: AnyFrame>(
        frames: &mut [Option<F>],
        keys: &[u16],
        key: u16,
        to: &mut [Option<F>],
    ) -> usize {
        let (frames_8, frames_rest) = frames.as_chunks_mut::<LANES>();
        let (keys_8, keys_rest) = keys.as_chunks::<LANES>();
        assert!(to.len() >= frames_8.len() * LANES, "there is room for all");
        let (start, mut count) = (to.as_mut_ptr(), 0);
        let key_8 = _mm_set1_epi16(key as i16);
        for (frames, keys) in frames_8.iter_mut().zip(keys_8) {
            // SAFETY: eight places are read and written, each a pointer that is null where there is no frame
            // (`Frame` is one, and `Option` of it too). Each frame is written once to where it stays: to the
            // vacant places if its lane is chosen, else back to its own. Of the eight vacant places written, those
            // behind the chosen lanes are left empty; all are within `to`, since `count` grows by eight at most
            // for each eight.
            unsafe {
                let places = frames.as_mut_ptr().cast::<__m512i>();
                let eight = _mm512_loadu_si512(places);
                let alike = _mm_cmpeq_epi16_mask(_mm_loadu_si128(keys.as_ptr().cast()), key_8);
                let chosen = alike & _mm512_test_epi64_mask(eight, eight);
                _mm512_storeu_si512(start.add(count).cast(), _mm512_maskz_compress_epi64(chosen, eight));
                _mm512_storeu_si512(places, _mm512_maskz_mov_epi64(!chosen, eight));
                count += chosen.count_ones() as usize;
            }
        }
        count + rest(frames_rest, keys_rest, key, &mut to[count..])
    }

    /// Like [`super::pick_into_two`]; the slots are as many as there are frames.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
    pub(super) fn pick_two<F: AnyFrame>(
        frames: &mut [Option<F>],
        Columns { keys, lengths }: Columns<'_>,
        wanted: [u16; 2],
        mut to: [&mut [Option<F>]; 2],
    ) -> [PickedFrames; 2] {
        let (frames_8, frames_rest) = frames.as_chunks_mut::<LANES>();
        let ((keys_8, keys_rest), (lengths_8, lengths_rest)) =
            (keys.as_chunks::<LANES>(), lengths.as_chunks::<LANES>());
        let least = frames_8.len() * LANES;
        assert!(to[0].len() >= least && to[1].len() >= least, "there is room for all");
        let starts = [to[0].as_mut_ptr(), to[1].as_mut_ptr()];
        let (mut counts, mut sums) = ([0; 2], [_mm256_setzero_si256(); 2]);
        let wanted_8 = [_mm_set1_epi16(wanted[0] as i16), _mm_set1_epi16(wanted[1] as i16)];
        for ((frames, keys), lengths) in frames_8.iter_mut().zip(keys_8).zip(lengths_8) {
            // SAFETY: as in `pick`, for each of the two: a lane is chosen for one of them at most.
            unsafe {
                let places = frames.as_mut_ptr().cast::<__m512i>();
                let eight = _mm512_loadu_si512(places);
                let keys = _mm_loadu_si128(keys.as_ptr().cast());
                let lengths = _mm256_cvtepu16_epi32(_mm_loadu_si128(lengths.as_ptr().cast()));
                let there = _mm512_test_epi64_mask(eight, eight);
                let mut left = there;
                for way in 0..2 {
                    let chosen = _mm_mask_cmpeq_epi16_mask(there, keys, wanted_8[way]);
                    let picked = _mm512_maskz_compress_epi64(chosen, eight);
                    _mm512_storeu_si512(starts[way].add(counts[way]).cast(), picked);
                    sums[way] = _mm256_mask_add_epi32(sums[way], chosen, sums[way], lengths);
                    left &= !chosen;
                    counts[way] += chosen.count_ones() as usize;
                }
                _mm512_storeu_si512(places, _mm512_maskz_mov_epi64(left, eight));
            }
        }
        let [first, second] = &mut to;
        let rest_to = [&mut first[counts[0]..], &mut second[counts[1]..]];
        let columns = Columns { keys: keys_rest, lengths: lengths_rest };
        let mut picked = rest_two(frames_rest, columns, wanted, rest_to);
        for way in 0..2 {
            let mut lanes = [0u32; LANES];
            // SAFETY: as many bytes as the vector has.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums[way]) };
            picked[way].count += counts[way];
            // At most 256 lengths of 16 bits: no lane overflows.
            picked[way].bytes += lanes.iter().map(|&sum| u64::from(sum)).sum::<u64>();
        }
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::{BURST, Burst};
    use crate::frame::Frame;
    use crate::freelist::{FramePool, Freelist};
    use proptest::prelude::*;
    use std::sync::{Arc, OnceLock};

    /// A burst of frames numbered by their length, with gaps.
    fn burst(frames: &mut Freelist, places: &[(bool, u16)]) -> Burst {
        let mut burst = Burst::new();
        for (number, &(gap, _)) in places.iter().enumerate() {
            let frame = frames.allocate_with(&vec![0; number]).unwrap();
            burst.push(frame).unwrap();
            if gap {
                burst.take(number).into_iter().for_each(|frame| frames.free(frame));
            }
        }
        burst
    }

    /// Moves frames to the end of a burst that has room for all.
    fn move_where(from: &mut Burst, keys: &[u16], key: u16, to: &mut Burst) {
        let moved = pick_into(from.places_mut(), keys, key, to.vacant_mut());
        to.occupy(moved);
    }

    type Way = fn(&mut Burst, &[u16], u16, &mut Burst);

    /// Every way that this CPU has.
    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![move_where, |from, keys, key, to| {
            let moved = rest(from.places_mut(), keys, key, to.vacant_mut());
            to.occupy(moved);
        }];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            ways.push(|from, keys, key, to| {
                // SAFETY: the CPU was just asked.
                let moved = unsafe { vector::pick(from.places_mut(), keys, key, to.vacant_mut()) };
                to.occupy(moved);
            });
        }
        ways
    }

    proptest! {
        #[test]
        fn picks_what_one_by_one_picks(
            places in prop::collection::vec((prop::bool::weighted(0.2), 0u16..3), 0..=BURST - 4),
            before in 0usize..5,
            key in 0u16..3,
        ) {
            // One for all cases: its memory is never given back.
            static FRAME_POOL: OnceLock<Arc<FramePool>> = OnceLock::new();
            let frame_pool = FRAME_POOL.get_or_init(|| FramePool::new(3 * BURST, 2048).unwrap());
            let mut frames = Freelist::new(frame_pool.clone(), 64);
            let keys: Vec<u16> = places.iter().map(|&(_, key)| key).collect();
            let mut found = Vec::new();
            for way in ways() {
                let mut from = burst(&mut frames, &places);
                let mut to = burst(&mut frames, &vec![(false, 0); before]);
                way(&mut from, &keys, key, &mut to);
                found.push((lengths_of_burst(&from), lengths_of_burst(&to)));
                // Places past the end hold nothing: a frame in two places would be freed twice.
                prop_assert!(to.vacant_mut().iter().all(Option::is_none));
                from.free_all(&mut frames);
                to.free_all(&mut frames);
            }
            prop_assert!(found.iter().all(|way| *way == found[0]), "{:?}", found);
            drop(frames);
            prop_assert_eq!(frame_pool.available(), 3 * BURST);
        }
    }

    type TwoWays =
        fn(&mut [Option<Frame>], Columns<'_>, [u16; 2], [&mut [Option<Frame>]; 2]) -> [PickedFrames; 2];

    proptest! {
            #[test]
            fn picks_two_as_one_after_the_other(
                places in prop::collection::vec((prop::bool::weighted(0.1), 0u16..4), 0..=BURST),
                wanted in prop::sample::select(vec![[0u16, 1], [1, 0], [2, 3], [0, 9]]),
            ) {
                static DEPOT: OnceLock<Arc<FramePool>> = OnceLock::new();
                let frame_pool = DEPOT.get_or_init(|| FramePool::new(3 * BURST, 2048).unwrap());
                let mut frames = Freelist::new(frame_pool.clone(), 64);
                let keys: Vec<u16> = places.iter().map(|&(_, key)| key).collect();
                let lengths: Vec<u16> = (0..keys.len() as u16).collect();
                let (mut from, mut to) = (burst(&mut frames, &places), [Burst::new(), Burst::new()]);
                for (to, key) in to.iter_mut().zip(wanted) {
                    move_where(&mut from, &keys, key, to);
                }
                let expected = (lengths_of(from.places()), to.each_ref().map(lengths_of_burst));
                let sums = to.each_ref().map(|to| PickedFrames {
                    count: to.frames(),
                    bytes: to.places().iter().flatten().map(|frame| frame.len() as u64).sum(),
                });
                from.free_all(&mut frames);
                for to in &mut to {
        to.free_all(&mut frames);
    }
                let mut ways: Vec<TwoWays> = vec![rest_two, pick_into_two];
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
                    // SAFETY: the CPU was just asked.
                    ways.push(|from, columns, keys, to| unsafe { vector::pick_two(from, columns, keys, to) });
                }
                for way in ways {
                    let mut from = burst(&mut frames, &places);
                    let mut to = [Burst::new(), Burst::new()];
                    let [first, second] = &mut to;
                    let count = keys.len();
                    let vacant = [&mut first.vacant_mut()[..count], &mut second.vacant_mut()[..count]];
                    let columns = Columns { keys: &keys, lengths: &lengths };
                    let picked = way(from.places_mut(), columns, wanted, vacant);
                    prop_assert_eq!(picked, sums);
                    to.iter_mut().zip(picked).for_each(|(to, picked)| to.occupy(picked.count));
                    prop_assert_eq!(&(lengths_of(from.places()), to.each_ref().map(lengths_of_burst)), &expected);
                    prop_assert!(to.iter_mut().all(|to| to.vacant_mut().iter().all(Option::is_none)));
                    from.free_all(&mut frames);
                    for to in &mut to {
        to.free_all(&mut frames);
    }
                }
                drop(frames);
                prop_assert_eq!(frame_pool.available(), 3 * BURST);
            }
        }

    fn lengths_of(places: &[Option<Frame>]) -> Vec<Option<usize>> {
        places.iter().map(|place| place.as_ref().map(Frame::len)).collect()
    }

    fn lengths_of_burst(burst: &Burst) -> Vec<Option<usize>> {
        lengths_of(burst.places())
    }
}
