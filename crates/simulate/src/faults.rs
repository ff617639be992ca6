//! What fails in a run with faults, and when: all from the seed.

use bm_vlb::{LinkId, Node, Topology};

use crate::random::Random;

/// A fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node stops, or continues with what it knew before.
    Node(Node, bool),
    /// A link is cut or repaired.
    Link(LinkId, bool),
    /// A node no longer gets messages from the store, or gets them again.
    Store(Node, bool),
    /// The membership is frozen, or can change again.
    Frozen(bool),
    /// A node gets the command to drain.
    Drain(Node),
}

/// All faults of a run, with their times.
pub fn plan(topology: &Topology, time_ns: u64, seed: u64) -> Vec<(u64, Fault)> {
    let mut random = Random::new(seed, 2);
    // From and to which percentage of the time.
    let times = [(10, 25), (40, 55), (15, 35), (50, 70), (5, 15), (45, 60), (60, 65), (70, 75), (76, 85)]
        .map(|(from, to)| time_ns * from / 100 + random.below(time_ns * (to - from) / 100 + 1));
    let terminals = u64::from(topology.terminals().max(1));
    let [stopped, apart, drained] = [(); 3].map(|()| Node::new(random.below(terminals) as u16));
    let (Some(stopped), Some(apart), Some(drained)) = (stopped, apart, drained) else { return Vec::new() };
    let link = LinkId(random.below(topology.links().len().max(1) as u64) as u32);
    let mut faults = vec![
        (times[0], Fault::Node(stopped, false)),
        (times[1], Fault::Node(stopped, true)),
        (times[2], Fault::Link(link, false)),
        (times[3], Fault::Link(link, true)),
        (times[4], Fault::Store(apart, false)),
        (times[5], Fault::Store(apart, true)),
        (times[6], Fault::Frozen(true)),
        (times[7], Fault::Frozen(false)),
        (times[8], Fault::Drain(drained)),
    ];
    faults.sort_by_key(|(at, _)| *at);
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_repaired() {
        let mesh = Topology::mesh(8, 1).expect("a mesh");
        let faults = plan(&mesh, 1_000_000, 5);
        assert!(
            faults.is_sorted_by_key(|(at, _)| *at) && faults.last().is_some_and(|(at, _)| *at <= 850_000)
        );
        assert_eq!(faults, plan(&mesh, 1_000_000, 5));
        let up = |fault: &(u64, Fault)| {
            matches!(fault.1, Fault::Node(_, true) | Fault::Link(_, true) | Fault::Store(_, true))
        };
        assert_eq!(faults.iter().filter(|fault| up(fault)).count(), 3);
    }
}
