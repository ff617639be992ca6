//! Hooks that somebody wants to get rid of: by light traffic, and by a packet on which they fail. What a filter does not
//! see does not pass.

use bm_tests::PATIENCE;
use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, routed};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The packets of light traffic, and the time between two of them: before, 2,048 were enough.
const LIGHT: usize = 2200;
const PAUSE: Duration = Duration::from_millis(4);

/// Drops UDP to port 23; fails on port 6666.
const FILTER: &str = r#"
local hook = require("brickmoon.hook")
local telnet = hook.reason("telnet", "telnet over UDP")
return { ingress = function (burst)
   for i in burst.each() do
      local d = burst.packet[i].data
      local port = d[36] * 256 + d[37]
      if port == 6666 then error("port 6666 is too much") end
      if port == 23 then burst.drop(i, telnet) end
   end
end }
"#;

/// Copies memory for ever on port 7777, 32 MiB at a time: nearly all of the time is spent in one instruction of C.
const COPIES: &str = r#"
local ffi, hook = require("ffi"), require("brickmoon.hook")
local memory = hook.memory("memory", "char", 2^26)
return { ingress = function (burst)
   for i in burst.each() do
      local d = burst.packet[i].data
      while d[36] * 256 + d[37] == 7777 do ffi.copy(memory, memory + 2^25, 2^25) end
   end
end }
"#;

/// Waits for ever on port 7777, in C.
const WAITS: &str = r#"
local ffi = require("ffi")
ffi.cdef("int pthread_mutex_lock (void *);")
local mutex = ffi.new("char[64]")
return { ingress = function (burst)
   for i in burst.each() do
      local d = burst.packet[i].data
      while d[36] * 256 + d[37] == 7777 do ffi.C.pthread_mutex_lock(mutex) end
   end
end }
"#;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bm-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the test can write");
        std::fs::write(folder.join("filter.lua"), FILTER).expect("the test can write");
        std::fs::write(folder.join("copies.lua"), COPIES).expect("the test can write");
        std::fs::write(folder.join("waits.lua"), WAITS).expect("the test can write");
        std::fs::write(folder.join("empty.lua"), "return { ingress = function (burst) end }")
            .expect("the test can write");
        Self(folder)
    }

    fn hook(&self, file: &str, keys: &str) -> String {
        format!("[[hook]]\nfile = '{}'\n{keys}\n", self.0.join(file).display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test on workers with the hooks that `config` gives.
fn with_hooks(
    test: &str,
    config: impl FnOnce(&Folder) -> String,
    action: impl FnOnce(&Lab, &mut Router, &Folder),
) {
    let Some(subject) = Subject::user(test) else { return };
    let (folder, lab) = (Folder::new(test), Lab::new(test, Ends::Silent));
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&SIDES.map(|side| side.router()), &config(&folder));
    action(&lab, &mut router, &folder);
}

fn udp(port: u16) -> Vec<u8> {
    Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, port, b"hooks").bytes()
}

/// Whether a packet to this port is forwarded.
fn passes(lab: &Lab, port: u16) -> bool {
    let expected = routed(&udp(port));
    lab.drain();
    lab.send(Side::Src, &Side::Src.to_router(&udp(port)));
    lab.await_frame(Side::Snk, Duration::from_millis(300), |frame| frame.ends_with(&expected)).is_some()
}

fn hook(router: &Router, name: &str) -> serde_json::Value {
    let hooks = router.json(&["show", "hooks"]);
    let all = hooks["hooks"].as_array().into_iter().flatten();
    all.into_iter().find(|hook| hook["name"] == name).expect("the hook").clone()
}

#[test]
fn light_traffic_deactivates_no_hook() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lua/rate-limit/rate-limit.lua");
    let config = |folder: &Folder| {
        let limit = format!("[[hook]]\nfile = '{shipped}'\nargs = {{ rate = 100000 }}\n");
        folder.hook("empty.lua", "") + &limit + &folder.hook("filter.lua", "")
    };
    with_hooks("hookslight", config, |lab, router, _| {
        assert!(passes(lab, 80) && !passes(lab, 23));
        for _ in 0..LIGHT {
            lab.send(Side::Src, &Side::Src.to_router(&udp(80)));
            std::thread::sleep(PAUSE);
        }
        assert!(passes(lab, 80) && !passes(lab, 23), "{}", router.log());
        for name in ["empty", "rate-limit", "filter"] {
            let shown = hook(router, name);
            assert_eq!(shown["state"], "active", "{shown}");
            report::say(&format!("hookslight: {name} takes {} cycles a frame", shown["cycles_per_frame"]));
        }
        router.settle();
    });
}

#[test]
fn a_filter_that_fails_lets_nothing_pass() {
    with_hooks(
        "hooksclosed",
        |folder| folder.hook("filter.lua", ""),
        |lab, router, folder| {
            assert!(passes(lab, 80) && !passes(lab, 23));
            assert!(!passes(lab, 6666), "the packet on which it fails");
            assert!(!passes(lab, 80) && !passes(lab, 23));
            assert!(router.dropped("hook_failed") >= 3, "{}", router.json(&["show", "drops"]));
            let shown = hook(router, "filter");
            assert_eq!((&shown["on_failure"], &shown["running"]), (&"drop".into(), &serde_json::Value::Null));
            let note = "note: hook filter is failed and does not run, its packets are dropped";
            assert!(router.status_text().contains(note), "{}", router.status_text());
            let metrics = router.get("/v1/metrics").expect("metrics");
            assert!(metrics.contains("brickmoon_hook_running{hook=\"filter\"} 0"), "{metrics}");
            eventually("the log says so", || {
                router.log().contains("is failed; its packets are dropped (`on_failure` is \"drop\")")
            });
            // A reload starts it again. Then there is a good version to go back to.
            for _ in 0..2 {
                assert!(router.ask("reload", &[]).expect("a daemon").status.success());
            }
            assert!(passes(lab, 80) && !passes(lab, 23) && !passes(lab, 6666));
            assert_eq!(
                hook(router, "filter")["running"],
                serde_json::Value::Null,
                "both versions fail on it"
            );
            std::fs::write(folder.0.join("filter.lua"), FILTER.replace("error(", "type(")).expect("written");
            assert!(router.ask("reload", &[]).expect("a daemon").status.success());
            std::fs::write(folder.0.join("filter.lua"), FILTER).expect("written");
            assert!(router.ask("reload", &[]).expect("a daemon").status.success());
            assert!(
                passes(lab, 6666),
                "the earlier version decides about the packet on which the newer one fails"
            );
            assert!(passes(lab, 80) && !passes(lab, 23), "the earlier version runs");
            assert!(hook(router, "filter")["running"].is_u64());
            router.settle();
        },
    );
}

#[test]
fn linux_gets_the_packets_of_a_hook_that_does_not_run() {
    with_hooks(
        "hookslinux",
        |folder| folder.hook("filter.lua", "on_failure = 'linux'"),
        |lab, router, _| {
            assert!(passes(lab, 80) && !passes(lab, 23));
            for port in [6666, 23, 80] {
                assert!(passes(lab, port), "{port}: {}", router.log());
            }
            let host = router.json(&["show", "ports"]).to_string();
            assert_eq!(router.dropped("hook_failed"), 0, "{host}");
            router.settle();
        },
    );
}

/// The filter loops on port 7777: meanwhile no worker fetches packets, and Linux must not forward them either.
#[test]
fn a_filter_that_hangs_lets_nothing_pass() {
    let loops = FILTER.replace("if port == 6666", "while port == 7777 do end if port == 6666");
    let config = |folder: &Folder| {
        std::fs::write(folder.0.join("filter.lua"), &loops).expect("written");
        folder.hook("filter.lua", "on_failure = 'drop'")
    };
    with_hooks("hookshang", config, |lab, router, _| {
        assert!(passes(lab, 80) && !passes(lab, 23));
        lab.drain();
        lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
        let begin = Instant::now();
        while hook(router, "filter")["state"] != "hung" {
            lab.send(Side::Src, &Side::Src.to_router(&udp(23)));
            assert!(begin.elapsed() < PATIENCE, "{}", router.log());
        }
        report::say(&format!("hookshang: interrupted within {:?}", begin.elapsed()));
        let forbidden = routed(&udp(23));
        let leak =
            lab.await_frame(Side::Snk, Duration::from_millis(300), |frame| frame.ends_with(&forbidden));
        assert!(leak.is_none(), "Linux must not forward what the filter drops");
        assert!(!passes(lab, 80));
        router.settle();
    });
}

#[test]
fn a_hook_in_a_long_copy_is_interrupted() {
    with_hooks(
        "hookscopy",
        |folder| folder.hook("copies.lua", ""),
        |lab, router, _| {
            assert!(passes(lab, 80));
            let begin = Instant::now();
            lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
            while hook(router, "copies")["state"] != "hung" {
                assert!(begin.elapsed() < PATIENCE, "{}", router.log());
            }
            report::say(&format!("hookscopy: interrupted within {:?}", begin.elapsed()));
            assert!(passes(lab, 80), "{}", router.log());
            router.settle();
        },
    );
}

/// Nobody waits for a thread that will not end: not for the 15 s that anything else may take.
#[test]
fn a_hook_that_never_returns_does_not_delay_the_end() {
    with_hooks(
        "hooksend",
        |folder| folder.hook("waits.lua", ""),
        |lab, router, _| {
            assert!(passes(lab, 80));
            lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
            let process = router.process().expect("a daemon");
            let begin = Instant::now();
            let signal =
                std::process::Command::new("kill").arg(process.to_string()).status().expect("a signal");
            assert!(signal.success());
            let status = router.end_status();
            report::say(&format!("hooksend: ended {:?} after SIGTERM, with {status:?}", begin.elapsed()));
            assert!(begin.elapsed() < Duration::from_secs(8), "{}", router.log());
            assert!(passes(lab, 80), "Linux forwards");
        },
    );
}
