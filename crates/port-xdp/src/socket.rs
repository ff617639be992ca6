//! One AF_XDP socket: opened, with its rings, and bound.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use bm_frame::{DATA_OFFSET, Memory, MemoryError};

use crate::options::BusyPoll;
use crate::ring::Ring;

/// Linux 6.17: frames sent per send call in copy mode; 32 before.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// The kernel allows at most the size of the ring; more than a burst is useless.
const SEND_BUDGET: libc::c_int = 256;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// Bytes of frames being sent in copy mode: the kernel's default is enough for about 250 small ones.
const SEND_BUFFER: libc::c_int = 8 << 20;
/// The headroom that XDP reserves by itself; brickmoon's own comes in addition.
const XDP_PACKET_HEADROOM: usize = 256;

/// How long to wait for a busy queue: the socket of its last owner is released a moment after the owner has ended.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// The step that failed, and the error.
pub(crate) type Failed = (&'static str, io::Error);

/// What a socket is bound to, and how.
pub(crate) struct Binding {
    pub ifindex: u32,
    pub queue: u32,
    /// [`libc::XDP_COPY`] or [`libc::XDP_ZEROCOPY`].
    pub copy_flag: u16,
    pub need_wakeup: bool,
    /// Entries of the receive and fill rings, and of the transmit and completion rings.
    pub ring: u32,
    pub transmit_ring: u32,
    pub busy_poll: Option<BusyPoll>,
}

/// A bound socket's rings.
pub(crate) struct Rings {
    pub receive: Ring<libc::xdp_desc>,
    pub transmit: Ring<libc::xdp_desc>,
    pub fill: Ring<u64>,
    pub completion: Ring<u64>,
}

/// Opens a socket and binds it: with the UMEM of `lender`, or with a new one over `memory`.
pub(crate) fn open(
    memory: &'static Memory,
    lender: Option<BorrowedFd<'_>>,
    binding: &Binding,
) -> Result<(OwnedFd, Rings), Failed> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(("opening it", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if lender.is_none() {
        register(&socket, memory).map_err(|error| ("registering the frame memory", error))?;
    }
    let rings = rings(&socket, binding).map_err(|error| ("creating its rings", error))?;
    prepare(&socket, binding).map_err(|error| ("enabling busy polling", error))?;
    bind(&socket, lender, binding).map_err(|error| ("binding it", error))?;
    Ok((socket, rings))
}

/// Declares `memory` as the socket's UMEM.
fn register(socket: &OwnedFd, memory: &'static Memory) -> io::Result<()> {
    let region = libc::xdp_umem_reg {
        addr: memory.base().as_ptr() as u64,
        len: memory.bytes() as u64,
        chunk_size: memory.slot_size() as u32,
        // So that received data starts at the same offset as in a new frame.
        headroom: (DATA_OFFSET - XDP_PACKET_HEADROOM) as u32,
        flags: 0,
        tx_metadata_len: 0,
    };
    const { assert!(DATA_OFFSET >= XDP_PACKET_HEADROOM) };
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &region)
}

fn rings(socket: &OwnedFd, binding: &Binding) -> io::Result<Rings> {
    use libc::{XDP_RX_RING, XDP_TX_RING, XDP_UMEM_COMPLETION_RING, XDP_UMEM_FILL_RING};
    let (receive, transmit) = (binding.ring, binding.transmit_ring);
    for (ring, size) in [
        (XDP_UMEM_FILL_RING, receive),
        (XDP_UMEM_COMPLETION_RING, transmit),
        (XDP_RX_RING, receive),
        (XDP_TX_RING, transmit),
    ] {
        set(socket, libc::SOL_XDP, ring, &size)?;
    }
    // SAFETY: a struct of numbers, for which zero is valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    let fill_at = libc::XDP_UMEM_PGOFF_FILL_RING as usize;
    let completion_at = libc::XDP_UMEM_PGOFF_COMPLETION_RING as usize;
    // SAFETY: the four rings were made just now with these sizes, and these are their places and types.
    unsafe {
        Ok(Rings {
            receive: Ring::map(socket, libc::XDP_PGOFF_RX_RING as usize, &offsets.rx, receive)?,
            transmit: Ring::map(socket, libc::XDP_PGOFF_TX_RING as usize, &offsets.tx, transmit)?,
            fill: Ring::map(socket, fill_at, &offsets.fr, receive)?,
            completion: Ring::map(socket, completion_at, &offsets.cr, transmit)?,
        })
    }
}

/// Settings that must succeed (busy polling, because it was requested) and settings that may fail (older kernels).
fn prepare(socket: &OwnedFd, binding: &Binding) -> io::Result<()> {
    let budget = SEND_BUDGET.min(binding.transmit_ring as libc::c_int);
    let _older_than_6_17 = set(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget);
    let _without_privilege = set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER);
    let Some(busy) = binding.busy_poll else { return Ok(()) };
    set(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1i32)?;
    set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &(busy.microseconds as i32))?;
    set(socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &(busy.budget as i32))
}

fn bind(socket: &OwnedFd, lender: Option<BorrowedFd<'_>>, binding: &Binding) -> io::Result<()> {
    let wakeup = if binding.need_wakeup { libc::XDP_USE_NEED_WAKEUP } else { 0 };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // A socket that shares a UMEM inherits copy mode and wakeups, and must not set them.
        sxdp_flags: if lender.is_some() { libc::XDP_SHARED_UMEM } else { binding.copy_flag | wakeup },
        sxdp_ifindex: binding.ifindex,
        sxdp_queue_id: binding.queue,
        sxdp_shared_umem_fd: lender.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let begin = Instant::now();
    loop {
        // SAFETY: the address is of that size and outlives the call.
        let bound = unsafe {
            let size = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size)
        };
        let error = match bound {
            0 => return Ok(()),
            _ => io::Error::last_os_error(),
        };
        if error.raw_os_error() != Some(libc::EBUSY) || begin.elapsed() > BUSY_WAIT {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the kernel has released a queue whose socket was closed: that may take a moment in zero-copy mode, or
/// as long as a child that was just forked has the descriptors. Then another socket can be bound; so that is tried.
pub(crate) fn wait_unbound(binding: &Binding) -> io::Result<()> {
    // Frame memory is never unmapped, so all attempts use the same page.
    static PAGE: LazyLock<Result<&'static Memory, MemoryError>> = LazyLock::new(|| Memory::new(1, 4096));
    let page = PAGE.as_ref().map_err(io::Error::other)?;
    let probe = Binding { copy_flag: libc::XDP_COPY, ring: 2, transmit_ring: 2, busy_poll: None, ..*binding };
    match open(page, None, &probe) {
        // An interface that is down or deleted receives nothing.
        Err((_, error)) if !matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENODEV)) => Err(error),
        _ => Ok(()),
    }
}

/// The kernel's statistics of a socket.
pub(crate) fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    // SAFETY: a struct of numbers, for which zero is valid.
    let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get(socket, libc::XDP_STATISTICS, &mut statistics)?;
    Ok(statistics)
}

/// Asks the kernel to send the frames in the transmit ring, without waiting.
#[inline]
pub(crate) fn send(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no buffer and no address are passed.
    match unsafe {
        libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Wakes the driver for the fill ring, or, with busy polling, runs it. The result is useless: it is EAGAIN when
/// nothing was received.
#[inline]
pub(crate) fn poll_driver(socket: &OwnedFd) {
    // SAFETY: no buffer and no address are passed.
    unsafe {
        let (nothing, nobody) = (std::ptr::null_mut(), std::ptr::null_mut());
        libc::recvfrom(socket.as_raw_fd(), nothing, 0, libc::MSG_DONTWAIT, nobody, std::ptr::null_mut());
    }
}

/// `T` must be the type that the option takes: the kernel reads that many bytes.
fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is of the size given and outlives the call.
    let done = unsafe {
        let size = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), size)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `T` must be plain numbers: the kernel writes up to that many bytes.
fn get<T>(socket: &OwnedFd, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has that many bytes for the kernel to write, and both outlive the call.
    let done = unsafe {
        let value = std::ptr::from_mut(value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, &mut size)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
