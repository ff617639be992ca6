//! Assigns queues to workers, and moves them from busy workers to idle ones.
//!
//! Worker N has queue N of every port and sends through it; that never changes. Additional queues, if `queues` of a port
//! is greater than the number of workers, are distributed in turn and can move between workers ([`bm_graph::QueueOwner`]).

use std::time::{Duration, Instant};

use bm_cli::Failure;
use bm_control::config::Config;
use bm_control::config::app::app_of_port;
use bm_graph::{Network, PortApp, QueueOwner};
use bm_stats::{Account, Entry};

use crate::workers::apps;

/// Interval between two checks of the load; each moves at most one queue.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Share of time that a worker must be busy before a queue is moved away from it.
const BUSY: f64 = 0.5;
/// Minimum difference in load between the busiest and the idlest worker for a move, which must gain at least half of
/// it. Smaller fluctuations leave all queues in place.
const GAP: f64 = 0.2;

/// Which worker uses a queue.
enum Place {
    /// Always the worker with the number of the queue.
    Home(usize),
    /// Any worker; it can change.
    Shared(QueueOwner),
}

struct Queue {
    port: String,
    number: usize,
    received: Account,
    place: Place,
}

impl Queue {
    fn worker(&self) -> usize {
        match &self.place {
            Place::Home(worker) => *worker,
            Place::Shared(handle) => handle.owner(),
        }
    }
}

/// A queue that was moved to another worker.
#[derive(Debug, PartialEq, Eq)]
pub struct Move {
    /// As `PORT/QUEUE`.
    pub queue: String,
    /// The worker that had it.
    pub from: usize,
    /// The worker that has it now.
    pub to: usize,
}

/// All queues of the data path.
#[derive(Default)]
pub struct Queues {
    all: Vec<Queue>,
    last: Option<LastCounters>,
}

/// Counters at the last check.
struct LastCounters {
    at: Instant,
    busy_ns: Vec<u64>,
    frames: Vec<u64>,
}

/// The worker that the configuration names for a queue of a port, if any.
fn named(config: &Config, port: &str, number: usize) -> Option<usize> {
    let mut ports = config.ports.iter().enumerate();
    let (_, port) = ports.find(|(index, other)| other.name(*index) == port)?;
    port.queue_workers.get(number).map(|&worker| worker as usize)
}

impl Queues {
    /// Moves queues to the workers that the configuration names; without a name and without rebalancing, to their
    /// initial workers. Queues that cannot move while running are skipped.
    pub fn place(&self, config: &Config, workers: usize) {
        for Queue { port, number, place, .. } in &self.all {
            let Place::Shared(handle) = place else { continue };
            let dealt = (!config.daemon.rebalance).then_some(number % workers.max(1));
            if let Some(worker) =
                named(config, port, *number).or(dealt).filter(|&worker| worker != handle.owner())
            {
                handle.give_to(worker);
            }
        }
    }

    /// Adds a queue to the networks of the workers.
    pub fn add(
        &mut self,
        config: &Config,
        port: &str,
        number: usize,
        app: PortApp,
        received: Account,
        networks: &mut [Network],
    ) -> Result<(), Failure> {
        let place = match networks.get_mut(number) {
            Some(network) => {
                network.app(&app_of_port(port), Box::new(app)).map_err(Failure::failed)?;
                Place::Home(number)
            }
            None => {
                let workers = networks.len();
                let owner = named(config, port, number).unwrap_or(number % workers);
                let (handle, queues) = QueueOwner::new(app, owner, workers).map_err(Failure::failed)?;
                for (network, queue) in networks.iter_mut().zip(queues) {
                    let name = format!("{}:{number}", app_of_port(port));
                    network.app(&name, Box::new(queue)).map_err(Failure::failed)?;
                    let input = format!("{port}:{number}");
                    let entry = (apps::entry(config), input.as_str());
                    network.connect((&name, "output"), entry).map_err(Failure::failed)?;
                }
                Place::Shared(handle)
            }
        };
        self.all.push(Queue { port: port.into(), number, received, place });
        Ok(())
    }

    /// The worker that owns a queue.
    pub fn worker_of(&self, port: &str, number: usize) -> Option<usize> {
        let queue = self.all.iter().find(|queue| queue.port == port && queue.number == number)?;
        Some(queue.worker())
    }

    /// The queues of a worker, as `PORT/QUEUE`.
    pub fn of_worker(&self, worker: usize) -> Vec<String> {
        let its = self.all.iter().filter(|queue| queue.worker() == worker);
        its.map(|queue| format!("{}/{}", queue.port, queue.number)).collect()
    }

    /// Moves a queue from the busiest worker to the idlest if that pays. `busy_ns` is the total busy time of each
    /// worker.
    pub fn balance(&mut self, busy_ns: Vec<u64>, now: Instant) -> Option<Move> {
        if self.last.as_ref().is_some_and(|last| now.duration_since(last.at) < LOOK_EVERY) {
            return None;
        }
        let frames = self.all.iter().map(|queue| queue.received.get(Entry::Received)).collect();
        let new = LastCounters { at: now, busy_ns, frames };
        let (busy, loads) = self.last.as_ref().map(|old| self.loads(old, &new)).unwrap_or_default();
        self.last = Some(new);
        let (at, to) = choose(&busy, &loads)?;
        let Queue { port, number, place: Place::Shared(handle), .. } = &self.all[at] else { return None };
        let from = handle.owner();
        handle.give_to(to);
        Some(Move { queue: format!("{port}/{number}"), from, to })
    }

    /// Load of each worker (0 to 1) and frames of each queue between two checks.
    fn loads(&self, old: &LastCounters, new: &LastCounters) -> (Vec<f64>, Vec<Load>) {
        let elapsed_ns = new.at.duration_since(old.at).as_nanos().max(1) as f64;
        let busy_ns = differences(&new.busy_ns, &old.busy_ns);
        let busy = busy_ns.map(|busy_ns| busy_ns as f64 / elapsed_ns).collect();
        let frames = differences(&new.frames, &old.frames);
        let loads = self.all.iter().zip(frames).map(|(queue, frames)| Load {
            worker: queue.worker(),
            frames,
            may_move: matches!(queue.place, Place::Shared(_)),
        });
        (busy, loads.collect())
    }
}

/// How much each counter has grown.
fn differences<'a>(new: &'a [u64], old: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    new.iter().zip(old).map(|(new, old)| new.saturating_sub(*old))
}

/// Load that a queue causes.
struct Load {
    worker: usize,
    frames: u64,
    may_move: bool,
}

/// The queue to move, and the worker to move it to; `None` if the loads are even or no move would help.
///
/// `busy` is the share of time that each worker was busy. A queue's share of that is estimated by its share of the
/// frames.
fn choose(busy: &[f64], loads: &[Load]) -> Option<(usize, usize)> {
    let by_load = |one: &usize, two: &usize| busy[*one].total_cmp(&busy[*two]);
    let most = (0..busy.len()).max_by(by_load)?;
    let least = (0..busy.len()).min_by(by_load)?;
    let gap = busy[most] - busy[least];
    if busy[most] < BUSY || gap < GAP {
        return None;
    }
    let busiest: Vec<usize> = (0..loads.len()).filter(|&queue| loads[queue].worker == most).collect();
    let frames: u64 = busiest.iter().map(|&queue| loads[queue].frames).sum();
    // The gain of a move: the load that leaves the busiest worker, unless the idlest then becomes busier than that.
    let gain = |queue: usize| {
        let part = busy[most] * loads[queue].frames as f64 / frames.max(1) as f64;
        part.min(gap - part)
    };
    let candidates = busiest.into_iter().filter(|&queue| loads[queue].may_move && gain(queue) >= GAP / 2.0);
    let best = candidates.max_by(|&one, &two| gain(one).total_cmp(&gain(two)))?;
    Some((best, least))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues as worker, frames, and whether they may move.
    fn choice(busy: &[f64], loads: &[(usize, u64, bool)]) -> Option<(usize, usize)> {
        let load = |&(worker, frames, may_move): &_| Load { worker, frames, may_move };
        choose(busy, &loads.iter().map(load).collect::<Vec<_>>())
    }

    #[test]
    fn moves_the_queue_that_balances_loads_best() {
        // The gap is 0.8: of 0.9, parts of 0.45, 0.27 and 0.18 may go.
        let loads = [(0, 50, true), (1, 10, false), (0, 30, true), (0, 20, true)];
        assert_eq!(choice(&[0.9, 0.1, 0.5], &loads), Some((0, 1)));
        // The greatest one stays at home; the next is the best.
        let loads = [(0, 50, false), (1, 10, false), (0, 30, true), (0, 20, true)];
        assert_eq!(choice(&[0.9, 0.1], &loads), Some((2, 1)));
    }

    #[test]
    fn queues_do_not_move_for_small_gains() {
        let loads = [(0, 50, true), (1, 10, true), (0, 50, true)];
        assert_eq!(choice(&[0.45, 0.0], &loads), None, "nobody is busy");
        assert_eq!(choice(&[0.9, 0.75], &loads), None, "loads waver");
        assert_eq!(choice(&[0.9, 0.1], &[(0, 90, false), (0, 10, true)]), None, "too little to move");
        assert_eq!(choice(&[0.9, 0.1], &[(0, 10, false), (0, 990, true)]), None, "it would only go round");
        assert_eq!(choice(&[0.9, 0.1], &[(0, 0, true), (1, 0, true)]), None);
        assert_eq!(choice(&[0.9], &loads), None, "there is one worker");
        assert_eq!(choice(&[], &[]), None);
    }

    #[test]
    fn a_moved_queue_does_not_move_back() {
        // After it, both have the same to do.
        assert_eq!(choice(&[0.8, 0.0], &[(0, 50, false), (0, 50, true)]), Some((1, 1)));
        assert_eq!(choice(&[0.4, 0.4], &[(0, 50, false), (1, 50, true)]), None);
    }
}
