//! What happened to every packet, and the figures that the report needs.

use crate::links::HOP_NS;

/// Why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// More was sent to the output ports than they can send.
    OutputFull,
    /// More was sent to a link between nodes than it can carry.
    LinkFull,
    /// There was no path to the output node.
    Unreachable,
    /// A link or one of its nodes failed.
    Failed,
    /// The output node did not know the epoch.
    Epoch,
}

impl Loss {
    /// All reasons, in the order of `Account::lost`.
    pub const ALL: [Self; 5] =
        [Self::OutputFull, Self::LinkFull, Self::Unreachable, Self::Failed, Self::Epoch];
}

/// Maximum number of links that a packet takes: up to two passes through a fly of ten stages.
const HOPS: usize = 24;
/// Buckets of delays: an eighth of a hop each.
const DELAYS: usize = 4096;

/// Counters of all packets.
pub struct Account {
    /// Packets received by external ports.
    pub offered: u64,
    /// Packets that left by the right port.
    pub delivered: u64,
    /// Packets lost, by reason.
    pub lost: [u64; Loss::ALL.len()],
    /// Packets in transit.
    pub under_way: u64,
    /// Frames handled: packets received, and frames that arrived at a node.
    pub events: u64,
    /// Delivered packets by the number of links.
    pub by_hops: [u64; HOPS],
    delays: Vec<[u64; DELAYS]>,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            offered: 0,
            delivered: 0,
            lost: [0; 5],
            under_way: 0,
            events: 0,
            by_hops: [0; HOPS],
            delays: vec![[0; DELAYS]; HOPS],
        }
    }
}

impl Account {
    /// Counts a packet in transit as lost.
    pub fn lose(&mut self, why: Loss) {
        self.under_way -= 1;
        self.lost[why as usize] += 1;
    }

    /// Counts a packet in transit as delivered.
    pub fn deliver(&mut self, hops: u8, delay_ns: u64) {
        self.under_way -= 1;
        self.delivered += 1;
        let hops = usize::from(hops).min(HOPS - 1);
        self.by_hops[hops] += 1;
        let bucket = (delay_ns / (HOP_NS / 8)) as usize;
        self.delays[hops][bucket.min(DELAYS - 1)] += 1;
    }

    /// Whether every packet is accounted for.
    pub fn is_closed(&self) -> bool {
        self.offered == self.delivered + self.lost.iter().sum::<u64>() + self.under_way
    }

    /// The delay that `permille` of the packets with this many links do not exceed, in ns.
    pub fn delay_ns(&self, hops: usize, permille: u64) -> u64 {
        let below = self.by_hops[hops] * permille / 1000;
        let mut sum = 0;
        let bucket = self.delays[hops].iter().position(|count| {
            sum += count;
            sum > below
        });
        (bucket.unwrap_or(DELAYS - 1) as u64 + 1) * (HOP_NS / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_has_one_fate() {
        let mut account = Account { offered: 4, under_way: 4, ..Account::default() };
        account.lose(Loss::LinkFull);
        account.deliver(2, 30_000);
        account.deliver(2, 90_000);
        assert!(account.is_closed());
        assert_eq!((account.lost[1], account.delivered, account.under_way), (1, 2, 1));
        assert_eq!((account.delay_ns(2, 0), account.delay_ns(2, 500)), (32_500, 92_500));
        account.offered += 1;
        assert!(!account.is_closed());
    }
}
