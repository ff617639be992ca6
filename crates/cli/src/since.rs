//! `brickmoon clear counters`: replies with counters from the time at which they were cleared.

use std::collections::BTreeMap;

use bm_api::{Account, Cleared, Drop, Drops, Ports, Traffic};

/// The reply to `brickmoon clear counters`.
pub fn cleared(reply: &Cleared) -> String {
    match reply.ago_s {
        Some(_) => "`show ports` and `show drops` count from now on; metrics and --json go on\n".to_string(),
        None => "`show ports` and `show drops` show all counts again\n".to_string(),
    }
}

/// A line that says since when counters count; empty if they were not cleared.
pub fn counted_since(cleared: &Cleared) -> String {
    cleared.ago_s.map_or_else(String::new, |ago| {
        format!("\ncounted since `brickmoon clear counters`, {} ago\n", duration(ago))
    })
}

fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Leaves what was counted since `before`. A counter that is smaller than it was has begun anew, such as that of an
/// interface that was created again.
fn leave(now: &mut u64, before: u64) {
    *now = now.checked_sub(before).unwrap_or(*now);
}

/// The ports with what they counted since then.
pub fn ports_since(mut reply: Ports, cleared: &Cleared) -> Ports {
    for port in &mut reply.ports {
        let Some(before) = cleared.ports.ports.iter().find(|before| before.name == port.name) else {
            continue;
        };
        for (now, before) in [(&mut port.rx, &before.rx), (&mut port.tx, &before.tx)] {
            if let (Some(now), Some(before)) = (now, before) {
                leave_traffic(now, before);
            }
        }
        leave_account(&mut port.account, &before.account);
        for queue in &mut port.queues {
            if let Some(before) = before.queues.iter().find(|before| before.queue == queue.queue) {
                leave_account(&mut queue.account, &before.account);
            }
        }
        leave_named(&mut port.device_counters, &before.device_counters);
        leave_named(&mut port.hardware_counters, &before.hardware_counters);
        leave_named(&mut port.kernel_counters, &before.kernel_counters);
    }
    reply
}

fn leave_traffic(now: &mut Traffic, before: &Traffic) {
    leave(&mut now.packets, before.packets);
    leave(&mut now.bytes, before.bytes);
    leave(&mut now.errors, before.errors);
    leave(&mut now.dropped, before.dropped);
}

fn leave_account(now: &mut Account, before: &Account) {
    for (now, before) in [
        (&mut now.received, before.received),
        (&mut now.originated, before.originated),
        (&mut now.sent, before.sent),
        (&mut now.host, before.host),
        (&mut now.passed, before.passed),
        (&mut now.consumed, before.consumed),
        (&mut now.dropped, before.dropped),
        (&mut now.received_bytes, before.received_bytes),
        (&mut now.sent_bytes, before.sent_bytes),
    ] {
        leave(now, before);
    }
    // What was held then may have been sent meanwhile: that counts as received, so that the account closes.
    now.received += before.held;
    leave_named(&mut now.drops, &before.drops);
}

/// Names that have counted nothing since then are left out.
fn leave_named(now: &mut BTreeMap<String, u64>, before: &BTreeMap<String, u64>) {
    now.retain(|name, count| {
        let Some(before) = before.get(name) else { return true };
        leave(count, *before);
        *count > 0
    });
}

/// The drops since then, most frames first.
pub fn drops_since(mut reply: Drops, cleared: &Cleared) -> Drops {
    let before = &cleared.drops;
    leave_drops(&mut reply.drops, &before.drops);
    leave_drops(&mut reply.left_to_linux, &before.left_to_linux);
    reply.total = reply.drops.iter().map(|drop| drop.frames).sum();
    for drop in &mut reply.by_linux {
        let Some(before) = before.by_linux.iter().find(|before| before.reason == drop.reason) else {
            continue;
        };
        for at in &mut drop.at {
            let mut places = before.at.iter();
            let same =
                places.find(|before| before.port == at.port && before.kernel_reason == at.kernel_reason);
            leave(&mut at.frames, same.map_or(0, |before| before.frames));
        }
        drop.at.retain(|at| at.frames > 0);
        drop.frames = drop.at.iter().map(|at| at.frames).sum();
    }
    reply.by_linux.retain(|drop| drop.frames > 0);
    reply.by_linux.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
    reply
}

fn leave_drops(now: &mut Vec<Drop>, before: &[Drop]) {
    for drop in now.iter_mut() {
        let Some(before) = before.iter().find(|before| before.reason == drop.reason) else { continue };
        for at in &mut drop.at {
            let same = before.at.iter().find(|before| before.app == at.app);
            leave(&mut at.frames, same.map_or(0, |before| before.frames));
        }
        drop.at.retain(|at| at.frames > 0);
        drop.frames = drop.at.iter().map(|at| at.frames).sum();
    }
    now.retain(|drop| drop.frames > 0);
    now.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{DropAt, LinuxDrop, LinuxDropAt, Port};

    fn port(packets: u64, received: u64, held: u64) -> Ports {
        let rx = Traffic { packets, bytes: packets * 100, packets_per_s: Some(7), ..Traffic::default() };
        let account = Account { received, held, sent: received - held, ..Account::default() };
        let kernel_counters = BTreeMap::from([("linux_mtu".to_string(), 3), ("forwarded".into(), received)]);
        let port = Port { name: "r0".into(), rx: Some(rx), account, kernel_counters, ..Port::default() };
        Ports { ports: vec![port] }
    }

    #[test]
    fn ports_count_from_the_time_they_were_cleared() {
        let cleared = Cleared { ago_s: Some(3), ports: port(1000, 500, 2), drops: Drops::default() };
        let now = ports_since(port(1010, 505, 0), &cleared).ports.remove(0);
        let rx = now.rx.unwrap();
        assert_eq!((rx.packets, rx.bytes, rx.packets_per_s), (10, 1000, Some(7)));
        // Two that were held then were sent since: received 5 and 2, sent 7.
        assert_eq!((now.account.received, now.account.sent, now.account.held), (7, 7, 0));
        assert_eq!(now.kernel_counters, BTreeMap::from([("forwarded".to_string(), 5)]));
        let new = ports_since(port(4, 505, 0), &cleared).ports.remove(0);
        assert_eq!(new.rx.unwrap().packets, 4, "the interface was created again");
        assert_eq!(ports_since(port(4, 5, 0), &Cleared::default()), port(4, 5, 0));
    }

    fn drops(no_route: u64, mtu: u64, by_linux: u64) -> Drops {
        let drop = |reason: &str, frames| Drop {
            reason: reason.into(),
            frames,
            at: vec![DropAt { app: "r0".into(), frames }],
            ..Drop::default()
        };
        let at = vec![LinuxDropAt { port: "r0".into(), kernel_reason: "X".into(), frames: by_linux }];
        Drops {
            total: no_route + mtu,
            drops: vec![drop("no_route", no_route), drop("mtu", mtu)],
            by_linux: vec![LinuxDrop { reason: "ttl".into(), frames: by_linux, at, ..LinuxDrop::default() }],
            ..Drops::default()
        }
    }

    #[test]
    fn drops_since_then_are_ordered_anew() {
        let cleared = Cleared { ago_s: Some(0), ports: Ports::default(), drops: drops(90, 3, 4) };
        let now = drops_since(drops(91, 10, 4), &cleared);
        let shown: Vec<_> = now.drops.iter().map(|drop| (drop.reason.as_str(), drop.frames)).collect();
        assert_eq!((shown, now.total), (vec![("mtu", 7), ("no_route", 1)], 8));
        assert!(now.by_linux.is_empty());
        let nothing = drops_since(drops(90, 3, 5), &cleared);
        assert_eq!((nothing.drops.len(), nothing.by_linux[0].frames), (0, 1));
    }

    #[test]
    fn times_are_rounded_as_people_say_them() {
        let shown = [59, 61, 3700, 90_000].map(duration);
        assert_eq!(shown, ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(counted_since(&Cleared::default()), "");
    }
}
