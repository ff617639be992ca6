//! Help texts of the families that are made of counters' names.

/// The families of links, workers and the slow path, with what they count.
pub const FAMILIES: [(&str, &str); 19] = [
    ("link_txpackets", "Frames put into a link between two apps"),
    ("link_txbytes", "Bytes put into a link between two apps"),
    ("link_rxpackets", "Frames taken out of a link between two apps"),
    ("link_rxbytes", "Bytes taken out of a link between two apps"),
    ("link_txdrop", "Frames dropped because a link was full"),
    ("worker_breaths", "Rounds of a worker through its apps"),
    ("worker_moves", "Frames moved by a worker, counted once for each link or port"),
    ("worker_sleeps", "Times that a worker went to sleep"),
    ("worker_busy_ns", "Time that a worker spent on frames"),
    ("worker_app_ns", "Time that a worker spent in an app, estimated from one breath in 61"),
    ("slow_errors_sent", "ICMP errors sent"),
    ("slow_errors_silent", "ICMP errors not sent because none is allowed or there is no route"),
    ("slow_errors_limited_all", "ICMP errors not sent because of the limit for all destinations"),
    ("slow_errors_limited_address", "ICMP errors not sent because of the limit for one destination"),
    ("slow_resolve_asked", "Neighbors that the kernel was asked to resolve"),
    ("slow_resolve_answered", "Neighbors that answered"),
    ("slow_resolve_failed", "Neighbors that did not answer"),
    (
        "slow_alerts_limited",
        "Packets with a Router Alert that Linux did not get because of the limit for them",
    ),
    ("slow_linux_firewall", "Packets left to Linux for its firewall, IPsec policies or traffic control"),
];

/// What a counter of links, workers or the slow path counts, by the name of its family.
pub fn of(family: &str) -> &'static str {
    let found = FAMILIES.iter().find(|(name, _)| *name == family);
    found.map_or("Counter of the forwarding path", |(_, help)| help)
}
