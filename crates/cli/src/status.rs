//! `brickmoon status` and `brickmoon reload`.

use std::fmt::Write as _;

use bm_api::{Reloaded, Status};

use crate::firewall;
use crate::flows;
use crate::number::{bytes, count, counted, counted_as};

/// The state of the daemon, one line per topic.
pub fn status(reply: &Status) -> String {
    let mirror = &reply.mirror;
    let mut text = format!(
        "brickmoon {} (process {}), up {} s, {}\n\
         path {}{}, {}, {}{}\n\
         {} IPv4 and {} IPv6 routes, {} next hops, {} neighbors; {} routes left to Linux\n\
         memory {} resident, {} of it lookup tables\n\
         mirror {}: first sync {} ms, {} messages, {} changes, {} overruns, {} resyncs{}; last batch {} in {} us\n",
        reply.version,
        reply.pid,
        count(reply.uptime_s),
        if reply.ready { "ready" } else { "not ready" },
        reply.path,
        reply.path_reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        counted(reply.workers.into(), "worker"),
        counted(reply.ports.into(), "port"),
        match reply.switches {
            0 => String::new(),
            switches => format!(
                ", {} with {}",
                counted_as(switches.into(), "switch", "switches"),
                counted(reply.switch_ports.into(), "port")
            ),
        },
        count(reply.routes_ipv4 as u64),
        count(reply.routes_ipv6 as u64),
        count(reply.next_hops as u64),
        count(reply.neighbors as u64),
        count(reply.routes_refused as u64),
        bytes(reply.memory_bytes),
        bytes(reply.tables_bytes),
        if mirror.synced { "in sync" } else { "behind" },
        mirror.first_sync_ms,
        count(mirror.messages),
        count(mirror.changes),
        mirror.overruns,
        mirror.resyncs,
        match mirror.malformed {
            0 => String::new(),
            malformed => format!(", {} malformed", count(malformed)),
        },
        counted(mirror.last_batch_changes, "change"),
        count(mirror.last_batch_us),
    );
    if let Some(by) = &reply.tables_watched_by {
        let _written = writeln!(
            text,
            "if the daemon ends, the kernel path keeps forwarding until Linux's tables change, watched by {by}"
        );
    }
    if let Some(web) = &reply.web {
        let _written = writeln!(text, "web page at {web}");
    }
    text.push_str(&crate::routes::lookup(&reply.lookup));
    text.push_str(&flows::state(&reply.flows));
    text.push_str(&firewall::firewall(&reply.firewall));
    for note in &reply.notes {
        let _written = writeln!(text, "note: {note}");
    }
    text
}

/// What has changed, which changes restarted the workers, and which need a restart of the daemon.
pub fn reloaded(reply: &Reloaded) -> String {
    let mut text = String::new();
    for (what, names) in [
        ("changed", &reply.changed),
        ("changed, workers restarted", &reply.restarted),
        ("not applied, needs a restart of the daemon", &reply.needs_restart),
    ] {
        if !names.is_empty() {
            let _written = writeln!(text, "{what}: {}", names.join(", "));
        }
    }
    if text.is_empty() { "nothing changed\n".into() } else { text }
}
