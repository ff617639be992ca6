//! What a port is to a worker, with the in-memory and the faulty port.
//!
//! A [`Port`] is one queue of a device in the hands of one worker: frames come out of it and go into it,
//! a burst at a time. How Linux gets a frame of that port is a [`HostPort`], in the hands of the slow
//! path, since it may cost a system call. What the control plane tells a port while it runs goes through
//! [`Steering`]. Devices (AF_XDP, TAP, capture files, DPDK) are crates of their own.

#![forbid(unsafe_code)]

mod copied;
mod faulty;
mod memory;
mod repeat;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use bm_frame::{Burst, Freelist};

pub use copied::Copied;
pub use faulty::{Faults, Faulty};
pub use memory::{MemoryPort, Wire};
pub use repeat::LoopPort;

/// What the device lost or refused by its own count, before frames reached us or after they left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Lost since our receive ring was full.
    pub receive_ring_full: u64,
    /// Lost since no free frame was ready for the device.
    pub receive_no_frame: u64,
    /// Lost on receive for other reasons, such as a frame larger than its slot.
    pub receive_other: u64,
    /// Sent by us, and refused or lost by the device later. What [`Port::transmit`] itself refuses is not in here.
    pub transmit_invalid: u64,
}

/// One queue of a device, in the hands of one worker.
pub trait Port: Send {
    /// Adds frames that came in to `burst`, as many as there are and fit.
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist);

    /// Takes frames from the front of `burst`, and says how many of them it refused: those are freed and never
    /// sent, since they are no frames for the device, as too short or too long. All others that it took are sent.
    /// What the device has no room for stays where it is in the burst; places may be empty already.
    #[must_use = "frames that are refused are lost, and the caller counts them"]
    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize;

    /// Does what must be done though no frame moves, such as taking back sent frames.
    fn tend(&mut self, _frames: &mut Freelist) {}

    /// What becomes readable when frames come in; `None` if the port must be asked again and again.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The device's own counts.
    fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Frees every frame that the port still holds, at the end.
    fn close(&mut self, _frames: &mut Freelist) {}
}

/// How Linux gets frames that came in on a port, as if we had not been there.
pub trait HostPort: Send {
    /// Hands `packet`, from its Ethernet header on, to Linux as received on the port's interface.
    ///
    /// # Errors
    /// What the system said; the packet is then lost, and the caller counts it.
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()>;

    /// Hands packets over in their order; gives the places of those that were lost.
    fn deliver_all(&mut self, packets: &[&[u8]]) -> Vec<usize> {
        let lost = |(place, packet): (usize, &&[u8])| self.deliver(packet).is_err().then_some(place);
        packets.iter().enumerate().filter_map(lost).collect()
    }

    /// The next packet that Linux wants sent on the port, for ports whose interface in Linux is a twin;
    /// `None` where there is none, or where Linux sends by itself.
    ///
    /// # Errors
    /// What the system said.
    fn collect<'a>(&mut self, _buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        Ok(None)
    }

    /// What becomes readable when [`collect`](Self::collect) has something.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What the control plane tells a port while it runs: what to keep for Linux.
pub trait Steering: Send {
    /// The MAC addresses that are ours on this port: the interface's own, and those of VLANs on it.
    ///
    /// # Errors
    /// What the system said; the port goes on with what it had.
    fn set_macs(&mut self, macs: &[[u8; 6]]) -> io::Result<()>;

    /// The addresses that are Linux's own: packets to them never leave the kernel.
    ///
    /// # Errors
    /// What the system said; the port goes on with what it had.
    fn set_local(&mut self, addresses: &[IpAddr]) -> io::Result<()>;

    /// Whether packets are to be taken at all: `false` leaves everything to Linux.
    ///
    /// # Errors
    /// What the system said; the port goes on with what it had.
    fn set_active(&mut self, active: bool) -> io::Result<()>;

    /// The families, IPv4 first, whose packets never leave the kernel since only Linux may handle them. A port that
    /// cannot do that takes them all the same, and its worker hands them back.
    ///
    /// # Errors
    /// What the system said; the port goes on with what it had.
    fn set_linux_only(&mut self, _families: [bool; 2]) -> io::Result<()> {
        Ok(())
    }

    /// How many packets it dropped before [`Self::set_active`] was said for the first time, since filters might have.
    fn held(&self) -> u64 {
        0
    }

    /// How many packets have been left to Linux on account of [`Self::set_linux_only`].
    fn linux_only(&self) -> u64 {
        0
    }

    /// What the device goes by, read back, that differs from what it was told: a sentence each.
    ///
    /// # Errors
    /// What the system said instead of an answer.
    fn differences(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// For ports of which Linux keeps nothing: all frames come to us, and go to Linux through a [`HostPort`].
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
