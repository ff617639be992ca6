//! Counters of a fabric link: what happened to the frames received from it.

use libbpf_rs::MapHandle;

/// Number of counters: `COUNTERS` of `layout.h`.
const KINDS: usize = 16;
/// The first of them say what happened to a frame; each frame is counted by one of these.
const DECISIONS: usize = 13;

/// The names of all counters, in the order of `layout.h`.
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
    "sampled",
    "reordered",
];

/// Drop reasons, with their descriptions in `show drops`.
pub const REASONS: [(&str, &str); 6] = [
    (
        "malformed",
        "the MAC addresses are fabric addresses, but with reserved bits set or a node number that does not exist",
    ),
    ("member", "the input node is not a member of the cluster"),
    ("epoch", "the epoch is not the current one or the one before it"),
    ("stray", "the frame names this node neither as intermediate nor as output node"),
    ("neighbor", "there is no neighbor with this index, or no external port with this number"),
    ("link", "the link to the output node has no interface, is down, or its MTU is less than the frame"),
];

/// The counters of one link, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; KINDS]);

impl Counters {
    /// All counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.into_iter().zip(self.0)
    }

    /// A counter by its name; 0 if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.named().find(|(other, _)| *other == name).map_or(0, |(_, count)| count)
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.0[..DECISIONS].iter().sum()
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
        bm_bpf::sum_counters(map, &ifindex.to_ne_bytes()).ok().flatten().map(Self)
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
    fn only_what_became_of_frames_is_summed() {
        let all = Counters(std::array::from_fn(|at| at as u64));
        assert_eq!((all.received(), all.dropped(), all.linux()), (78, 57, 2 + 3 + 4 + 5));
        assert_eq!(all.get("received_bytes"), 13);
    }
}
