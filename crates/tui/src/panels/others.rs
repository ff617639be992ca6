//! Flows, hooks, switches, IPsec and the cluster.

use super::bits;
use crate::model::Model;
use crate::panel::Align::{Left, Right};
use crate::panel::{Cell, Panel};
use crate::sample::{Sample, sa_key};

/// The table of flows (docs/flows.md) in one row.
pub(crate) fn flow_table(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Flows",
        &[
            ("FLOWS", Right),
            ("MAX", Right),
            ("LEARNED/S", Right),
            ("ENDED/S", Right),
            ("NOT LEARNED/S", Right),
            ("NO ROOM/S", Right),
            ("USE", Left),
        ],
        "no table of flows",
    );
    let flows = &sample.status.flows;
    let rates = model.rates_of("flows");
    let in_use = match &flows.why_not {
        Some(why) => format!("not in use: {why}"),
        None => format!("in use for {}", flows.families.join(" and ")),
    };
    panel.row([
        Cell::count(flows.flows),
        Cell::count(flows.max),
        Cell::rate(rates.get("learned")),
        Cell::rate(rates.get("ended")),
        Cell::rate(rates.get("not_learned")),
        Cell::rate(rates.get("full")).bad_above_zero(),
        Cell::text(in_use),
    ]);
    panel
}

/// One row for each reason why flows have ended, or why none was made of a packet.
pub(crate) fn flow_ends(model: &Model, sample: &Sample) -> Panel {
    let columns = &[("EVENT", Left), ("REASON", Left), ("/S", Right), ("FLOWS", Right)];
    let mut panel = Panel::new("Ended and not learned", columns, "nothing yet");
    let flows = &sample.status.flows;
    let ended = flows.ended.iter().map(|counter| ("ended", counter));
    let not_learned = flows.not_learned.iter().map(|counter| ("not learned", counter));
    for (event, (reason, count)) in ended.chain(not_learned).filter(|(_, (_, count))| **count > 0) {
        let rate = model.rate(&format!("flows/{event}/{reason}"));
        panel.row([Cell::text(event), Cell::text(reason), Cell::rate(rate), Cell::count(*count)]);
    }
    panel
}

/// One row per hook.
pub fn hooks(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Hooks",
        &[
            ("HOOK", Left),
            ("STAGES", Left),
            ("STATE", Left),
            ("FRAMES/S", Right),
            ("DROPPED/S", Right),
            ("CYCLES/FRAME", Right),
            ("ERRORS", Right),
            ("EJECTED", Right),
            ("HUNG", Right),
            ("LAST ERROR", Left),
        ],
        "no hooks",
    );
    for hook in &sample.hooks.hooks {
        let rates = model.rates_of(&format!("hook/{}", hook.name));
        let error = hook.last_error.as_deref().and_then(|error| error.lines().next());
        panel.row([
            Cell::text(&hook.name),
            Cell::text(hook.stages.join(",")),
            Cell::text(&hook.state).bad_if(hook.state != "active"),
            Cell::rate(rates.get("frames")),
            Cell::rate(rates.get("dropped")),
            Cell::rate(Some(hook.cycles_per_frame)),
            Cell::count(hook.errors).bad_above_zero(),
            Cell::count(hook.ejections).bad_above_zero(),
            Cell::count(hook.hangs).bad_above_zero(),
            Cell::text(error.unwrap_or_default()),
        ]);
    }
    panel
}

/// One row per port of a switch.
pub fn switches(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Switches",
        &[
            ("SWITCH", Left),
            ("PORT", Left),
            ("STATE", Left),
            ("VLANS", Left),
            ("RECEIVED/S", Right),
            ("SENT/S", Right),
            ("SENT BIT/S", Right),
            ("DROPPED/S", Right),
        ],
        "no ports of switches",
    );
    for switch in &sample.switches.switches {
        for port in &switch.ports {
            let rates = model.rates_of(&format!("switch/{}/{}", switch.name, port.name));
            panel.row([
                Cell::text(&switch.name),
                Cell::text(&port.name),
                Cell::text(if port.up { "up" } else { "down" }).bad_if(!port.up),
                Cell::text(&port.vlans),
                Cell::rate(rates.get("received")),
                Cell::rate(rates.get("sent")),
                Cell::rate(bits(rates.get("sent_bytes"))),
                Cell::rate(rates.get("dropped")).bad_above_zero(),
            ]);
        }
    }
    panel
}

/// One row per security association.
pub fn sas(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "IPsec SAs",
        &[
            ("SA", Left),
            ("DIRECTION", Left),
            ("STATE", Left),
            ("PACKETS/S", Right),
            ("BIT/S", Right),
            ("FAILURES/S", Right),
            ("PACKETS", Right),
            ("SPI", Right),
            ("SUITE", Left),
            ("WORKER", Right),
        ],
        "no SAs",
    );
    for sa in &sample.sas.sas {
        let key = sa_key(sa);
        let rates = model.rates_of(&key);
        panel.row([
            Cell::text(&sa.name),
            Cell::text(&sa.direction),
            Cell::text(&sa.state).bad_if(sa.state != "valid"),
            Cell::rate(rates.get("packets")),
            Cell::rate(bits(rates.get("bytes"))),
            Cell::rate(rates.get("failures")).bad_above_zero(),
            Cell::count(sa.packets),
            Cell::text(format!("{:#x}", sa.spi)),
            Cell::text(&sa.suite),
            Cell::text(sa.worker.to_string()),
        ]);
    }
    panel
}

/// One row per link to another node.
pub fn fabric(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Fabric links",
        &[
            ("LINK", Left),
            ("NODE", Left),
            ("STATE", Left),
            ("RECEIVED/S", Right),
            ("SENT/S", Right),
            ("SENT BIT/S", Right),
            ("DROPPED/S", Right),
            ("ROUND TRIP US", Right),
            ("FAILURES", Right),
            ("TROUBLE", Left),
        ],
        "no links to other nodes",
    );
    for link in &sample.cluster.links {
        let rates = model.rates_of(&format!("fabric/{}", link.device));
        let state = if link.drained { format!("{}, drained", link.state) } else { link.state.clone() };
        panel.row([
            Cell::text(&link.device),
            Cell::text(&link.peer),
            Cell::text(state).bad_if(link.state != "up"),
            Cell::rate(rates.get("received")),
            Cell::rate(rates.get("sent")),
            Cell::rate(bits(rates.get("sent_bytes"))),
            Cell::rate(rates.get("dropped")).bad_above_zero(),
            Cell::rate(link.round_trip_us.map(|us| us as f64)),
            Cell::count(link.failures),
            Cell::text(link.trouble.clone().unwrap_or_default()),
        ]);
    }
    panel
}
