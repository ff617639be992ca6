//! Errors of DPDK and its devices, and how to fix them.

use std::fmt;

/// Why a DPDK port cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DpdkError {
    /// This build has no DPDK.
    NotBuilt {
        /// The device string.
        device: String,
    },
    /// The EAL did not start. That can be tried once per process.
    Eal {
        /// What it returned.
        why: String,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// The frame memory cannot be registered with DPDK.
    Memory {
        /// What was returned.
        why: String,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// A device needs frames at fixed physical addresses, and they are not on huge pages.
    PlainPages {
        /// The device string.
        device: String,
    },
    /// A device shares DPDK's memory with another process, but that is on huge pages because of an earlier device.
    HugePages {
        /// The device string.
        device: String,
    },
    /// There is no such PCI device.
    NoCard {
        /// The device string.
        device: String,
        /// Its PCI address with the domain.
        place: String,
    },
    /// A PCI device is bound to a Linux driver, or to none.
    KernelDriver {
        /// The device string.
        device: String,
        /// Its PCI address with the domain.
        place: String,
        /// Its current driver.
        driver: Option<String>,
        /// Linux interfaces that are removed with that driver.
        interfaces: Vec<String>,
        /// The driver on this machine that makes the device available to DPDK.
        usable: &'static str,
    },
    /// The device string is invalid.
    Name {
        /// The device string.
        device: String,
    },
    /// An operation on a device failed.
    Device {
        /// The device string.
        device: String,
        /// The operation.
        step: String,
        /// What was returned.
        why: String,
        /// The last lines of DPDK's log.
        log: Vec<String>,
    },
    /// A device has fewer queues than requested.
    Queues {
        /// Its name.
        device: String,
        /// The requested number.
        wanted: u16,
        /// The number that it has.
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

/// Appends DPDK's log lines.
fn append(f: &mut fmt::Formatter<'_>, log: &[String]) -> fmt::Result {
    log.iter().try_for_each(|line| write!(f, "\n  DPDK: {line}"))
}

impl fmt::Display for DpdkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt { device } => write!(
                f,
                "dpdk:{device}: this build has no DPDK. Build it with: apt-get install libdpdk-dev && \
                 cargo build --release --features dpdk (or with `make`, which adds the feature if libdpdk-dev is installed)"
            ),
            Self::Eal { why, log } => {
                write!(
                    f,
                    "DPDK does not start: {why}; a process can start it only once, so restart brickmoon to try again"
                )?;
                append(f, log)
            }
            Self::Memory { why, log } => {
                write!(f, "the frame memory cannot be registered with DPDK: {why}")?;
                append(f, log)
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
            Self::KernelDriver { device, place, driver, interfaces, usable } => {
                match driver {
                    Some(driver) => write!(f, "dpdk:{device} is bound to the Linux driver {driver}")?,
                    None => write!(f, "dpdk:{device} is not bound to a driver")?,
                }
                write!(
                    f,
                    ". To bind it to one that DPDK can use: modprobe {usable} && dpdk-devbind.py -b {usable} {place}"
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
            Self::Device { device, step, why, log } => {
                write!(f, "dpdk:{device}: {step}: {why}")?;
                append(f, log)
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
