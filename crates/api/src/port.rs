//! `show ports`: where frames enter and leave, and the interfaces of Linux that they belong to.

use crate::{LinuxOnly, Mac};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All ports, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The ports.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Our own number of it, from 0.
    pub index: u16,
    /// Name: that of the interface in Linux where there is one.
    pub name: String,
    /// As the configuration names it, such as `xdp:eth0`.
    pub device: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Whether it takes packets now; if not, Linux has them all.
    pub active: bool,
    /// Whether it has its interface.
    pub state: PortState,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// How its frames get to a worker.
    pub mode: PortMode,
    /// Frames that can wait in each of its queues for the worker (AF_XDP alone); any more are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// Why the mode is not the best one, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// Path of its packets: `kernel` or `user`.
    pub path: String,
    /// Why it is that path, where the configuration leaves the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_reason: Option<String>,
    /// What only Linux may handle of the packets that come in here or leave here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub linux_only: Vec<LinuxOnly>,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Logical interfaces: the port's own, and VLANs on it.
    pub interfaces: Vec<Interface>,
    /// Sums over its queues.
    pub account: Account,
    /// The device's own counters by name, such as `receive_ring_full`, in frames.
    pub device_counters: BTreeMap<String, u64>,
    /// All counters that the hardware or its driver keeps, by the driver's names (DPDK's xstats); empty where there
    /// are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hardware_counters: BTreeMap<String, u64>,
    /// What the kernel path did with the port's frames, by name: `forwarded`, and `linux_` with a reason. On the user
    /// path no more than `linux_firewall`: what workers never saw, since only Linux may handle its family.
    pub kernel_counters: BTreeMap<String, u64>,
}

/// Whether a port has its interface. Ports follow their interfaces by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// It has.
    #[default]
    Taken,
    /// There is no interface of its name now.
    Missing,
    /// There is one, and it could not be taken: Linux has its packets, and it is tried again.
    Refused,
}

/// How a port's frames get to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortMode {
    /// Nothing but memory is between them: capture files, ports of tests.
    #[default]
    Memory,
    /// AF_XDP, and the device writes into our frames.
    ZeroCopy,
    /// AF_XDP, and the kernel copies each frame.
    Copy,
    /// A TAP device, read and written frame by frame.
    Tap,
    /// DPDK drives the device.
    Dpdk,
    /// None: they are forwarded in the kernel.
    Kernel,
}

/// One queue of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Its number on the device.
    pub queue: u32,
    /// The worker that has it.
    pub worker: u32,
    /// What became of its frames.
    pub account: Account,
}

/// What became of frames. `received + originated` is the sum of all others whenever nothing moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Frames that came in.
    pub received: u64,
    /// Frames made here, such as ICMP errors and fragments, and those that Linux sends through a port's twin.
    pub originated: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames handed to Linux.
    pub host: u64,
    /// Frames passed to an app with an account of its own.
    pub passed: u64,
    /// Frames that wait here now.
    pub held: u64,
    /// Frames used up, answered by those that were originated.
    pub consumed: u64,
    /// Frames dropped, in all.
    pub dropped: u64,
    /// Frames dropped, by reason; reasons without any are absent.
    pub drops: BTreeMap<String, u64>,
    /// Bytes that came in, where they are counted.
    pub received_bytes: u64,
    /// Bytes that went out, where they are counted.
    pub sent_bytes: u64,
}

/// A logical interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Our own number of it, which next hops name.
    pub index: u16,
    /// Name in Linux.
    pub name: String,
    /// Number in Linux.
    pub ifindex: u32,
    /// Its tag; absent for frames without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest IP packet, in bytes.
    pub mtu_bytes: u32,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Name of its VRF; absent in the main table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Whether IPv4 packets that come in here are forwarded.
    pub forward_ipv4: bool,
    /// Whether IPv6 packets that come in here are forwarded.
    pub forward_ipv6: bool,
    /// Check of IPv4 sources.
    pub reverse_path: ReversePath,
    /// Its addresses with their prefix lengths, such as `192.0.2.1/24`.
    pub addresses: Vec<String>,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// Ethertype of the tag: 33024 (0x8100) or 34984 (0x88a8).
    pub protocol: u16,
    /// VLAN number.
    pub id: u16,
}

/// Reverse path filter (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReversePath {
    /// Sources are not checked.
    #[default]
    Off,
    /// The route back must lead out of the same interface.
    Strict,
    /// There must be a route back.
    Loose,
}
