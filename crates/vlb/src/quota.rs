//! How much an input node may send straight to an output node, and over each intermediate.
//!
//! R is what the node receives on all its external ports together, N the number of live nodes. With equal links a share
//! is R/N. A node to which the live links are slower than the average has a smaller share, the others larger ones, so that
//! all shares together stay the same.

use std::fmt;
use std::str::FromStr;

/// The quota for direct traffic from one input to one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// R/N: what classic VLB would send there on average.
    OneShare,
    /// 2R/N: what a link has to carry anyway, in both phases.
    #[default]
    TwoShares,
}

impl Rule {
    /// The quota in shares of R/N.
    pub fn shares(self) -> u64 {
        match self {
            Self::OneShare => 1,
            Self::TwoShares => 2,
        }
    }
}

/// How an input node distributes its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Direct VLB: straight to the output up to the quota, the rest over intermediates.
    DirectVlb(Rule),
    /// Classic VLB: all over intermediates, input and output among them.
    Classic,
    /// Everything straight to the output.
    DirectOnly,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::DirectVlb(Rule::OneShare), Self::DirectVlb(Rule::TwoShares), Self::Classic, Self::DirectOnly];
}

impl Default for Mode {
    fn default() -> Self {
        Self::DirectVlb(Rule::default())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DirectVlb(Rule::OneShare) => "R/N",
            Self::DirectVlb(Rule::TwoShares) => "2R/N",
            Self::Classic => "classic",
            Self::DirectOnly => "direct-only",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| format!("unknown quota {text:?}: use R/N, 2R/N, classic or direct-only"))
    }
}

/// What an input may send towards one other node, in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Straight to it, as the output.
    pub direct_bps: u64,
    /// To it as an intermediate, for all outputs together.
    pub transit_bps: u64,
}

/// The rates towards a node with links of `capacity_bps`, of `total_bps` to all `others` live nodes.
pub fn rates(mode: Mode, input_bps: u64, capacity_bps: u64, total_bps: u64, others: u64) -> Rates {
    if total_bps == 0 || others == 0 {
        return Rates::default();
    }
    let nodes = others + 1;
    // The fair share of the rate, times `times` and divided by `by`. In 128 bits, since two rates are multiplied.
    let scaled = |times: u64, by: u64| {
        let product = u128::from(input_bps) * u128::from(capacity_bps) * u128::from(others * times);
        u64::try_from(product / (u128::from(total_bps) * u128::from(nodes * by))).unwrap_or(u64::MAX)
    };
    let between = others.saturating_sub(1);
    match mode {
        // The rest of R is (N - quota) shares, for N - 2 intermediates.
        Mode::DirectVlb(rule) => Rates {
            direct_bps: scaled(rule.shares(), 1),
            transit_bps: if between == 0 { 0 } else { scaled(nodes - rule.shares().min(nodes), between) },
        },
        Mode::Classic => Rates { direct_bps: 0, transit_bps: scaled(1, 1) },
        Mode::DirectOnly => Rates { direct_bps: u64::MAX, transit_bps: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1_000_000_000;

    #[test]
    fn quotas_with_equal_links() {
        let of = |mode, others| rates(mode, 64 * G, 10 * G, 10 * G * others, others);
        let one = of(Mode::DirectVlb(Rule::OneShare), 63);
        assert_eq!((one.direct_bps, one.transit_bps), (G, G * 63 / 62));
        let two = of(Mode::DirectVlb(Rule::TwoShares), 63);
        assert_eq!((two.direct_bps, two.transit_bps), (2 * G, G));
        assert_eq!(of(Mode::Classic, 63), Rates { direct_bps: 0, transit_bps: G });
        // Direct and transit together are R, so that admissible traffic has room.
        assert_eq!(two.direct_bps + 62 * two.transit_bps, 64 * G);
        assert!(one.direct_bps + 62 * one.transit_bps >= 64 * G - 62);
    }

    #[test]
    fn a_slower_link_has_a_smaller_share() {
        let mode = Mode::DirectVlb(Rule::TwoShares);
        let total = 5 * G + 30 * G;
        let slow = rates(mode, 10 * G, 5 * G, total, 4);
        let fast = rates(mode, 10 * G, 10 * G, total, 4);
        assert_eq!(fast.direct_bps / 2, slow.direct_bps);
        let equal = rates(mode, 10 * G, 10 * G, 40 * G, 4);
        assert!((3 * fast.direct_bps + slow.direct_bps).abs_diff(4 * equal.direct_bps) < 8);
        assert_eq!(rates(mode, 10 * G, 0, total, 4), Rates::default());
    }

    #[test]
    fn two_nodes_have_no_intermediate() {
        let rates = rates(Mode::default(), G, G, G, 1);
        assert_eq!(rates, Rates { direct_bps: G, transit_bps: 0 });
        assert_eq!(super::rates(Mode::default(), G, 0, 0, 0), Rates::default());
    }

    #[test]
    fn modes_have_names() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("3R/N".parse::<Mode>().unwrap_err().contains("use R/N, 2R/N, classic or direct-only"));
    }
}
