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
    table.to_string() + &lua(reply)
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
