//! Tests what a confined process may do. Each test starts this program again as a process of its own,
//! with one thread.

use super::*;
use std::collections::BTreeMap;
use std::process::Command;

/// Environment variable, set in that process.
const CONFINED: &str = "BM_CONFINED";

/// Runs a test in a process with one thread: this program again, and then a forked child.
fn in_child(test: &str, body: fn()) {
    if std::env::var_os(CONFINED).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("tests::{test}"), "--exact", "--nocapture"]).env(CONFINED, "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && text.contains("1 passed");
        return assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    // SAFETY: the other thread of this process waits for this one, so it holds no lock that the child may want.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let panicked = std::panic::catch_unwind(body).is_err();
        // SAFETY: ends the process; nothing of it is needed any more.
        unsafe { libc::_exit(i32::from(panicked)) };
    }
    let mut status = 0;
    // SAFETY: the number outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the process with one thread failed");
}

/// Lines of the kind `name: value` in `/proc/PID/status`.
fn status() -> BTreeMap<String, String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.into(), value.trim().into())).collect()
}

fn set(status: &BTreeMap<String, String>, name: &str) -> u64 {
    u64::from_str_radix(&status[name], 16).unwrap()
}

/// The error number of a system call.
fn call(number: libc::c_long, arguments: [usize; 4]) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: only calls are made that do nothing with these arguments, whether they are allowed or not.
    match unsafe { libc::syscall(number, a, b, c, d) } {
        -1 => io::Error::last_os_error().raw_os_error().unwrap(),
        _ => 0,
    }
}

/// Capabilities by their numbers.
const NET_ADMIN: u64 = 1 << 12;
const SYS_RAWIO: u64 = 1 << 17;
const SYS_PTRACE: u64 = 1 << 19;
const OF_DAEMON: u64 = NET_ADMIN | 1 << 13 | 1 << 14 | 1 << 21 | 1 << 23 | 1 << 38 | 1 << 39;

#[test]
fn only_the_kept_capabilities_remain() {
    in_child("only_the_kept_capabilities_remain", || {
        let before = status();
        confine(kept_by_daemon(false, false), Calls::Daemon { raw_io: false }).unwrap();
        let after = status();
        let may_reduce_bounds = set(&before, "CapEff") & 1 << 8 != 0;
        for name in ["CapPrm", "CapEff"] {
            assert_eq!(set(&after, name), set(&before, name) & OF_DAEMON, "{name}");
        }
        if may_reduce_bounds {
            assert_eq!(set(&after, "CapBnd"), set(&before, "CapBnd") & OF_DAEMON);
        }
        assert_eq!((set(&after, "CapInh"), set(&after, "CapAmb")), (0, 0));
        assert_eq!((&*after["NoNewPrivs"], &*after["Seccomp"]), ("1", "2"));
        // An executed program has no more privileges than this.
        let output = Command::new("cat").arg("/proc/self/status").output().unwrap();
        let child = String::from_utf8(output.stdout).unwrap();
        let permitted = child.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
        assert_eq!(u64::from_str_radix(permitted, 16).unwrap() & !OF_DAEMON, 0);
    });
}

#[test]
fn unneeded_system_calls_are_not_permitted() {
    in_child("unneeded_system_calls_are_not_permitted", || {
        confine(kept_by_daemon(true, true), Calls::Daemon { raw_io: false }).unwrap();
        for (number, arguments) in [
            (libc::SYS_ptrace, [usize::MAX, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [0; 4]),
            (libc::SYS_kexec_load, [0, 0, 0, usize::MAX]),
            (libc::SYS_init_module, [0; 4]),
            (libc::SYS_finit_module, [usize::MAX, 0, 0, 0]),
            (libc::SYS_delete_module, [0; 4]),
            (libc::SYS_mount, [0; 4]),
            (libc::SYS_umount2, [0; 4]),
            (libc::SYS_move_mount, [0; 4]),
            (libc::SYS_setns, [usize::MAX, 0, 0, 0]),
            (libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0]),
            (libc::SYS_clone, [libc::CLONE_NEWUSER as usize, 0, 0, 0]),
            (libc::SYS_chroot, [0; 4]),
            (libc::SYS_reboot, [0; 4]),
            (libc::SYS_swapon, [0; 4]),
            (libc::SYS_settimeofday, [0; 4]),
            (libc::SYS_setuid, [0; 4]),
            (libc::SYS_add_key, [0; 4]),
            (libc::SYS_open_by_handle_at, [0; 4]),
            (libc::SYS_perf_event_open, [0; 4]),
            (libc::SYS_userfaultfd, [0; 4]),
            (libc::SYS_ioctl, [0, 0x5412, 0, 0]),
            (libc::SYS_socket, [libc::AF_ALG as usize, libc::SOCK_SEQPACKET as usize, 0, 0]),
        ] {
            assert_eq!(call(number, arguments), libc::EPERM, "system call {number}");
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(call(libc::SYS_iopl, [3, 0, 0, 0]), libc::EPERM);
        // Calls that programs only try fail as if missing, so that they work without.
        for number in [libc::SYS_clone3, libc::SYS_io_uring_setup, 9999] {
            assert_eq!(call(number, [0; 4]), libc::ENOSYS, "system call {number}");
        }
        // Everything that the daemon does still works: threads, processes, sockets.
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        assert!(Command::new("true").status().unwrap().success());
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
    });
}

#[test]
fn the_watcher_starts_no_process() {
    in_child("the_watcher_starts_no_process", || {
        confine(kept_by_daemon(false, false), Calls::Daemon { raw_io: false }).unwrap();
        confine(kept_by_watcher(), Calls::Watcher).unwrap();
        let refused = Command::new("true").status().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert_eq!(call(libc::SYS_mount, [0; 4]), libc::EPERM, "the filter of the daemon applies, too");
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    });
}

#[test]
fn io_ports_are_permitted_only_on_request() {
    in_child("io_ports_are_permitted_only_on_request", || {
        let before = status();
        confine(kept_by_daemon(true, false), Calls::Daemon { raw_io: true }).unwrap();
        assert_eq!(set(&status(), "CapPrm"), set(&before, "CapPrm") & (OF_DAEMON | SYS_RAWIO));
        // No such level, or no such call in this kernel: the filter lets it pass.
        #[cfg(target_arch = "x86_64")]
        assert_ne!(call(libc::SYS_iopl, [4, 0, 0, 0]), libc::EPERM);
    });
}

#[test]
fn other_threads_are_noticed() {
    in_child("other_threads_are_noticed", || {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv().is_err());
        let refused = confine(kept_by_watcher(), Calls::Watcher).unwrap_err();
        assert_eq!(refused.to_string(), "other threads are already running");
        assert_ne!(status()["Seccomp"], "2", "nothing has changed");
        drop(end);
        thread.join().unwrap();
    });
}

#[test]
fn files_of_others_are_noticed() {
    if set(&status(), "CapEff") & (1 << 1 | SYS_PTRACE) != 1 << 1 | SYS_PTRACE {
        return eprintln!("skipped: files_of_others_are_noticed needs root");
    }
    in_child("files_of_others_are_noticed", || {
        let folder = std::env::temp_dir().join(format!("bm-others-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("brickmoon.toml");
        std::fs::write(&file, "").unwrap();
        let (config, socket) = (Some(file.as_path()), folder.join("api.sock"));
        assert!(!needs_files_of_others(config, &socket));
        std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
        assert!(!needs_files_of_others(config, std::path::Path::new("/run/bm.sock")), "anybody may read it");
        assert!(needs_files_of_others(None, &socket), "nobody else may write to it");
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        assert!(needs_files_of_others(config, std::path::Path::new("/run/bm.sock")));
        let all = status();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(set(&all, "CapEff"), set(&all, "CapPrm"), "the capability is back");
    });
}
