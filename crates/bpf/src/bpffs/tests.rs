//! Each test runs once more in a process that is the first of its own process and mount namespaces, so that nothing
//! is mounted on this machine.

use super::*;
use std::fs;
use std::process::Command;

/// Set in the process that has namespaces of its own.
const INSIDE: &str = "BM_BPF_INSIDE";

/// Runs `body` where no bpffs is mounted and `/run` is empty. Prints what it skips without the privileges for that.
fn without_bpffs(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        // Programs mount it over one that is there, so it may be there several times.
        shell("mount -t tmpfs none /run; while umount -q -l /sys/fs/bpf; do :; done");
        assert_eq!(Bpffs::find(), None);
        return body();
    }
    if bm_sys::effective_user() != 0 {
        return eprintln!("skipped: {test} needs root for namespaces");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "--kill-child"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", &format!("bpffs::tests::{test}")]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn shell(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `body` in another mount namespace, where `/sys` and `/run` are others: what `ip netns exec` and containers
/// do.
fn in_another_mount_namespace<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let inside = || {
            bm_sys::Namespace::Mount.unshare().unwrap();
            shell("mount --make-rprivate / && mount -t tmpfs none /sys && mount -t tmpfs none /run");
            body()
        };
        scope.spawn(inside).join().unwrap()
    })
}

fn own(mounted_now: bool) -> Bpffs {
    Bpffs { path: OWN.into(), mounted_now }
}

/// How many file systems are mounted at our place, those included that `/run` of the test hides.
fn mounts() -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    mounts.lines().filter(|line| line.split(' ').nth(1) == Some(OWN)).count()
}

#[test]
fn the_usual_bpffs_is_used_if_mounted() {
    without_bpffs("the_usual_bpffs_is_used_if_mounted", || {
        shell("mount -t bpf bpf /sys/fs/bpf");
        let usual = Bpffs { path: USUAL.into(), mounted_now: false };
        assert_eq!(Bpffs::find_or_mount().unwrap(), usual);
        assert_eq!(usual.to_string(), "using the bpffs at /sys/fs/bpf");
        let hidden = in_another_mount_namespace(|| Bpffs::find_or_mount().unwrap());
        assert_eq!(hidden.path(), Path::new("/proc/1/root/sys/fs/bpf"));
        fs::create_dir(hidden.path().join("brickmoon")).unwrap();
        assert!(Path::new("/sys/fs/bpf/brickmoon").exists(), "it is the same file system");
    });
}

#[test]
fn a_bpffs_is_mounted_if_there_is_none() {
    without_bpffs("a_bpffs_is_mounted_if_there_is_none", || {
        let first = Bpffs::find_or_mount().unwrap();
        assert_eq!(first, own(true));
        assert_eq!(
            first.to_string(),
            "mounted a bpffs at /run/brickmoon/bpf, because none is mounted at /sys/fs/bpf"
        );
        assert_eq!(Bpffs::find_or_mount().unwrap(), own(false));
        // What was pinned before is found also when somebody mounts the usual one later.
        shell("mount -t bpf bpf /sys/fs/bpf");
        assert_eq!(Bpffs::find(), Some(own(false)));
    });
}

#[test]
fn a_bpffs_mounted_from_another_mount_namespace_is_shared() {
    without_bpffs("a_bpffs_mounted_from_another_mount_namespace_is_shared", || {
        let there = in_another_mount_namespace(|| Bpffs::find_or_mount().unwrap());
        assert_eq!(there.path(), Path::new("/proc/1/root/run/brickmoon/bpf"));
        assert_eq!(Bpffs::find(), Some(own(false)));
    });
}

/// A bpffs mounted while `find` looks is found by the path that everybody else uses, not by the one through process 1.
#[test]
fn a_mount_during_the_search_is_found_at_its_first_place() {
    let places = [OWN, USUAL, "/proc/1/root/run/brickmoon/bpf"].map(PathBuf::from);
    let looks = std::cell::Cell::new(0);
    // Mounted after the first place has been looked at: both paths to it show it from then on.
    let mounted_late = |path: &Path| {
        looks.set(looks.get() + 1);
        looks.get() > 1 && path.ends_with("run/brickmoon/bpf")
    };
    assert_eq!(first(&places, mounted_late), Some(&places[0]));
    assert_eq!(first(&places, |path| path == places[1]), Some(&places[1]));
    assert_eq!(first(&places, |path| path == places[2]), Some(&places[2]));
    assert_eq!(first(&places, |_| false), None);
}

#[test]
fn simultaneous_mounts_share_one_bpffs() {
    without_bpffs("simultaneous_mounts_share_one_bpffs", || {
        let before = mounts();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..16).map(|_| scope.spawn(|| Bpffs::find_or_mount().unwrap())).collect();
            all.into_iter().for_each(|one| assert_eq!(one.join().unwrap().path(), Path::new(OWN)));
        });
        assert_eq!(mounts(), before + 1);
    });
}

#[test]
fn it_is_unmounted_only_if_empty() {
    without_bpffs("it_is_unmounted_only_if_empty", || {
        Bpffs::unmount_own();
        let bpffs = Bpffs::find_or_mount().unwrap();
        let folder = bpffs.path().join("brickmoon");
        fs::create_dir(&folder).unwrap();
        Bpffs::unmount_own();
        assert!(folder.exists());
        fs::remove_dir(&folder).unwrap();
        in_another_mount_namespace(Bpffs::unmount_own);
        assert_eq!(Bpffs::find(), None);
    });
}

#[test]
fn a_refused_mount_says_what_to_do() {
    without_bpffs("a_refused_mount_says_what_to_do", || {
        shell("mount -o remount,ro /run");
        let refused = Bpffs::find_or_mount().unwrap_err().to_string();
        assert!(
            refused.contains("mounting one at /run/brickmoon/bpf failed: Read-only file system"),
            "{refused}"
        );
        assert!(refused.contains("`mount -t bpf bpf /sys/fs/bpf`"), "{refused}");
        // The advice in the message works.
        shell("mount -t bpf bpf /sys/fs/bpf");
        assert_eq!(Bpffs::find_or_mount().unwrap().path(), Path::new(USUAL));
    });
}

#[test]
fn an_open_bpffs_is_found_without_process_1() {
    without_bpffs("an_open_bpffs_is_found_without_process_1", || {
        shell("mount -t bpf bpf /sys/fs/bpf");
        in_another_mount_namespace(|| {
            Bpffs::keep_open().unwrap();
            let found = Bpffs::find_or_mount().unwrap();
            assert!(found.path().starts_with(OPEN_FILES), "{found:?}");
            assert_eq!(found.to_string(), "using the bpffs at /proc/1/root/sys/fs/bpf");
            fs::create_dir(found.path().join("brickmoon")).unwrap();
            assert_eq!(
                for_others(&found.path().join("brickmoon")),
                Path::new("/proc/1/root/sys/fs/bpf/brickmoon")
            );
        });
        assert!(Path::new("/sys/fs/bpf/brickmoon").exists(), "it is the same file system");
    });
}
