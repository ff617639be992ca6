//! `[[port]]`: a device whose packets are forwarded.

use bm_fastpath::AttachChoice;

use super::daemon::{ATTACH, PATHS, PathChoice, SWITCH, Switch};
use super::filter::{SOURCE_RULES, SourceRule};
use super::forms::{Choice, ChoiceIfSet, numbers, word_or_number};
use super::{Config, Device};

settings! {
    /// One `[[port]]` for each port. Without any, the daemon waits until `brickmoon reload` finds ports here;
    /// `brickmoon up --port DEVICE` adds more. An interface need not exist yet: the port uses it as soon as it appears, and
    /// again whenever it is deleted and created again.
    #[table("[[port]]")]
    pub struct Port {
        /// The device: "xdp:NAME" for an interface of Linux (or just the name), "tap:NAME" for a TAP device, "pcap:IN,OUT"
        /// for capture files, either of which may be left out, "dpdk:DEVICE" for a DPDK device (docs/dpdk.md).
        #[by_hand(device = "xdp:eth0")]
        pub device: Device,
        /// How many of its queues are used, starting with the first; "all" for as many as there are workers. If it has more
        /// of them than there are workers (AF_XDP only), the additional ones are distributed among the workers in turn.
        #[setting(queues = "all", word_or_number(1..=4096), Workers)]
        pub queues: Option<u32>,
        /// The worker of each queue, starting with the first, such as [0, 1, 1, 1]; queues not listed are distributed in
        /// turn. Worker N sends on queue N and keeps it; `reload` moves the others while packets flow.
        #[setting(queue_workers = [], numbers(0..=1023), Live)]
        pub queue_workers: Vec<u32>,
        /// Zero-copy: "on" fails if the driver does not support it, "auto" then copies.
        #[setting(zero_copy = "auto", Choice(&SWITCH), Workers)]
        pub zero_copy: Switch,
        /// Whether to fill in checksums that Linux leaves to the device (veth, tap).
        #[setting(checksum_completion = "auto", Choice(&SWITCH), Workers)]
        pub checksum_completion: Switch,
        /// Path of packets that come in on this port, "kernel" or "user"; "auto" uses `path` of `[daemon]`.
        #[setting(path = "auto", Choice(&PATHS), Workers)]
        pub path: PathChoice,
        /// What the kernel path is attached to, "xdp" or "tc"; "auto" chooses for the device, and without this key `attach`
        /// of `[daemon]` applies.
        #[setting(attach = "auto", ChoiceIfSet(&ATTACH), Workers)]
        pub attach: Option<AttachChoice>,
        /// How source addresses are checked on this port, if different from `reverse_path` of `[filter]` (same choices).
        #[setting(reverse_path = "kernel", ChoiceIfSet(&SOURCE_RULES), Live)]
        pub reverse_path: Option<SourceRule>,
    }
}

impl Port {
    /// A port with default settings, as for `--port DEVICE`.
    pub fn new(device: Device) -> Self {
        Self { device, ..Self::default() }
    }
}

impl Config {
    /// Source check of a port.
    pub fn source_rule(&self, port: &Port) -> SourceRule {
        port.reverse_path.unwrap_or(self.filter.reverse_path)
    }

    /// How the kernel path is attached to the interface of a port.
    pub fn attach_of(&self, port: &Port) -> AttachChoice {
        port.attach.unwrap_or(self.daemon.attach)
    }
}
