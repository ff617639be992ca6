//! What is printed: loads of nodes and links for each matrix, losses for each event.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Shape;
use super::delays::Delays;
use super::matrix::Matrix;
use super::mesh::ClusterCounters;
use super::relays::{STAGE, TERMINALS};
use super::traffic::{Pair, Traffic};

/// What happens while packets flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A daemon is killed, and started again seconds later.
    DaemonKilled,
    /// The link between nodes 0 and 1 is cut, or in an n-fly a cable between relays.
    LinkCut,
    /// A daemon is killed, and all interfaces of its node go down.
    NodeDown,
    /// A daemon is killed, and its fabric program removed: the interfaces of its node keep their carrier.
    NodeSilent,
    /// A node is drained, its daemon ends and starts again.
    NodeDrained,
    /// A neighbor of one node becomes one of another.
    NeighborMoved,
    /// etcd is killed, and started again seconds later.
    StoreKilled,
}

impl Event {
    const ALL: [Self; 7] = [
        Self::DaemonKilled,
        Self::LinkCut,
        Self::NodeDown,
        Self::NodeSilent,
        Self::NodeDrained,
        Self::NeighborMoved,
        Self::StoreKilled,
    ];

    /// The events of a cluster with etcd, or of one without.
    pub fn all(has_store: bool) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |event| *event != Self::StoreKilled || has_store)
    }

    /// The node that it happens to.
    pub fn node(self) -> usize {
        match self {
            Self::DaemonKilled | Self::NodeSilent | Self::NodeDrained => 2,
            Self::LinkCut | Self::NeighborMoved | Self::StoreKilled => 1,
            Self::NodeDown => 3,
        }
    }

    fn name(self, shape: Shape) -> &'static str {
        match self {
            Self::LinkCut if shape == Shape::Fly => "cable of relay 8 to relay 12 cut",
            Self::DaemonKilled => "daemon of node 2 killed and started",
            Self::LinkCut => "link between 0 and 1 cut",
            Self::NodeDown => "node 3 switched off",
            Self::NodeSilent => "node 2 silent, with carrier",
            Self::NodeDrained => "node 2 drained, ended and started",
            Self::NeighborMoved => "neighbor moved from node 1 to node 2",
            Self::StoreKilled => "etcd killed and started",
        }
    }

    /// The traffic meanwhile. A permutation sends many packets over other nodes.
    pub fn matrix(self) -> Matrix {
        match self {
            Self::DaemonKilled | Self::LinkCut | Self::NodeDown => Matrix::Uniform,
            Self::NeighborMoved | Self::StoreKilled => Matrix::Uniform,
            Self::NodeSilent | Self::NodeDrained => Matrix::Permutation,
        }
    }

    /// Whether packets of a pair of hosts must go on.
    fn spares(self, from: usize, to: usize) -> bool {
        match self {
            Self::LinkCut | Self::NeighborMoved | Self::StoreKilled => true,
            Self::DaemonKilled | Self::NodeDown | Self::NodeSilent | Self::NodeDrained => {
                from != self.node() && to != self.node()
            }
        }
    }
}

/// Loads during one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// What happened to the packets.
    pub traffic: Traffic,
    /// What each node handled, divided by R: packets from its external port, for its external port, and for others.
    pub nodes: Vec<f64>,
    /// In a mesh: what went over each link, in R/N; by sender and receiver.
    pub links: Vec<Vec<f64>>,
    /// In an n-fly: what went over each cable, in R; sender and receiver.
    pub cables: Vec<(usize, usize, f64)>,
    /// Packets that went straight to their output node, and those that went over another node.
    pub direct: u64,
    pub intermediate: u64,
    /// Numbered packets that left, and those of them that came late, as nodes counted.
    pub sampled: u64,
    pub reordered: u64,
}

fn grown(before: &ClusterCounters, after: &ClusterCounters, name: &str) -> u64 {
    let [before, after] = [before, after].map(|node| node.balanced.get(name).copied().unwrap_or(0));
    after.saturating_sub(before)
}

/// How much a counter of the link from a node has grown.
fn from_node(before: &ClusterCounters, after: &ClusterCounters, node: usize, name: &str) -> u64 {
    let [before, after] = [before, after].map(|counted| {
        let link = counted.links.iter().find(|link| link.node == node);
        link.and_then(|link| link.counters.get(name)).copied().unwrap_or(0)
    });
    after.saturating_sub(before)
}

/// Frames that a node has sent on to other nodes as an intermediate.
pub fn transit(node: &ClusterCounters) -> u64 {
    node.links.iter().filter_map(|link| link.counters.get("transit")).sum()
}

impl Load {
    /// From counters before and after, what hosts have sent, and the packets that R stands for in that time.
    pub fn of(before: &[ClusterCounters], after: &[ClusterCounters], traffic: Traffic, most: f64) -> Self {
        let nodes = after.len();
        let mut load = Self {
            nodes: vec![0.0; nodes],
            links: vec![vec![0.0; nodes]; nodes],
            cables: Vec::new(),
            direct: 0,
            intermediate: 0,
            sampled: 0,
            reordered: 0,
            traffic: traffic.clone(),
        };
        for (to, (before, after)) in before.iter().zip(after).enumerate() {
            let mut handled = traffic.sum(|from, _| from == to).sent;
            for from in (0..nodes).filter(|from| *from != to) {
                let of = |name| from_node(before, after, from, name);
                let frames = of("transit") + of("output");
                handled += frames;
                load.links[from][to] = frames as f64 * nodes as f64 / most;
                load.sampled += of("sampled");
                load.reordered += of("reordered");
            }
            load.nodes[to] = handled as f64 / most;
            load.direct += grown(before, after, "direct");
            load.intermediate += grown(before, after, "intermediate");
        }
        load
    }

    /// Adds what cables have carried. Only these are links of an n-fly.
    pub fn add_cables(&mut self, carried: &[(usize, usize, u64)], most: f64) {
        self.cables = carried.iter().map(|&(from, to, packets)| (from, to, packets as f64 / most)).collect();
        self.links.clear();
    }

    /// The load of the busiest link or cable.
    fn busiest(&self) -> f64 {
        let cables = self.cables.iter().map(|(_, _, load)| *load);
        self.links.iter().flatten().copied().chain(cables).fold(0.0, f64::max)
    }

    /// What each relay handled, divided by R.
    fn relays(&self) -> Vec<f64> {
        let all = self.cables.iter().map(|(_, to, _)| to + 1).max().unwrap_or(0);
        let mut loads = vec![0.0; all.saturating_sub(TERMINALS)];
        for (_, to, load) in self.cables.iter().filter(|(_, to, _)| *to >= TERMINALS) {
            loads[to - TERMINALS] += load;
        }
        loads
    }

    /// The delays of half, 99 and 99.9 % of the packets, in microseconds.
    fn delays(&self) -> [f64; 3] {
        quantiles(&self.traffic.delays(|_, _| true))
    }

    /// The loads of links, or of relays and cables, in lines below a row.
    fn details(&self) -> Vec<String> {
        if self.cables.is_empty() {
            let mut links = Vec::new();
            for (from, loads) in self.links.iter().enumerate() {
                for (to, load) in loads.iter().enumerate().filter(|(to, _)| *to != from) {
                    links.push(format!("{from}-{to} {load:.2}"));
                }
            }
            return vec![format!("links: {}", links.join("  "))];
        }
        let relays = self.relays().into_iter().enumerate();
        let relays: Vec<_> = relays.map(|(at, load)| format!("{} {load:.2}", TERMINALS + at)).collect();
        let mut lines = vec![format!("c of relays: {}", relays.join("  "))];
        for stage in self.cables.chunks(2 * STAGE) {
            let cables = stage.iter().map(|(from, to, load)| format!("{from}-{to} {load:.2}"));
            lines.push(format!("cables: {}", cables.collect::<Vec<_>>().join("  ")));
        }
        lines
    }
}

/// The delays of half, 99 and 99.9 % of the packets, in microseconds.
fn quantiles(delays: &Delays) -> [f64; 3] {
    [0.5, 0.99, 0.999].map(|part| delays.us(part))
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Prints as it goes: figures to the output, or as JSON there with the text on standard error.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
    shape: Shape,
    began: Instant,
}

impl<'a> Report<'a> {
    /// To this output.
    pub fn new(out: &'a mut dyn Write, is_json: bool, shape: Shape) -> Self {
        Self { out, is_json, shape, began: Instant::now() }
    }

    /// A line of text.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        if self.is_json {
            return writeln!(io::stderr(), "{line}");
        }
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    fn row(&mut self, row: &serde_json::Value) -> io::Result<()> {
        if self.is_json { writeln!(self.out, "{row}") } else { Ok(()) }
    }

    /// The head of the table of loads.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin_loads(&mut self) -> io::Result<()> {
        let (links, last) = (self.shape.links(), self.shape.nodes() - 1);
        self.say(&format!("\nc: packets that a node handles, divided by R; {links}; late: after a later packet of the flow, at hosts\nand by the numbers that nodes put into packets; us: time from host to host"))?;
        let nodes = format!("c of nodes 0 to {last}");
        self.say(&format!(
            "matrix          sent  lost  {nodes:<width$}  busiest link  direct %  late %  numbered late %  us: p50    p99  p99.9",
            width = 5 * last + 4,
        ))
    }

    /// A row of it, with the links below.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn load(&mut self, matrix: &str, load: &Load) -> io::Result<()> {
        let all = load.traffic.sum(|_, _| true);
        let (late, numbered) = (percent(all.late, all.arrived), percent(load.reordered, load.sampled));
        let direct = percent(load.direct, load.direct + load.intermediate);
        let nodes: Vec<_> = load.nodes.iter().map(|c| format!("{c:.2}")).collect();
        let [half, most, nearly_all] = load.delays();
        self.say(&format!(
            "{:<12} {:>7} {:>5}  {}  {:>12.2} {direct:>9.1} {late:>7.3} {numbered:>16.3} {half:>8.0} {most:>6.0} {nearly_all:>6.0}",
            matrix,
            all.sent,
            all.lost(),
            nodes.join(" "),
            load.busiest(),
        ))?;
        load.details().iter().try_for_each(|line| self.say(&format!("             {line}")))?;
        self.row(&json!({
            "matrix": matrix, "sent": all.sent, "lost": all.lost(), "c": load.nodes,
            "links": load.links, "direct": load.direct, "intermediate": load.intermediate,
            "late": all.late, "sampled": load.sampled, "reordered": load.reordered,
            "relays": load.relays(), "cables": load.cables, "delays_us": load.delays(),
        }))
    }

    /// The delays of packets that were sent straight, and over another node.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn delays(&mut self, straight: &Delays, over: &Delays) -> io::Result<()> {
        self.say("\ntime from host to host, in us         p50    p99  p99.9")?;
        let relays = self.shape.relays_between();
        for (nodes, us) in [(2, quantiles(straight)), (3, quantiles(over))] {
            let relays = relays * (nodes - 1);
            let way = if relays == 0 { String::new() } else { format!(" and {relays} relays") };
            let way = format!("over {nodes} nodes{way}");
            self.say(&format!("{way:<34} {:>6.0} {:>6.0} {:>6.0}", us[0], us[1], us[2]))?;
            self.row(&json!({ "delays": { "nodes": nodes, "relays": relays, "us": us } }))?;
        }
        Ok(())
    }

    /// What FRR has learned, and how many of the pings between the prefixes were answered, and crossed the cluster as one hop.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn frr(&mut self, took: Duration, [pings, answered, one_hop]: [usize; 3]) -> io::Result<()> {
        let seconds = took.as_secs_f64();
        self.say(&format!(
            "\nFRR on each node had the prefixes of all hosts by BGP after {seconds:.1} s; pings between them: {answered} of {pings} answered,\n{one_hop} with a TTL that is lower by one",
        ))?;
        self.row(&json!({ "frr": { "learned_s": seconds, "pings": pings, "answered": answered, "one_hop": one_hop } }))
    }

    /// The head of the table of events.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin_events(&mut self) -> io::Result<()> {
        self.say("\nothers: packets between hosts of the nodes that must not be affected; ms of its share: what these have lost, divided by\nthe rate at which the node forwarded for other nodes before")?;
        self.say("event                                others: sent  lost  longest gap ms  its own: sent  lost  longest gap ms  ms of its share")
    }

    /// A row of it; of a neighbor that moves, its own packets are a stream.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn event(
        &mut self,
        event: Event,
        traffic: &Traffic,
        stream: Option<Pair>,
        share: Option<f64>,
    ) -> io::Result<()> {
        let others = traffic.sum(|from, to| from != to && event.spares(from, to));
        let its_hosts = traffic.sum(|from, to| from != to && !event.spares(from, to));
        let own = stream.unwrap_or(its_hosts);
        let [others_ms, own_ms] = [others, own].map(|pair| pair.gap.as_secs_f64() * 1000.0);
        let share_ms = share.filter(|rate| *rate > 0.0).map(|rate| others.lost() as f64 * 1000.0 / rate);
        self.say(&format!(
            "{:<36} {:>12} {:>5} {:>15.1} {:>14} {:>5} {:>15.1} {:>16}",
            event.name(self.shape),
            others.sent,
            others.lost(),
            others_ms,
            own.sent,
            own.lost(),
            own_ms,
            share_ms.map_or("-".into(), |ms| format!("{ms:.1}")),
        ))?;
        self.row(&json!({
            "event": event.name(self.shape), "share_ms": share_ms,
            "others": { "sent": others.sent, "lost": others.lost(), "late": others.late, "gap_ms": others_ms },
            "own": { "sent": own.sent, "lost": own.lost(), "late": own.late, "gap_ms": own_ms },
        }))
    }

    /// How long after a neighbor had moved the first packet arrived there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn moved(&mut self, found: Duration) -> io::Result<()> {
        let ms = found.as_secs_f64() * 1000.0;
        self.say(&format!("  it had moved for {ms:.1} ms when the first packet arrived there"))?;
        self.row(&json!({ "moved": { "found_ms": ms } }))
    }

    /// That all is well.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&mut self) -> io::Result<()> {
        let seconds = self.began.elapsed().as_secs();
        self.say(&format!("\nNothing is left behind. {seconds} s in all."))?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::mesh::LinkCounters;
    use super::*;

    fn node(balanced: &[(&str, u64)], links: &[(usize, &[(&str, u64)])]) -> ClusterCounters {
        let counters = |all: &[(&str, u64)]| all.iter().map(|(name, n)| ((*name).into(), *n)).collect();
        let links = links.iter().map(|(node, all)| LinkCounters {
            node: *node,
            counters: counters(all),
            ..LinkCounters::default()
        });
        ClusterCounters { balanced: counters(balanced), links: links.collect(), ..ClusterCounters::default() }
    }

    #[test]
    fn loads_come_from_counters() {
        let mut traffic = Traffic::none(4);
        traffic.pairs[0][2] = Pair { sent: 100, arrived: 99, late: 2, gap: Duration::ZERO };
        let before = vec![node(&[("direct", 5)], &[]); 4];
        let after = vec![
            node(&[("direct", 65), ("intermediate", 40)], &[]),
            node(&[("direct", 5)], &[(0, &[("transit", 40)])]),
            node(
                &[("direct", 5)],
                &[(0, &[("output", 60), ("sampled", 9)]), (1, &[("output", 40), ("reordered", 1)])],
            ),
            node(&[("direct", 5)], &[]),
        ];
        let load = Load::of(&before, &after, traffic, 100.0);
        assert_eq!(load.nodes, [1.0, 0.4, 1.0, 0.0]);
        assert_eq!((load.links[0][1], load.links[0][2], load.links[1][2]), (1.6, 2.4, 1.6));
        assert_eq!((load.direct, load.intermediate, load.sampled, load.reordered), (60, 40, 9, 1));
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, false, Shape::Mesh);
        report.load(Matrix::Permutation.name(), &load).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("permutation      100     1  1.00 0.40 1.00 0.00          2.40      60.0   2.020           11.111        0      0      0\n"), "{text}");
        assert!(text.contains("0-1 1.60  0-2 2.40  0-3 0.00"), "{text}");
    }

    #[test]
    fn events_are_about_those_that_must_go_on() {
        assert!(Event::LinkCut.spares(0, 1) && !Event::NodeDown.spares(0, 3) && Event::NodeDown.spares(0, 1));
        let mut traffic = Traffic::none(4);
        traffic.pairs[0][1] = Pair { sent: 9, arrived: 8, late: 0, gap: Duration::from_millis(3) };
        traffic.pairs[0][3] = Pair { sent: 7, arrived: 2, late: 0, gap: Duration::from_millis(40) };
        let mut out = Vec::new();
        Report::new(&mut out, true, Shape::Mesh).event(Event::NodeDown, &traffic, None, Some(200.0)).unwrap();
        let row: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&row["others"]["lost"], &row["own"]["lost"]), (&1.into(), &5.into()));
        assert_eq!(row["share_ms"], 5.0);
    }
}
