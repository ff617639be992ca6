//! Workers, apps, links and drops.

use bm_api::Worker;

use super::{BARS, bits};
use crate::model::Model;
use crate::panel::Align::{Left, Right};
use crate::panel::{Cell, HISTORY, Panel};
use crate::sample::{Sample, app_key, app_times_key, link_key};

/// One row per worker. Busy is the share of the time that it spends on frames.
pub fn workers(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Workers",
        &[
            ("WORKER", Right),
            ("CORE", Right),
            ("STATE", Left),
            ("QUEUES", Left),
            ("RECEIVED/S", Right),
            ("BUSY", Right),
            ("BREATHS/S", Right),
            ("SLEEPS/S", Right),
            ("RESTARTS", Right),
            ("FRAMES FREE", Right),
            (HISTORY, Left),
            ("TIME BY APP", Left),
        ],
        "no workers",
    );
    for worker in &sample.workers.workers {
        let key = format!("worker/{}", worker.worker);
        let rates = model.rates_of(&key);
        let busy = rates.get("busy_ns").filter(|_| worker.busy_ns.is_some());
        panel.row([
            Cell::text(worker.worker.to_string()),
            Cell::text(worker.core.map_or("any".into(), |core| core.to_string())),
            Cell::text(if worker.alive { "running" } else { "stopped" }).bad_if(!worker.alive),
            Cell::text(worker.queues.join(" ")),
            Cell::rate(rates.get("received")),
            Cell::share(busy.map(|ns| ns / 1e9)),
            Cell::rate(rates.get("breaths")),
            Cell::rate(rates.get("sleeps")),
            Cell::count(worker.restarts).bad_above_zero(),
            Cell::count(worker.frames_free.into()).bad_if(worker.frames > 0 && worker.frames_free == 0),
            Cell::text(model.bars(&format!("{key}/moves"), BARS)),
            Cell::text(time_by_app(model, worker)),
        ]);
    }
    panel
}

/// The apps that take most of a worker's time at present, with their shares of it.
fn time_by_app(model: &Model, worker: &Worker) -> String {
    const SHOWN: usize = 3;
    let key = app_times_key(worker);
    let apps = worker.apps.iter().map(|app| app.app.as_str());
    let mut apps: Vec<_> =
        apps.map(|app| (model.rate(&format!("{key}/{app}")).unwrap_or_default(), app)).collect();
    let total: f64 = apps.iter().map(|(rate, _)| rate).sum();
    apps.retain(|(rate, _)| *rate > 0.0);
    apps.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let shown = apps.iter().take(SHOWN).map(|(rate, app)| format!("{app} {:.0} %", rate * 100.0 / total));
    shown.collect::<Vec<_>>().join(", ")
}

/// One row per reason, those that drop most at present first.
pub fn drops(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Drops",
        &[
            ("REASON", Left),
            ("FRAMES/S", Right),
            ("FRAMES", Right),
            (HISTORY, Left),
            ("WHERE", Left),
            ("MEANING", Left),
        ],
        "nothing was dropped",
    );
    let mut drops: Vec<_> =
        sample.drops.drops.iter().map(|drop| (drop_rate(model, &drop.reason), drop)).collect();
    drops.sort_by(|(a, _), (b, _)| b.unwrap_or_default().total_cmp(&a.unwrap_or_default()));
    for (rate, drop) in drops {
        let at: Vec<_> = drop.at.iter().take(2).map(|at| at.app.as_str()).collect();
        let more = if drop.at.len() > at.len() {
            format!(", {} more", drop.at.len() - at.len())
        } else {
            String::new()
        };
        panel.row([
            Cell::text(&drop.reason),
            Cell::rate(rate).bad_above_zero(),
            Cell::count(drop.frames),
            Cell::text(model.bars(&format!("drop/{}", drop.reason), BARS)),
            Cell::text(at.join(", ") + &more),
            Cell::text(&drop.meaning),
        ]);
    }
    panel
}

fn drop_rate(model: &Model, reason: &str) -> Option<f64> {
    model.rate(&format!("drop/{reason}"))
}

/// One row per app.
pub fn apps(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Apps",
        &[
            ("APP", Left),
            ("WORKER", Left),
            ("RECEIVED/S", Right),
            ("SENT/S", Right),
            ("LINUX/S", Right),
            ("DROPPED/S", Right),
            ("RECEIVED", Right),
            ("DROPPED", Right),
            ("HELD", Right),
        ],
        "no apps",
    );
    for app in &sample.apps.apps {
        let key = app_key(app);
        let rates = model.rates_of(&key);
        panel.row([
            Cell::text(&app.name),
            Cell::text(app.worker.map_or("-".into(), |worker| worker.to_string())),
            Cell::rate(rates.get("received")),
            Cell::rate(rates.get("sent")),
            Cell::rate(rates.get("host")),
            Cell::rate(rates.get("dropped")).bad_above_zero(),
            Cell::count(app.account.received),
            Cell::count(app.account.dropped),
            Cell::count(app.account.held),
        ]);
    }
    panel
}

/// One row per link between apps.
pub fn links(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Links",
        &[
            ("LINK", Left),
            ("WORKER", Right),
            ("FRAMES/S", Right),
            ("BIT/S", Right),
            ("FULL/S", Right),
            ("WAITING", Right),
            ("FRAMES", Right),
            (HISTORY, Left),
        ],
        "no links",
    );
    for link in &sample.links.links {
        let key = link_key(link);
        let rates = model.rates_of(&key);
        panel.row([
            Cell::text(&link.name),
            Cell::text(link.worker.to_string()),
            Cell::rate(rates.get("tx")),
            Cell::rate(bits(rates.get("tx_bytes"))),
            Cell::rate(rates.get("dropped")).bad_above_zero(),
            Cell::count(link.waiting),
            Cell::count(link.tx),
            Cell::text(model.bars(&format!("{key}/tx"), BARS)),
        ]);
    }
    panel
}
