//! A TAP interface as a port: what Linux sends on it comes in, what goes out Linux receives.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bm_frame::{Burst, Frame, Freelist};
use bm_port::{DeviceCounters, Port};

use crate::error::TapError;
use crate::interface::{self, Interface, is_gone};

/// An Ethernet header and two VLAN tags: what a frame has beyond the MTU.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;

/// A TAP interface whose far end we are. It goes with its last port.
pub struct TapDevice {
    interface: Interface,
    /// The first queue, which made the interface and waits for its port.
    first: Option<File>,
}

impl TapDevice {
    /// Makes the TAP interface `name` and sets it up, or opens it if it is there and nobody has it.
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

    /// The MAC of Linux's end.
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

    /// One more queue, for frames of slots with `room` bytes. Linux spreads flows over all that are open.
    ///
    /// # Errors
    /// [`TapError::Mtu`], or as [`TapDevice::open`].
    pub fn queue(&mut self, room: usize) -> Result<TapPort, TapError> {
        let (mtu, mtu_max) = (self.mtu()?, room.saturating_sub(FRAME_OVERHEAD));
        if mtu > mtu_max {
            return Err(TapError::Mtu { name: self.name(), mtu, mtu_max });
        }
        let file = match self.first.take() {
            Some(first) => first,
            None => self.interface.open_queue()?,
        };
        let silent = interface::silent().map_err(|error| TapError::System {
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
/// The interface may be deleted under it. From then on nothing comes in, and what should go out is counted as
/// invalid: the descriptor of such an interface is always ready, and a worker that waits on it would never sleep.
pub struct TapPort {
    file: File,
    /// Bytes that every frame holds; some hold more.
    room: usize,
    /// Takes the place of `file` once the interface is gone.
    silent: Option<File>,
    name: String,
    counters: DeviceCounters,
}

/// What a read gave.
enum Got {
    Frame,
    Nothing,
    /// A frame larger than its slot, which is lost.
    TooLong,
    /// Nothing, and why not.
    Failed(io::Error),
}

impl TapPort {
    /// What keeps the interface in Linux, with its addresses and routes, though the port goes; `None` where somebody else
    /// does.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn hold(&self) -> Result<Option<OwnedFd>, TapError> {
        interface::hold(&self.file)
    }

    /// Reads the next frame into `frame`.
    fn read(&mut self, frame: &mut Frame) -> Got {
        let room = frame.tailroom().min(self.room);
        if frame.set_len(room).is_err() {
            return Got::TooLong;
        }
        // The kernel cuts what does not fit, silently: the byte behind the room tells.
        let mut overrun = [0];
        let mut buffers = [IoSliceMut::new(frame.data_mut()), IoSliceMut::new(&mut overrun)];
        match (&self.file).read_vectored(&mut buffers) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Got::Nothing,
            Err(error) => Got::Failed(error),
            Ok(length) if frame.set_len(length.min(room)).is_err() || length > room => Got::TooLong,
            Ok(_) => Got::Frame,
        }
    }

    /// The interface is gone for good. Closing its descriptor also takes it out of whatever waits on it.
    ///
    /// The one line that a worker logs: it comes once in the life of a port, and there is nobody else to see it.
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
                        // Cannot be: the burst was not full.
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *place = Some(frame);
                    return refused;
                }
                // EIO: the interface is down. EINVAL: shorter than an Ethernet header. EBADFD: it is gone, which the
                // next read sees.
                Err(_) => refused += 1,
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
