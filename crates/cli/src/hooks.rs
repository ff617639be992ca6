//! `brickmoon show hooks`.

use std::fmt::Write as _;

use bm_api::{Hook, Hooks};

use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per hook, then its drops, its counters and its last error.
pub fn hooks(reply: &Hooks) -> String {
    let columns = [
        ("HOOK", Left),
        ("STAGES", Left),
        ("STATE", Left),
        ("VERSION", Right),
        ("RUNS", Right),
        ("CALLS", Right),
        ("FRAMES", Right),
        ("CYCLES/FRAME", Right),
        ("BUDGET", Right),
        ("ERRORS", Right),
        ("EJECTED", Right),
        ("HUNG", Right),
    ];
    let mut table = Table::new(&columns, "no hooks");
    for hook in &reply.hooks {
        let running = hook.running.map_or("none".into(), |version| version.to_string());
        table.row([
            hook.name.clone(),
            hook.stages.join(","),
            hook.state.clone(),
            hook.version.to_string(),
            running,
            count(hook.calls),
            count(hook.frames),
            format!("{:.1}", hook.cycles_per_frame),
            count(hook.budget),
            count(hook.errors),
            count(hook.ejections),
            count(hook.hangs),
        ]);
    }
    let mut text = table.to_string();
    reply.hooks.iter().for_each(|hook| details(&mut text, hook));
    text
}

/// Drops, counters and last error of a hook. Writing to a string cannot fail.
fn details(text: &mut String, hook: &Hook) {
    for (what, counters) in [("dropped", &hook.drops), ("counted", &hook.counters)] {
        for (name, value) in counters {
            let _written = writeln!(text, "{} {what} {name} {}", hook.name, count(*value));
        }
    }
    if hook.running.is_none() {
        let fate = match hook.on_failure.as_str() {
            "drop" => "its packets are dropped",
            "linux" => "Linux gets its packets",
            _ => "its packets pass without it",
        };
        let _written = writeln!(text, "{} does not run: {fate}", hook.name);
    }
    if let Some(error) = &hook.last_error {
        let _written = writeln!(text, "{} last error: {error}", hook.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_counters_and_errors() {
        let hook = Hook {
            name: "acl".into(),
            stages: vec!["ingress".into()],
            state: "failed".into(),
            version: 2,
            running: Some(1),
            calls: 1000,
            frames: 12_000,
            cycles_per_frame: 7.25,
            errors: 1,
            drops: [("blocked".to_string(), 5)].into(),
            last_error: Some("acl.lua:3: bad luck".into()),
            ..Hook::default()
        };
        let text = hooks(&Hooks { hooks: vec![hook] });
        assert!(text.contains("acl   ingress  failed        2     1  1,000  12,000           7.2"), "{text}");
        assert!(text.contains("acl dropped blocked 5\nacl last error: acl.lua:3: bad luck\n"), "{text}");
        let stopped = Hook { name: "acl".into(), on_failure: "drop".into(), ..Hook::default() };
        let text = hooks(&Hooks { hooks: vec![stopped] });
        assert!(text.ends_with("acl does not run: its packets are dropped\n"), "{text}");
        assert_eq!(hooks(&Hooks::default()), "no hooks\n");
    }
}
