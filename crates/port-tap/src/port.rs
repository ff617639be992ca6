//! A TAP interface as a port: what Linux sends on it comes in, what goes out Linux receives.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use bm_frame::{Burst, Frame, Freelist, NoRoom};
use bm_port::{DeviceCounters, Port};

use crate::error::TapError;
use crate::interface::Interface;

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
        Ok(TapPort { file, room, counters: DeviceCounters::default() })
    }
}

/// One queue of a TAP interface.
pub struct TapPort {
    file: File,
    /// Bytes that every frame holds; some hold more.
    room: usize,
    counters: DeviceCounters,
}

impl TapPort {
    /// Reads the next frame into `frame`; `false` if there is none.
    fn read(&mut self, frame: &mut Frame) -> io::Result<bool> {
        let room = frame.tailroom().min(self.room);
        frame.set_len(room).map_err(io::Error::other)?;
        // The kernel cuts what does not fit, silently: the byte behind the room tells.
        let mut overrun = [0];
        let mut buffers = [IoSliceMut::new(frame.data_mut()), IoSliceMut::new(&mut overrun)];
        let length = match (&self.file).read_vectored(&mut buffers) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            read => read?,
        };
        if length > room {
            return Err(io::Error::other(NoRoom { wanted: length, room }));
        }
        frame.set_len(length).map_err(io::Error::other)?;
        Ok(true)
    }
}

impl Port for TapPort {
    fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        while !burst.is_full() {
            let Some(mut frame) = frames.allocate() else { return };
            match self.read(&mut frame) {
                Ok(true) => {
                    if let Err(frame) = burst.push(frame) {
                        // Cannot be: the burst was not full.
                        return frames.free(frame);
                    }
                }
                Ok(false) => return frames.free(frame),
                Err(error) => {
                    frames.free(frame);
                    if error.raw_os_error().is_some() {
                        // The interface is gone: it says so at each read.
                        return;
                    }
                    self.counters.receive_other += 1;
                }
            }
        }
    }

    fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) {
        for place in burst.places_mut() {
            let Some(frame) = place.take() else { continue };
            match (&self.file).write(frame.data()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *place = Some(frame);
                    return;
                }
                // EIO: the interface is down. EINVAL: shorter than an Ethernet header.
                Err(_) => self.counters.transmit_invalid += 1,
                Ok(_) => {}
            }
            frames.free(frame);
        }
        burst.reset();
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn device_counters(&self) -> DeviceCounters {
        self.counters
    }
}
