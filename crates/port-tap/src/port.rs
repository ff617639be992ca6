//! A TAP interface as a port: it receives what Linux sends on the interface, and Linux receives what it sends.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bm_frame::{Burst, Frame, Freelist};
use bm_port::{DeviceCounters, Port};

use crate::error::TapError;
use crate::interface::{self, Interface, TapPresence, is_gone, is_try_again};

/// An Ethernet header and two VLAN tags: bytes of a frame beyond the MTU.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;

/// A TAP interface with this process at its other end. It is deleted with its last port.
pub struct TapDevice {
    interface: Interface,
    /// The first queue, which created the interface and is not used by a port yet.
    first: Option<File>,
}

impl TapDevice {
    /// Creates the TAP interface `name` and brings it up, or opens it if it exists and is not in use.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(name: &str) -> Result<Self, TapError> {
        let mut interface = Interface::new(name)?;
        let first = interface.open_queue()?;
        interface.set_up()?;
        Ok(Self { interface, first: Some(first) })
    }

    /// The interface's name.
    pub fn name(&self) -> String {
        self.interface.name()
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn index(&self) -> Result<u32, TapError> {
        self.interface.index()
    }

    /// The MAC address of Linux's end.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mac(&self) -> Result<[u8; 6], TapError> {
        self.interface.mac()
    }

    /// The interface's MTU in bytes.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mtu(&self) -> Result<usize, TapError> {
        self.interface.mtu()
    }

    /// Opens another queue, for frames with `room` bytes. Linux spreads flows over all open queues.
    ///
    /// # Errors
    /// [`TapError::Mtu`], or as for [`TapDevice::open`].
    pub fn queue(&mut self, room: usize) -> Result<TapPort, TapError> {
        let (mtu, mtu_max) = (self.mtu()?, room.saturating_sub(FRAME_OVERHEAD));
        if mtu > mtu_max {
            return Err(TapError::Mtu { name: self.name(), mtu, mtu_max });
        }
        let file = match self.first.take() {
            Some(first) => first,
            None => self.interface.open_queue()?,
        };
        let silent = bm_sys::never_readable().map_err(|error| TapError::System {
            name: self.name(),
            step: "opening the device that replaces it once it is deleted",
            error,
        })?;
        Ok(TapPort {
            file,
            room,
            silent: Some(silent),
            name: self.name(),
            counters: DeviceCounters::default(),
        })
    }
}

/// One queue of a TAP interface.
///
/// The interface may be deleted. From then on nothing is received, and sent frames are counted as invalid: the
/// descriptor of a deleted interface is always ready, and a worker that waits for it would never sleep.
pub struct TapPort {
    file: File,
    /// Bytes that every frame can hold; some can hold more.
    room: usize,
    /// Replaces `file` once the interface is deleted.
    silent: Option<File>,
    name: String,
    counters: DeviceCounters,
}

/// The result of a read.
enum Got {
    Frame,
    Nothing,
    /// A frame larger than its slot; it is lost.
    TooLong,
    /// Nothing was read, for this reason.
    Failed(io::Error),
}

impl TapPort {
    /// A descriptor that keeps the interface in Linux, with its addresses and routes, when the port is closed; `None`
    /// if it stays anyway.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn keep_open(&self) -> Result<Option<OwnedFd>, TapError> {
        interface::keep_open(&self.file)
    }

    /// Tells other threads whether the interface was deleted. It is a descriptor like [`keep_open`](Self::keep_open), and
    /// `None` where that is.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn presence(&self) -> Result<Option<TapPresence>, TapError> {
        let queue = interface::keep_open(&self.file)?;
        Ok(queue.map(|queue| TapPresence { queue, name: self.name.clone() }))
    }

    /// Reads the next frame into `frame`.
    fn read(&mut self, frame: &mut Frame) -> Got {
        let room = frame.tailroom().min(self.room);
        if frame.set_len(room).is_err() {
            return Got::TooLong;
        }
        // The kernel silently truncates what does not fit: a byte more than the slot has shows that.
        let mut overrun = [0];
        let mut buffers = [IoSliceMut::new(frame.data_mut()), IoSliceMut::new(&mut overrun)];
        match (&self.file).read_vectored(&mut buffers) {
            Err(error) if is_try_again(&error) => Got::Nothing,
            Err(error) => Got::Failed(error),
            Ok(length) if frame.set_len(length.min(room)).is_err() || length > room => Got::TooLong,
            Ok(_) => Got::Frame,
        }
    }

    /// The interface was deleted. Closing its descriptor also removes it from any epoll set.
    ///
    /// This is the only line that a worker logs: it happens once in the life of a port, and no other thread notices
    /// it.
    fn lose_interface(&mut self) {
        if let Some(silent) = self.silent.take() {
            self.file = silent;
            tracing::error!(
                "TAP interface {} was deleted: its port no longer carries packets; restart brickmoon to create it again",
                self.name
            );
        }
    }
}

impl Port for TapPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        while self.silent.is_some() && !burst.is_full() {
            let Some(mut frame) = frames.allocate() else { return };
            match self.read(&mut frame) {
                Got::Frame => {
                    if let Err(frame) = burst.push(frame) {
                        // Cannot happen: the burst was not full.
                        return frames.free(frame);
                    }
                    continue;
                }
                Got::TooLong => self.counters.receive_other += 1,
                Got::Nothing => return frames.free(frame),
                Got::Failed(error) => {
                    if is_gone(&error) {
                        self.lose_interface();
                    }
                    return frames.free(frame);
                }
            }
            frames.free(frame);
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
        let mut refused = 0;
        for place in burst.places_mut() {
            let Some(frame) = place.take() else { continue };
            if self.silent.is_none() {
                refused += 1;
                frames.free(frame);
                continue;
            }
            match (&self.file).write(frame.data()) {
                Err(error) if is_try_again(&error) => {
                    *place = Some(frame);
                    return refused;
                }
                // EIO: the interface is down. EINVAL: shorter than an Ethernet header. ENOBUFS, ENOMEM: Linux has no
                // memory for it. EBADFD: the interface is deleted, which the next read notices.
                Err(_) => refused += 1,
                // Linux got the beginning of a frame, which is worth nothing.
                Ok(length) if length < frame.len() => refused += 1,
                Ok(_) => {}
            }
            frames.free(frame);
        }
        burst.reset();
        refused
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn device_counters(&self) -> DeviceCounters {
        self.counters
    }
}
