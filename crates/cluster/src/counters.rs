//! Counters of a fabric link: what happened to the frames received from it.

/// The first counters say what happened to a frame; each frame is counted by one of these.
const DECISIONS: usize = 13;

bm_bpf::counters! {
    /// The counters of one link, summed over all CPUs.
    pub struct Counters of COUNTERS = [
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
}

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

impl Counters {
    /// Frames received.
    pub fn received(&self) -> u64 {
        self.0[..DECISIONS].iter().sum()
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
