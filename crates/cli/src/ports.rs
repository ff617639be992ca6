//! `brickmoon show ports`.

use std::fmt::Write as _;

use bm_api::{Interface, Port, PortMode, PortState, Ports};

use crate::firewall;
use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per port, then its interfaces and remarks.
pub fn ports(reply: &Ports) -> String {
    let columns = [
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
    let mut table = Table::new(&columns, "no ports");
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
    for port in &reply.ports {
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
