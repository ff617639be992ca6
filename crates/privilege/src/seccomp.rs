//! The seccomp filters: classic BPF over the number and the arguments of a system call (seccomp(2)).
//!
//! There are two, since the kernel logs either all denials of a filter or none.
//!
//! 1. Calls that programs try and can do without: fail with ENOSYS and are not logged. These are calls newer
//!    than our lists, clone3, whose flags a filter cannot read, and io_uring, whose requests no filter sees.
//! 2. Calls that brickmoon does not use: fail with EPERM and are logged.
//!
//! Calls that are allowed for all arguments cost nothing: since Linux 5.11 the kernel caches their numbers and does not
//! run the filters.

use std::io;

use libc::{c_long, sock_filter, sock_fprog};

use crate::Calls;
use crate::calls::{ALLOWED, ALLOWED_OLD, NEWEST, RAW_IO, STARTS_PROGRAMS};

/// Offsets within `struct seccomp_data`.
mod at {
    pub const NUMBER: u32 = 0;
    pub(crate) const ARCHITECTURE: u32 = 4;
    /// Offset of the lower half of an argument on little-endian machines.
    pub const fn argument(index: u32) -> u32 {
        16 + 8 * index
    }
}

/// `AUDIT_ARCH_*` of the target of this program.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Flags of clone that create namespaces.
const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Socket families that brickmoon and DPDK drivers open.
const FAMILIES: [i32; 6] =
    [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP];

/// Requests that inject input into a terminal: TIOCSTI, TIOCLINUX.
const TYPING: [u32; 2] = [0x5412, 0x541c];

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const ANY_OF: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const fn error(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}
const NOT_THERE: u32 = error(libc::ENOSYS);
const NOT_PERMITTED: u32 = error(libc::EPERM);

/// Builder of a filter. All jumps skip the next few instructions.
#[derive(Default)]
struct Program(Vec<sock_filter>);

impl Program {
    /// A filter that has loaded the number of the call; calls of other architectures (32-bit programs) fail with ENOSYS.
    fn new() -> Self {
        let mut program = Self::default();
        program.add(LOAD, 0, 0, at::ARCHITECTURE);
        program.add(EQUAL, 1, 0, ARCHITECTURE);
        program.give(NOT_THERE);
        program.add(LOAD, 0, 0, at::NUMBER);
        program
    }

    fn add(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.0.push(sock_filter { code, jt, jf, k });
    }

    fn give(&mut self, result: u32) {
        self.add(RETURN, 0, 0, result);
    }

    /// Adds an action for these calls with any arguments.
    fn calls(&mut self, calls: impl IntoIterator<Item = c_long>, result: u32) {
        for call in calls {
            self.add(EQUAL, 0, 1, call as u32);
            self.give(result);
        }
    }

    /// Adds an action for calls above this number, which on x86-64 include those of the x32 ABI.
    fn above(&mut self, call: c_long, result: u32) {
        self.add(ABOVE, 0, 1, call as u32);
        self.give(result);
    }

    /// Adds an action for a call whose argument has any of these bits, and one for other arguments.
    fn with_any(&mut self, call: c_long, argument: u32, bits: u32, result: u32, otherwise: u32) {
        self.add(EQUAL, 0, 4, call as u32);
        self.add(LOAD, 0, 0, at::argument(argument));
        self.add(ANY_OF, 0, 1, bits);
        self.give(result);
        self.give(otherwise);
    }

    /// Adds an action for a call whose argument is one of these, and one for other arguments.
    fn with_one_of(&mut self, call: c_long, argument: u32, values: &[u32], result: u32, otherwise: u32) {
        let body = 2 + 2 * values.len();
        self.add(EQUAL, 0, body as u8, call as u32);
        self.add(LOAD, 0, 0, at::argument(argument));
        for value in values {
            self.add(EQUAL, 0, 1, *value);
            self.give(result);
        }
        self.give(otherwise);
    }

    fn install(mut self, flags: libc::c_ulong) -> io::Result<()> {
        let program = sock_fprog { len: self.0.len() as u16, filter: self.0.as_mut_ptr() };
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the program is as long as it says, and the kernel copies it during the call.
        match unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The filter of calls that fail with ENOSYS.
const MISSING: [c_long; 4] =
    [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

fn missing() -> Program {
    let mut program = Program::new();
    program.calls(MISSING, NOT_THERE);
    program.above(NEWEST, NOT_THERE);
    program.give(ALLOW);
    program
}

fn of_daemon(raw_io: bool) -> Program {
    let mut program = Program::new();
    program.with_any(libc::SYS_clone, 0, NEW_NAMESPACE, NOT_PERMITTED, ALLOW);
    let families = FAMILIES.map(|family| family as u32);
    program.with_one_of(libc::SYS_socket, 0, &families, ALLOW, NOT_PERMITTED);
    program.with_one_of(libc::SYS_ioctl, 1, &TYPING, NOT_PERMITTED, ALLOW);
    let raw_io = RAW_IO.iter().filter(|_| raw_io);
    let all = ALLOWED.iter().chain(ALLOWED_OLD).chain(STARTS_PROGRAMS).chain(raw_io);
    program.calls(all.copied(), ALLOW);
    // Left to the other filter.
    program.calls(MISSING, ALLOW);
    program.above(NEWEST, ALLOW);
    program.give(NOT_PERMITTED);
    program
}

/// The filter of the watching process, in addition to the inherited one of the daemon: denies starting processes.
fn of_watcher() -> Program {
    let mut program = Program::new();
    program.with_any(libc::SYS_clone, 0, libc::CLONE_THREAD as u32, ALLOW, NOT_PERMITTED);
    program.calls(STARTS_PROGRAMS.iter().copied().chain([libc::SYS_execveat]), NOT_PERMITTED);
    program.give(ALLOW);
    program
}

/// Installs the filters for this thread and all threads and processes that it starts.
pub(crate) fn install(calls: Calls) -> io::Result<()> {
    if ARCHITECTURE == 0 {
        return Err(io::Error::other("no seccomp filter for this architecture"));
    }
    match calls {
        Calls::Daemon { raw_io } => {
            missing().install(0)?;
            of_daemon(raw_io).install(libc::SECCOMP_FILTER_FLAG_LOG)
        }
        Calls::Watcher => of_watcher().install(libc::SECCOMP_FILTER_FLAG_LOG),
    }
}
