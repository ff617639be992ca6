//! `brickmoon show routes`.

use std::fmt::Write as _;

use bm_api::{Action, Hop, Lookup, RouteState, Routes};

use crate::firewall;
use crate::number::{bytes, count};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per route, in the terms of `ip route`, then the totals.
pub fn routes(reply: &Routes) -> String {
    let columns = [
        ("PREFIX", Left),
        ("ACTION", Left),
        ("VIA", Left),
        ("PROTOCOL", Left),
        ("METRIC", Right),
        ("NEXT HOP", Right),
    ];
    let mut table = Table::new(&columns, "no matching route");
    for route in &reply.routes {
        let protocol = match route.state {
            RouteState::Route => route.protocol.clone(),
            RouteState::Neighbor => "neighbor".into(),
            RouteState::Refused => "refused".into(),
        };
        let via = match &route.reason {
            Some(reason) => reason.clone(),
            None => route.hops.iter().map(hop).collect::<Vec<_>>().join(", "),
        };
        let metric = route.metric.to_string();
        table.row([
            route.prefix.clone(),
            action(route.action).into(),
            via,
            protocol,
            metric,
            route.next_hop.to_string(),
        ]);
    }
    let mut text = table.to_string();
    let _written = writeln!(
        text,
        "{} IPv4 and {} IPv6 routes in the table",
        count(reply.total_ipv4 as u64),
        count(reply.total_ipv6 as u64)
    );
    for to in &reply.linux_only {
        let share = if to.all { "all packets" } else { "some packets" };
        let _written =
            writeln!(text, "left to Linux: {share} to this address: {}", firewall::entry(&to.entry));
    }
    text.push_str(&lookup(&reply.lookup));
    if let Some(next) = &reply.next {
        let _written = writeln!(text, "more routes: brickmoon show routes --after {next}");
    }
    text
}

/// The lookup structures, one line per family.
pub(crate) fn lookup(tables: &[Lookup]) -> String {
    let mut text = String::new();
    for Lookup { family, structure, version, pages, memory_bytes } in tables {
        text += &format!("{family} lookup by {structure} ({version}), {} in {pages}\n", bytes(*memory_bytes));
    }
    text
}

/// The action in the terms of `ip route`.
pub(crate) fn action(action: Action) -> &'static str {
    match action {
        Action::Forward => "forward",
        Action::Host => "host",
        Action::Resolve => "resolve",
        Action::Blackhole => "blackhole",
        Action::Unreachable => "unreachable",
        Action::Prohibit => "prohibit",
        Action::Group => "group",
        Action::NoRoute => "no route",
    }
}

/// Gateway, interface and MAC of a next hop.
pub(crate) fn hop(hop: &Hop) -> String {
    let gateway = hop.gateway.map(|gateway| format!("{gateway} ")).unwrap_or_default();
    let mac = hop.mac.map(|mac| format!(" ({mac})")).unwrap_or_default();
    format!("{gateway}dev {}{mac}", hop.interface)
}
