//! `brickmoon cluster relay`, which needs no daemon.

use std::collections::BTreeMap;

use bm_cli::Failure;
use bm_cli::{
    Align::{Left, Right},
    Table,
};
use bm_cluster::{RELAY_COUNTERS, RelayCounts, RelaySettings, relay_counts, start_relay, stop_relay};
use bm_vlb::address::Node;

use crate::args::RelayCommand;
use crate::output::write;

/// Starts, shows or stops the relay of this network namespace.
pub fn run(command: RelayCommand) -> Result<(), Failure> {
    match command {
        RelayCommand::Up(up) => {
            let own = up
                .own
                .map(|number| Node::new(number).ok_or_else(|| Failure::Usage("--own: at most 2046".into())));
            let own = own.transpose()?;
            let settings = RelaySettings { links: up.links, own, ends: up.ends };
            if let Some(problem) = settings.problem() {
                return Err(Failure::Usage(problem));
            }
            start_relay(&settings).map_err(Failure::failed)
        }
        RelayCommand::Show { json } => {
            let counts = relay_counts().map_err(Failure::failed)?;
            write(&if json { as_json(&counts)? } else { as_text(&counts) })
        }
        RelayCommand::Stop => match stop_relay().map_err(Failure::failed)? {
            0 => Err(Failure::failed("this server is not a relay: there is nothing to stop")),
            _ => Ok(()),
        },
    }
}

fn as_json(counts: &[RelayCounts]) -> Result<String, Failure> {
    let all: BTreeMap<_, BTreeMap<_, _>> =
        counts.iter().map(|counts| (&counts.device, counts.named().collect())).collect();
    Ok(serde_json::to_string(&all).map_err(Failure::failed)? + "\n")
}

fn as_text(counts: &[RelayCounts]) -> String {
    let head = RELAY_COUNTERS.map(|name| name.replace('_', " ").to_uppercase());
    let columns: Vec<_> =
        std::iter::once(("FROM", Left)).chain(head.iter().map(|name| (name.as_str(), Right))).collect();
    let mut table = Table::new(&columns, "this is not a relay: `brickmoon cluster relay up` makes it one");
    for counts in counts {
        let numbers = counts.named().map(|(_, count)| bm_cli::count(count));
        table.row(std::iter::once(counts.device.clone()).chain(numbers));
    }
    table.to_string()
}
