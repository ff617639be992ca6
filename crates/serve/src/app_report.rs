//! Converts the reports of Lua workers to API replies: their apps, links and drops, and what LuaJIT did.

use std::time::Duration;

use bm_api::{Account, App, Drop, DropAt, Drops, Link, Lua};
use bm_lua::{AppReport, JitReport, LinkReport, Report};
use bm_stats::Scope;

use crate::report::Counters;

/// Name of the one app in which workers run all Lua apps.
pub const PART: &str = "lua";
/// How long a worker may take to report on its apps; it sleeps for at most a tenth of a second.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// The apps of a worker.
pub fn apps_of(report: &Report) -> impl Iterator<Item = App> {
    report.apps.iter().map(|app| {
        let AppReport { name, received, originated, sent, held, consumed, dropped } = app.clone();
        let drops = (dropped > 0).then(|| (bm_stats::Reason::LinkFull.name().to_string(), dropped));
        let drops = drops.into_iter().collect();
        let account =
            Account { received, originated, sent, held, consumed, dropped, drops, ..Account::default() };
        App { name, worker: Some(report.worker as u32), account }
    })
}

/// The links of a worker.
pub fn links_of(report: &Report) -> impl Iterator<Item = Link> {
    report.links.iter().map(|link| {
        let LinkReport { name, txpackets, txbytes, rxpackets, rxbytes, txdrop } = link.clone();
        Link {
            name,
            worker: report.worker as u32,
            tx: txpackets,
            tx_bytes: txbytes,
            rx: rxpackets,
            rx_bytes: rxbytes,
            dropped: txdrop,
            waiting: txpackets.saturating_sub(rxpackets),
        }
    })
}

/// What LuaJIT did, for `show workers`.
pub fn lua_of(jit: JitReport) -> Lua {
    let JitReport { traces, aborts, flushes, code_bytes, heap_bytes } = jit;
    Lua { traces, aborts, flushes, code_bytes, heap_bytes }
}

/// Replaces the links to and from [`PART`] by the links of the Lua apps.
pub fn add_links(reports: &[Report], links: &mut Vec<Link>) {
    let (from_part, to_part) = (format!("{PART}."), format!("-> {PART}."));
    links.retain(|link| !link.name.starts_with(&from_part) && !link.name.contains(&to_part));
    links.extend(reports.iter().flat_map(links_of));
    links.sort_by(|one, two| (one.worker, &one.name).cmp(&(two.worker, &two.name)));
}

/// Adds the frames that apps dropped because links were full.
pub fn add_drops(reports: &[Report], drops: &mut Drops) {
    let reason = bm_stats::Reason::LinkFull;
    let at = reports.iter().flat_map(|report| &report.apps).filter(|app| app.dropped > 0);
    let at: Vec<_> = at.map(|app| DropAt { app: format!("app {}", app.name), frames: app.dropped }).collect();
    let frames: u64 = at.iter().map(|at| at.frames).sum();
    if frames == 0 {
        return;
    }
    drops.total += frames;
    match drops.drops.iter_mut().find(|drop| drop.reason == reason.name()) {
        Some(drop) => {
            drop.frames += frames;
            drop.at.extend(at);
        }
        None => {
            let (reason, meaning) = (reason.name().into(), reason.meaning().into());
            drops.drops.push(Drop { reason, meaning, frames, at });
        }
    }
    drops.drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
}

/// What LuaJIT did on a worker, for hooks (whose counters are passed) and apps together; `None` without either.
pub fn lua_of_worker(worker: usize, counters: &Counters, reports: &[Report]) -> Option<Lua> {
    let mut sum: Option<Lua> = None;
    for report in reports.iter().filter(|report| report.worker == worker) {
        *sum.get_or_insert_default() += lua_of(report.jit);
    }
    for (name, &value) in counters {
        let (Scope::Hook { worker: Some(of), .. }, name) = Scope::parse(name) else { continue };
        let Some(what) = name.strip_prefix("jit/").filter(|_| of == worker) else { continue };
        let sum = sum.get_or_insert_default();
        match what {
            "traces" => sum.traces += value,
            "aborts" => sum.aborts += value,
            "flushes" => sum.flushes += value,
            "code_bytes" => sum.code_bytes += value,
            _ => sum.heap_bytes += value,
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_apps_that_stand_for_all_apps() {
        let named = |name: &str| Link { name: name.into(), ..Link::default() };
        let names = [
            "eth0.output -> lua.eth0:output",
            "lua.router:eth0 -> router.eth0",
            "router.eth0 -> eth0.router",
        ];
        let mut links: Vec<_> = names.map(named).into();
        let own = LinkReport {
            name: "eth0.output -> guard.input".into(),
            txpackets: 3,
            rxpackets: 1,
            ..LinkReport::default()
        };
        let app = AppReport { name: "guard".into(), received: 1, consumed: 1, ..AppReport::default() };
        let report = Report { apps: vec![app], links: vec![own], ..Report::default() };
        let apps: Vec<_> = apps_of(&report).collect();
        add_links(&[report], &mut links);
        let left: Vec<_> = links.iter().map(|link| (link.name.as_str(), link.waiting)).collect();
        assert_eq!(left, [("eth0.output -> guard.input", 2), ("router.eth0 -> eth0.router", 0)]);
        assert_eq!((apps[0].name.as_str(), apps[0].worker), ("guard", Some(0)));
    }
}
