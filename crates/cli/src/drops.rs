//! `brickmoon show drops`.

use std::fmt::Write as _;

use bm_api::Drops;

use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per reason, most frames first, with its meaning and where the frames were dropped.
pub fn drops(reply: &Drops) -> String {
    let mut table = Table::new(
        &[("REASON", Left), ("FRAMES", Right), ("WHERE", Left), ("MEANING", Left)],
        "nothing was dropped",
    );
    for drop in &reply.drops {
        let at: Vec<_> = drop.at.iter().map(|at| format!("{} {}", at.app, count(at.frames))).collect();
        table.row([drop.reason.clone(), count(drop.frames), at.join(", "), drop.meaning.clone()]);
    }
    let mut text = table.to_string();
    if reply.total > 0 {
        let _written = writeln!(text, "{} in total", count(reply.total));
    }
    text
}
