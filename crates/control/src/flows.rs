//! Learns flows: what Linux has decided about the first packets of a connection, for brickmoon to repeat.
//!
//! ```text
//! reports of what Linux sends ─► checks ─► Linux keeps the connection ─► the table of flows ─► programs
//! rules, routes, settings, time; programs that find a connection gone ─────► out of the table
//! control ─► Orders ─► bm-flows, which alone writes the table; `show flows`, `clear flows`
//! ```
//!
//! Without this thread no packet goes by flow: Linux forwards all that its firewall may concern. In doubt a flow is not
//! learned, or ends: then Linux decides about its next packets.
//!
//! Absent on purpose: rules. Whether all packets of a flow fare alike is for `bm-firewall` to say.

mod check;
mod counts;
mod filter;
mod known;
mod learner;
mod linux;
mod ruleset;
mod select;
mod shown;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use ruleset::{OwnInterface, Ruleset};
pub(crate) use thread::{FlowThread, NAME, Orders};
