//! What Linux counts beside the packets that leave a router. In a report it says why one is missing; and it shows whether
//! this machine has lost some between a router and the test.

use crate::lab::{Lab, SIDES};
use crate::netns::Namespace;
use crate::usage::backlog_drops;
use std::collections::BTreeMap;

/// Column of `/proc/net/dev`: frames that a link did not take to send, as a veth whose other end has no room.
const LINK_DROPS: usize = 11;

/// The counters of a lab.
#[derive(Default)]
pub struct Counters {
    /// Counters of Linux's protocols in the router, by name.
    protocols: BTreeMap<String, u64>,
    /// Frames lost by this machine's processors and by the test's links.
    lost: u64,
}

impl Counters {
    /// Reads `/proc/net` of the router and of the hosts.
    pub fn read(lab: &Lab) -> Self {
        let mut protocols = BTreeMap::new();
        for file in ["snmp", "netstat"] {
            add_pairs_of_lines(&read(&lab.rtr, file), &mut protocols);
        }
        add_lines(&read(&lab.rtr, "snmp6"), &mut protocols);
        let mut lost = backlog_drops();
        for side in SIDES {
            lost += drops_of_link(&read(lab.host(side), "dev"), side.host()).unwrap_or_default();
        }
        Self { protocols, lost }
    }

    /// Frames that this machine has lost since then.
    pub fn lost_since(&self, before: &Self) -> u64 {
        // A link that was made again counts from 0.
        self.lost.saturating_sub(before.lost)
    }

    /// Whether Linux has failed to send an ICMP error or reply since then. It sends all of a processor by one socket, which
    /// is shared by all namespaces since 5.18: packets that wait for their neighbor in one of them take the room of others.
    pub fn failed_to_send_icmp_since(&self, before: &Self) -> bool {
        let grown = self.grown_since(before);
        ["IcmpOutErrors", "Icmp6OutErrors"].iter().any(|name| grown.get(name).is_some_and(|&count| count > 0))
    }

    /// By how much each counter has grown since then.
    pub fn grown_since(&self, before: &Self) -> BTreeMap<&str, u64> {
        let mut grown = BTreeMap::new();
        for (name, now) in &self.protocols {
            grown.insert(name.as_str(), now - before.protocols.get(name).unwrap_or(&0));
        }
        grown
    }
}

fn read(namespace: &Namespace, file: &str) -> String {
    let path = format!("/proc/thread-self/net/{file}");
    namespace.within(|| std::fs::read_to_string(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Reads a line of names and a line of values for each protocol.
fn add_pairs_of_lines(text: &str, counters: &mut BTreeMap<String, u64>) {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (names, values) = (pair[0].split(' '), pair[1].split(' '));
        let protocol = pair[0].split(':').next().unwrap_or_default();
        for (name, value) in names.zip(values).skip(1) {
            // Only the counter of TCP connections without a limit is negative.
            counters.insert(format!("{protocol}{name}"), value.parse().unwrap_or_default());
        }
    }
}

/// Reads lines of a name and a value.
fn add_lines(text: &str, counters: &mut BTreeMap<String, u64>) {
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace) {
            counters.insert(name.to_owned(), value.trim().parse().unwrap_or_default());
        }
    }
}

fn drops_of_link(dev: &str, name: &str) -> Option<u64> {
    let line = dev.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(LINK_DROPS)?.parse().ok()
}
