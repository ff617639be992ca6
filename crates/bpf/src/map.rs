//! Values of BPF maps, and counters that each CPU has of its own.

use libbpf_rs::{MapCore, MapFlags};

/// Values that are copied into and out of maps as they are in memory.
///
/// # Safety
/// The type must have no padding, and any bytes must be a valid value.
pub unsafe trait MapValue: Copy {
    /// The bytes of the value.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the implementer has no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value of these bytes; `None` if their number is wrong.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: as many bytes as the value has, all of which are valid; they need not be aligned.
        (bytes.len() == size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: an array of numbers has no padding.
unsafe impl<const N: usize> MapValue for [u64; N] {}

/// Counters of a per-CPU map, summed over all CPUs; `None` if the map has no such key.
///
/// # Errors
/// If the map cannot be read.
pub fn sum_counters<const N: usize>(map: &impl MapCore, key: &[u8]) -> libbpf_rs::Result<Option<[u64; N]>> {
    let per_cpu = map.lookup_percpu(key, MapFlags::ANY)?;
    Ok(per_cpu.map(|values| sum(&values)))
}

fn sum<const N: usize>(per_cpu: &[Vec<u8>]) -> [u64; N] {
    let mut sum = [0; N];
    for values in per_cpu {
        for (total, count) in sum.iter_mut().zip(values.as_chunks::<8>().0) {
            *total += u64::from_ne_bytes(*count);
        }
    }
    sum
}

/// Sets the counters of a key to zero, and adds the key to a hash map if it is missing.
///
/// # Errors
/// If the map cannot be written.
pub fn reset_counters(map: &impl MapCore, key: &[u8]) -> libbpf_rs::Result<()> {
    let zeros = vec![vec![0; map.value_size() as usize]; libbpf_rs::num_possible_cpus()?];
    map.update_percpu(key, &zeros, MapFlags::ANY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_bytes() {
        let value = [1u64, u64::MAX];
        assert_eq!(value.bytes(), [1u64.to_ne_bytes(), [0xff; 8]].as_flattened());
        assert_eq!(<[u64; 2]>::from_bytes(value.bytes()), Some(value));
        assert_eq!(<[u64; 2]>::from_bytes(&value.bytes()[1..]), None);
        // Not aligned.
        let shifted = [&[0], value.bytes()].concat();
        assert_eq!(<[u64; 2]>::from_bytes(&shifted[1..]), Some(value));
    }

    #[test]
    fn counters_are_added_over_all_cpus() {
        let cpu = |a: u64, b: u64| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        assert_eq!(sum(&[cpu(1, 2), cpu(10, 20)]), [11, 22]);
        assert_eq!(sum::<2>(&[]), [0, 0]);
        // A program with fewer counters than requested: the others are zero.
        assert_eq!(sum(&[cpu(1, 2)]), [1, 2, 0]);
    }
}
