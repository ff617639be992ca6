//! What became of frames, by interface and reason.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// How many there are: `VERDICTS` of `layout.h`.
const KINDS: usize = 16;

/// Their names, in order.
pub const COUNTERS: [&str; KINDS] = [
    "forwarded",
    "forwarded_bytes",
    "linux_unattended",
    "linux_inactive",
    "linux_other_mac",
    "linux_other_type",
    "linux_header",
    "linux_hops",
    "linux_local",
    "linux_unresolved",
    "linux_mtu",
    "linux_egress",
    "linux_source",
    "linux_same_interface",
    "linux_partial_sum",
    "linux_flow",
];

/// What became of the frames that came in on one interface, all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; KINDS]);

impl Counters {
    /// Packets forwarded.
    pub fn forwarded(&self) -> u64 {
        self.0[0]
    }

    /// Frames that Linux got.
    pub fn linux(&self) -> u64 {
        self.0[2..].iter().sum()
    }

    /// Frames that came in.
    pub fn received(&self) -> u64 {
        self.forwarded() + self.linux()
    }

    /// All, with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.into_iter().zip(self.0)
    }

    /// Those of the interface that next hops call `index`.
    pub(crate) fn read(map: &MapHandle, index: u16) -> libbpf_rs::Result<Self> {
        let mut sum = [0u64; KINDS];
        let key = u32::from(index).to_ne_bytes();
        for of_one in map.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default() {
            for (total, count) in sum.iter_mut().zip(of_one.as_chunks::<8>().0) {
                *total += u64::from_ne_bytes(*count);
            }
        }
        Ok(Self(sum))
    }
}
