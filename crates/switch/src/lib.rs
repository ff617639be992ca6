//! A learning bridge among many ports: veth of containers, TAP of virtual machines, cards.
//!
//! ```text
//! interfaces of Linux ── netlink ──► [`Service`] ── maps ──► bpf/switch.bpf.c on every port ──► port, or ports
//! `show switch`, `show macs` ◄────── counters, stations ◄─────────┘
//! ```
//!
//! Frames go from port to port in XDP; the programs learn by themselves, and forget too. The daemon's part is to
//! take interfaces in and out, to sweep old stations out of the table, and to answer. Pinned programs go on
//! without it ([`remove_kept_but`] takes them off), since nothing that they go by grows stale: a station that has
//! not been heard for the ageing time is not believed, by the program itself.
//!
//! Linux gets on a switch by an interface of the switch's own ([`Settings::interface`]): a veth whose other end
//! is a port like any other. So the router meets the switch as it meets any network.
//!
//! Absent on purpose: spanning tree (its frames are Linux's), IGMP snooping (groups are flooded), QinQ.

mod counters;
mod error;
mod features;
mod flood;
mod interface;
mod layout;
mod netlink;
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
pub use view::{PortView, StationView};

/// Takes the switches off that a daemon that is no more has left in this network namespace, those of these
/// names excepted; the interfaces that were their ports.
pub fn remove_kept_but(names: &[&str]) -> Vec<String> {
    let removed = pins::remove_kept(names);
    let all = interface::list().unwrap_or_default();
    let mut names = Vec::new();
    for (ifindex, name) in all.into_iter().filter(|(ifindex, _)| removed.contains(ifindex)) {
        // A switch's own interface was made by its daemon, and is of no use without one.
        if name.ends_with(settings::OWN_SUFFIX) {
            let _gone = netlink::Netlink::open().and_then(|netlink| netlink.remove(ifindex));
        }
        names.push(name);
    }
    names
}
