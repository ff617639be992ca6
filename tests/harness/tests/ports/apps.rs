//! Lua apps of the configuration, between real ports and the router: packets pass through them, they are shown, they
//! are changed while packets flow, and one that fails is started again.

use bm_tests::PATIENCE;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, routed};
use bm_tests::report;
use bm_tests::subject::{Forwarding, Router, Subject};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes `mark` into the source MAC; drops UDP to port 23; fails on port 6666 and hangs on port 7777.
const MARK: &str = r#"
local Mark = { config = { mark = { required = true } } }
function Mark:new (conf) return setmetatable({ mark = conf.mark }, { __index = Mark }) end
function Mark:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      local port = p.data[12] == 8 and p.data[23] == 17 and p.data[36] * 256 + p.data[37]
      if port == 6666 then error("port 6666 is too much") end
      while port == 7777 do end
      if port == 23 then
         packet.free(p)
      else
         p.data[6] = self.mark
         link.transmit(output, p)
      end
   end
end
return { Mark = Mark }
"#;

/// Packets sent on r1, and packets that the router sends on r0, pass through an app.
fn config(file: &Path, mark: u8) -> String {
    let file = file.display();
    format!(
        "
[[app]]
name = 'out'
module = '{file}'
config = {{ mark = {mark} }}
[[app]]
name = 'in'
module = '{file}'
config = {{ mark = 0x12 }}
[[link]]
from = 'router.r1'
to = 'out.input'
[[link]]
from = 'out.output'
to = 'r1.out'
[[link]]
from = 'r0.output'
to = 'in.input'
[[link]]
from = 'in.output'
to = 'router.r0'
"
    )
}

struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Runs a test on workers with the apps.
fn with_apps(test: &str, action: impl FnOnce(&Lab, &mut Router, &Path)) {
    let is_user =
        |subject: &Subject| matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let Some(subject) = Subject::all(test).into_iter().find(is_user) else { return };
    let file = File(std::env::temp_dir().join(format!("bm-apps-{test}-{}.lua", std::process::id())));
    std::fs::write(&file.0, MARK).expect("the test can write");
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&SIDES.map(|side| side.router()), &config(&file.0, 0x42));
    action(&lab, &mut router, &file.0);
}

/// The mark in the source MAC of a packet that the source sent to 10/8, if the packet comes out.
fn comes_out(lab: &Lab, packet: &[u8]) -> Option<u8> {
    let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(packet))], 1, true);
    let mut expected = Side::Snk.to_neighbor(2, &routed(packet));
    let same = |frame: &[u8]| frame.len() == expected.len() && frame[12..] == expected[12..];
    let seen = heard.seen.iter().find(|seen| seen.side == Side::Snk && same(&seen.frame))?;
    expected[6] = seen.frame[6];
    assert_eq!(seen.frame, expected, "the app must change only that byte");
    Some(seen.frame[6])
}

fn udp(port: u16) -> Vec<u8> {
    Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, port, b"apps").bytes()
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("show prints JSON")
}

/// Sends packets until one comes out with `mark`.
fn await_mark(lab: &Lab, mark: u8) {
    let deadline = Instant::now() + PATIENCE;
    while comes_out(lab, &udp(80)) != Some(mark) {
        assert!(Instant::now() < deadline, "no packet comes out with {mark:#x}");
    }
}

#[test]
fn packets_pass_through_apps_and_a_reload_changes_them() {
    with_apps("appsway", |lab, router, file| {
        assert_eq!(comes_out(lab, &udp(80)), Some(0x42));
        assert_eq!(comes_out(lab, &udp(23)), None, "the app must drop it");
        let (apps, links) = (shown(router, "apps"), shown(router, "links"));
        let of = |name: &str| {
            let mut apps = apps["apps"].as_array().into_iter().flatten();
            apps.find(|app| app["name"] == name)
                .unwrap_or_else(|| panic!("{name}: {apps}", apps = shown(router, "apps")))["account"]
                .clone()
        };
        assert_eq!(of("in")["consumed"], 1);
        assert!(of("in")["received"].as_u64() > of("out")["sent"].as_u64());
        let names: Vec<_> = links["links"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|link| link["name"].as_str().unwrap_or_default())
            .collect();
        for name in [
            "r0.output -> in.input",
            "in.output -> router.r0",
            "router.r1 -> out.input",
            "out.output -> r1.out",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        let workers = shown(router, "workers");
        assert!(workers["workers"][0]["lua"]["heap_bytes"].as_u64() > Some(0), "{workers}");
        // A changed argument takes effect; a wrong one does not, and the error names its line.
        let reloaded = router.reload_with(&config(file, 0x43)).expect("a daemon");
        let message = String::from_utf8_lossy(&reloaded.stdout).into_owned();
        assert!(reloaded.status.success() && message.contains("app.out"), "{message}");
        assert_eq!(comes_out(lab, &udp(80)), Some(0x43));
        let refused = router.reload_with(&config(file, 0x44).replace("mark = 0x12", "mask = 1"));
        let refused = refused.expect("a daemon");
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && message.contains("line 6: app in: "), "{message}");
        assert_eq!(comes_out(lab, &udp(80)), Some(0x43));
        router.reload_with(&config(file, 0x43)).expect("a daemon");
        router.settle();
    });
}

#[test]
fn a_failed_app_is_started_again_while_linux_forwards() {
    with_apps("appsfail", |lab, router, _| {
        assert_eq!(comes_out(lab, &udp(80)), Some(0x42));
        lab.send(Side::Src, &Side::Src.to_router(&udp(6666)));
        let message = |router: &Router, text: &str| {
            let deadline = Instant::now() + PATIENCE;
            while !router.log().contains(text) {
                assert!(Instant::now() < deadline, "{text}: {}", router.log());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        message(router, "port 6666 is too much (in app in)");
        await_mark(lab, 0x42);
        lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
        message(router, "did not return, and was interrupted");
        await_mark(lab, 0x42);
        report::say("appsfail: forwards again after an error and after a hang");
    });
}

/// Waits until the log has this text.
fn await_log(router: &Router, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !router.log().contains(text) {
        assert!(Instant::now() < deadline, "{text}: {}", router.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_app_that_fails_goes_back_to_its_last_good_version() {
    with_apps("appsback", |lab, router, file| {
        let reload = |text: &str, mark: u8| {
            std::fs::write(file, text).expect("the test can write");
            assert!(router.reload_with(&config(file, mark)).expect("a daemon").status.success());
        };
        let good = MARK.replace("error(", "type(").replace("while port == 7777 do", "if port == 7777 then");
        reload(&good, 0x43);
        await_mark(lab, 0x43);
        for (round, port) in [(0, 6666), (1, 7777)] {
            reload(MARK, 0x44 + round);
            await_mark(lab, 0x44 + round);
            lab.send(Side::Src, &Side::Src.to_router(&udp(port)));
            await_log(router, "go back to their version before");
            await_mark(lab, 0x43);
            assert_eq!(
                comes_out(lab, &udp(port)),
                Some(0x43),
                "it can do without what the newer one fails on"
            );
        }
        router.settle();
    });
}

/// Somebody who knows the packet sends it again and again: Linux forwards, and the daemon goes on.
#[test]
fn an_app_that_fails_too_often_does_not_end_the_daemon() {
    with_apps("appsoften", |lab, router, file| {
        let process = router.process();
        let deadline = Instant::now() + 3 * PATIENCE;
        while !router.log().contains("Linux forwards until `reload`") {
            assert!(Instant::now() < deadline, "{}", router.log());
            lab.send(Side::Src, &Side::Src.to_router(&udp(6666)));
            std::thread::sleep(Duration::from_millis(20));
        }
        await_mark(lab, 2);
        let note = "note: Linux forwards, since apps failed too often";
        assert!(router.status_text().contains(note), "{}", router.status_text());
        std::fs::write(file, MARK.replace("error(", "type(")).expect("the test can write");
        assert!(router.reload_with(&config(file, 0x45)).expect("a daemon").status.success());
        await_mark(lab, 0x45);
        assert_eq!(comes_out(lab, &udp(6666)), Some(0x45));
        assert!(!router.status_text().contains(note));
        assert_eq!(router.process(), process);
        router.settle();
    });
}

#[test]
fn a_hook_that_hangs_is_ejected_and_packets_keep_flowing() {
    const HOOK: &str = r#"
        return { ingress = function (burst)
           for i = 0, burst.count - 1 do
              local p = burst.packet[i]
              while p.data[36] * 256 + p.data[37] == 7777 do end
           end
        end }"#;
    let test = "hookhang";
    let is_user =
        |subject: &Subject| matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let Some(subject) = Subject::all(test).into_iter().find(is_user) else { return };
    let file = File(std::env::temp_dir().join(format!("bm-hook-{}.lua", std::process::id())));
    std::fs::write(&file.0, HOOK).expect("the test can write");
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    let config = format!("[[hook]]\nname = 'loop'\nfile = '{}'\n", file.0.display());
    router.restart_with(&SIDES.map(|side| side.router()), &config);
    assert_eq!(comes_out(&lab, &udp(80)), Some(2), "the router's own MAC");
    let hook = |router: &Router| shown(router, "hooks")["hooks"][0].clone();
    assert_eq!((&hook(&router)["state"], &hook(&router)["hangs"]), (&"active".into(), &0.into()));
    let begin = Instant::now();
    lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
    while hook(&router)["state"] != "hung" {
        assert!(begin.elapsed() < PATIENCE, "{}", hook(&router));
    }
    report::say(&format!("hookhang: interrupted within {:?}", begin.elapsed()));
    // The worker forwards without the hook, or Linux does while the worker is restarted: the packet is the same.
    for port in [80, 7777] {
        assert_eq!(comes_out(&lab, &udp(port)), Some(2));
    }
    let after = hook(&router);
    assert_eq!((&after["hangs"], &after["running"]), (&1.into(), &serde_json::Value::Null), "{after}");
    let error = after["last_error"].as_str().unwrap_or_default();
    assert!(error.contains("did not return from a burst, and was interrupted"), "{after}");
    let deadline = Instant::now() + PATIENCE;
    while !router.log().contains("hook loop: version 1") {
        assert!(Instant::now() < deadline, "{}", router.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(router.log().contains("is hung; its packets pass without it"), "{}", router.log());
    // After a reload the hook is active again.
    assert!(router.ask("reload", &[]).expect("a daemon").status.success());
    assert_eq!(hook(&router)["state"], "active");
    router.settle();
    router.stop();
}

/// The exit status of a process that has ended and that nobody has waited for yet.
fn exit_status(process: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let code: i32 = fields.split_whitespace().last()?.parse().ok()?;
    fields.starts_with('Z').then_some(code >> 8)
}

#[test]
fn a_hook_that_never_returns_from_c_ends_the_daemon_and_linux_forwards() {
    // The second lock of a mutex waits for ever, also after signals.
    const HOOK: &str = "
        local ffi = require('ffi')
        ffi.cdef('int pthread_mutex_lock (void *);')
        local mutex = ffi.new('char[64]')
        return { ingress = function (burst)
           for i = 0, burst.count - 1 do
              local d = burst.packet[i].data
              if d[36] * 256 + d[37] == 7777 then
                 ffi.C.pthread_mutex_lock(mutex)
                 ffi.C.pthread_mutex_lock(mutex)
              end
           end
        end }";
    let Some(log) = log_after_hang("hookstuck", HOOK, "") else { return };
    assert!(log.contains("cannot be interrupted: Linux forwards from now on"), "{log}");
}

#[test]
fn a_hook_that_loops_ends_the_daemon_if_it_must_not_be_interrupted() {
    const HOOK: &str = "
        return { ingress = function (burst)
           for i = 0, burst.count - 1 do
              local d = burst.packet[i].data
              while d[36] * 256 + d[37] == 7777 do end
           end
        end }";
    let Some(log) = log_after_hang("hookloops", HOOK, "[lua]\nhung_calls = 'restart'\n") else { return };
    assert!(log.contains("`hung_calls` in [lua] is \"restart\"): Linux forwards from now on"), "{log}");
}

/// Starts a router with this hook and these settings, and sends a packet to UDP port 7777, in which the hook hangs.
/// Checks that the daemon ends with status 1 and that Linux forwards; returns the log. `None` if the test is skipped.
fn log_after_hang(name: &str, hook: &str, settings: &str) -> Option<String> {
    let subject = Subject::user(name)?;
    let file = File(std::env::temp_dir().join(format!("bm-{name}-{}.lua", std::process::id())));
    std::fs::write(&file.0, hook).expect("the test can write");
    let lab = Lab::new(name, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    let config = format!("{settings}[[hook]]\nname = 'hangs'\nfile = '{}'\n", file.0.display());
    router.restart_with(&SIDES.map(|side| side.router()), &config);
    assert_eq!(comes_out(&lab, &udp(80)), Some(2), "the router's own MAC");
    let process = router.process().expect("a daemon");
    lab.send(Side::Src, &Side::Src.to_router(&udp(7777)));
    let deadline = Instant::now() + 2 * PATIENCE;
    let status = loop {
        match exit_status(process) {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "the daemon goes on: {}", router.log()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status, 1, "{}", router.log());
    assert_eq!(comes_out(&lab, &udp(80)), Some(2), "Linux forwards");
    Some(router.log())
}
