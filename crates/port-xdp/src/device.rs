//! An interface with the steering program attached, and the ports for its queues.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use bm_bpf::xdp::Xdp;
use bm_frame::{DATA_OFFSET, Freelist};
use bm_port::Port as _;
use libbpf_rs::{MapCore, MapFlags};

use crate::batch::Batch;
use crate::error::XdpError;
use crate::heartbeat::QueueHeartbeat;
use crate::host::XdpHost;
use crate::interface::Interface;
use crate::options::{Bind, Checksums, Options};
use crate::port::XdpPort;
use crate::shared::Shared;
use crate::socket::{Binding, Failed};
use crate::steer::{Program, SteerCounters, XdpSteering};

/// An Ethernet header and two VLAN tags: bytes of a frame beyond the MTU.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;

/// An interface with the steering program attached. Dropping it detaches the program, and Linux gets all frames
/// again.
pub struct XdpDevice {
    interface: Interface,
    options: Options,
    shared: Arc<Shared>,
    program: Program,
    /// brickmoon turned off VLAN tag stripping, and turns it on again at the end.
    tags_kept: bool,
}

impl XdpDevice {
    /// Attaches the steering program to `interface`. Frames that fit into no slot are left to Linux. It takes no frames until [`Self::steering`] says so.
    ///
    /// # Errors
    /// See [`XdpError`]: no such interface, another XDP program, no support.
    pub fn attach(interface: &str, shared: &Arc<Shared>, options: Options) -> Result<Self, XdpError> {
        let interface = Interface::find(interface)?;
        let program = Program::attach(&interface, shared, &options)?;
        // Drivers that do not support this report an error; then there is nothing to restore.
        let tags_kept = interface.keep_tags_in_frames(true).unwrap_or(false);
        Ok(Self { interface, options, shared: shared.clone(), program, tags_kept })
    }

    /// For an interface that keeps another program of brickmoon: no frame is taken from it by this device itself.
    /// Frames sent through it are copied, since the device's own rings belong to the other program.
    ///
    /// # Errors
    /// Like [`Self::attach`], except for errors of attaching.
    pub fn beside(interface: &str, shared: &Arc<Shared>, options: Options) -> Result<Self, XdpError> {
        let interface = Interface::find(interface)?;
        let program = Program::beside(&interface, shared, &options)?;
        let options = Options { bind: Bind::Copy, ..options };
        Ok(Self { interface, options, shared: shared.clone(), program, tags_kept: false })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// The interface's index.
    pub fn index(&self) -> u32 {
        self.interface.index
    }

    /// The interface's own MAC.
    pub fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    /// The interface's MTU in bytes.
    pub fn mtu(&self) -> usize {
        self.interface.mtu
    }

    /// The driver's name.
    pub fn driver(&self) -> &str {
        &self.interface.driver
    }

    /// How many receive queues it has.
    pub fn queues(&self) -> u32 {
        self.interface.queues
    }

    /// Whether the steering program runs in generic mode.
    pub fn is_generic(&self) -> bool {
        self.program.generic
    }

    /// Whether partial checksums are completed.
    pub fn completes_checksums(&self) -> bool {
        match self.options.complete_checksums {
            Checksums::Auto => self.interface.may_leave_checksums,
            Checksums::On => true,
            Checksums::Off => false,
        }
    }

    /// The port of queue `queue`. It receives from now on: packets that arrive before its worker runs wait in its ring.
    /// Its fill ring is filled before packets are steered to it, since the kernel drops packets that find no free frame.
    ///
    /// # Errors
    /// [`XdpError::NoQueue`], or [`XdpError::Socket`] if the kernel refuses the socket.
    pub fn queue(&self, queue: u32) -> Result<XdpPort, XdpError> {
        let interface = || self.interface.name.clone();
        if queue >= self.queues() {
            return Err(XdpError::NoQueue { interface: interface(), queue, queues: self.queues() });
        }
        let (binding, (socket, rings)) = self.bind(queue).map_err(|(step, error)| XdpError::Socket {
            interface: interface(),
            queue,
            step,
            error,
        })?;
        let (key, value) = (queue.to_ne_bytes(), socket.as_raw_fd().to_ne_bytes());
        let heartbeat =
            QueueHeartbeat::open(&self.program.heartbeats, queue, self.queues()).map_err(|error| {
                XdpError::System { interface: interface(), step: "mapping the heartbeat of a queue", error }
            })?;
        let frame_pool = self.shared.frame_pool();
        let mut port =
            XdpPort::new(socket, rings, heartbeat, frame_pool, binding, self.completes_checksums());
        port.tend(&mut Freelist::new(frame_pool.clone(), 0));
        self.program
            .xsks
            .update(&key, &value, MapFlags::ANY)
            .map_err(|error| XdpError::Program { interface: interface(), error })?;
        Ok(port)
    }

    /// Binds a socket as the options say: in zero-copy mode where that works.
    fn bind(&self, queue: u32) -> Result<(Binding, Opened), Failed> {
        let binding = |copy_flag| Binding {
            ifindex: self.interface.index,
            queue,
            copy_flag,
            need_wakeup: self.options.need_wakeup,
            ring: self.options.ring,
            transmit_ring: self.options.transmit_ring,
            busy_poll: self.options.busy_poll,
        };
        if self.may_have_zero_copy() {
            let zero_copy = binding(libc::XDP_ZEROCOPY);
            match self.shared.open(&zero_copy) {
                Ok(opened) => return Ok((zero_copy, opened)),
                Err(failed) if self.options.bind == Bind::ZeroCopy => return Err(failed),
                Err(_copies_then) => {}
            }
        }
        let copy = binding(libc::XDP_COPY);
        self.shared.open(&copy).map(|opened| (copy, opened))
    }

    /// Whether a socket in zero-copy mode is worth an attempt. One that fails costs the kernel a description of all
    /// frame memory, which it makes and removes again.
    fn may_have_zero_copy(&self) -> bool {
        match self.options.bind {
            // Generic mode has no zero-copy.
            Bind::Copy => false,
            Bind::Auto | Bind::ZeroCopy if self.program.generic => false,
            Bind::ZeroCopy => true,
            // If the kernel does not say, or the interface is gone, the attempt tells.
            Bind::Auto => Xdp::query(self.interface.index).map_or(true, |xdp| xdp.zero_copy != Some(false)),
        }
    }

    /// Hands frames of the port to Linux.
    ///
    /// # Errors
    /// [`XdpError::System`] if the process has no descriptor left.
    pub fn host(&self) -> Result<XdpHost, XdpError> {
        let program = self.program.deliver.try_clone().map_err(|error| XdpError::System {
            interface: self.interface.name.clone(),
            step: "duplicating a descriptor",
            error,
        })?;
        let many = self.program.many.as_ref();
        let batch = many.map(|(program, queue)| Batch::open(program, queue)).transpose();
        let batch = batch.map_err(|error| XdpError::System {
            interface: self.interface.name.clone(),
            step: "mapping the frames for Linux",
            error,
        })?;
        Ok(XdpHost::new(program, self.interface.index, batch))
    }

    /// Tells the port which frames to take. There can be one at a time: each starts with the interface's own MAC
    /// address, and with steering off.
    ///
    /// # Errors
    /// [`XdpError::Program`] if a map cannot be written.
    pub fn steering(&self) -> Result<XdpSteering, XdpError> {
        self.program.steering(&self.interface, &self.shared)
    }

    /// What the steering program did with frames.
    ///
    /// # Errors
    /// [`XdpError::Program`] if a map cannot be read.
    pub fn counters(&self) -> Result<SteerCounters, XdpError> {
        self.program
            .counters()
            .map_err(|error| XdpError::Program { interface: self.interface.name.clone(), error })
    }
}

type Opened = (Arc<std::os::fd::OwnedFd>, crate::socket::Rings);

/// For the log line at startup: the mode, and the reason for a fallback.
impl fmt::Display for XdpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = self.queues();
        write!(
            f,
            "{} ({}, {queues} queue{}): ",
            self.name(),
            self.driver(),
            if queues == 1 { "" } else { "s" }
        )?;
        f.write_str(if self.is_generic() { "generic XDP" } else { "native XDP" })?;
        if let Some(error) = &self.program.native_error {
            write!(f, ", which is slower; native mode failed: {error}")?;
        }
        if self.completes_checksums() {
            f.write_str(", completes partial checksums")?;
        }
        Ok(())
    }
}

impl Drop for XdpDevice {
    fn drop(&mut self) {
        if self.tags_kept {
            // The interface may be gone; then there is nothing to restore.
            let _gone = self.interface.keep_tags_in_frames(false);
        }
    }
}

/// Checks that frames of an interface with this MTU fit into slots of this size.
///
/// # Errors
/// [`XdpError::Mtu`].
pub fn check_mtu(interface: &str, mtu: usize, slot_size: usize) -> Result<(), XdpError> {
    let mtu_max = slot_size.saturating_sub(DATA_OFFSET + FRAME_OVERHEAD);
    if mtu <= mtu_max {
        return Ok(());
    }
    Err(XdpError::Mtu { interface: interface.into(), mtu, mtu_max, slot_size })
}
