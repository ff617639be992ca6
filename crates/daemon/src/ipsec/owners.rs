//! Which worker has an SA.
//!
//! An SA for a worker or a CPU has that one: numbers wrap, so that each worker gets as many SAs of a peer with more CPUs as
//! the others. All others go to the worker that has the fewest from or to the same peer, and then the fewest of all.

use std::net::IpAddr;

use bm_ipsec::{Direction, Sa};

/// SAs that have workers.
pub struct Owners {
    workers: usize,
    given: Vec<(Peer, usize)>,
}

/// What SAs of one tunnel and direction have in common.
type Peer = (Direction, IpAddr, IpAddr);

fn peer(sa: &Sa) -> Peer {
    (sa.direction, sa.source, sa.destination)
}

impl Owners {
    /// For this number of workers, one at least.
    pub fn new(workers: usize) -> Self {
        Self { workers: workers.max(1), given: Vec::new() }
    }

    /// Assigns workers to SAs, some of which have workers already.
    #[must_use]
    pub fn with<'s>(mut self, given: impl Iterator<Item = (&'s Sa, usize)>) -> Self {
        self.given.extend(given.map(|(sa, worker)| (peer(sa), worker)));
        self
    }

    /// The worker of an SA; `place` is that among the SAs of a policy.
    pub fn give(&mut self, sa: &Sa, place: Option<usize>) -> usize {
        let of = peer(sa);
        let worker = match place.or(sa.cpu.map(|cpu| cpu as usize)) {
            Some(number) => number % self.workers,
            None => {
                let mut counts = vec![(0, 0); self.workers];
                for (other, worker) in self.given.iter().filter(|(_, worker)| *worker < self.workers) {
                    counts[*worker].0 += usize::from(*other == of);
                    counts[*worker].1 += 1;
                }
                (0..self.workers).min_by_key(|worker| counts[*worker]).unwrap_or(0)
            }
        };
        self.given.push((of, worker));
        worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_ipsec::{SaId, Suite};

    fn sa(direction: Direction, peer: u8, cpu: Option<u32>) -> Sa {
        let id = SaId { spi: 0x1000, destination: [192, 0, 2, peer].into() };
        Sa { cpu, ..Sa::new(direction, id, [198, 51, 100, 1].into(), Suite::Aes128Gcm) }
    }

    #[test]
    fn sas_of_a_peer_are_spread_evenly_however_they_are_added() {
        use Direction::{In, Out};
        let give = |workers, directions: &[Direction]| {
            let mut owners = Owners::new(workers);
            directions.iter().map(|direction| owners.give(&sa(*direction, 1, None), None)).collect::<Vec<_>>()
        };
        // The pair of a tunnel has two workers.
        assert_eq!(give(2, &[Out, In]), [0, 1]);
        // charon adds pairs: dealt in turn, all inbound ones would have the same worker.
        assert_eq!(give(2, &[In, Out, In, Out, In, Out, In, Out]), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(give(3, &[In, In, In, In]), [0, 1, 2, 0]);
        assert_eq!(give(0, &[In, Out]), [0, 0], "before workers run");
    }

    #[test]
    fn numbers_of_cpus_and_places_wrap() {
        let mut owners = Owners::new(2);
        // As strongSwan's responder numbers them on a machine with 16 CPUs.
        let given = [15, 14, 13, 12].map(|cpu| owners.give(&sa(Direction::Out, 1, Some(cpu)), None));
        assert_eq!(given, [1, 0, 1, 0]);
        assert_eq!(
            [0, 1, 2].map(|place| owners.give(&sa(Direction::Out, 2, Some(1)), Some(place))),
            [0, 1, 0]
        );
        // What is there counts, and a worker that is gone does not.
        let one = sa(Direction::In, 3, None);
        let mut after = Owners::new(2).with([(&one, 0), (&one, 5)].into_iter());
        assert_eq!(after.give(&one, None), 1);
    }
}
