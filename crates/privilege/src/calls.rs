//! System calls that the daemon makes: by its own code, by the C library, by LuaJIT, by libbpf, by DPDK.
//!
//! Calls on neither list are denied. Denied on purpose are, among others: ptrace and the like (process_vm_readv,
//! pidfd_getfd, kcmp), kernel modules and kexec, mounts and namespaces, the clock, swap, reboot, keys, handles of files,
//! users and groups, I/O ports (unless DPDK needs them), perf events, userfaultfd.

use libc::*;

/// The newest call that these lists cover (`mseal`). Programs that try newer ones work without them.
pub(crate) const NEWEST: c_long = 462;

/// Allowed calls. Those with conditions on their arguments (clone, socket, ioctl) are in `seccomp` instead.
#[rustfmt::skip]
pub(crate) const ALLOWED: &[c_long] = &[
    // files
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_openat, SYS_openat2, SYS_close, SYS_close_range, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_statfs, SYS_fstatfs, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_getdents64, SYS_getcwd, SYS_chdir,
    SYS_fchdir, SYS_mkdirat, SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_fchmod,
    SYS_fchmodat, SYS_ftruncate, SYS_truncate, SYS_fallocate, SYS_fsync, SYS_fdatasync, SYS_sync_file_range,
    SYS_utimensat, SYS_umask, SYS_flock, SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2, SYS_sendfile, SYS_copy_file_range,
    SYS_splice, SYS_tee, SYS_vmsplice, SYS_fadvise64, SYS_readahead, SYS_memfd_create, SYS_inotify_init1,
    SYS_inotify_add_watch, SYS_inotify_rm_watch,
    // memory
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_msync, SYS_mincore, SYS_mlock, SYS_mlock2,
    SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy, SYS_move_pages,
    SYS_membarrier,
    // threads and processes
    SYS_futex, SYS_futex_waitv, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_set_tid_address, SYS_gettid,
    SYS_getpid, SYS_getppid, SYS_getpgid, SYS_getsid, SYS_setpgid, SYS_setsid, SYS_exit, SYS_exit_group, SYS_wait4,
    SYS_waitid, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_prctl, SYS_seccomp, SYS_capget, SYS_capset, SYS_prlimit64,
    SYS_getrlimit, SYS_setrlimit, SYS_getrusage, SYS_times, SYS_sysinfo, SYS_uname, SYS_getrandom, SYS_getcpu,
    SYS_getpriority, SYS_setpriority, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity,
    SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getattr,
    SYS_sched_setattr, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval, SYS_getuid,
    SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups,
    // signals
    SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigreturn,
    SYS_rt_sigtimedwait, SYS_rt_sigsuspend, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_sigaltstack, SYS_signalfd4,
    SYS_restart_syscall,
    // time
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_getitimer,
    SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
    // waiting
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    // sockets
    SYS_socketpair, SYS_bind, SYS_connect, SYS_listen, SYS_accept, SYS_accept4, SYS_getsockname, SYS_getpeername,
    SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
    SYS_shutdown,
    // programs and maps
    SYS_bpf,
];

/// Older variants of these calls, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const ALLOWED_OLD: &[c_long] = &[
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_getdents, SYS_mkdir, SYS_rmdir, SYS_unlink,
    SYS_rename, SYS_link, SYS_symlink, SYS_chmod, SYS_utime, SYS_utimes, SYS_dup2, SYS_pipe, SYS_poll, SYS_select,
    SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd, SYS_inotify_init, SYS_alarm, SYS_pause, SYS_time,
    SYS_getpgrp, SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ALLOWED_OLD: &[c_long] = &[];

/// Calls that execute another program. The daemon needs them to start the process that watches its tables.
#[cfg(target_arch = "x86_64")]
pub(crate) const STARTS_PROGRAMS: &[c_long] = &[SYS_execve, SYS_vfork, SYS_fork];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const STARTS_PROGRAMS: &[c_long] = &[SYS_execve];

/// Access to I/O ports, which DPDK drivers of old virtual network cards use.
#[cfg(target_arch = "x86_64")]
pub(crate) const RAW_IO: &[c_long] = &[SYS_iopl, SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const RAW_IO: &[c_long] = &[];
