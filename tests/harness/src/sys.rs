//! System calls that the standard library lacks: namespaces, packet sockets, signals, clocks.
//!
//! The only file here that may contain `unsafe`. It deals with bytes and file descriptors, not with packets.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Buffer size of a capturing socket: about 20,000 small frames, as the kernel accounts them.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;
/// Bytes of the longest frame: what a host with segmentation offload hands to its veth.
const FRAME_MAX: usize = 1 << 16;
/// How long a sender waits for room in its socket.
const ROOM: Duration = Duration::from_secs(5);
/// Status bits of `struct tpacket_auxdata` for which libc uses another type.
const VLAN_VALID: u32 = libc::TP_STATUS_VLAN_VALID;
const VLAN_TPID_VALID: u32 = libc::TP_STATUS_VLAN_TPID_VALID;

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into a network namespace.
pub fn enter_namespace(namespace: &File) -> Result<()> {
    // SAFETY: takes a descriptor that is open for the call and touches no memory of ours.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes `command` start within a network namespace and a mount namespace, if given. The working directory does not
/// change.
pub fn start_within(command: &mut Command, namespace: Option<RawFd>, mounts: Option<RawFd>) {
    let folder = mounts.and_then(|_| std::env::current_dir().ok());
    let folder = folder.and_then(|folder| CString::new(folder.into_os_string().into_encoded_bytes()).ok());
    let enter = move || {
        if let Some(namespace) = namespace {
            // SAFETY: takes numbers.
            check(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) })?;
        }
        if let Some(mounts) = mounts {
            // SAFETY: takes numbers.
            check(unsafe { libc::setns(mounts, libc::CLONE_NEWNS) })?;
        }
        match &folder {
            // SAFETY: the path ends in zero and outlives the call.
            Some(folder) => check(unsafe { libc::chdir(folder.as_ptr()) }).map(drop),
            None => Ok(()),
        }
    };
    // SAFETY: the closure runs between fork and exec; it makes system calls that are async-signal-safe, and
    // allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Gives the calling thread its own mount namespace.
pub fn leave_mounts() -> Result<()> {
    // SAFETY: takes a number and touches no memory of ours.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop)
}

/// Sends a signal to one process.
pub fn signal(process: u32, signal: libc::c_int) -> Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(process as libc::pid_t, signal) }).map(drop)
}

/// A thread of another process that is stopped until this is dropped, as by a debugger: no other thread of the
/// process notices.
pub struct Frozen {
    thread: libc::pid_t,
    /// Only the thread that has stopped it may continue it.
    _here: std::marker::PhantomData<*const ()>,
}

impl Frozen {
    /// Freezes the thread of this name.
    pub fn new(process: u32, name: &str) -> Result<Self> {
        let threads = std::fs::read_dir(format!("/proc/{process}/task"))?.flatten();
        let is_it = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let path = threads.map(|thread| thread.path()).find(is_it).ok_or(ErrorKind::NotFound)?;
        let number = path.file_name().and_then(|number| number.to_str()?.parse().ok());
        let thread = number.ok_or(ErrorKind::InvalidData)?;
        let frozen = Self { thread, _here: std::marker::PhantomData };
        frozen.trace(libc::PTRACE_SEIZE)?;
        frozen.trace(libc::PTRACE_INTERRUPT)?;
        let mut status = 0;
        // SAFETY: writes one number of ours.
        check(unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) })?;
        Ok(frozen)
    }

    fn trace(&self, request: libc::c_uint) -> Result<()> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests take a number and touch no memory of ours.
        let done = unsafe { libc::ptrace(request, self.thread, nothing, nothing) };
        if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether the thread has ended. Its process cannot end before this was called.
    pub fn has_ended(&self) -> bool {
        let mut status = 0;
        // SAFETY: writes one number of ours.
        let ended = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        ended < 0 || ended == self.thread && (libc::WIFEXITED(status) || libc::WIFSIGNALED(status))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // If the thread has ended, there is nothing to do.
        let _ended = self.trace(libc::PTRACE_DETACH);
    }
}

/// Time since 1970, like packet timestamps.
pub fn wall_clock() -> Duration {
    std::time::UNIX_EPOCH.elapsed().expect("the clock shows a time after 1970")
}

/// Whether this process may create namespaces.
pub fn is_root() -> bool {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Index of the interface `name` in the namespace of the calling thread.
pub fn interface_index(name: &str) -> Result<u32> {
    let name = CString::new(name).map_err(|_| Error::from(std::io::ErrorKind::InvalidInput))?;
    // SAFETY: `name` ends in a zero and lives over the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Error::last_os_error()),
        index => Ok(index),
    }
}

fn set_option<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> Result<()> {
    // SAFETY: `value` is readable for its own size over the call; the callers pass plain C structs.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (value as *const T).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Sets an integer option of any socket.
pub fn set_socket_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<()> {
    // SAFETY: as in `set_option`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&value as *const libc::c_int).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Reads an integer option of any socket.
pub fn socket_option(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int) -> Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both places are writable over the call, and `length` says how large the first is.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&mut value as *mut libc::c_int).cast(),
            &mut length,
        )
    };
    check(result).map(|_| value)
}

/// A frame as it was on the wire, including tags, and when the kernel received it.
#[derive(Clone, Debug)]
pub struct Captured {
    /// From the destination address to the last byte of payload or padding.
    pub frame: Vec<u8>,
    /// Time since 1970.
    pub at: Duration,
}

/// A raw socket on one interface: sends complete frames, receives every frame that arrives there.
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens it on the interface `index` of the calling thread's namespace, where it stays.
    pub fn open(index: u32) -> Result<Self> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved. Protocol 0 receives nothing yet.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the call above made the descriptor, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        // SAFETY: a C struct of integers, for which all zeroes is a value.
        let mut membership: libc::packet_mreq = unsafe { zeroed() };
        membership.mr_ifindex = index as libc::c_int;
        membership.mr_type = libc::PACKET_MR_PROMISC as u16;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        // SAFETY: as above.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as libc::c_int;
        // SAFETY: `address` is readable for the length given over the call.
        check(unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&address as *const libc::sockaddr_ll).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        })?;
        Ok(Self(socket))
    }

    /// Sends one frame unchanged. Frames that the other end of a veth has not processed yet count as the sender's
    /// memory; so if a busy machine delays that end, this waits for room too, for [`ROOM`] at most.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let until = Instant::now() + ROOM;
        loop {
            // SAFETY: the bytes are readable over the call.
            let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = Error::last_os_error();
            let left = until.saturating_duration_since(Instant::now());
            if error.kind() != ErrorKind::WouldBlock || left.is_zero() {
                return Err(error);
            }
            wait(&[self], libc::POLLOUT, left)?;
        }
    }

    /// From now on each frame that is sent or received has a `struct virtio_net_hdr` in front. In it is the kernel's mark
    /// for a checksum that is left to the device: where it begins, and where its field is.
    pub fn carry_marks(&self) -> Result<()> {
        set_socket_option(&self.0, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
    }

    /// Number of frames lost since the last call because earlier ones had not been read.
    pub fn overflowed(&self) -> Result<u32> {
        // SAFETY: a C struct of integers, for which all zeroes is a value.
        let mut counts: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: both places are writable over the call, and `length` says how large the first is.
        check(unsafe {
            libc::getsockopt(self.0.as_raw_fd(), level, name, (&raw mut counts).cast(), &raw mut length)
        })?;
        Ok(counts.tp_drops)
    }

    /// Keeps almost nothing of what arrives from now on: for a socket that is not read for a long time.
    pub fn stop_listening(&self) -> Result<()> {
        set_socket_option(&self.0, libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
    }

    /// Returns the next frame that has arrived, if there is one.
    pub fn receive(&self) -> Result<Option<Captured>> {
        let mut frame: Vec<u8> = Vec::with_capacity(FRAME_MAX);
        let mut control = [0u64; 32];
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: FRAME_MAX };
        // SAFETY: a C struct of integers and pointers, for which all zeroes is a value.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 32]>();
        // SAFETY: all that `message` points to is writable for the lengths given, over the call.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, 0) };
        if got < 0 {
            let error = Error::last_os_error();
            return if error.kind() == ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: the kernel has written `got` bytes, which is at most the capacity that it was given.
        unsafe { frame.set_len(got as usize) };
        frame.shrink_to_fit();
        let mut at = Duration::ZERO;
        // SAFETY: the kernel has filled `message`; the macros walk `control` within the length it set, and
        // the data behind a header of these types is a whole `timespec` or `tpacket_auxdata`, copied
        // without assuming alignment.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                match ((*header).cmsg_level, (*header).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let time: libc::timespec =
                            libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
                        at = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
                    }
                    (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                        let extra = libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned();
                        restore_tag(&mut frame, &extra);
                    }
                    _ => {}
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        Ok(Some(Captured { frame, at }))
    }
}

/// A connection to a Unix socket that keeps the bounds of messages (`SOCK_SEQPACKET`). Reads do not wait.
pub fn connect_messages(path: &std::path::Path) -> Result<File> {
    // SAFETY: no memory is involved.
    let made = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above made the descriptor, and nobody else has it.
    let socket = unsafe { File::from_raw_fd(made) };
    // SAFETY: all zeroes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    assert!(bytes.len() < address.sun_path.len(), "a short path");
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for this length, and outlives the call.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    // SAFETY: takes numbers.
    check(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(socket)
}

/// A netlink socket of a protocol (`NETLINK_ROUTE`, ..), in the calling thread's network namespace, where it stays. Reads
/// do not wait.
pub fn netlink_socket(protocol: libc::c_int) -> Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let socket = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: the call above made the descriptor, and nobody else has it.
    let socket = unsafe { File::from_raw_fd(socket) };
    // SAFETY: takes numbers.
    check(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 4 << 20)?;
    Ok(socket)
}

/// Opens an existing TAP device as a virtual machine does; each read or write is one frame.
pub fn open_tap(name: &str) -> Result<File> {
    /// `TUNSETIFF` of `<linux/if_tun.h>`.
    const ATTACH: libc::Ioctl = 0x4004_54ca;
    let kind = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = std::fs::OpenOptions::new();
    let mut file = file;
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut file, kind);
    let file = file.read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: a C struct of integers, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is whole and outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), ATTACH, &request) })?;
    Ok(file)
}

/// Restores a VLAN tag that the kernel has removed from the bytes.
fn restore_tag(frame: &mut Vec<u8>, extra: &libc::tpacket_auxdata) {
    if extra.tp_status & VLAN_VALID == 0 || frame.len() < 12 {
        return;
    }
    let protocol = if extra.tp_status & VLAN_TPID_VALID != 0 { extra.tp_vlan_tpid } else { 0x8100 };
    let tag = [protocol.to_be_bytes(), extra.tp_vlan_tci.to_be_bytes()].concat();
    frame.splice(12..12, tag);
}

/// Waits until one of the sockets has a frame; `false` if none had within this time.
pub fn wait_readable(sockets: &[&PacketSocket], at_most: Duration) -> Result<bool> {
    wait(sockets, libc::POLLIN, at_most)
}

fn wait(sockets: &[&PacketSocket], events: libc::c_short, at_most: Duration) -> Result<bool> {
    let mut entries: Vec<libc::pollfd> =
        sockets.iter().map(|socket| libc::pollfd { fd: socket.0.as_raw_fd(), events, revents: 0 }).collect();
    let wait = libc::timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos() as _ };
    // SAFETY: the entries and the time are valid over the call, and the count is theirs.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as _, &wait, std::ptr::null()) };
    match check(ready) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}
