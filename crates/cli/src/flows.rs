//! `brickmoon show flows` and `brickmoon clear flows`.

use std::net::IpAddr;

use bm_api::{ClearedFlows, Flow, FlowTuple, Flows, FlowsState};

use crate::number::{bytes, count, counted};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per flow, as its packets arrive and as they leave.
pub fn flows(reply: &Flows) -> String {
    let columns = [
        ("PROTOCOL", Left),
        ("IN", Left),
        ("SOURCE", Left),
        ("DESTINATION", Left),
        ("OUT", Left),
        ("LEAVES AS", Left),
        ("PACKETS", Right),
        ("BYTES", Right),
        ("AGE", Right),
        ("IDLE", Right),
    ];
    let mut table = Table::new(&columns, "no flows");
    for flow in &reply.flows {
        let Flow { arrives, leaves, .. } = flow;
        let leaves = leaves.map(|leaves| changes(arrives, &leaves));
        table.row([
            flow.protocol.clone(),
            flow.input.clone(),
            end(arrives.source, arrives.source_port),
            end(arrives.destination, arrives.destination_port),
            flow.output.clone(),
            leaves.unwrap_or_default(),
            count(flow.packets),
            bytes(flow.bytes),
            format!("{} s", count(flow.age_s)),
            if flow.ended { "ended".into() } else { format!("{} s", count(flow.idle_s)) },
        ]);
    }
    let shown = reply.flows.len() as u64;
    match reply.matching {
        matching if shown == 0 && matching > 0 => format!("{}\n", counted(matching, "flow")),
        matching if matching > shown => {
            format!("{table}{} of {}; more with --limit\n", count(shown), counted(matching, "flow"))
        }
        _ => match &reply.state.why_not {
            Some(why) if shown == 0 => format!("{table}flows are not in use: {why}\n"),
            _ => table.to_string(),
        },
    }
}

/// The ends of packets that differ when they leave.
fn changes(arrives: &FlowTuple, leaves: &FlowTuple) -> String {
    let source = (leaves.source, leaves.source_port);
    let destination = (leaves.destination, leaves.destination_port);
    let mut changes = Vec::new();
    if source != (arrives.source, arrives.source_port) {
        changes.push(format!("from {}", end(source.0, source.1)));
    }
    if destination != (arrives.destination, arrives.destination_port) {
        changes.push(format!("to {}", end(destination.0, destination.1)));
    }
    changes.join(" ")
}

/// An address and a port.
fn end(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

/// Number of flows, or why there are none.
pub(crate) fn state(state: &FlowsState) -> String {
    if state.max == 0 && state.why_not.is_none() {
        return String::new();
    }
    let use_of = match &state.why_not {
        Some(why) => format!("not in use: {why}"),
        None => format!("in use for {}", state.families.join(" and ")),
    };
    if state.max == 0 {
        return format!("flows {use_of}\n");
    }
    format!(
        "flows: {} of {}, {} learned, {} ended; {use_of}\n",
        count(state.flows),
        count(state.max),
        count(state.learned),
        count(state.ended.values().sum()),
    )
}

/// The reply to `clear flows`.
pub fn flows_cleared(reply: &ClearedFlows) -> String {
    format!("cleared {}\n", counted(reply.flows, "flow"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, source_port: u16, destination: &str, destination_port: u16) -> FlowTuple {
        let [source, destination] = [source, destination].map(|address| address.parse().unwrap());
        FlowTuple { source, source_port, destination, destination_port }
    }

    #[test]
    fn shows_what_is_translated() {
        let arrives = tuple("10.0.0.2", 4000, "192.0.2.1", 443);
        let flow = Flow {
            protocol: "tcp".into(),
            input: "eth0".into(),
            output: "eth1".into(),
            arrives,
            leaves: Some(tuple("198.51.100.1", 62_000, "192.0.2.1", 443)),
            packets: 1_200,
            bytes: 2048,
            age_s: 7,
            idle_s: 1,
            ended: false,
        };
        let plain = Flow { leaves: None, arrives: tuple("2001:db8::1", 1, "2001:db8::2", 2), ..flow.clone() };
        let mut reply = Flows { flows: vec![flow, plain], matching: 3, ..Flows::default() };
        let expected = "\
PROTOCOL  IN    SOURCE           DESTINATION      OUT   LEAVES AS                PACKETS    BYTES  AGE  IDLE
tcp       eth0  10.0.0.2:4000    192.0.2.1:443    eth1  from 198.51.100.1:62000    1,200  2.0 KiB  7 s   1 s
tcp       eth0  [2001:db8::1]:1  [2001:db8::2]:2  eth1                             1,200  2.0 KiB  7 s   1 s
2 of 3 flows; more with --limit
";
        assert_eq!(flows(&reply), expected);
        reply.flows.clear();
        assert_eq!(flows(&reply), "3 flows\n");
        let why_not = Some("[flows] mode = \"off\"".into());
        let none = Flows { state: FlowsState { why_not, ..FlowsState::default() }, ..Flows::default() };
        assert_eq!(flows(&none), "no flows\nflows are not in use: [flows] mode = \"off\"\n");
    }

    #[test]
    fn says_how_many_there_are_or_why_there_are_none() {
        let ended = [("connection".to_string(), 4), ("idle".to_string(), 1)].into();
        let in_use = FlowsState {
            families: vec!["ipv4".into(), "ipv6".into()],
            flows: 2_000,
            max: 16_384,
            learned: 2_005,
            ended,
            ..FlowsState::default()
        };
        let expected = "flows: 2,000 of 16,384, 2,005 learned, 5 ended; in use for ipv4 and ipv6\n";
        assert_eq!(state(&in_use), expected);
        let off = FlowsState { why_not: Some("no rules".into()), ..FlowsState::default() };
        assert_eq!(state(&off), "flows not in use: no rules\n");
        assert_eq!(state(&FlowsState::default()), "");
    }
}
