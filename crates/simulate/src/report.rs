//! The results of a run.

use bm_vlb::{Mode, Rule};
use serde::Serialize;

use crate::account::Loss;
use crate::options::{Matrix, Options, Shape};
use crate::run::Run;

/// The result of a run. Loads are in units of what one would expect without VLB's overhead: R for a node, R/N for a
/// link of a mesh, R for a link of an n-fly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Seed of the run.
    pub seed: u64,
    /// Nodes with external ports.
    pub nodes: u64,
    /// Traffic matrix.
    pub matrix: String,
    /// Quota, or another mode.
    pub quota: String,
    /// Packets received.
    pub offered: u64,
    /// Packets that left by the right port.
    pub delivered: u64,
    /// Delivered packets in percent of those received, for all outputs that were not offered more than they can send:
    /// those for which a single router with the same ports would have had a short queue all the time.
    pub served_percent: f64,
    /// Outputs that were offered more.
    pub overloaded_outputs: usize,
    /// Bytes handled by the busiest node, divided by R: RouteBricks' c.
    pub c: f64,
    /// The mean of all nodes that send something.
    pub c_mean: f64,
    /// Load of the busiest link.
    pub busiest_link: f64,
    /// Packets sent straight to their output node, in percent.
    pub direct_percent: f64,
    /// Reordered packets among the sampled ones, in percent.
    pub reordered_percent: f64,
    /// Packets moved to another path within a flowlet, in percent of all.
    pub splits_percent: f64,
    /// Fairness among the inputs at node 0 (Jain): delivered divided by offered.
    pub fairness: f64,
    /// Lost packets by reason.
    pub lost: LossCounts,
    /// Delays by the number of links.
    pub delays: Vec<Delay>,
    /// Packets received, and frames that arrived at a node.
    pub events: u64,
}

/// Lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LossCounts {
    /// The output ports were offered more than they can send.
    pub output_full: u64,
    /// A link between nodes was offered more than it can carry.
    pub link_full: u64,
    /// There was no path to the output node.
    pub unreachable: u64,
    /// A link or a node failed.
    pub failed: u64,
    /// The output node did not know the epoch.
    pub epoch: u64,
}

/// Delays of packets, from the input port to the output node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Delay {
    /// Number of links between nodes.
    pub links: u64,
    pub packets: u64,
    /// Half of the packets took no longer than this.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
}

impl Report {
    pub(crate) fn new(run: &Run) -> Self {
        let (account, options) = (&run.account, &run.options);
        let seconds = options.time_ns as f64 / 1e9;
        let input_bits = options.input_bps as f64 * seconds;
        let unit = match options.shape {
            Shape::Mesh(nodes) => input_bits / f64::from(nodes),
            Shape::Fly { .. } => input_bits,
        };
        // What a node sends is also handled: it arrived from another node, and is counted there.
        let loads: Vec<_> =
            run.servers.iter().map(|server| server.handled as f64 * 8.0 / input_bits).collect();
        let busy = run.servers.iter().zip(&loads).filter(|(server, _)| server.offered > 0);
        let busy: Vec<_> = busy.map(|(_, load)| load).collect();
        let busiest = run.queues.iter().map(|queue| queue.bytes).max().unwrap_or(0);
        let direct = run.servers.iter().map(|server| server.balancer.counts().direct).sum();
        let splits = run.servers.iter().map(|server| server.balancer.counts().splits).sum();
        let sampled: u64 = run.servers.iter().map(|server| server.order.packets()).sum();
        let late: u64 = run.servers.iter().map(|server| server.order.reordered()).sum();
        let admissible: Vec<_> = run.servers.iter().filter(|server| !server.is_overloaded).collect();
        let lost = |why: Loss| account.lost[why as usize];
        Self {
            seed: options.seed,
            nodes: options.terminals(),
            matrix: options.matrix.to_string(),
            quota: options.mode.to_string(),
            offered: account.offered,
            delivered: account.delivered,
            served_percent: percent(
                admissible.iter().map(|server| server.to_it.1).sum(),
                admissible.iter().map(|server| server.to_it.0).sum(),
            ),
            overloaded_outputs: run.servers.iter().filter(|server| server.is_overloaded).count(),
            c: loads.iter().copied().fold(0.0, f64::max),
            c_mean: busy.iter().copied().sum::<f64>() / busy.len().max(1) as f64,
            busiest_link: busiest as f64 * 8.0 / unit,
            direct_percent: percent(direct, account.offered),
            reordered_percent: percent(late, sampled),
            splits_percent: percent(splits, account.offered),
            fairness: fairness(run),
            lost: LossCounts {
                output_full: lost(Loss::OutputFull),
                link_full: lost(Loss::LinkFull),
                unreachable: lost(Loss::Unreachable),
                failed: lost(Loss::Failed),
                epoch: lost(Loss::Epoch),
            },
            delays: delays(run),
            events: account.events,
        }
    }

    /// Whether the run has the properties that Direct VLB promises for it.
    pub(crate) fn check(&self, options: &Options) -> Result<(), String> {
        let balanced = options.mode != Mode::DirectOnly;
        // R/N needs links of 3 R/N, and so does 2R/N, plus some for uneven moments; for small clusters it is more.
        // With a load of R there is no time to catch up after a moment of idling.
        let has_room = options.link_percent >= 400 && options.terminals() >= 8 && options.load_percent <= 97;
        if options.faults || !balanced || !has_room {
            return Ok(());
        }
        if self.served_percent < 99.9 && self.overloaded_outputs < options.terminals() as usize {
            let lost = &self.lost;
            return Err(format!(
                "only {:.2} % of the admissible traffic was served ({} lost on full links, {} at full outputs)",
                self.served_percent, lost.link_full, lost.output_full
            ));
        }
        let long = options.time_ns >= 200_000_000;
        if options.matrix == Matrix::Hot && long && options.delta_ns != Some(0) && self.fairness < 0.97 {
            return Err(format!(
                "the inputs got unequal shares of node 0's output: Jain index {:.3}",
                self.fairness
            ));
        }
        let most = if options.mode == Mode::DirectVlb(Rule::TwoShares) { 3.2 } else { 3.4 };
        let is_mesh = matches!(options.shape, Shape::Mesh(_));
        if is_mesh && long && options.matrix != Matrix::Hot && self.busiest_link > most {
            return Err(format!("the busiest link carried {:.2} R/N, more than {most}", self.busiest_link));
        }
        Ok(())
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Jain's index of what each input got delivered at node 0, divided by what it offered.
fn fairness(run: &Run) -> f64 {
    let inputs = run.servers.iter().filter(|server| server.to_hot.0 > 0);
    let shares: Vec<f64> = inputs.map(|server| server.to_hot.1 as f64 / server.to_hot.0 as f64).collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

fn delays(run: &Run) -> Vec<Delay> {
    let account = &run.account;
    let used = account.by_hops.iter().enumerate().filter(|(_, packets)| **packets > 0);
    let delays = used.map(|(links, packets)| Delay {
        links: links as u64,
        packets: *packets,
        p50_ns: account.delay_ns(links, 500),
        p99_ns: account.delay_ns(links, 990),
        p999_ns: account.delay_ns(links, 999),
    });
    delays.collect()
}
