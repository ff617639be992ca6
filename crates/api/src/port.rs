//! `show ports`: ports and their Linux interfaces.

use crate::{LinuxOnly, Mac, ReversePath, Vlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All ports, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ports {
    pub ports: Vec<Port>,
}

/// An interface or device that the daemon forwards between, with its state and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Port {
    /// Index of the port, from 0, in the order of the configuration.
    pub index: u16,
    /// Name of the port; that of its Linux interface, if it has one.
    pub name: String,
    /// Device as in the configuration, such as `xdp:eth0`.
    pub device: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Whether brickmoon takes its packets; otherwise Linux gets all of them.
    pub active: bool,
    /// Whether the port has its interface.
    pub state: PortState,
    /// Why it has no interface, or what is wrong with the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// How frames get from the device to the workers.
    pub mode: PortMode,
    /// Ring size of each queue in frames (AF_XDP only); frames beyond that are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// Why the mode is not the best one; absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// Path of its packets: `kernel` or `user`.
    pub path: String,
    /// Why this path was chosen; absent if the configuration sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_reason: Option<String>,
    /// What the kernel path is attached to: `xdp` or `tc`; absent where it is not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<String>,
    /// Why it is attached there; absent if the configuration sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach_reason: Option<String>,
    /// Packets that arrive or leave here and that only Linux may handle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub linux_only: Vec<LinuxOnly>,
    pub queues: Vec<Queue>,
    /// Logical interfaces: the port's own, and VLANs on it.
    pub interfaces: Vec<Interface>,
    /// Packets received from the wire, as `counted_by` counts them. Absent while the port has no interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx: Option<Traffic>,
    /// Packets sent to the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<Traffic>,
    /// Who counts `rx` and `tx`.
    pub counted_by: CountedBy,
    /// Sums over its queues.
    pub account: Account,
    /// Counters of the device by name, such as `receive_ring_full`, in frames.
    pub device_counters: BTreeMap<String, u64>,
    /// All counters of the hardware or its driver, by the driver's names (DPDK's xstats); absent without any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hardware_counters: BTreeMap<String, u64>,
    /// Counters of the kernel path by name, in frames: `forwarded`, and `linux_` with a reason. On the user path only
    /// those of the steering program, such as `linux_firewall` for frames that only Linux may handle.
    pub kernel_counters: BTreeMap<String, u64>,
}

/// Packets of a port in one direction since its interface was created, on every path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Traffic {
    pub packets: u64,
    /// Bytes of the frames, without the frame check sequence.
    pub bytes: u64,
    /// Packets a second, over the last one to two seconds; absent until that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_s: Option<u64>,
    /// Bits a second, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_s: Option<u64>,
    /// Frames that the device found broken, or could not send.
    pub errors: u64,
    /// Frames that the device or its driver dropped or missed.
    pub dropped: u64,
}

/// Who counts the packets of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CountedBy {
    /// Linux, for the interface of the port: the numbers of `ip -s link`.
    #[default]
    Linux,
    /// The driver of a DPDK device.
    Driver,
    /// brickmoon: a TAP, whose numbers in Linux are the same with rx and tx exchanged, or a capture file.
    Brickmoon,
}

/// Whether a port has its interface. Ports follow their interfaces by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// The port has its interface.
    #[default]
    Attached,
    /// No interface has its name.
    Missing,
    /// The interface exists but cannot be used: Linux gets its packets, and it is tried again.
    Refused,
}

/// How frames get from a device to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PortMode {
    /// In memory: capture files, ports of tests.
    #[default]
    Memory,
    /// AF_XDP in zero-copy mode: the device writes into our frames.
    ZeroCopy,
    /// AF_XDP in copy mode: the kernel copies each frame.
    Copy,
    /// A TAP device, with one system call per frame.
    Tap,
    /// DPDK drives the device.
    Dpdk,
    /// Not at all: the kernel path forwards them.
    Kernel,
}

/// One queue of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Queue {
    /// Number of the queue on the device.
    pub queue: u32,
    /// Number of the worker that owns it.
    pub worker: u32,
    /// Account of its received frames.
    pub account: Account,
}

/// Account of frames. When no frame is in motion, `received + originated` equals the sum of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Account {
    /// Frames received.
    pub received: u64,
    /// Frames created by brickmoon, such as ICMP errors and fragments, and those that Linux sends through the host TAP
    /// of a port.
    pub originated: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames handed to Linux.
    pub host: u64,
    /// Frames passed to an app with an account of its own.
    pub passed: u64,
    /// Frames that are waiting here, such as for a neighbor.
    pub held: u64,
    /// Frames that ended here without being sent or dropped, such as those answered by an ICMP error.
    pub consumed: u64,
    /// Frames dropped, in total.
    pub dropped: u64,
    /// Frames dropped, by reason; reasons without frames are absent.
    pub drops: BTreeMap<String, u64>,
    /// Bytes received; 0 if they are not counted.
    pub received_bytes: u64,
    /// Bytes sent; 0 if they are not counted.
    pub sent_bytes: u64,
}

/// A logical interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Interface {
    /// Index of the interface in brickmoon.
    pub index: u16,
    /// Name in Linux.
    pub name: String,
    /// Number in Linux.
    pub ifindex: u32,
    /// VLAN tag; absent for untagged frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    pub mac: Mac,
    /// MTU: size of the largest IP packet, in bytes.
    pub mtu_bytes: u32,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Name of its VRF; absent if it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Whether IPv4 packets that arrive here are forwarded.
    pub forward_ipv4: bool,
    /// Whether IPv6 packets that arrive here are forwarded.
    pub forward_ipv6: bool,
    /// Reverse path filter for IPv4 sources.
    pub reverse_path: ReversePath,
    /// IP addresses with prefix lengths, such as `192.0.2.1/24`.
    pub addresses: Vec<String>,
}
