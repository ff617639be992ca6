//! The commands: turns options into those of `bm-eval`, and prints its results.

use bm_eval::demo::cluster::{ClusterDemoOptions, Shape};
use bm_eval::demo::{DemoError, DemoOptions};

use crate::args::{
    Bench, BenchCommand, ClusterArgs, ClusterCommand, ClusterDemo, Command, Demo, DemoTopology,
};
use crate::{Failure, cluster, figures, say, write};

/// Runs a command.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(bench) => self::bench(&bench),
        Command::Demo(demo) => self::demo(demo),
        Command::Cluster(ClusterArgs { what: ClusterCommand::Demo(demo) }) => cluster_demo(&demo),
        Command::Simulate(simulate) => cluster::simulate(&simulate),
        Command::Plan(plan) => cluster::plan(&plan),
    }
}

/// The exit status of a bench error: wrong usage or failure.
fn usage_or_failure(error: bm_eval::bench::BenchError) -> Failure {
    use bm_eval::bench::BenchError::{NoCase, NoStructure, UnusedRib};
    match error {
        NoCase { .. } | NoStructure { .. } | UnusedRib { .. } => Failure::usage(error),
        other => Failure::failed(other),
    }
}

/// The benches that use a routing table.
const WITH_ROUTES: [BenchCommand; 6] = [
    BenchCommand::Lookup,
    BenchCommand::Forward,
    BenchCommand::Batch,
    BenchCommand::Workers,
    BenchCommand::Ports,
    BenchCommand::Kernel,
];

/// Rejects options that have no effect on the bench.
fn check_options(bench: &Bench) -> Result<(), Failure> {
    let options = [
        ("--rib", !bench.rib.is_empty(), &WITH_ROUTES[..], "lookup|forward|batch|workers|ports|kernel"),
        ("--peers", bench.peers, &[BenchCommand::Lookup], "lookup"),
        ("--structure", bench.structure.is_some(), &[BenchCommand::Lookup], "lookup"),
        ("--sizes", !bench.sizes.is_empty(), &[BenchCommand::Forward, BenchCommand::Ports], "forward|ports"),
        ("--soak", bench.soak.is_some(), &[BenchCommand::Lua], "lua"),
        ("--demo", bench.demo, &[BenchCommand::Cluster], "cluster"),
    ];
    match options.into_iter().find(|(_, given, whats, _)| *given && !whats.contains(&bench.what)) {
        Some((option, _, _, names)) => {
            Err(Failure::usage(format!("{option} is only for `brickmoon bench {names}`")))
        }
        None if bench.what == BenchCommand::Cluster
            && (bench.seconds != 0 || bench.case.is_some() || bench.plot.is_some()) =>
        {
            Err(Failure::usage("`brickmoon bench cluster` has only --json and --demo"))
        }
        None if bench.soak.is_some() && bench.plot.is_some() => {
            Err(Failure::usage("--soak cannot draw a chart: remove --plot"))
        }
        None if bench.soak.is_some() && bench.seconds != 0 => {
            Err(Failure::usage("--soak already sets the duration: remove --seconds"))
        }
        None => Ok(()),
    }
}

/// Runs a benchmark; the results of all cases are printed at the end.
fn bench(bench: &Bench) -> Result<(), Failure> {
    use bm_eval::bench;
    check_options(bench)?;
    if bench.what == BenchCommand::Cluster {
        return figures::run(bench);
    }
    let common = bench::Options {
        rib: bench.rib.clone(),
        seconds: bench.seconds,
        case: bench.case.clone(),
        sizes: bench.sizes.concat(),
    };
    let structure = bench.structure.clone().filter(|name| name != "all");
    if let Some(time) = bench.soak {
        return soak(bench, &common, time);
    }
    let (title, rows) = match bench.what {
        BenchCommand::Lookup => {
            let options = bench::LookupOptions { common, structure, peers: bench.peers };
            let found = bench::lookup(&options).map_err(usage_or_failure)?;
            found.notes.iter().for_each(|note| say(note));
            ("brickmoon bench lookup", found.rows)
        }
        BenchCommand::Batch => {
            let rows = bench::batch(&common).map_err(usage_or_failure)?;
            ("brickmoon bench batch", rows)
        }
        BenchCommand::Forward => {
            ("brickmoon bench forward", bench::forward(&common).map_err(usage_or_failure)?)
        }
        BenchCommand::Workers => {
            let found = bench::workers(&common).map_err(usage_or_failure)?;
            found.notes.iter().for_each(|note| say(note));
            ("brickmoon bench workers", found.rows)
        }
        BenchCommand::Ports => {
            let found = bench::ports(&common).map_err(usage_or_failure)?;
            found.notes.iter().for_each(|note| say(note));
            ("brickmoon bench ports", found.rows)
        }
        BenchCommand::Lua => ("brickmoon bench lua", bench::lua(&common).map_err(usage_or_failure)?),
        BenchCommand::Ipsec => ("brickmoon bench ipsec", bench::ipsec(&common).map_err(usage_or_failure)?),
        BenchCommand::Kernel => {
            let options = bench::KernelOptions::new(common);
            ("brickmoon bench kernel", bench::kernel(&options).map_err(usage_or_failure)?)
        }
        // Has been run above: its figures are no measurements of time.
        BenchCommand::Cluster => return Ok(()),
        BenchCommand::Loss => {
            let options = bench::LossOptions::new(common);
            ("brickmoon bench loss", bench::loss(&options).map_err(usage_or_failure)?)
        }
    };
    if let Some(file) = &bench.plot {
        bench::plot(title, &rows, file).map_err(Failure::failed)?;
    }
    write(&bench::text(&rows, bench.json))
}

/// Runs a long benchmark; with `--json` the results of each minute are printed at its end.
fn soak(bench: &Bench, options: &bm_eval::bench::Options, time: std::time::Duration) -> Result<(), Failure> {
    use bm_eval::bench;
    let json = bench.json;
    let mut written = Ok(());
    let minutes = bench::soak(options, time, |minutes: &[bench::Minute]| {
        let rows: Vec<_> = minutes.iter().flat_map(bench::Minute::rows).collect();
        if json && written.is_ok() {
            written = write(&bench::text(&rows, true));
        }
    });
    let minutes = minutes.map_err(usage_or_failure)?;
    written?;
    if json { Ok(()) } else { write(&bench::soak_table(&minutes)) }
}

fn demo(demo: Demo) -> Result<(), Failure> {
    let Demo { rib, routes, seconds, json } = demo;
    let options = DemoOptions { rib, routes, seconds, json, ..DemoOptions::default() };
    ended(bm_eval::demo::run(&options, &mut std::io::stdout()))
}

fn cluster_demo(demo: &ClusterDemo) -> Result<(), Failure> {
    let shape = match demo.topology {
        DemoTopology::Mesh => Shape::Mesh,
        DemoTopology::Fly => Shape::Fly,
    };
    let options = ClusterDemoOptions {
        shape,
        rate: demo.rate.unwrap_or(shape.rate()),
        seconds: demo.seconds,
        json: demo.json,
        ..ClusterDemoOptions::default()
    };
    ended(bm_eval::demo::cluster::run(&options, &mut std::io::stdout()))
}

fn ended(told: Result<(), DemoError>) -> Result<(), Failure> {
    match told {
        // As in `write`: nobody reads the rest.
        Err(DemoError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(Failure::failed),
    }
}
