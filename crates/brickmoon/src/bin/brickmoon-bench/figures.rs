//! `brickmoon bench cluster`: the figures of a cluster, simulated and, if asked for, counted in the demo.

use bm_cli::table::{Align, Table};
use bm_eval::demo::cluster::ClusterDemoOptions;
use bm_simulate::figures::{Figure, Figures, Sizes, Value, figures};

use crate::args::Bench;
use crate::{Failure, write};

/// The column of what the demo has counted.
const DEMO: &str = "demo";

/// Measures, and prints the table or JSON.
pub fn run(bench: &Bench) -> Result<(), Failure> {
    let all = figures(&Sizes::default(), |step: &str| tracing::info!("simulating: {step}"));
    let mut all = all.map_err(Failure::failed)?;
    if bench.demo {
        let mut out = Vec::new();
        let options = ClusterDemoOptions { json: true, ..ClusterDemoOptions::default() };
        bm_eval::demo::cluster::run(&options, &mut out).map_err(Failure::failed)?;
        let rows: Result<Vec<_>, _> =
            String::from_utf8_lossy(&out).lines().map(serde_json::from_str).collect();
        add_demo(&mut all, &rows.map_err(Failure::failed)?);
    }
    if bench.json {
        return write(&(serde_json::to_string(&all).map_err(Failure::failed)? + "\n"));
    }
    write(&text(&all))
}

fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
}

fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(0.0, f64::max)
}

/// Adds what nodes and hosts of the demo have counted.
fn add_demo(all: &mut Figures, rows: &[Row]) {
    let uniform = find(rows, "matrix", "uniform");
    let permutation = find(rows, "matrix", "permutation");
    let adversarial = find(rows, "matrix", "adversarial");
    let moved = rows.iter().find_map(|row| row["moved"]["found_ms"].as_f64());
    let silent = find(rows, "event", "node 2 silent").and_then(|row| row["share_ms"].as_f64());
    for (name, goal, value, most) in [
        ("load per node c, uniform, mean", "2.05", uniform.map(mean_load), 2.05),
        ("load per node c, uniform, busiest", "2.05", uniform.map(busiest_load), 2.05),
        ("load per node c, permutation, busiest", "3.0", permutation.map(busiest_load), 3.0),
        ("busiest link in R/N, uniform", "2.05", uniform.map(busiest_link), 2.05),
        ("busiest link in R/N, permutation", "2.05", permutation.map(busiest_link), 2.05),
        ("busiest link in R/N, adversarial", "3.0", adversarial.map(busiest_link), 3.0),
        ("packets lost, daemon of another node restarted", "0", lost(rows, "daemon of"), 0.0),
        ("packets lost, another node drained and restarted", "0", lost(rows, "node 2 drained"), 0.0),
        ("packets lost, etcd killed and started", "0", lost(rows, "etcd killed"), 0.0),
        ("ms without a neighbor that moves to another node", "1000", moved, 1000.0),
        ("ms of its share lost, a node stops answering probes", "50", silent, 50.0),
    ] {
        let Some(value) = value else { continue };
        let value = Value { column: DEMO.into(), value, met: Some(value <= most) };
        match all.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.values.push(value),
            None => all.figures.push(Figure { values: vec![value], ..Figure::new(name, "", goal) }),
        }
    }
}

type Row = serde_json::Value;

/// The first row whose `key` begins with this text.
fn find<'r>(rows: &'r [Row], key: &str, begin: &str) -> Option<&'r Row> {
    rows.iter().find(|row| row[key].as_str().is_some_and(|text| text.starts_with(begin)))
}

fn busiest_load(row: &Row) -> f64 {
    largest(&numbers(&row["c"]))
}

fn mean_load(row: &Row) -> f64 {
    let all = numbers(&row["c"]);
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

fn busiest_link(row: &Row) -> f64 {
    let links = row["links"].as_array().into_iter().flatten();
    largest(&links.map(|link| largest(&numbers(link))).collect::<Vec<_>>())
}

/// Packets of other nodes that were lost during an event.
fn lost(rows: &[Row], event: &str) -> Option<f64> {
    find(rows, "event", event)?["others"]["lost"].as_f64()
}

/// A value, with a mark if it misses the goal.
fn shown(value: Option<&Value>) -> String {
    value.map_or("-".into(), |value| {
        let digits = if value.value >= 100.0 || value.value.fract() == 0.0 { 0 } else { 3 };
        format!("{:.digits$}{}", value.value, if value.met == Some(false) { " !" } else { "" })
    })
}

fn text(all: &Figures) -> String {
    let mut names: Vec<&str> = Vec::new();
    for value in all.figures.iter().flat_map(|figure| &figure.values) {
        if !names.contains(&value.column.as_str()) {
            names.push(&value.column);
        }
    }
    let fixed = [("figure", Align::Left), ("RouteBricks", Align::Right), ("goal", Align::Right)];
    let columns: Vec<_> = fixed.into_iter().chain(names.iter().map(|name| (*name, Align::Right))).collect();
    let mut table = Table::new(&columns, "");
    for figure in &all.figures {
        let or_none = |text: &str| if text.is_empty() { "-".into() } else { text.to_string() };
        let values = names.iter().map(|name| shown(figure.values.iter().find(|value| value.column == *name)));
        let head = [figure.name.into(), or_none(figure.routebricks), or_none(figure.goal)];
        table.row(head.into_iter().chain(values));
    }
    let heads = ["links", "packets", "p50 us", "p99 us", "p99.9 us"].map(|name| (name, Align::Right));
    let mut delays = Table::new(&heads, "");
    for delay in &all.delays {
        let times =
            [delay.p50_ns, delay.p99_ns, delay.p999_ns].map(|ns| format!("{:.1}", ns as f64 / 1000.0));
        delays.row([delay.links.to_string(), delay.packets.to_string()].into_iter().chain(times));
    }
    format!(
        "{table}\n!: misses the goal. Of 1,024 nodes 20 ms are simulated, in which a link carries a few packets: the load of the busiest one\nmeans little\n\ndelays over four nodes, without NICs and processors; RouteBricks: 47.6 to 66.4 us, 24 us a server\n\n{delays}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_simulate::report::Delay;

    #[test]
    fn figures_of_simulator_and_demo_are_in_one_table() {
        let value = Value { column: "64 nodes".into(), value: 2.15, met: Some(false) };
        let name = "load per node c, uniform, mean";
        let mut all = Figures {
            figures: vec![Figure { values: vec![value], ..Figure::new(name, "2", "2.05") }],
            delays: vec![Delay { links: 1, packets: 7, p50_ns: 22_500, p99_ns: 32_500, p999_ns: 40_000 }],
        };
        add_demo(
            &mut all,
            &[
                serde_json::json!({ "matrix": "uniform", "c": [2.0, 1.0], "links": [[0.0, 1.5], [1.25, 0.0]] }),
                serde_json::json!({ "event": "daemon of node 2 killed and started", "others": { "lost": 0 } }),
            ],
        );
        let expected = "\
figure                                          RouteBricks  goal  64 nodes   demo
load per node c, uniform, mean                            2  2.05   2.150 !  1.500
load per node c, uniform, busiest                         -  2.05         -      2
busiest link in R/N, uniform                              -  2.05         -  1.500
packets lost, daemon of another node restarted            -     0         -      0

!: misses the goal. Of 1,024 nodes 20 ms are simulated, in which a link carries a few packets: the load of the busiest one
means little

delays over four nodes, without NICs and processors; RouteBricks: 47.6 to 66.4 us, 24 us a server

links  packets  p50 us  p99 us  p99.9 us
    1        7    22.5    32.5      40.0
";
        assert_eq!(text(&all), expected);
    }
}
