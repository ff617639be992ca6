//! Converts counters in shared memory to API replies: apps, links, workers, drops and the accounts of ports.
//!
//! [`Scope`] tells what a counter belongs to.

use std::collections::BTreeMap;

use bm_api::{Account, App, Apps, Drop, DropAt, Drops, Link, Links};
use bm_stats::{Entry, Reason, Registry, Scope};

/// All counters with their values, by name.
pub type Counters = BTreeMap<String, u64>;

/// The counters in shared memory. After a change of links, counters of the same name may exist more than once: they are
/// summed.
pub fn counters(registry: &Registry) -> Counters {
    let mut counters = Counters::new();
    registry.counters().into_iter().for_each(|(name, value)| *counters.entry(name).or_default() += value);
    counters
}

/// The account of `scope`.
pub fn account(counters: &Counters, scope: Scope<'_>) -> Account {
    let path = format!("{scope}/");
    let mut account = Account::default();
    for (name, &value) in counters.range(path.clone()..).take_while(|(name, _)| name.starts_with(&path)) {
        add(&mut account, &name[path.len()..], value);
    }
    account
}

/// Adds the counter `name` to an account; counters that are not part of an account are ignored.
fn add(account: &mut Account, name: &str, value: u64) {
    match Entry::named(name) {
        Some(Entry::Received) => account.received += value,
        Some(Entry::Originated) => account.originated += value,
        Some(Entry::Sent) => account.sent += value,
        Some(Entry::Host) => account.host += value,
        Some(Entry::Passed) => account.passed += value,
        Some(Entry::Held) => account.held += value,
        Some(Entry::Consumed) => account.consumed += value,
        Some(Entry::ReceivedBytes) => account.received_bytes += value,
        Some(Entry::SentBytes) => account.sent_bytes += value,
        None => {
            if let Some(reason) = name.strip_prefix("drop/").filter(|_| value > 0) {
                account.dropped += value;
                *account.drops.entry(reason.into()).or_default() += value;
            }
        }
    }
}

/// One account of what the port, the router and the slow path did with the frames that arrived on a port. If apps sit
/// between port and router, it includes the frames that they consumed or added.
pub fn port_account(counters: &Counters, port: &str, has_apps: bool) -> Account {
    let [mut received, mut routed, mut slow]: [Account; 3] = Default::default();
    for (name, &value) in counters {
        let (scope, name) = Scope::parse(name);
        match scope {
            Scope::PortReceive { port: of, .. } if of == port => add(&mut received, name, value),
            Scope::Router { port: of, .. } if of == port => add(&mut routed, name, value),
            Scope::SlowPort { port: of } if of == port => add(&mut slow, name, value),
            _ => {}
        }
    }
    let mut sum = Account {
        received: received.received,
        received_bytes: received.received_bytes,
        sent: routed.sent + slow.sent,
        sent_bytes: routed.sent_bytes + slow.sent_bytes,
        originated: routed.originated + slow.originated,
        host: routed.host + slow.host,
        held: routed.held + slow.held,
        consumed: routed.consumed + slow.consumed,
        ..Account::default()
    };
    [&received, &routed, &slow].into_iter().for_each(|part| sum_drops(&mut sum, part));
    // Linux sent the rest through the port's host TAP.
    sum.originated += slow.received.saturating_sub(routed.passed);
    if has_apps {
        sum.consumed += received.passed.saturating_sub(routed.received);
        sum.originated += routed.received.saturating_sub(received.passed);
    }
    sum
}

fn sum_drops(sum: &mut Account, part: &Account) {
    sum.dropped += part.dropped;
    for (reason, frames) in &part.drops {
        *sum.drops.entry(reason.clone()).or_default() += frames;
    }
}

/// All apps with their accounts.
pub fn apps(counters: &Counters) -> Apps {
    let mut apps = Vec::new();
    for (scope, name) in counters.keys().map(|name| Scope::parse(name)) {
        // A scope with a counter `received` has an account. Hooks may use that name for counters of their own.
        if name != "received" || matches!(scope, Scope::Hook { .. }) {
            continue;
        }
        let (name, worker) = match scope {
            Scope::PortReceive { port, queue } => (format!("{port} receive"), Some(queue)),
            Scope::PortTransmit { port, queue } => (format!("{port} transmit"), Some(queue)),
            Scope::Router { worker, port } => (format!("router from {port}"), Some(worker)),
            Scope::SlowPort { port } => (format!("slow path from {port}"), None),
            Scope::Switch { switch, port } => (format!("switch {switch} from {port}"), None),
            Scope::Kernel { port } => (format!("kernel path from {port}"), None),
            other => (other.to_string(), None),
        };
        let worker = worker.and_then(|worker| u32::try_from(worker).ok());
        apps.push(App { name, worker, account: account(counters, scope) });
    }
    Apps { apps }
}

/// All links with their counters.
pub fn links(counters: &Counters) -> Links {
    let mut links: BTreeMap<(usize, &str), Link> = BTreeMap::new();
    for (name, &value) in counters {
        let (Scope::Link { worker, link }, name) = Scope::parse(name) else { continue };
        let entry = links.entry((worker, link)).or_insert_with(|| Link {
            name: link.into(),
            worker: u32::try_from(worker).unwrap_or(u32::MAX),
            ..Link::default()
        });
        match name {
            "txpackets" => entry.tx = value,
            "txbytes" => entry.tx_bytes = value,
            "rxpackets" => entry.rx = value,
            "rxbytes" => entry.rx_bytes = value,
            _ => entry.dropped = value,
        }
    }
    for link in links.values_mut() {
        link.waiting = link.tx.saturating_sub(link.rx);
    }
    Links { links: links.into_values().collect() }
}

/// All drop reasons with frames, most frames first.
pub fn drops(counters: &Counters) -> Drops {
    let mut at: BTreeMap<&str, Vec<DropAt>> = BTreeMap::new();
    for (name, &frames) in counters.iter().filter(|(_, frames)| **frames > 0) {
        let (scope, name) = Scope::parse(name);
        let Some(reason) = name.strip_prefix("drop/") else { continue };
        if !matches!(scope, Scope::Hook { .. }) {
            at.entry(reason).or_default().push(DropAt { app: scope.to_string(), frames });
        }
    }
    let mut drops = Vec::new();
    for reason in Reason::ALL {
        let Some(mut at) = at.remove(reason.name()) else { continue };
        at.sort_by_key(|at| std::cmp::Reverse(at.frames));
        let frames = at.iter().map(|at| at.frames).sum();
        drops.push(Drop { reason: reason.name().into(), meaning: reason.meaning().into(), frames, at });
    }
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
    Drops { total: drops.iter().map(|drop| drop.frames).sum(), drops, ..Drops::default() }
}

/// Adds what was dropped in `accounts`, each with its name, for these reasons with their descriptions.
pub fn add_drops(drops: &mut Drops, reasons: &[(&str, &str)], accounts: &[(String, &Account)]) {
    for &(reason, meaning) in reasons {
        let at = accounts.iter().filter_map(|(app, account)| {
            let frames = *account.drops.get(reason)?;
            Some(DropAt { app: app.clone(), frames })
        });
        let at: Vec<_> = at.collect();
        let frames: u64 = at.iter().map(|at| at.frames).sum();
        if frames > 0 {
            drops.total += frames;
            drops.drops.push(Drop { reason: reason.into(), meaning: meaning.into(), frames, at });
        }
    }
}

/// The account of a port of the kernel path.
pub fn kernel_account(counters: &bm_fastpath::Counters) -> Account {
    let (received_bytes, sent_bytes) = counters.bytes();
    Account {
        received: counters.received(),
        received_bytes,
        sent: counters.forwarded(),
        sent_bytes,
        host: counters.linux(),
        passed: counters.claimed(),
        dropped: counters.drops().map(|(_, frames)| frames).sum(),
        drops: counters
            .drops()
            .filter(|(_, frames)| *frames > 0)
            .map(|(why, frames)| (why.into(), frames))
            .collect(),
        ..Account::default()
    }
}

/// The account of a port of the kernel path with claims: the frames that went to workers are replaced by what the
/// workers did with them, so that the account balances. Frames in between are in neither.
pub fn with_claimed(kernel: Account, workers: &Account) -> Account {
    let mut sum = Account {
        received: kernel.received.saturating_sub(kernel.passed) + workers.received,
        passed: 0,
        originated: workers.originated,
        held: workers.held,
        consumed: workers.consumed,
        sent: kernel.sent + workers.sent,
        sent_bytes: kernel.sent_bytes + workers.sent_bytes,
        host: kernel.host + workers.host,
        ..kernel
    };
    sum_drops(&mut sum, workers);
    sum
}

/// Resident memory, as the kernel counts it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib * 1024
}

/// Adds the account of a port of the kernel path to the counters, for `show drops` and metrics.
pub fn add_kernel(counters: &mut Counters, port: &str, kernel: &bm_fastpath::Counters) {
    let scope = Scope::Kernel { port };
    let mut set = |name: &str, value| counters.insert(format!("{scope}/{name}"), value);
    let (received_bytes, sent_bytes) = kernel.bytes();
    set("received", kernel.received());
    set("received_bytes", received_bytes);
    set("sent", kernel.forwarded());
    set("sent_bytes", sent_bytes);
    set("host", kernel.linux());
    set("passed", kernel.claimed());
    kernel.drops().for_each(|(reason, frames)| {
        set(&format!("drop/{reason}"), frames);
    });
}

/// Adds the drops of the steering program of a port of workers to the counters, for `show drops` and metrics.
pub fn add_steering(counters: &mut Counters, port: &str, steering: &bm_fastpath::Counters) {
    let dropped = steering.drops().filter(|(_, frames)| *frames > 0);
    let scope = Scope::Steering { port };
    counters.extend(dropped.map(|(reason, frames)| (format!("{scope}/drop/{reason}"), frames)));
}

/// Adds the matches of filter rules to the counters, for metrics.
pub fn add_filters(counters: &mut Counters, filters: &bm_api::Filters) {
    let named = filters.filters.iter().map(|filter| (filter.name.as_str(), filter.packets));
    let all = named.chain((!filters.unmatched.is_empty()).then_some(("(none)", filters.unmatched_packets)));
    counters.extend(all.map(|(rule, packets)| (format!("{}/packets", Scope::Filter { rule }), packets)));
}

/// The nonzero counters of the kernel path, by name.
pub fn kernel_counters(counters: &bm_fastpath::Counters) -> BTreeMap<String, u64> {
    counters.named().filter(|(_, count)| *count > 0).map(|(name, count)| (name.into(), count)).collect()
}

/// Frames that the steering program of a port of workers has left to Linux or dropped, by the names of the kernel path.
pub fn steering_counters(firewall: u64, steering: &bm_fastpath::Counters) -> BTreeMap<String, u64> {
    let firewall = (firewall > 0).then(|| ("linux_firewall".to_string(), firewall));
    firewall.into_iter().chain(kernel_counters(steering)).collect()
}

/// Adds the drops of the steering program to the account of a port of workers.
pub fn with_steering(mut workers: Account, steering: &bm_fastpath::Counters) -> Account {
    let dropped = kernel_account(steering);
    workers.received += dropped.received;
    sum_drops(&mut workers, &dropped);
    workers
}

/// The counters of the device, summed over the queues of a port.
pub fn device_counters(counters: &Counters, port: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in counters {
        if let (Scope::PortDevice { port: of, .. }, kind) = Scope::parse(name)
            && of == port
        {
            *sums.entry(kind.to_string()).or_default() += value;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        [
            ("port/eth0/0/receive/received", 10),
            ("port/eth0/0/receive/received_bytes", 1000),
            ("port/eth0/0/receive/passed", 9),
            ("port/eth0/0/receive/drop/link_full", 1),
            ("port/eth0/0/device/receive_no_frame", 3),
            ("router/0/eth0/received", 9),
            ("router/0/eth0/sent", 5),
            ("router/0/eth0/sent_bytes", 500),
            ("router/0/eth0/passed", 3),
            ("router/0/eth0/drop/ipv4_checksum", 1),
            ("slow/eth0/received", 3),
            ("slow/eth0/host", 1),
            ("slow/eth0/consumed", 2),
            ("slow/eth0/originated", 2),
            ("slow/eth0/sent", 2),
            ("slow/eth0/sent_bytes", 140),
            ("link/0/eth0.output -> router.eth0/txpackets", 9),
            ("link/0/eth0.output -> router.eth0/rxpackets", 8),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }

    #[test]
    fn a_ports_account_balances_over_all_apps() {
        let account = port_account(&counters(), "eth0", false);
        assert_eq!((account.received, account.originated, account.dropped), (10, 2, 2));
        assert_eq!((account.received_bytes, account.sent_bytes), (1000, 640));
        let went = account.sent + account.host + account.held + account.consumed + account.dropped;
        assert_eq!(account.received + account.originated, went);
        let mut fewer = counters();
        fewer.insert("router/0/eth0/received".into(), 7);
        fewer.insert("router/0/eth0/sent".into(), 3);
        let account = port_account(&fewer, "eth0", true);
        assert_eq!((account.received, account.sent, account.consumed), (10, 5, 4), "an app took two");
        assert_eq!(port_account(&counters(), "eth1", false), Account::default());
    }

    #[test]
    fn packets_that_linux_sends_through_a_host_tap_are_in_the_account() {
        let mut with_host_tap = counters();
        with_host_tap.insert("slow/eth0/received".into(), 7);
        with_host_tap.insert("slow/eth0/sent".into(), 6);
        let account = port_account(&with_host_tap, "eth0", false);
        assert_eq!((account.received, account.originated, account.sent), (10, 6, 11));
        let went = account.sent + account.host + account.held + account.consumed + account.dropped;
        assert_eq!(account.received + account.originated, went);
    }

    #[test]
    fn claimed_packets_are_accounted_for_by_workers() {
        let drops = BTreeMap::from([("filter".to_string(), 3)]);
        let kernel =
            Account { received: 30, sent: 12, host: 4, passed: 11, dropped: 3, drops, ..Account::default() };
        // One of the eleven waits in the socket of a worker, which has ten.
        let account = with_claimed(kernel, &port_account(&counters(), "eth0", false));
        assert_eq!((account.received, account.originated, account.sent), (29, 2, 19));
        assert_eq!((account.host, account.consumed, account.passed, account.dropped), (5, 2, 0, 5));
        let went = account.sent + account.host + account.held + account.consumed + account.dropped;
        assert_eq!(account.received + account.originated, went);
        assert_eq!(account.drops.values().sum::<u64>(), account.dropped);
    }

    #[test]
    fn drops_have_a_meaning_and_a_location() {
        let drops = drops(&counters());
        assert_eq!((drops.total, drops.drops.len()), (2, 2));
        let checksum = drops.drops.iter().find(|drop| drop.reason == "ipv4_checksum").unwrap();
        assert_eq!(checksum.at, [DropAt { app: "router/0/eth0".into(), frames: 1 }]);
        assert_eq!(checksum.meaning, "wrong IPv4 header checksum");
    }

    #[test]
    fn links_and_devices_are_summed() {
        let links = links(&counters());
        assert_eq!((links.links[0].tx, links.links[0].waiting), (9, 1));
        assert_eq!(device_counters(&counters(), "eth0")["receive_no_frame"], 3);
        assert_eq!(apps(&counters()).apps.len(), 3);
    }
}
