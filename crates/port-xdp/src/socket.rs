//! One AF_XDP socket: opened, with its rings, and bound.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use bm_frame::{DATA_OFFSET, Memory, MemoryError};
use rustix::io::Errno;
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

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
    let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|error| ("opening it", error.into()))?;
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
    const { assert!(DATA_OFFSET >= XDP_PACKET_HEADROOM) };
    let region = XdpUmemReg {
        addr: memory.base().as_ptr() as u64,
        len: memory.bytes() as u64,
        chunk_size: memory.slot_size() as u32,
        // So that received data starts at the same offset as in a new frame.
        headroom: (DATA_OFFSET - XDP_PACKET_HEADROOM) as u32,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    Ok(set_xdp_umem_reg(socket, region)?)
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
    let offsets: libc::xdp_mmap_offsets = get(socket, libc::XDP_MMAP_OFFSETS)?;
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
    // A socket that shares a UMEM inherits copy mode and wakeups, and must not set them.
    let flags = if lender.is_some() { libc::XDP_SHARED_UMEM } else { binding.copy_flag | wakeup };
    let flags = SocketAddrXdpFlags::from_bits_retain(flags);
    let address = SocketAddrXdp::new(flags, binding.ifindex, binding.queue);
    let begin = Instant::now();
    loop {
        let bound = match lender {
            Some(shared_umem_fd) => {
                let address = SocketAddrXdpWithSharedUmem { addr: address.clone(), shared_umem_fd };
                rustix::net::bind(socket, &address)
            }
            None => rustix::net::bind(socket, &address),
        };
        match bound {
            Err(Errno::BUSY) if begin.elapsed() <= BUSY_WAIT => thread::sleep(Duration::from_millis(10)),
            done => return Ok(done?),
        }
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
    get(socket, libc::XDP_STATISTICS)
}

/// Asks the kernel to send the frames in the transmit ring, without waiting.
#[inline]
pub(crate) fn send(socket: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::send(socket, &[], SendFlags::DONTWAIT).map(drop)?)
}

/// Wakes the driver for the fill ring, or, with busy polling, runs it. The result is useless: it is EAGAIN when
/// nothing was received.
#[inline]
pub(crate) fn poll_driver(socket: &OwnedFd) {
    let _nothing = rustix::net::recv(socket, &mut [0; 0], RecvFlags::DONTWAIT);
}

/// What an option is made of.
///
/// # Safety
/// The type is numbers alone, without padding, and holds no address; any bytes are a value.
unsafe trait Numbers: Copy {}

// SAFETY: one number.
unsafe impl Numbers for i32 {}
// SAFETY: one number.
unsafe impl Numbers for u32 {}
// SAFETY: 16 numbers of eight bytes.
unsafe impl Numbers for libc::xdp_mmap_offsets {}
// SAFETY: six numbers of eight bytes.
unsafe impl Numbers for libc::xdp_statistics {}

/// Sets an option.
fn set<T: Numbers>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads numbers, of the size given, that outlive the call.
    let done = unsafe {
        let size = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), size)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The value of an option of AF_XDP. What an older kernel does not write is zero.
fn get<T: Numbers>(socket: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut size = size_of::<T>() as libc::socklen_t;
    let to = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes as many bytes as the value has, or fewer; both outlive the call. Numbers may have any
    // bytes, written or zero.
    unsafe {
        match libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, to, &mut size) {
            0 => Ok(value.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
