//! Converts counters in shared memory to API replies: apps, links, workers, drops and the accounts of ports.
//!
//! Names of counters are paths: `port/NAME/QUEUE/receive/..`, `port/NAME/QUEUE/transmit/..`,
//! `port/NAME/QUEUE/device/..`, `router/WORKER/PORT/..`, `slow/PORT/..`, `link/WORKER/LINK/..`,
//! `worker/N/..`.

use std::collections::BTreeMap;

use bm_api::{Account, App, Apps, Drop, DropAt, Drops, Link, Links};
use bm_stats::Reason;

/// All counters with their values, by name.
pub type Counters = BTreeMap<String, u64>;

/// The account whose counters have names below `group`.
pub fn account(counters: &Counters, group: &str) -> Account {
    let prefix = format!("{group}/");
    let mut account = Account::default();
    for (name, &value) in counters.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix)) {
        match &name[prefix.len()..] {
            "received" => account.received = value,
            "originated" => account.originated = value,
            "sent" => account.sent = value,
            "host" => account.host = value,
            "passed" => account.passed = value,
            "held" => account.held = value,
            "consumed" => account.consumed = value,
            "received_bytes" => account.received_bytes = value,
            "sent_bytes" => account.sent_bytes = value,
            other => {
                if let Some(reason) = other.strip_prefix("drop/")
                    && value > 0
                {
                    account.dropped += value;
                    account.drops.insert(reason.into(), value);
                }
            }
        }
    }
    account
}

/// One account of what the port, the router and the slow path did with the frames that arrived on a port. If apps sit
/// between port and router, it includes the frames that they consumed or added.
pub fn port_account(counters: &Counters, port: &str, has_apps: bool) -> Account {
    let mut sum = Account::default();
    let (mut passed, mut taken) = (0, 0);
    let (mut to_slow, mut in_slow) = (0, 0);
    for group in groups(counters) {
        let parts: Vec<_> = group.split('/').collect();
        let part = || account(counters, &group);
        match parts.as_slice() {
            ["port", name, _, "receive"] if *name == port => {
                let part = part();
                sum.received += part.received;
                sum.received_bytes += part.received_bytes;
                passed += part.passed;
                add_drops(&mut sum, &part);
            }
            [app, .., name] if matches!(*app, "router" | "slow") && *name == port => {
                let part = part();
                if *app == "router" {
                    (taken, to_slow) = (taken + part.received, to_slow + part.passed);
                } else {
                    in_slow += part.received;
                }
                sum.sent += part.sent;
                sum.sent_bytes += part.sent_bytes;
                sum.originated += part.originated;
                sum.host += part.host;
                sum.held += part.held;
                sum.consumed += part.consumed;
                add_drops(&mut sum, &part);
            }
            _ => {}
        }
    }
    // The rest was sent by Linux through the port's twin.
    sum.originated += u64::saturating_sub(in_slow, to_slow);
    if has_apps {
        sum.consumed += u64::saturating_sub(passed, taken);
        sum.originated += u64::saturating_sub(taken, passed);
    }
    sum
}

fn add_drops(sum: &mut Account, part: &Account) {
    sum.dropped += part.dropped;
    for (reason, frames) in &part.drops {
        *sum.drops.entry(reason.clone()).or_default() += frames;
    }
}

/// Groups that are accounts: those with a counter `received`.
fn groups(counters: &Counters) -> impl Iterator<Item = String> {
    // Hooks may give their counters any name.
    let names = counters.keys().filter(|name| !name.starts_with("hook/"));
    names.filter_map(|name| name.strip_suffix("/received").map(str::to_string))
}

/// All apps with their accounts.
pub fn apps(counters: &Counters) -> Apps {
    let app = |group: String| {
        let parts: Vec<_> = group.split('/').collect();
        let (name, worker) = match parts.as_slice() {
            ["port", port, queue, side] => (format!("{port} {side}"), queue.parse().ok()),
            ["router", worker, port] => (format!("router from {port}"), worker.parse().ok()),
            ["slow", port] => (format!("slow path from {port}"), None),
            ["switch", switch, port] => (format!("switch {switch} from {port}"), None),
            ["kernel", port] => (format!("kernel path from {port}"), None),
            _ => (group.clone(), None),
        };
        App { name, worker, account: account(counters, &group) }
    };
    Apps { apps: groups(counters).map(app).collect() }
}

/// All links with their counters.
pub fn links(counters: &Counters) -> Links {
    let mut links: BTreeMap<(u32, String), Link> = BTreeMap::new();
    for (name, &value) in counters {
        let parts: Vec<_> = name.split('/').collect();
        let ["link", worker, link, field] = parts.as_slice() else { continue };
        let worker = worker.parse().unwrap_or_default();
        let entry = links.entry((worker, (*link).into())).or_default();
        (entry.name, entry.worker) = ((*link).into(), worker);
        match *field {
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
    let mut reasons: Vec<Drop> = Vec::new();
    for reason in Reason::ALL {
        let suffix = format!("/drop/{}", reason.name());
        let at = counters.iter().filter_map(|(name, &frames)| {
            let group = name.strip_suffix(&suffix)?;
            (frames > 0).then(|| DropAt { app: group.into(), frames })
        });
        let mut at: Vec<_> = at.collect();
        at.sort_by_key(|at| std::cmp::Reverse(at.frames));
        let frames = at.iter().map(|at| at.frames).sum();
        if frames > 0 {
            reasons.push(Drop { reason: reason.name().into(), meaning: reason.meaning().into(), frames, at });
        }
    }
    reasons.sort_by_key(|drop| std::cmp::Reverse(drop.frames));
    Drops { total: reasons.iter().map(|drop| drop.frames).sum(), drops: reasons }
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
    add_drops(&mut sum, workers);
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
    let mut set = |name: &str, value| counters.insert(format!("kernel/{port}/{name}"), value);
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
    counters.extend(dropped.map(|(reason, frames)| (format!("steering/{port}/drop/{reason}"), frames)));
}

/// Adds the matches of filter rules to the counters, for metrics.
pub fn add_filters(counters: &mut Counters, filters: &bm_api::Filters) {
    let named = filters.filters.iter().map(|filter| (filter.name.as_str(), filter.packets));
    let all = named.chain((!filters.unmatched.is_empty()).then_some(("(none)", filters.unmatched_packets)));
    counters.extend(all.map(|(name, packets)| (format!("filter/{name}/packets"), packets)));
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
    add_drops(&mut workers, &dropped);
    workers
}

/// The counters of the device, summed over the queues of a port.
pub fn device_counters(counters: &Counters, port: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in counters {
        let parts: Vec<_> = name.split('/').collect();
        if let ["port", of, _, "device", kind] = parts.as_slice()
            && *of == port
        {
            *sums.entry((*kind).to_string()).or_default() += value;
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
    fn a_ports_account_closes_over_all_apps() {
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
    fn what_linux_sends_through_a_twin_is_in_the_account() {
        let mut with_twin = counters();
        with_twin.insert("slow/eth0/received".into(), 7);
        with_twin.insert("slow/eth0/sent".into(), 6);
        let account = port_account(&with_twin, "eth0", false);
        assert_eq!((account.received, account.originated, account.sent), (10, 6, 11));
        let went = account.sent + account.host + account.held + account.consumed + account.dropped;
        assert_eq!(account.received + account.originated, went);
    }

    #[test]
    fn what_is_claimed_is_accounted_for_by_workers() {
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
    fn drops_come_with_meaning_and_place() {
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
