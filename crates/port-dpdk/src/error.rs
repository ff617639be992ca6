//! What can go wrong with DPDK and its devices, and what to mend.

use std::fmt;

/// Why there is no DPDK port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DpdkError {
    /// This build has no DPDK.
    NotBuilt {
        /// As asked for.
        device: String,
    },
    /// The EAL did not start. It can be tried once a process.
    Eal {
        /// What it returned.
        why: String,
        /// What it said last.
        said: Vec<String>,
    },
    /// Frames cannot be DPDK's memory.
    Memory {
        /// What was returned.
        why: String,
        /// What was said last.
        said: Vec<String>,
    },
    /// A device needs frames at fixed places of memory, and they lie on plain pages.
    PlainPages {
        /// As asked for.
        device: String,
    },
    /// A device shares DPDK's memory with another process, and that lies on huge pages for an earlier device.
    HugePages {
        /// As asked for.
        device: String,
    },
    /// There is no such card.
    NoCard {
        /// As asked for.
        device: String,
        /// Its PCI address with the domain.
        place: String,
    },
    /// A card belongs to a driver of Linux, or to none.
    KernelDriver {
        /// As asked for.
        device: String,
        /// Its PCI address with the domain.
        place: String,
        /// Who has it.
        driver: Option<String>,
        /// Interfaces of Linux that go with it.
        interfaces: Vec<String>,
        /// The driver that can give it to programs on this machine.
        giver: &'static str,
    },
    /// No device can be called that.
    Name {
        /// As asked for.
        device: String,
    },
    /// Something failed on a device.
    Device {
        /// As asked for.
        device: String,
        /// What was tried.
        step: String,
        /// What was returned.
        why: String,
        /// What was said last.
        said: Vec<String>,
    },
    /// A device has fewer queues.
    Queues {
        /// Its name.
        device: String,
        /// How many were asked for.
        wanted: u16,
        /// How many it has.
        has: u16,
    },
    /// A frame of the device is larger than a slot.
    Mtu {
        /// Its name.
        device: String,
        /// Its MTU in bytes.
        mtu: u16,
        /// The largest that fits.
        mtu_max: usize,
    },
}

/// What DPDK said, as more lines.
fn more(f: &mut fmt::Formatter<'_>, said: &[String]) -> fmt::Result {
    said.iter().try_for_each(|line| write!(f, "\n  DPDK: {line}"))
}

impl fmt::Display for DpdkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt { device } => write!(
                f,
                "dpdk:{device}: this build has no DPDK. Build it with: apt-get install libdpdk-dev && \
                 cargo build --release --features dpdk (or with `make`, which adds the feature if libdpdk-dev is installed)"
            ),
            Self::Eal { why, said } => {
                write!(
                    f,
                    "DPDK does not start: {why}; a process can start it only once, so restart brickmoon to try again"
                )?;
                more(f, said)
            }
            Self::Memory { why, said } => {
                write!(f, "the frame memory cannot be registered with DPDK: {why}")?;
                more(f, said)
            }
            Self::HugePages { device } => write!(
                f,
                "dpdk:{device} cannot share DPDK's memory, which is on huge pages because another dpdk: port came first: put this port before the others in the configuration"
            ),
            Self::PlainPages { device } => write!(
                f,
                "dpdk:{device}: without an IOMMU the card needs its frames on huge pages: run \
                 `sysctl -w vm.nr_hugepages=256`, or enable the IOMMU and use vfio-pci"
            ),
            Self::NoCard { device, place } => {
                write!(f, "dpdk:{device}: there is no PCI device {place}; `lspci -D` lists all")
            }
            Self::KernelDriver { device, place, driver, interfaces, giver } => {
                match driver {
                    Some(driver) => write!(f, "dpdk:{device} is bound to the Linux driver {driver}")?,
                    None => write!(f, "dpdk:{device} is not bound to a driver")?,
                }
                write!(
                    f,
                    ". To bind it to one that DPDK can use: modprobe {giver} && dpdk-devbind.py -b {giver} {place}"
                )?;
                match interfaces.as_slice() {
                    [] => Ok(()),
                    names => write!(f, " (this removes the interface {})", names.join(", ")),
                }
            }
            Self::Name { device } => write!(
                f,
                "dpdk:{device}: name a PCI address (0000:01:00.0) or a virtual device (net_ring0, \
                 net_pcap0,rx_pcap=FILE, net_memif0,socket=FILE, ...)"
            ),
            Self::Device { device, step, why, said } => {
                write!(f, "dpdk:{device}: {step}: {why}")?;
                more(f, said)
            }
            Self::Queues { device, wanted, has } => {
                write!(
                    f,
                    "dpdk:{device} has {has} queue(s), but {wanted} are configured: set `queues = {has}`"
                )
            }
            Self::Mtu { device, mtu, mtu_max } => write!(
                f,
                "dpdk:{device} has an MTU of {mtu}, but a slot has room for at most {mtu_max}: set a larger `slot_size` in [daemon]"
            ),
        }
    }
}

impl std::error::Error for DpdkError {}
