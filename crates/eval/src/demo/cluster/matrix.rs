//! Who sends how much to whom.

/// Bytes of a packet's data.
pub const DATA: usize = 134;
/// Bytes that it takes on a link: data, UDP, IPv4, Ethernet, checksum, preamble and gap.
pub const ON_THE_LINK: usize = DATA + 8 + 20 + 14 + 24;

/// A traffic matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Each node sends as much to each other one.
    Uniform,
    /// All nodes but 0 together send 2 R to it: twice what its port could send if it had a rate.
    Hot,
    /// Each node sends everything to the next one.
    Permutation,
    /// 0 to 1 R/N, 0 to 2 the rest, 3 to 1 the rest: what loads a link most with a quota of R/N.
    Adversarial,
}

impl Matrix {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Hot, Self::Permutation, Self::Adversarial];

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Hot => "hot",
            Self::Permutation => "permutation",
            Self::Adversarial => "adversarial",
        }
    }

    /// What a node of so many sends to another, as a part of R.
    pub fn share(self, nodes: usize, from: usize, to: usize) -> f64 {
        let (of_all, of_others) = (1.0 / nodes as f64, 1.0 / (nodes - 1) as f64);
        match self {
            _ if from == to => 0.0,
            Self::Uniform => of_others,
            Self::Hot if to == 0 => 2.0 * of_others,
            Self::Permutation if to == (from + 1) % nodes => 1.0,
            Self::Adversarial => match (from, to) {
                (0, 1) => of_all,
                (0, 2) | (3, 1) => 1.0 - of_all,
                _ => 0.0,
            },
            Self::Hot | Self::Permutation => 0.0,
        }
    }
}

/// Chooses outputs in turn so that each gets its share, at any moment as nearly as whole packets allow.
pub struct Turns {
    shares: Vec<f64>,
    owed: Vec<f64>,
}

impl Turns {
    /// For the packets of a node; `None` if it sends none.
    pub fn of(matrix: Matrix, nodes: usize, from: usize) -> Option<Self> {
        let shares: Vec<f64> = (0..nodes).map(|to| matrix.share(nodes, from, to)).collect();
        let sum: f64 = shares.iter().sum();
        let shares = shares.into_iter().map(|share| share / sum).collect();
        (sum > 0.0).then(|| Self { shares, owed: vec![0.0; nodes] })
    }

    /// The output of the next packet.
    pub fn next(&mut self) -> usize {
        self.owed.iter_mut().zip(&self.shares).for_each(|(owed, share)| *owed += share);
        let nodes = 0..self.owed.len();
        let most = nodes.max_by(|one, other| self.owed[*one].total_cmp(&self.owed[*other])).unwrap_or(0);
        self.owed[most] -= 1.0;
        most
    }
}

/// What a node sends altogether, as a part of R.
pub fn offered(matrix: Matrix, nodes: usize, from: usize) -> f64 {
    (0..nodes).map(|to| matrix.share(nodes, from, to)).sum()
}

/// Speed in whole Mbit/s of a port that receives this many packets per second.
pub fn speed(rate: u32) -> u32 {
    (u64::from(rate) * ON_THE_LINK as u64 * 8).div_ceil(1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_sends_more_than_r() {
        for (matrix, nodes) in Matrix::ALL.into_iter().flat_map(|matrix| [(matrix, 4), (matrix, 8)]) {
            for node in 0..nodes {
                let into: f64 = (0..nodes).map(|from| matrix.share(nodes, from, node)).sum();
                assert!(offered(matrix, nodes, node) < 1.001, "{matrix:?} {node}");
                assert!(into < 1.001 || matrix == Matrix::Hot && node == 0, "{matrix:?} {node}");
            }
        }
    }

    #[test]
    fn outputs_get_their_shares() {
        let mut turns = Turns::of(Matrix::Adversarial, 4, 0).unwrap();
        let mut counts = [0; 4];
        (0..400).for_each(|_| counts[turns.next()] += 1);
        assert_eq!(counts, [0, 100, 300, 0]);
        assert!(Turns::of(Matrix::Adversarial, 4, 1).is_none());
    }

    #[test]
    fn speed_is_what_the_packets_take_on_the_link() {
        assert_eq!((speed(10_000), ON_THE_LINK), (16, 200));
    }
}
