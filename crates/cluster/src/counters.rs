//! Counters of a fabric link: what became of the frames that came in by it.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// How many there are: `COUNTERS` of `layout.h`.
const KINDS: usize = 14;

/// Their names, in order.
pub const COUNTERS: [&str; KINDS] = [
    "transit",
    "output",
    "linux_resolve",
    "linux_host",
    "linux_control",
    "linux_other",
    "probes",
    "drop_malformed",
    "drop_member",
    "drop_epoch",
    "drop_stray",
    "drop_neighbor",
    "drop_link",
    "received_bytes",
];

/// Drop reasons, with a meaning for those who read `show drops`.
pub const REASONS: [(&str, &str); 6] = [
    (
        "malformed",
        "the addresses are those of a cluster, but have reserved bits set or numbers that no node has",
    ),
    ("member", "the input node is not a member of the cluster"),
    ("epoch", "sent under a membership that this node does not know, or knows no longer"),
    ("stray", "this node is neither the intermediate nor the output node of the frame"),
    ("neighbor", "the output port has no neighbor with this index"),
    ("link", "there is no interface for the link to the output node"),
];

/// The counters of one link, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; KINDS]);

impl Counters {
    /// All counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.into_iter().zip(self.0)
    }

    /// A counter by its name; 0 if there is no counter of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.named().find(|(other, _)| *other == name).map_or(0, |(_, count)| count)
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.0[..KINDS - 1].iter().sum()
    }

    /// Frames dropped, by reason.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.named().filter_map(|(name, frames)| Some((name.strip_prefix("drop_")?, frames)))
    }

    /// Frames dropped.
    pub fn dropped(&self) -> u64 {
        self.drops().map(|(_, frames)| frames).sum()
    }

    /// Frames handed to Linux.
    pub fn linux(&self) -> u64 {
        self.named().filter(|(name, _)| name.starts_with("linux_")).map(|(_, frames)| frames).sum()
    }

    /// Reads the counters of an interface; `None` if it is not a link of this node.
    pub(crate) fn read(map: &MapHandle, ifindex: u32) -> Option<Self> {
        let of_each = map.lookup_percpu(&ifindex.to_ne_bytes(), MapFlags::ANY).ok()??;
        let mut sum = [0u64; KINDS];
        for of_one in of_each {
            for (total, count) in sum.iter_mut().zip(of_one.as_chunks::<8>().0) {
                *total += u64::from_ne_bytes(*count);
            }
        }
        Some(Self(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_has_a_description() {
        let names: Vec<_> = Counters::default().drops().map(|(name, _)| name).collect();
        assert_eq!(names, REASONS.map(|(name, _)| name));
    }

    #[test]
    fn bytes_are_not_counted_as_frames() {
        let all = Counters(std::array::from_fn(|at| at as u64));
        assert_eq!((all.received(), all.dropped(), all.linux()), (78, 57, 2 + 3 + 4 + 5));
        assert_eq!(all.get("received_bytes"), 13);
    }
}
