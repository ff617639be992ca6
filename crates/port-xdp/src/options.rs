//! The options of a port.

/// Where in the kernel the steering program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Attach {
    /// In native mode if the driver supports it, else in generic mode.
    #[default]
    Auto,
    /// Only in native mode.
    Native,
    /// In generic mode: slower, but works with any driver.
    Generic,
}

/// How frames get from the driver into their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Bind {
    /// In zero-copy mode if the driver supports it, else with a copy.
    #[default]
    Auto,
    /// With a copy.
    Copy,
    /// Only in zero-copy mode.
    ZeroCopy,
}

/// Whether to complete partial checksums, which the sender left to a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksums {
    /// On for devices whose senders may do that: those that are no hardware, and those of virtual machines.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The worker runs the driver itself, instead of interrupts (busy polling). This works if the driver tells the kernel
/// which NAPI serves which queue: network cards do; veth does not (Linux 6.18), and then this has no effect.
///
/// To avoid interrupts, also set the interface's `napi_defer_hard_irqs` and `gro_flush_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// The longest time that the kernel polls without a frame, in microseconds.
    pub microseconds: u32,
    /// The most frames that the driver handles at once.
    pub budget: u32,
}

/// The default number of entries of a ring.
pub const RING: u32 = 2048;

/// What workers take of packets to addresses of Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Local {
    #[default]
    Nothing,
    /// IPsec ESP, alone or in UDP, and ICMP errors that may be about it.
    Esp,
    /// All but neighbor discovery, multicast, and what has a link-local destination.
    All,
}

/// How to open a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the steering program runs.
    pub attach: Attach,
    /// How frames get into their slots.
    pub bind: Bind,
    /// Entries of the receive ring, and frames provided to the driver to receive into; a power of two. As many
    /// packets can wait for the worker; any more are lost.
    pub ring: u32,
    /// Entries of the transmit ring; a power of two.
    pub transmit_ring: u32,
    /// Whether frames with VLAN tags are taken.
    pub tagged: bool,
    /// Whether every frame is taken, also ARP, multicast and packets to this machine, so that Linux gets nothing.
    pub everything: bool,
    /// Whether packets that Linux might route are dropped until [`bm_port::Steering::set_active`] is called for the
    /// first time: there are filters, which Linux does not know.
    pub held: bool,
    /// What is taken of packets to addresses of Linux.
    pub local: Local,
    /// Whether to complete checksums.
    pub complete_checksums: Checksums,
    /// Whether the driver says when it needs a system call. If not, every time is assumed.
    pub need_wakeup: bool,
    /// Settings of busy polling, if it is wanted.
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
            local: Local::Nothing,
            complete_checksums: Checksums::Auto,
            need_wakeup: true,
            busy_poll: None,
        }
    }
}
