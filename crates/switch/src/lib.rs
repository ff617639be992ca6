//! A learning bridge for many ports: veth of containers, TAP of virtual machines, network cards.
//!
//! ```text
//! interfaces of Linux ── netlink ──► [`Service`] ── maps ──► bpf/switch.bpf.c on every port ──► port, or ports
//! `show switch`, `show macs` ◄────── counters, MAC addresses ◄─────────┘
//! ```
//!
//! Frames go from port to port in XDP; the programs also learn and age MAC addresses. The daemon adds and removes
//! interfaces, deletes old addresses from the table, and answers queries. Pinned programs keep working without it
//! ([`remove_kept_but`] detaches them), because nothing they depend on becomes stale: the program itself ignores an
//! address that has not been seen for the ageing time.
//!
//! Linux is connected to a switch through an interface of the switch's own ([`Settings::interface`]): a veth whose
//! other end is a port like any other. To the router, the switch is a network like any other.
//!
//! Absent on purpose: spanning tree (its frames are handed to Linux), IGMP snooping (multicast is flooded), QinQ.

mod counters;
mod error;
mod features;
mod flood;
mod interface;
mod layout;
mod pins;
mod program;
mod service;
mod settings;
mod switch;
mod table;
mod view;

pub use counters::{COUNTERS, Counters, REASONS};
pub use error::SwitchError;
pub use service::Service;
pub use settings::{Address, Pattern, PortFlags, PortRule, PortSettings, Settings, Static, VLAN_MAX, Vlans};
pub use switch::Switch;
pub use view::{FdbEntryView, PortView};

/// Detaches the switches that an earlier daemon left running in this network namespace, except those named. Returns
/// the interfaces that were their ports.
pub fn remove_kept_but(names: &[&str]) -> Vec<String> {
    let removed = pins::remove_kept(names);
    let all = interface::list().unwrap_or_default();
    let mut names = Vec::new();
    for (ifindex, name) in all.into_iter().filter(|(ifindex, _)| removed.contains(ifindex)) {
        // A switch's own interface was created by its daemon, and is useless without one.
        if name.ends_with(settings::OWN_SUFFIX) {
            let _gone = bm_netlink::link::remove(ifindex);
        }
        names.push(name);
    }
    names
}
