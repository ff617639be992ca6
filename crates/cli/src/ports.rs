//! `brickmoon show ports`.

use std::fmt::Write as _;

use bm_api::{CountedBy, Interface, Port, PortMode, PortState, Ports, Traffic};

use crate::firewall;
use crate::number::{count, rate};
use crate::table::{
    Align::{self, Left, Right},
    Table,
};

/// What [`ports`] prints, as docs/operations.md has it.
pub const PORT_COLUMNS: [(&str, Align); 12] = [
    ("PORT", Left),
    ("DEVICE", Left),
    ("STATE", Left),
    ("MODE", Left),
    ("", Left),
    ("PACKETS", Right),
    ("BYTES", Right),
    ("PACKETS/S", Right),
    ("BITS/S", Right),
    ("LOST", Right),
    ("TO LINUX", Right),
    ("DROPPED", Right),
];

/// What [`accounts`] prints, as docs/operations.md has it.
pub const ACCOUNT_COLUMNS: [(&str, Align); 12] = [
    ("PORT", Left),
    ("DEVICE", Left),
    ("STATE", Left),
    ("MODE", Left),
    ("QUEUES", Right),
    ("RING", Right),
    ("RECEIVED", Right),
    ("SENT", Right),
    ("HOST", Right),
    ("HELD", Right),
    ("DROPPED", Right),
    ("LOST BY DEVICE", Right),
];

/// Two lines per port, one for each direction, then its interfaces and remarks.
pub fn ports(reply: &Ports) -> String {
    let mut table = Table::new(&PORT_COLUMNS, "no ports");
    for port in &reply.ports {
        let [rx, tx] = [(port.rx, "receive"), (port.tx, "transmit")].map(|(traffic, direction)| {
            let Some(traffic) = traffic else { return ["-"; 5].map(String::from) };
            [
                count(traffic.packets),
                count(traffic.bytes),
                traffic.packets_per_s.map_or("-".into(), rate),
                traffic.bits_per_s.map_or("-".into(), rate),
                count(lost(port, &traffic, direction)),
            ]
        });
        let names = [port.name.clone(), port.device.clone(), state(port).into(), mode(port), "rx".into()];
        let went = [count(port.account.host), count(port.account.dropped)];
        table.row(names.into_iter().chain(rx).chain(went));
        table.row(["", "", "", "", "tx"].map(String::from).into_iter().chain(tx));
    }
    let mut text = table.to_string();
    reply.ports.iter().for_each(|port| text += &remarks(port));
    text
}

/// Frames that the device could not receive or send. AF_XDP counts some of those that Linux counts as well.
fn lost(port: &Port, traffic: &Traffic, direction: &str) -> u64 {
    let counted = port.device_counters.iter().filter(|(name, _)| name.starts_with(direction));
    traffic.errors + traffic.dropped.max(counted.map(|(_, frames)| frames).sum())
}

/// The account of every port, one line each, then its interfaces and remarks.
pub fn accounts(reply: &Ports) -> String {
    let mut table = Table::new(&ACCOUNT_COLUMNS, "no ports");
    for port in &reply.ports {
        let account = &port.account;
        table.row([
            port.name.clone(),
            port.device.clone(),
            state(port).into(),
            mode(port),
            port.queues.len().to_string(),
            port.ring.map_or("-".into(), |frames| count(frames.into())),
            count(account.received),
            count(account.sent),
            count(account.host),
            count(account.held),
            count(account.dropped),
            count(port.device_counters.values().sum()),
        ]);
    }
    let mut text = table.to_string();
    reply.ports.iter().for_each(|port| text += &remarks(port));
    text
}

/// Everything about each of the ports.
pub fn port_details(reply: &Ports) -> String {
    reply.ports.iter().map(details).collect::<Vec<_>>().join("\n")
}

fn details(port: &Port) -> String {
    let mut text =
        format!("{}: {}, {}, {} path, {}\n", port.name, port.device, state(port), port.path, mode(port));
    for (name, traffic) in [("rx", port.rx), ("tx", port.tx)] {
        let Some(traffic) = traffic else { continue };
        let _written = writeln!(
            text,
            "  {name}  {} packets, {} bytes; {} packets/s, {} bits/s; {} errors, {} dropped",
            count(traffic.packets),
            count(traffic.bytes),
            traffic.packets_per_s.map_or("-".into(), count),
            traffic.bits_per_s.map_or("-".into(), count),
            count(traffic.errors),
            count(traffic.dropped),
        );
    }
    text += match (port.rx, port.counted_by) {
        (None, _) => "  nothing is counted: the port has no interface\n",
        (_, CountedBy::Linux) => "  counted by Linux, as `ip -s link` shows\n",
        (_, CountedBy::Driver) => "  counted by the driver\n",
        (_, CountedBy::Brickmoon) => "  counted by brickmoon\n",
    };
    let account = &port.account;
    let parts = [
        ("received", account.received),
        ("originated", account.originated),
        ("sent", account.sent),
        ("to Linux", account.host),
        ("passed to apps", account.passed),
        ("held", account.held),
        ("consumed", account.consumed),
        ("dropped", account.dropped),
    ];
    text += &listed("brickmoon's account", parts.iter().map(|(name, frames)| (*name, *frames)));
    for (title, counters) in [
        ("dropped because", &account.drops),
        ("kernel path", &port.kernel_counters),
        ("lost by the device", &port.device_counters),
    ] {
        text += &listed(title, counters.iter().map(|(name, frames)| (name.as_str(), *frames)));
    }
    for queue in &port.queues {
        let ring =
            port.ring.map_or(String::new(), |frames| format!(", ring of {} frames", count(frames.into())));
        let received = count(queue.account.received);
        let _written =
            writeln!(text, "  queue {} on worker {}: {received} received{ring}", queue.queue, queue.worker);
    }
    text + &remarks(port)
}

/// A line of counters, without those that are zero; empty if all are.
fn listed<'a>(title: &str, counters: impl Iterator<Item = (&'a str, u64)>) -> String {
    let shown: Vec<_> = counters
        .filter(|(_, frames)| *frames > 0)
        .map(|(name, frames)| format!("{name} {}", count(frames)))
        .collect();
    if shown.is_empty() { String::new() } else { format!("  {title}: {}\n", shown.join(", ")) }
}

/// The interfaces of a port, and what there is to say about it.
fn remarks(port: &Port) -> String {
    let mut text = String::new();
    for interface in &port.interfaces {
        let _written = writeln!(text, "\n{}", self::interface(interface));
    }
    let to_linux =
        |(name, frames): (&String, &u64)| Some((*frames, name.strip_prefix("linux_")?.replace('_', " ")));
    let to_linux: Vec<_> = port.kernel_counters.iter().filter_map(to_linux).collect();
    if !to_linux.is_empty() {
        let words: Vec<_> =
            to_linux.iter().map(|(frames, why)| format!("{} {why}", count(*frames))).collect();
        let _written = writeln!(text, "  {}: left to Linux: {}", port.name, words.join(", "));
    }
    let hardware: Vec<_> =
        port.hardware_counters.iter().map(|(name, value)| format!("{name} {}", count(*value))).collect();
    if !hardware.is_empty() {
        let _written = writeln!(text, "  {}: driver counters: {}", port.name, hardware.join(", "));
    }
    for entry in &port.linux_only {
        let _written = writeln!(text, "  {}: left to Linux: {}", port.name, firewall::entry(entry));
    }
    if let Some(reason) = &port.state_reason {
        let _written = writeln!(text, "  {}: {reason}", port.name);
    }
    if let Some(reason) = &port.path_reason {
        let _written = writeln!(text, "  {}: {} path: {reason}", port.name, port.path);
    }
    if let (Some(attach), Some(reason)) = (&port.attach, &port.attach_reason) {
        let _written = writeln!(text, "  {}: attached at {attach}: {reason}", port.name);
    }
    if let Some(reason) = &port.mode_reason {
        let _written = writeln!(text, "  {}: {reason}", port.name);
    }
    text
}

fn state(port: &Port) -> &'static str {
    match (port.state, port.up, port.active) {
        (PortState::Missing, ..) => "missing",
        (PortState::Refused, ..) => "refused",
        (PortState::Attached, true, true) => "up",
        (PortState::Attached, true, false) => "up, left to Linux",
        (PortState::Attached, false, _) => "down",
    }
}

fn mode(port: &Port) -> String {
    let mode = match port.mode {
        PortMode::Memory => "memory",
        PortMode::ZeroCopy => "zero-copy",
        PortMode::Copy => "copy",
        PortMode::Tap => "tap",
        PortMode::Dpdk => "dpdk",
        PortMode::Kernel => "kernel",
    };
    // XDP is the usual way.
    match port.attach.as_deref() {
        Some("tc") => format!("{mode}, tc"),
        _ => mode.into(),
    }
}

fn interface(interface: &Interface) -> String {
    let vlan = interface.vlan.map(|vlan| format!(" vlan {}", vlan.id)).unwrap_or_default();
    let vrf = interface.vrf.as_ref().map(|vrf| format!(" vrf {vrf}")).unwrap_or_default();
    let forwarding = match (interface.forward_ipv4, interface.forward_ipv6) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4 only",
        (false, true) => "IPv6 only",
        (false, false) => "nothing (left to Linux)",
    };
    format!(
        "{}: {}{vlan}{vrf} mtu {} {}, forwards {forwarding}\n  {}",
        interface.name,
        interface.mac,
        interface.mtu_bytes,
        if interface.up { "up" } else { "down" },
        if interface.addresses.is_empty() { "no addresses".into() } else { interface.addresses.join(" ") },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_direction_has_a_line() {
        let rx = Traffic {
            packets: 1_000,
            bytes: 64_000,
            packets_per_s: Some(12_345),
            errors: 1,
            ..Traffic::default()
        };
        let port = Port {
            name: "r0".into(),
            device: "xdp:r0".into(),
            up: true,
            active: true,
            mode: PortMode::Kernel,
            rx: Some(Traffic { dropped: 2, ..rx }),
            tx: Some(Traffic::default()),
            device_counters: BTreeMap::from([("receive_ring_full".into(), 5)]),
            ..Port::default()
        };
        let shown = ports(&Ports { ports: vec![port, Port { name: "r1".into(), ..Port::default() }] });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "PORT  DEVICE  STATE  MODE        PACKETS   BYTES  PACKETS/S  BITS/S  LOST  TO LINUX  DROPPED",
                "r0    xdp:r0  up     kernel  rx    1,000  64,000     12.3 k       -     6         0        0",
                "                             tx        0       0          -       -     0",
            ],
            "{shown}"
        );
        assert!(lines[3].starts_with("r1            down   memory  rx        -"), "{shown}");
    }
}
