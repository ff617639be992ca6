//! How a port is to be opened.

/// Where in the kernel the steering program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Attach {
    /// In the driver if it can, else in generic mode.
    #[default]
    Auto,
    /// In the driver or not at all.
    Native,
    /// Behind the driver: slower, works with any.
    Generic,
}

/// How frames come from the driver into their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Bind {
    /// Without a copy if the driver can, else with one.
    #[default]
    Auto,
    /// With a copy.
    Copy,
    /// Without a copy or not at all.
    ZeroCopy,
}

/// Whether to complete checksums that the sender left to a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksums {
    /// On for drivers whose senders leave them: veth, tun, virtio.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The worker runs the driver itself, instead of interrupts. It works where the driver tells the kernel which
/// NAPI serves which queue: network cards do, veth does not (Linux 6.18), and is then left as it is.
///
/// To keep interrupts out, set the interface's `napi_defer_hard_irqs` and `gro_flush_timeout` as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long the kernel polls at most when there is nothing, in microseconds.
    pub microseconds: u32,
    /// Most frames the driver handles in one go.
    pub budget: u32,
}

/// Entries of a ring, where nobody says otherwise.
pub const RING: u32 = 2048;

/// How to open a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the steering program runs.
    pub attach: Attach,
    /// How frames come into their slots.
    pub bind: Bind,
    /// Entries of the receive ring, a power of two, and frames kept ready for the driver to receive into. That many
    /// packets can wait for the worker; any more are lost.
    pub ring: u32,
    /// Entries of the transmit ring; a power of two.
    pub transmit_ring: u32,
    /// Whether frames with VLAN tags are taken.
    pub tagged: bool,
    /// Whether every frame is taken, ARP and multicast too, and what is for this machine: nothing is Linux's.
    pub everything: bool,
    /// Whether what Linux might route is dropped until [`bm_port::Steering::set_active`] is said for the first time:
    /// there are filters, which Linux does not know.
    pub held: bool,
    /// Whether to complete checksums.
    pub complete_checksums: Checksums,
    /// Whether the driver says when it needs a system call. Without it, one is made each time.
    pub need_wakeup: bool,
    /// Whether to poll the driver busily.
    pub busy_poll: Option<BusyPoll>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            attach: Attach::Auto,
            bind: Bind::Auto,
            ring: RING,
            transmit_ring: RING,
            tagged: false,
            everything: false,
            held: false,
            complete_checksums: Checksums::Auto,
            need_wakeup: true,
            busy_poll: None,
        }
    }
}
