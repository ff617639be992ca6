//! `brickmoon simulate` and `brickmoon plan`: options turned into those of `bm-simulate`, and its results as tables.

use bm_cli::table::{Align, Table};
use bm_simulate::plan::{Fabric, Outcome, Plans, Requirements, svg};
use bm_simulate::{Matrix, Options, Report, Shape};
use bm_vlb::Mode;

use crate::args::{Plan, Simulate};
use crate::{Failure, write};

/// Runs one simulation for each matrix and quota, or many short ones.
pub fn simulate(simulate: &Simulate) -> Result<(), Failure> {
    if let Some(seeds) = simulate.seeds {
        return many(simulate.seed, seeds, simulate.json);
    }
    let all = all_options(simulate)?;
    let mut reports = Vec::new();
    for options in &all {
        options.check().map_err(Failure::usage)?;
    }
    for options in &all {
        let start = std::time::Instant::now();
        let report = bm_simulate::simulate(options).map_err(|failed| {
            Failure::failed(format!("{} with {}: {failed}", options.matrix, options.mode))
        })?;
        let (events, seconds) = (report.events as f64 / 1e6, start.elapsed().as_secs_f64());
        // Not with the results, which a seed repeats.
        tracing::info!(
            "{} with {}: {events:.1} million events, {:.2} million a second",
            options.matrix,
            options.mode,
            events / seconds
        );
        if simulate.json {
            write(&format!("{}\n", json(&report)?))?;
        }
        reports.push(report);
    }
    if simulate.json { Ok(()) } else { write(&loads(&reports)) }
}

/// The options of each run.
fn all_options(simulate: &Simulate) -> Result<Vec<Options>, Failure> {
    let mut matrices = Vec::new();
    for name in &simulate.matrix {
        match name.as_str() {
            "all" => matrices.extend(Matrix::ALL),
            name => matrices.push(
                name.parse::<Matrix>().map_err(|why| Failure::usage(format!("--matrix: {why}, or all")))?,
            ),
        }
    }
    if matrices.is_empty() {
        matrices.push(Matrix::Uniform);
    }
    let default = [Mode::default()];
    let modes = if simulate.quota.is_empty() { &default[..] } else { &simulate.quota };
    let shape = simulate.fly.map_or(Shape::Mesh(simulate.nodes), |(k, n)| Shape::Fly { k, n });
    let too_much = |option| Failure::usage(format!("{option} is too large"));
    let options = Options {
        shape,
        input_bps: simulate.rate.checked_mul(1_000_000).ok_or_else(|| too_much("--rate"))?,
        link_percent: simulate.link.min(100_000),
        load_percent: simulate.load,
        delta_ns: simulate
            .delta
            .map(|us| us.checked_mul(1000).ok_or_else(|| too_much("--delta")))
            .transpose()?,
        burst_bytes: simulate.burst,
        time_ns: simulate
            .time
            .checked_mul(1_000_000)
            .filter(|ns| *ns < 1 << 42)
            .ok_or_else(|| too_much("--time"))?,
        faults: simulate.faults,
        seed: simulate.seed,
        ..Options::default()
    };
    let mut all = Vec::new();
    for matrix in matrices {
        all.extend(modes.iter().map(|&mode| Options { matrix, mode, ..options }));
    }
    Ok(all)
}

/// Short runs of random clusters.
fn many(first: u64, seeds: u64, as_json: bool) -> Result<(), Failure> {
    let (mut packets, mut lost) = (0, 0);
    for seed in first..first.saturating_add(seeds) {
        let options = Options::of_seed(seed);
        let report = bm_simulate::simulate(&options).map_err(|failed| {
            Failure::failed(format!(
                "{failed}\n{options:?}\nrepeat it: brickmoon simulate --seeds 1 --seed {seed}"
            ))
        })?;
        packets += report.offered;
        lost += report.offered - report.delivered;
        if as_json {
            write(&format!("{}\n", json(&report)?))?;
        }
    }
    if as_json {
        return Ok(());
    }
    write(&format!("{seeds} runs passed: {packets} packets, {lost} lost, each for a known reason\n"))
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(Failure::failed)
}

/// Loads, losses and order of each run, and its delays.
fn loads(reports: &[Report]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("matrix", Left),
        ("quota", Left),
        ("offered", Right),
        ("served %", Right),
        ("c mean", Right),
        ("c max", Right),
        ("busiest link", Right),
        ("direct %", Right),
        ("reordered %", Right),
        ("split %", Right),
        ("fairness", Right),
        ("lost", Left),
    ];
    let mut table = Table::new(&columns, "");
    for report in reports {
        table.row([
            report.matrix.clone(),
            report.quota.clone(),
            report.offered.to_string(),
            format!("{:.3}", report.served_percent),
            format!("{:.2}", report.c_mean),
            format!("{:.2}", report.c),
            format!("{:.2}", report.busiest_link),
            format!("{:.1}", report.direct_percent),
            format!("{:.3}", report.reordered_percent),
            format!("{:.2}", report.splits_percent),
            format!("{:.4}", report.fairness),
            lost(report),
        ]);
    }
    let mut text = table.to_string();
    let Some(report) = reports.first().filter(|_| reports.len() == 1) else { return text };
    let mut delays = Table::new(
        &[("links", Right), ("packets", Right), ("p50 us", Right), ("p99 us", Right), ("p99.9 us", Right)],
        "",
    );
    for delay in &report.delays {
        let times =
            [delay.p50_ns, delay.p99_ns, delay.p999_ns].map(|ns| format!("{:.1}", ns as f64 / 1000.0));
        delays.row([delay.links.to_string(), delay.packets.to_string()].into_iter().chain(times));
    }
    text += &format!("\n{delays}");
    text
}

/// Lost packets by reason, those that there are.
fn lost(report: &Report) -> String {
    let lost = &report.lost;
    let reasons = [
        ("output full", lost.output_full),
        ("link full", lost.link_full),
        ("unreachable", lost.unreachable),
        ("failed", lost.failed),
        ("epoch", lost.epoch),
    ];
    let some: Vec<_> =
        reasons.iter().filter(|(_, count)| *count > 0).map(|(why, count)| format!("{count} {why}")).collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}

/// Plans a cluster.
pub fn plan(plan: &Plan) -> Result<(), Failure> {
    let file = plan.file.display();
    let text = std::fs::read_to_string(&plan.file).map_err(|why| Failure::usage(format!("{file}: {why}")))?;
    let mut wanted = Requirements::parse(&text).map_err(|why| Failure::usage(format!("{file}: {why}")))?;
    if let Some(ports) = plan.ports {
        wanted.ports = ports;
        wanted.check().map_err(Failure::usage)?;
    }
    let plans = wanted.plan();
    if let Some(svg_file) = &plan.svg {
        std::fs::write(svg_file, svg::draw(&plans))
            .map_err(|why| Failure::failed(format!("{}: {why}", svg_file.display())))?;
    }
    write(&if plan.json { format!("{}\n", json(&plans)?) } else { text_of(&plans) })?;
    if plans.plans.iter().any(|plan| matches!(plan.outcome, Outcome::Built(_))) {
        return Ok(());
    }
    Err(Failure::failed("none of the server types can carry this"))
}

fn text_of(plans: &Plans) -> String {
    use Align::{Left, Right};
    let columns = [
        ("servers", Left),
        ("topology", Left),
        ("count", Right),
        ("relays", Right),
        ("cables", Right),
        ("link Gbit/s", Right),
        ("load usual", Right),
        ("load worst", Right),
        ("R/N", Right),
        ("2R/N", Right),
        ("c", Right),
        ("price", Right),
        ("power W", Right),
        ("largest mesh", Right),
    ];
    let mut table = Table::new(&columns, "");
    let mut impossible = String::new();
    for plan in &plans.plans {
        let mesh = plan.mesh_ports_max.to_string();
        match &plan.outcome {
            Outcome::Built(fabric) => table.row(built(&plan.server, fabric, mesh)),
            Outcome::Impossible(why) => impossible += &format!("{}: impossible: {why}\n", plan.server),
        }
    }
    let mut text = format!("{} ports of {} Gbit/s\n\n{table}{impossible}", plans.ports, plans.rate_gbps);
    if let Some(switched) = &plans.switched {
        text += &match &switched.impossible {
            Some(why) => format!("\nswitches between the servers: impossible: {why}\n"),
            None => format!(
                "\nswitches between the servers: {} (switches: {}, ports used: {}), price {:.0}, {:.0} W without servers\n",
                switched.topology, switched.switches, switched.ports_used, switched.price, switched.power_w
            ),
        };
    }
    text
}

fn built(server: &str, fabric: &Fabric, mesh: String) -> Vec<String> {
    let number = |value: f64| format!("{value:.2}");
    vec![
        server.into(),
        fabric.topology.clone(),
        fabric.servers.to_string(),
        fabric.relays.to_string(),
        fabric.cables.to_string(),
        number(fabric.link_gbps),
        number(fabric.load_usual_gbps),
        number(fabric.load_worst_gbps),
        number(fabric.load_one_share),
        number(fabric.load_two_shares),
        format!("{} to {}", fabric.c[0], fabric.c[1]),
        format!("{:.0}", fabric.price),
        format!("{:.0}", fabric.power_w),
        mesh,
    ]
}
