//! `brickmoon verify`.

use std::fmt::Write as _;

use bm_api::Verify;

use crate::number::count;

/// One line per difference, then the total.
pub fn verify(reply: &Verify) -> String {
    let mut text = String::new();
    for difference in &reply.differences {
        let _written = writeln!(text, "{difference}");
    }
    let unlisted = reply.differences_total.saturating_sub(reply.differences.len());
    if unlisted > 0 {
        let _written = writeln!(text, "and {} more", count(unlisted as u64));
    }
    for note in &reply.notes {
        let _written = writeln!(text, "note: {note}");
    }
    let found = match reply.differences_total {
        0 => "no difference".into(),
        1 => "1 difference".into(),
        many => format!("{} differences", count(many as u64)),
    };
    let _written = writeln!(
        text,
        "{} objects compared with the kernel in {} ms: {found}",
        count(reply.compared),
        reply.took_ms
    );
    text
}
