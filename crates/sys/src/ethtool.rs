//! Queries to drivers, and offloads: the ioctl that ethtool uses.

use std::io;

use crate::interface::{Command, Interfaces};

/// Numbers of commands (`ETHTOOL_*` of `<linux/ethtool.h>`).
mod command {
    pub const GET_DRIVER: u32 = 0x03;
    pub const GET_STATISTICS: u32 = 0x1d;
    pub const GET_FLAGS: u32 = 0x25;
    pub const SET_FLAGS: u32 = 0x26;
    pub const SET_TRANSMIT_CHECKSUMS: u32 = 0x17;
    pub const SET_GRO: u32 = 0x2c;
    pub const GET_CHANNELS: u32 = 0x3c;
}

/// Maximum number of statistics; a veth has fewer than twenty per queue.
const STATISTICS: usize = 4096;

/// Drivers of cards that a hypervisor emulates: what another virtual machine has left to such a card nobody has done.
const PARAVIRTUAL: [&str; 4] = ["virtio_net", "vif", "hv_netvsc", "vmxnet3"];
/// The bus of devices that are no hardware: veth and most others, bridges, TUN and TAP.
const NO_BUS: [&str; 4] = ["", "N/A", "tun", "tap"];

/// `struct ethtool_drvinfo`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    others: [[u8; 32]; 4],
    reserved: [u8; 12],
    private_flags: u32,
    statistics: u32,
    sizes: [u32; 3],
}

impl Driver {
    fn name(&self) -> String {
        text(&self.name)
    }

    /// Where the device is: a place on a bus. The kernel has none for a device without hardware.
    fn bus_info(&self) -> String {
        text(&self.others[2])
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Whether frames of a device may come from its sender as that had left them to its own device.
fn is_without_wire(driver: &str, bus_info: &str) -> bool {
    PARAVIRTUAL.contains(&driver) || NO_BUS.contains(&bus_info)
}

// SAFETY: `ETHTOOL_GDRVINFO` fills in this structure, of this length.
unsafe impl Command for Driver {}

/// `struct ethtool_stats` with room.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct Statistics {
    command: u32,
    count: u32,
    of: [u64; STATISTICS],
}

// SAFETY: `ETHTOOL_GSTATS` fills in as many as the driver said it has, which is checked against the room.
unsafe impl Command for Statistics {}

/// `struct ethtool_channels`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

// SAFETY: `ETHTOOL_GCHANNELS` fills in this structure.
unsafe impl Command for Channels {}

/// `struct ethtool_value`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

// SAFETY: `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS` and `ETHTOOL_SGRO` read and write this structure.
unsafe impl Command for Value {}

/// Offloads of a device (`ETH_FLAG_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Strips VLAN tags from received frames, and stores them where XDP programs cannot see them (`rxvlan`).
    ReceiveVlan,
    /// Inserts VLAN tags into frames that are sent (`txvlan`).
    TransmitVlan,
    /// Merges received TCP packets, so that they cannot be forwarded as they came (`lro`).
    LargeReceive,
}

impl Offload {
    fn bit(self) -> u32 {
        match self {
            Self::TransmitVlan => 1 << 7,
            Self::ReceiveVlan => 1 << 8,
            Self::LargeReceive => 1 << 15,
        }
    }
}

impl Interfaces {
    fn driver_info(&self, name: &str) -> io::Result<Driver> {
        let mut driver = Driver {
            command: command::GET_DRIVER,
            name: [0; 32],
            others: [[0; 32]; 4],
            reserved: [0; 12],
            private_flags: 0,
            statistics: 0,
            sizes: [0; 3],
        };
        self.ethtool(name, &mut driver).map(|()| driver)
    }

    /// The driver's name, such as `veth`.
    ///
    /// # Errors
    /// The kernel's error: no such interface, or a driver without this query.
    pub fn driver(&self, name: &str) -> io::Result<String> {
        self.driver_info(name).map(|driver| driver.name())
    }

    /// Whether frames that come in may have checksums that their sender has left to its device, which does not exist: on
    /// a veth, a TAP, in a virtual machine. Not from a wire. Yes if the driver does not say what it is.
    ///
    /// A VLAN, bond or team is none of this by itself: what counts is the device below, which is not looked at here.
    pub fn may_leave_checksums(&self, name: &str) -> bool {
        self.driver_info(name).map_or(true, |driver| is_without_wire(&driver.name(), &driver.bus_info()))
    }

    /// The interface index of the other end of a veth, in the network namespace of that end; `None` if it is not a
    /// veth.
    ///
    /// It is the first of the statistics of a veth.
    pub fn veth_peer(&self, name: &str) -> Option<u32> {
        let driver = self.driver_info(name).ok().filter(|driver| driver.name() == "veth")?;
        if driver.statistics == 0 || driver.statistics as usize > STATISTICS {
            return None;
        }
        let (command, count) = (command::GET_STATISTICS, driver.statistics);
        let mut statistics = Box::new(Statistics { command, count, of: [0; STATISTICS] });
        self.ethtool(name, &mut *statistics).ok()?;
        u32::try_from(statistics.of[0]).ok().filter(|number| *number != 0)
    }

    /// The number of receive queues that the driver uses, including combined ones.
    ///
    /// # Errors
    /// The kernel's error: usually that the driver does not support the query.
    pub fn receive_queues(&self, name: &str) -> io::Result<u32> {
        let mut channels = Channels { command: command::GET_CHANNELS, ..Channels::default() };
        self.ethtool(name, &mut channels)?;
        Ok(channels.combined + channels.receive)
    }

    /// Whether an offload is on.
    ///
    /// # Errors
    /// The kernel's error: usually that there is no interface of that name.
    pub fn offload(&self, name: &str, offload: Offload) -> io::Result<bool> {
        let mut value = Value { command: command::GET_FLAGS, data: 0 };
        self.ethtool(name, &mut value)?;
        Ok(value.data & offload.bit() != 0)
    }

    /// Turns an offload on or off; whether that changed anything.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_offload(&self, name: &str, offload: Offload, on: bool) -> io::Result<bool> {
        let mut value = Value { command: command::GET_FLAGS, data: 0 };
        self.ethtool(name, &mut value)?;
        let wanted = if on { value.data | offload.bit() } else { value.data & !offload.bit() };
        if wanted == value.data {
            return Ok(false);
        }
        self.ethtool(name, &mut Value { command: command::SET_FLAGS, data: wanted }).map(|()| true)
    }

    /// Turns transmit checksum offload on or off. A veth has no hardware that completes checksums, and XDP at its other end
    /// passes on frames as they are.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_transmit_checksums(&self, name: &str, on: bool) -> io::Result<()> {
        self.ethtool(name, &mut Value { command: command::SET_TRANSMIT_CHECKSUMS, data: on.into() })
    }

    /// Turns generic receive offload on or off.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_gro(&self, name: &str, on: bool) -> io::Result<()> {
        self.ethtool(name, &mut Value { command: command::SET_GRO, data: on.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Driver>(), size_of::<Channels>()), (196, 36));
        assert_eq!(std::mem::offset_of!(Statistics, of), 8);
    }

    #[test]
    fn only_hardware_completes_checksums() {
        let devices =
            [("ixgbe", "0000:01:00.0"), ("macb", "ff0e0000.ethernet"), ("r8152", "usb-0000:00:14.0-4")];
        assert!(devices.iter().all(|(driver, bus)| !is_without_wire(driver, bus)));
        let devices = [
            ("veth", ""),
            ("tun", "tap"),
            ("bridge", "N/A"),
            ("macvlan", ""),
            ("virtio_net", "0000:00:03.0"),
        ];
        assert!(devices.iter().all(|(driver, bus)| is_without_wire(driver, bus)));
        assert!(Interfaces::open().unwrap().may_leave_checksums("no-such-one"));
    }

    #[test]
    fn the_loopback_is_not_a_veth() {
        let interfaces = Interfaces::open().unwrap();
        assert_eq!(interfaces.veth_peer("lo"), None);
        assert!(interfaces.driver("no-such-one").is_err());
        assert!(interfaces.receive_queues("lo").is_err());
        assert!(!interfaces.offload("lo", Offload::LargeReceive).unwrap());
        assert!(interfaces.offload("no-such-one", Offload::ReceiveVlan).is_err());
    }
}
