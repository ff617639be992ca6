//! The kernel path outlives its daemon: XDP keeps forwarding by the last tables, and the next daemon takes over.
//!
//! Nothing may be lost here. Linux's count of forwarded packets, which does not include those of XDP, shows who
//! forwarded.

use bm_tests::binary::binary;
use bm_tests::command;
use bm_tests::flow::{Outcome, Stream};
use bm_tests::lab::{Ends, Lab, SIDES, Side, by_linux};
use bm_tests::pause;
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// Packets a second of the flow.
const RATE: u32 = 10_000;
const SHORT_GRACE: &str = "[daemon]\nkernel_grace_s = 1\n";

fn stream() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9", "10.1.1.200"], RATE)
}

/// Runs a test on the kernel path.
fn on_kernel(test: &str, action: impl FnOnce(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    action(&lab, &mut router);
}

/// The number of the XDP program on a link.
fn program(lab: &Lab, side: Side) -> Option<u64> {
    let link = lab.rtr.run(&format!("ip -j link show dev {}", side.router()));
    let link: serde_json::Value = serde_json::from_str(&link).expect("ip prints JSON");
    link[0]["xdp"]["prog"]["id"].as_u64()
}

fn programs(lab: &Lab) -> [Option<u64>; 3] {
    SIDES.map(|side| program(lab, side))
}

/// Sends a stream while `action` runs: nothing may be lost, and Linux must not forward anything.
#[track_caller]
fn in_xdp_alone(lab: &Lab, what: &str, action: impl FnOnce()) {
    let before = by_linux(lab);
    let ((), outcome) = stream().during(lab, action);
    whole(what, &outcome);
    assert_eq!(by_linux(lab) - before, 0, "{what}: Linux has forwarded: {outcome}");
}

#[track_caller]
fn whole(what: &str, outcome: &Outcome) {
    report::say(&format!("kept: {what}: {outcome}"));
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{what}: {outcome}");
}

#[track_caller]
fn nothing_stays(lab: &Lab) {
    assert_eq!(programs(lab), [None; 3]);
    assert!(!lab.rtr.pins().exists(), "{} must be removed", lab.rtr.pins().display());
}

#[test]
fn forwarding_survives_a_crash_and_the_next_daemon_takes_over() {
    on_kernel("crash", |lab, router| {
        let first = programs(lab);
        in_xdp_alone(lab, "kill -9", || {
            pause(300);
            router.kill();
            pause(700);
        });
        assert_eq!(programs(lab), first, "the program must stay attached");
        lab.leaves_by("10.1.1.200", 6);
        in_xdp_alone(lab, "started again", || {
            pause(300);
            router.restart();
            pause(300);
        });
        lab.rtr
            .ip("route replace 10.90.0.0/16 via 198.51.100.8\nroute replace 10.1.1.200/32 via 198.51.100.3");
        router.settle();
        lab.leaves_by("10.1.1.200", 3);
        lab.leaves_by("10.90.1.1", 8);
        for (new, old) in programs(lab).into_iter().zip(first) {
            assert!(new.is_some() && new != old, "the program must be that of the new daemon");
        }
        router.settle();
        router.end(&[]);
        nothing_stays(lab);
    });
}

#[test]
fn stop_keep_keeps_forwarding_and_stop_ends_it() {
    on_kernel("keep", |lab, router| {
        in_xdp_alone(lab, "stop --keep, then up", || {
            pause(200);
            router.end(&["--keep"]);
            pause(500);
            router.restart();
            pause(200);
        });
        router.end(&["--keep"]);
        assert!(programs(lab).iter().all(Option::is_some));
        let stop = router.ask("stop", &[]).expect("a daemon's command");
        let output = String::from_utf8_lossy(&stop.stdout);
        assert!(
            stop.status.success() && output.contains("left in the kernel on r0, r1, r2: Linux forwards now"),
            "{output}"
        );
        nothing_stays(lab);
        let stop = router.ask("stop", &[]).expect("a daemon's command");
        assert!(!stop.status.success(), "there must be nothing left to stop");
        whole("after the stop", &stream().for_a_while(lab, Duration::from_millis(200)));
    });
}

/// The script that dpkg runs after the files of a new version are in place, with stand-ins for systemd: `brickmoon` is that
/// of the test, and `deb-systemd-invoke` writes what it is asked for into a file.
#[test]
fn an_upgrade_of_the_package_loses_nothing() {
    on_kernel("upgrade", |lab, router| {
        let folder = std::env::temp_dir().join(format!("bm-upgrade-{}", std::process::id()));
        let asked = folder.join("asked");
        let script = |name: &str, body: String| {
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a script");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
        };
        std::fs::create_dir_all(folder.join("run/systemd/system")).expect("a folder");
        let program = binary().expect("the subject has one");
        let socket = router.socket().expect("a daemon");
        script("brickmoon", format!("exec {} \"$@\" --socket {socket}", program.display()));
        script("systemctl", "exit 0".into());
        script("deb-systemd-invoke", format!("echo \"$@\" >>{}", asked.display()));
        let postinst = include_str!("../../../../packaging/debian/brickmoon.postinst");
        // What debhelper puts there.
        script("postinst", postinst.replace("#DEBHELPER#", "deb-systemd-invoke start brickmoon.service"));
        in_xdp_alone(lab, "upgrade", || {
            pause(200);
            let mut command = lab.rtr.command(folder.join("postinst"));
            command.args(["configure", "0.0.1"]).env("DPKG_ROOT", &folder);
            command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
            let done = command::run("postinst", &mut command, Duration::from_secs(60)).expect("it ends");
            assert!(done.status.success(), "{done:?}");
            router.restart();
            pause(200);
        });
        let asked = std::fs::read_to_string(asked).expect("a file");
        assert_eq!(asked, "daemon-reload\nstart brickmoon.service\n");
        std::fs::remove_dir_all(&folder).expect("it is there");
        router.settle();
        router.end(&[]);
        nothing_stays(lab);
    });
}

#[test]
fn taken_over_ten_times_under_load() {
    on_kernel("ten", |lab, router| {
        in_xdp_alone(lab, "killed and started ten times", || {
            for _ in 0..10 {
                router.kill();
                router.restart();
            }
        });
        router.settle();
        router.end(&[]);
        nothing_stays(lab);
    });
}

#[test]
fn linux_forwards_after_the_grace_period() {
    on_kernel("grace", |lab, router| {
        router.end(&[]);
        let ports = SIDES.map(|side| side.router());
        router.restart_with(&ports, SHORT_GRACE);
        // A running daemon is never too late, however short the grace period is.
        in_xdp_alone(lab, "idle for two graces", || pause(2000));
        let before = by_linux(lab);
        // How long after the kill this test sees Linux forward; it may have started a little earlier.
        let (took, outcome) = stream().during(lab, || {
            let killed = Instant::now();
            router.kill();
            while by_linux(lab) == before {
                assert!(killed.elapsed() < Duration::from_secs(30), "Linux does not take over");
                pause(20);
            }
            let took = killed.elapsed();
            pause(300);
            took
        });
        whole("the grace is over", &outcome);
        report::say(&format!("kept: Linux forwarded {:.2} s after the end", took.as_secs_f64()));
        // The second counts from the last heartbeat, not from the kill. On a busy machine, only too soon is wrong.
        assert!(took > Duration::from_millis(400), "the grace period of 1 s took {took:?}");
        assert!(
            programs(lab).iter().all(Option::is_some),
            "the program must stay attached and pass everything to Linux"
        );
        let before = programs(lab);
        router.restart_with(&ports, "");
        assert_ne!(programs(lab), before);
        in_xdp_alone(lab, "back after the grace", || pause(300));
        router.end(&[]);
        nothing_stays(lab);
    });
}

#[test]
fn an_interface_that_is_no_longer_a_port_is_released() {
    on_kernel("fewer", |lab, router| {
        router.kill();
        assert!(program(lab, Side::Low).is_some());
        router.restart_with(&["r0", "r1"], "");
        assert_eq!(program(lab, Side::Low), None);
        let log = router.log();
        assert!(log.contains("is not a port now") && log.contains("r2"), "{log}");
        in_xdp_alone(lab, "with two ports", || pause(200));
        router.end(&[]);
        nothing_stays(lab);
    });
}

/// Starts the daemon where no bpffs is mounted, kills it, and lists what it has pinned from another mount namespace.
const WITHOUT_BPFFS: &str = r#"
set -eu
brickmoon=$0 folder=$1
mount -t tmpfs none /run
while umount -q -l /sys/fs/bpf; do :; done
"$brickmoon" -v up --path kernel --port r0 --port r1 --socket "$folder/api.sock" >"$folder/log" 2>&1 &
until grep -q ^ready "$folder/log"; do kill -0 $!; sleep 0.05; done
cat "$folder/log"
kill -9 $!
wait || true
echo "pinned: $(ls /run/brickmoon/bpf/brickmoon/* | wc -l)"
unshare --mount --propagation private sh -c \
    'mount -t tmpfs none /sys && mount -t tmpfs none /run && "$0" stop --socket "$1/api.sock"' "$brickmoon" "$folder"
echo "left: $(ls /run/brickmoon/bpf | grep -c brickmoon)"
"#;

/// Starts a daemon with only workers where no bpffs is mounted, and adds a switch, which pins objects, by `reload`.
const SWITCH_WITHOUT_BPFFS: &str = r#"
set -eu
brickmoon=$0 folder=$1
mount -t tmpfs none /run
while umount -q -l /sys/fs/bpf; do :; done
printf "[daemon]\npath = 'user'\nsocket = '$folder/api.sock'\n[[port]]\ndevice = 'r0'\n" >"$folder/config"
"$brickmoon" up --config "$folder/config" >"$folder/log" 2>&1 &
until grep -q ^ready "$folder/log"; do kill -0 $!; sleep 0.05; done
printf "[[switch]]\nname = 's0'\nports = ['r1', 'r2']\n" >>"$folder/config"
"$brickmoon" reload --socket "$folder/api.sock"
echo "pinned: $(ls /run/brickmoon/bpf/brickmoon-switch/*/s0 | wc -l)"
"$brickmoon" stop --socket "$folder/api.sock"
"#;

/// Runs one of the scripts in new mount and process namespaces, in the router of a lab. Returns its output.
fn without_bpffs(test: &str, script: &str) -> Option<(Lab, String)> {
    let Some(Subject::Brickmoon { path, .. }) = Subject::kernel(test) else { return None };
    let lab = Lab::new(test, Ends::Silent);
    let folder = std::env::temp_dir().join(lab.rtr.name());
    std::fs::create_dir_all(&folder).expect("a folder for the log");
    let mut command = lab.rtr.command("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "--kill-child"]);
    command.args(["sh", "-c", script]).arg(path).arg(&folder);
    let output = bm_tests::command::run("unshare", &mut command, Duration::from_secs(60));
    let _gone = std::fs::remove_dir_all(&folder);
    let output = output.expect("it ends");
    Some((
        lab,
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat(),
    ))
}

#[test]
fn a_switch_that_reload_adds_is_pinned_where_no_bpffs_was_mounted() {
    let Some((_lab, text)) = without_bpffs("no-bpffs-reload", SWITCH_WITHOUT_BPFFS) else { return };
    for line in ["changed: switch.s0", "pinned: 2"] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
}

#[test]
fn a_bpffs_is_mounted_where_there_is_none() {
    let Some((lab, text)) = without_bpffs("no-bpffs", WITHOUT_BPFFS) else { return };
    for line in [
        "mounted a bpffs at /run/brickmoon/bpf, because none is mounted at /sys/fs/bpf",
        "pinned: 2",
        "on r0, r1: Linux forwards now",
        "left: 0",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    assert_eq!(programs(&lab)[..2], [None; 2]);
}
