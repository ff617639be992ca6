//! The interface between ports and workers, with an in-memory port and a faulty one.
//!
//! A [`Port`] is one queue of a device, used by one worker: it receives and sends frames in bursts. A [`HostPort`]
//! delivers frames of that port to Linux; the slow path uses it, because it may cost a system call. [`Steering`]
//! changes the settings of a running port for the control plane. Devices (AF_XDP, TAP, capture files, DPDK) are
//! separate crates.

#![forbid(unsafe_code)]

mod copied;
mod faulty;
mod memory;
mod repeat;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use bm_frame::{Burst, Frame, Freelist, MbufFrame};

pub use copied::Copied;
pub use faulty::{Faults, Faulty};
pub use memory::{MemoryPort, Wire};
pub use repeat::LoopPort;

/// Frames that the device lost or refused, by its own count, before they reached the port or after they left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Lost because the receive ring was full.
    pub receive_ring_full: u64,
    /// Lost because the device had no free frame.
    pub receive_no_frame: u64,
    /// Lost on receive for other reasons, such as a frame larger than its slot.
    pub receive_other: u64,
    /// Sent, but refused or lost by the device later. Frames that [`Port::transmit`] itself refuses are not included.
    pub transmit_invalid: u64,
}

/// One queue of a device, used by one worker.
pub trait Port: Send {
    /// Adds received frames to `burst`, as many as are available and fit.
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist);

    /// Takes frames from the front of `burst`, and returns how many of them were refused: those are freed and never
    /// sent, because they are too short or too long for the device. All others that were taken are sent. Frames for
    /// which the device has no room stay where they are in the burst; some slots of the burst may be empty already.
    #[must_use = "frames that are refused are lost, and the caller counts them"]
    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize;

    /// The port itself if it can use slots of links directly.
    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        None
    }

    /// The port itself if it can also leave frames described by their mbufs.
    fn mbufs(&mut self) -> Option<&mut dyn InPlace<MbufFrame>> {
        None
    }

    /// Does periodic work that is needed even if no frame moves, such as taking back sent frames.
    fn tend(&mut self, _frames: &mut Freelist) {}

    /// A descriptor that becomes readable when frames arrive; `None` if the port must be polled.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A descriptor by which another thread wakes the worker, for example to give the port another device.
    fn wakeup(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The device's own counters.
    fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Frees all frames that the port still has, at the end.
    fn close(&mut self, _frames: &mut Freelist) {}
}

/// Frames that a port has received into the first of some slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedFrames {
    /// Their number.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What a port did with frames that it was to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "frames that are refused are lost, and the caller counts them"]
pub struct TransmittedFrames {
    /// Frames that were freed and never sent, as in [`Port::transmit`].
    pub refused: usize,
    /// Frames for which the device had no room: they are where they were.
    pub left: usize,
}

/// A port that receives into slots of a link, and sends from there, without a burst in between.
pub trait InPlace<F = Frame> {
    /// Fills empty slots with received frames, from the front and without gaps.
    fn receive_into(&mut self, places: &mut [Option<F>], frames: &mut Freelist) -> ReceivedFrames;

    /// Takes frames from the front, like [`Port::transmit`].
    fn transmit_from(&mut self, places: &mut [Option<F>], frames: &mut Freelist) -> TransmittedFrames;
}

/// Delivers frames that arrived on a port to Linux, as if brickmoon had not taken them.
pub trait HostPort: Send {
    /// Delivers `packet`, starting with its Ethernet header, to Linux as received on the port's interface.
    ///
    /// # Errors
    /// The system's error; the packet is then lost, and the caller counts it.
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()>;

    /// Delivers packets in order; returns the indices of those that were lost.
    fn deliver_all(&mut self, packets: &[&[u8]]) -> Vec<usize> {
        let mut lost = Vec::new();
        for (place, packet) in packets.iter().enumerate() {
            if self.deliver(packet).is_err() {
                lost.push(place);
            }
        }
        lost
    }

    /// The next packet that Linux wants to send on the port, for ports that have a host TAP interface in Linux; `None` if
    /// there is none, or if Linux sends by itself.
    ///
    /// # Errors
    /// The system's error.
    fn collect<'a>(&mut self, _buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        Ok(None)
    }

    /// A descriptor that becomes readable when [`collect`](Self::collect) has a packet.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A prefix for [`Steering::set_linux_routes`]: of at least [`LinuxRoute::IPV4_MIN`] or [`LinuxRoute::IPV6_MIN`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxRoute {
    pub address: IpAddr,
    /// Its length in bits.
    pub length: u8,
    /// `false` for a prefix that does not lead to Linux, within a shorter one that does.
    pub to_linux: bool,
}

impl LinuxRoute {
    /// The shortest prefixes, for which a single hint is enough.
    pub const IPV4_MIN: u8 = 16;
    pub const IPV6_MIN: u8 = 32;
}

/// What a steering program does with packets for workers while no worker fetches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unattended {
    /// Linux gets them.
    #[default]
    ToLinux,
    /// Those with two VLAN tags are dropped, since Linux cannot filter them; it gets the others.
    DropTwoTags,
    /// All are dropped, since Linux cannot filter them like workers.
    Drop,
}

/// What the control plane sets on a running port: which packets to leave to Linux.
pub trait Steering: Send {
    /// The MAC addresses of this machine on this port: the interface's own, and those of VLANs on it.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_macs(&mut self, macs: &[[u8; 6]]) -> io::Result<()>;

    /// Linux's own addresses: packets to them never leave the kernel.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_local(&mut self, addresses: &[IpAddr]) -> io::Result<()>;

    /// Whether packets are taken at all: `false` leaves everything to Linux.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_active(&mut self, active: bool) -> io::Result<()>;

    /// The families, IPv4 first, whose packets never leave the kernel because only Linux may handle them. A port that
    /// does not support this takes them anyway, and its worker hands them back.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_linux_only(&mut self, _families: [bool; 2]) -> io::Result<()> {
        Ok(())
    }

    /// The prefixes that lead where only Linux can send: packets there need not leave the kernel.
    ///
    /// # Errors
    /// The system's error; some of the previous prefixes may then stay in effect.
    fn set_linux_routes(&mut self, _routes: &[LinuxRoute]) -> io::Result<()> {
        Ok(())
    }

    /// Whether filters of workers may drop packets, so that Linux must not forward any that they have not seen.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_filters_drop(&mut self, _drop: bool) -> io::Result<()> {
        Ok(())
    }

    /// What to do with packets while no worker fetches them.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_unattended(&mut self, _unattended: Unattended) -> io::Result<()> {
        Ok(())
    }

    /// One received frame in so many is sampled, with 0 none. Ports without a program in the kernel sample none.
    ///
    /// # Errors
    /// The system's error; the previous setting then stays in effect.
    fn set_sampling(&mut self, _one_in: u32) -> io::Result<()> {
        Ok(())
    }

    /// How many packets were dropped before the first call of [`Self::set_active`], or while no worker fetched them, because
    /// filters might drop them.
    fn held(&self) -> u64 {
        0
    }

    /// How many packets were left to Linux because of [`Self::set_linux_only`].
    fn linux_only(&self) -> u64 {
        0
    }

    /// Whether a program in the kernel hands over only unicast IP packets that are not to [local](Self::set_local)
    /// addresses.
    fn has_kernel_program(&self) -> bool {
        false
    }

    /// Differences between the device's settings, read back, and those that were set: one sentence each.
    ///
    /// # Errors
    /// What the system said instead of an answer.
    fn differences(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// For ports without a part in Linux: all frames are taken, and get to Linux through a [`HostPort`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSteering;

impl Steering for NoSteering {
    fn set_macs(&mut self, _macs: &[[u8; 6]]) -> io::Result<()> {
        Ok(())
    }

    fn set_local(&mut self, _addresses: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }

    fn set_active(&mut self, _active: bool) -> io::Result<()> {
        Ok(())
    }
}
