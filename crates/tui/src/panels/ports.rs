//! Ports with their rates, and what they left to Linux.

use bm_api::{Port, PortState};

use super::{BARS, bits};
use crate::model::Model;
use crate::panel::Align::{Left, Right};
use crate::panel::{Cell, HISTORY, Panel};
use crate::sample::Sample;

/// One row per port.
pub fn ports(model: &Model, sample: &Sample) -> Panel {
    let mut panel = Panel::new(
        "Ports",
        &[
            ("PORT", Left),
            ("STATE", Left),
            ("PATH", Left),
            ("RECEIVED/S", Right),
            ("RECEIVED BIT/S", Right),
            ("SENT/S", Right),
            ("SENT BIT/S", Right),
            ("DROPPED/S", Right),
            ("LINUX/S", Right),
            ("LOST/S", Right),
            (HISTORY, Left),
        ],
        "no ports",
    );
    for port in &sample.ports.ports {
        let rates = model.rates_of(&format!("port/{}", port.name));
        let state = state(port);
        panel.row([
            Cell::text(&port.name),
            Cell::text(state).bad_if(state != "up"),
            Cell::text(path(port)),
            Cell::rate(rates.get("received")),
            Cell::rate(bits(rates.get("received_bytes"))),
            Cell::rate(rates.get("sent")),
            Cell::rate(bits(rates.get("sent_bytes"))),
            Cell::rate(rates.get("dropped")).bad_above_zero(),
            Cell::rate(rates.get("to_linux")),
            Cell::rate(rates.get("lost")).bad_above_zero(),
            Cell::text(model.bars(&format!("port/{}/received", port.name), BARS)),
        ]);
    }
    panel
}

/// Frames that ports left to Linux, by reason, since the start.
pub fn left_to_linux(sample: &Sample) -> Panel {
    let mut panel =
        Panel::new("Left to Linux", &[("PORT", Left), ("REASON", Left), ("FRAMES", Right)], "nothing");
    for port in &sample.ports.ports {
        let reasons = port.kernel_counters.iter();
        let reasons = reasons.filter_map(|(name, frames)| Some((name.strip_prefix("linux_")?, *frames)));
        for (reason, frames) in reasons.filter(|(_, frames)| *frames > 0) {
            panel.row([Cell::text(&port.name), Cell::text(reason.replace('_', " ")), Cell::count(frames)]);
        }
    }
    panel
}

fn state(port: &Port) -> &'static str {
    match (port.state, port.up, port.active) {
        (PortState::Missing, ..) => "missing",
        (PortState::Refused, ..) => "refused",
        (PortState::Attached, true, true) => "up",
        (PortState::Attached, true, false) => "up, left to Linux",
        (PortState::Attached, false, _) => "down",
    }
}

fn path(port: &Port) -> String {
    match port.attach.as_deref() {
        Some("tc") => format!("{}, tc", port.path),
        _ => port.path.clone(),
    }
}
