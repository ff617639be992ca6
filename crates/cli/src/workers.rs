//! `brickmoon show workers`, `show apps` and `show links`.

use bm_api::{Apps, Links, Workers};

use crate::number::{bytes, count};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per worker.
pub fn workers(reply: &Workers) -> String {
    let columns = [
        ("WORKER", Right),
        ("CORE", Right),
        ("STATE", Left),
        ("PRIORITY", Left),
        ("QUEUES", Left),
        ("BREATHS", Right),
        ("MOVES", Right),
        ("SLEEPS", Right),
        ("RESTARTS", Right),
        ("FRAMES FREE", Right),
    ];
    let mut table = Table::new(&columns, "no workers");
    for worker in &reply.workers {
        table.row([
            worker.worker.to_string(),
            worker.core.map_or("any".into(), |core| core.to_string()),
            if worker.alive { "running" } else { "stopped" }.into(),
            if worker.priority > 0 { format!("real-time {}", worker.priority) } else { "normal".into() },
            worker.queues.join(" "),
            count(worker.breaths),
            count(worker.moves),
            count(worker.sleeps),
            count(worker.restarts),
            format!("{} of {}", count(u64::from(worker.frames_free)), count(u64::from(worker.frames))),
        ]);
    }
    table.to_string() + &times(reply) + &lua(reply)
}

/// The time that each worker spent on frames, by app, the most first; empty without any.
fn times(reply: &Workers) -> String {
    let columns = [("WORKER", Right), ("APP", Left), ("TIME", Right), ("SHARE", Right)];
    let mut table = Table::new(&columns, "");
    let mut any = false;
    for worker in &reply.workers {
        let total: u64 = worker.apps.iter().map(|app| app.ns).sum();
        let mut apps: Vec<_> = worker.apps.iter().filter(|app| app.ns > 0).collect();
        apps.sort_by_key(|app| std::cmp::Reverse(app.ns));
        for app in apps {
            any = true;
            let share = app.ns as f64 * 100.0 / total as f64;
            let time = format!("{:.3} s", app.ns as f64 / 1e9);
            table.row([worker.worker.to_string(), app.app.clone(), time, format!("{share:.1} %")]);
        }
    }
    if any { format!("\nTime by app:\n{table}") } else { String::new() }
}

/// Figures of LuaJIT, one line per worker; empty without Lua.
fn lua(reply: &Workers) -> String {
    let columns = [
        ("WORKER", Right),
        ("TRACES", Right),
        ("ABORTS", Right),
        ("FLUSHES", Right),
        ("CODE", Right),
        ("HEAP", Right),
    ];
    let mut table = Table::new(&columns, "");
    let of_workers = reply.workers.iter().filter_map(|worker| Some((worker.worker, worker.lua?)));
    let lines: Vec<_> = of_workers.collect();
    for (worker, lua) in &lines {
        table.row([
            worker.to_string(),
            count(lua.traces),
            count(lua.aborts),
            count(lua.flushes),
            bytes(lua.code_bytes),
            bytes(lua.heap_bytes),
        ]);
    }
    if lines.is_empty() { String::new() } else { format!("\nLua:\n{table}") }
}

/// One line per app, with its account.
pub fn apps(reply: &Apps) -> String {
    let columns = [
        ("APP", Left),
        ("WORKER", Left),
        ("RECEIVED", Right),
        ("ORIGINATED", Right),
        ("SENT", Right),
        ("HOST", Right),
        ("PASSED", Right),
        ("HELD", Right),
        ("CONSUMED", Right),
        ("DROPPED", Right),
    ];
    let mut table = Table::new(&columns, "no apps");
    for app in &reply.apps {
        let account = &app.account;
        let entries = [
            account.received,
            account.originated,
            account.sent,
            account.host,
            account.passed,
            account.held,
            account.consumed,
            account.dropped,
        ];
        let nobody = match app.name.split(' ').next() {
            Some(first) if first == "slow" || first.starts_with("return/") => "slow path",
            Some("kernel" | "switch") => "kernel",
            _ => "all",
        };
        let worker = app.worker.map_or(nobody.into(), |worker| worker.to_string());
        table.row([app.name.clone(), worker].into_iter().chain(entries.map(count)));
    }
    table.to_string()
}

/// One line per link.
pub fn links(reply: &Links) -> String {
    let columns = [
        ("LINK", Left),
        ("WORKER", Right),
        ("TX", Right),
        ("BYTES", Right),
        ("RX", Right),
        ("FULL", Right),
        ("WAITING", Right),
    ];
    let mut table = Table::new(&columns, "no links");
    for link in &reply.links {
        table.row([
            link.name.clone(),
            link.worker.to_string(),
            count(link.tx),
            bytes(link.tx_bytes),
            count(link.rx),
            count(link.dropped),
            count(link.waiting),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{AppTime, Worker};

    #[test]
    fn the_time_of_workers_is_listed_by_app() {
        let apps = [("r0", 1_000_000), ("router", 2_999_000_000), ("slow", 0)];
        let apps = apps.map(|(app, ns)| AppTime { app: app.into(), ns }).to_vec();
        let idle = Worker { worker: 1, ..Worker::default() };
        let reply = Workers { workers: vec![Worker { apps, ..Worker::default() }, idle] };
        assert_eq!(
            times(&reply),
            "\nTime by app:\n\
             WORKER  APP        TIME    SHARE\n     0  router  2.999 s  100.0 %\n     0  r0      0.001 s    0.0 %\n"
        );
        assert_eq!(times(&Workers::default()), "");
    }
}
