//! The tables of the views, made of the latest sample and its rates.

mod flows;
mod others;
mod ports;

pub use flows::{apps, drops, links, workers};
pub use others::{fabric, hooks, sas, switches};
pub(crate) use others::{flow_ends, flow_table};
pub use ports::{left_to_linux, ports};

use crate::model::Model;
use crate::panel::{Align, Cell, Panel};
use crate::sample::Sample;

/// How many bars a history has.
const BARS: usize = 30;

/// What is most important of everything.
pub fn overview(model: &Model, sample: &Sample) -> Vec<Panel> {
    let is_program = sample.status.path == "lua";
    let mut panels = match is_program {
        true => vec![links(model, sample)],
        false => vec![ports(model, sample)],
    };
    if !sample.workers.workers.is_empty() {
        panels.push(workers(model, sample));
    }
    if sample.status.flows.max > 0 {
        panels.push(flow_table(model, sample));
    }
    panels.push(drops(model, sample));
    if !sample.status.notes.is_empty() {
        panels.push(notes(sample));
    }
    panels
}

/// Remarks of `brickmoon status`.
fn notes(sample: &Sample) -> Panel {
    let mut panel = Panel::new("Notes", &[("NOTE", Align::Left)], "");
    sample.status.notes.iter().for_each(|note| panel.row([Cell::text(note)]));
    panel
}

/// Eight times a rate of bytes.
fn bits(rate: Option<f64>) -> Option<f64> {
    rate.map(|bytes| bytes * 8.0)
}

#[cfg(test)]
mod tests;
