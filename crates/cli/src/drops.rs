//! `brickmoon show drops`.

use std::fmt::Write as _;

use bm_api::{Causes, Drop, Drops};

use crate::number::count;
use crate::table::{
    Align::{self, Left, Right},
    Table,
};

/// The columns of what brickmoon dropped.
pub const DROP_COLUMNS: [(&str, Align); 4] =
    [("REASON", Left), ("FRAMES", Right), ("WHERE", Left), ("MEANING", Left)];

/// The columns of what was left to Linux.
pub const LEFT_COLUMNS: [(&str, Align); 4] =
    [("LEFT TO LINUX", Left), ("FRAMES", Right), ("PORTS", Left), ("MEANING", Left)];

/// The columns of what Linux dropped.
pub const BY_LINUX_COLUMNS: [(&str, Align); 4] =
    [("DROPPED BY LINUX", Left), ("FRAMES", Right), ("PORTS", Left), ("MEANING", Left)];

/// One line per reason, most frames first, with its meaning and where the frames were dropped; then the same for what the
/// kernel path left to Linux, and for what Linux dropped.
pub fn drops(reply: &Drops) -> String {
    let mut text = table(&DROP_COLUMNS, "brickmoon dropped nothing", &reply.drops);
    if reply.total > 0 {
        let _written = writeln!(text, "{} in total", count(reply.total));
    }
    if !reply.left_to_linux.is_empty() {
        text += "\n";
        text += &table(&LEFT_COLUMNS, "", &reply.left_to_linux);
    }
    text += "\n";
    text + &by_linux(reply)
}

fn by_linux(reply: &Drops) -> String {
    if let Some(why) = &reply.by_linux_unknown {
        return format!("what Linux dropped is not known: {why}\n");
    }
    let mut table = Table::new(&BY_LINUX_COLUMNS, "Linux dropped no packet of these ports");
    for drop in &reply.by_linux {
        let at = drop.at.iter();
        let at: Vec<_> =
            at.map(|at| format!("{} {} ({})", at.port, count(at.frames), at.kernel_reason)).collect();
        table.row([drop.reason.clone(), count(drop.frames), at.join(", "), drop.meaning.clone()]);
    }
    table.to_string()
}

fn table(columns: &[(&str, Align)], empty: &'static str, drops: &[Drop]) -> String {
    let mut table = Table::new(columns, empty);
    for drop in drops {
        let at: Vec<_> = drop.at.iter().map(|at| format!("{} {}", at.app, count(at.frames))).collect();
        table.row([drop.reason.clone(), count(drop.frames), at.join(", "), drop.meaning.clone()]);
    }
    table.to_string()
}

/// The columns of [`causes`].
pub const CAUSE_COLUMNS: [(&str, Align); 3] = [("OUTCOME", Left), ("NAME", Left), ("MEANING", Left)];

/// Every name that `show drops` may print, with its meaning.
pub fn causes(reply: &Causes) -> String {
    let mut table = Table::new(&CAUSE_COLUMNS, "no causes");
    for cause in &reply.causes {
        table.row([cause.outcome.clone(), cause.name.clone(), cause.meaning.clone()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{DropAt, LinuxDrop, LinuxDropAt};

    #[test]
    fn shows_who_dropped_what() {
        let text = |reply: &Drops| drops(reply).lines().map(String::from).collect::<Vec<_>>();
        let nothing = ["brickmoon dropped nothing", "", "Linux dropped no packet of these ports"];
        assert_eq!(text(&Drops::default()), nothing);
        let at = vec![DropAt { app: "r0".into(), frames: 4 }];
        let left = Drop { reason: "hops".into(), meaning: "TTL expired".into(), frames: 4, at };
        let at = vec![LinuxDropAt { port: "r0".into(), kernel_reason: "IP_INHDR".into(), frames: 3 }];
        let dropped =
            LinuxDrop { reason: "ttl_exceeded".into(), meaning: "TTL expired".into(), frames: 3, at };
        let mut reply = Drops { left_to_linux: vec![left], by_linux: vec![dropped], ..Drops::default() };
        assert_eq!(
            text(&reply)[2..],
            [
                "LEFT TO LINUX  FRAMES  PORTS  MEANING",
                "hops                4  r0 4   TTL expired",
                "",
                "DROPPED BY LINUX  FRAMES  PORTS            MEANING",
                "ttl_exceeded           3  r0 3 (IP_INHDR)  TTL expired",
            ]
        );
        reply.by_linux_unknown = Some("no BTF".into());
        assert_eq!(text(&reply).last().map(String::as_str), Some("what Linux dropped is not known: no BTF"));
    }
}
