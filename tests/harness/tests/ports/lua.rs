//! Lua programs on real interfaces: one that works like a cable, and one with the router as an app.

use bm_tests::command::Running;
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::{PATIENCE, report, subject, sys};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Sends all frames from r0 on r1 with their last byte incremented; creates the file `ready` once it runs.
const CABLE: &str = r#"
local ready = ...
local Raise = {}
function Raise:new () return setmetatable({}, { __index = Raise }) end
function Raise:push ()
   for _ = 1, link.nreadable(self.input.input) do
      local p = link.receive(self.input.input)
      p.data[p.length - 1] = p.data[p.length - 1] + 1
      link.transmit(self.output.output, p)
   end
end
local c = config.new()
config.app(c, "left", "xdp:r0")
config.app(c, "raise", Raise)
config.app(c, "right", "xdp:r1")
config.link(c, "left.output -> raise.input")
config.link(c, "raise.output -> right.input")
engine.configure(c)
io.open(ready, "w"):close()
engine.main()
"#;

/// The same without changing frames, as an ordinary Snabb program that does not set a number of workers.
const PLAIN_CABLE: &str = r#"
local ready = ...
local c = config.new()
config.app(c, "left", "xdp:r0")
config.app(c, "right", "xdp:r1")
config.link(c, "left.output -> right.input")
engine.configure(c)
io.open(ready, "w"):close()
engine.main()
"#;

const ROUTER: &str = r#"
local ready = ...
local c = config.new()
config.app(c, "rt", "router", { ports = { "r0", "r1" } })
for _, port in ipairs { "r0", "r1" } do
   config.app(c, port, "xdp:"..port)
   config.link(c, port..".output -> rt."..port)
   config.link(c, "rt."..port.." -> "..port..".input")
end
engine.configure(c)
io.open(ready, "w"):close()
engine.main()
"#;

/// A program running in the router's namespace, with its files.
struct Program {
    running: Running,
    files: [PathBuf; 2],
}

impl Program {
    /// Starts it and waits until it is ready; `None`, with a message, if it cannot run here.
    fn start(lab: &Lab, name: &str, text: &str) -> Option<Self> {
        Self::start_with(lab, name, text, &[])
    }

    /// The same with options of `run`.
    fn start_with(lab: &Lab, name: &str, text: &str, options: &[&str]) -> Option<Self> {
        let Some(binary) = subject::binary() else {
            report::skip(name, "no binary: build it, or name it with BRICKMOON");
            return None;
        };
        let file =
            |end: &str| std::env::temp_dir().join(format!("bm-lua-{name}-{}.{end}", std::process::id()));
        let files = [file("lua"), file("ready")];
        std::fs::write(&files[0], text).expect("the test can write");
        let mut command = lab.rtr.command(binary);
        let running = Running::start(command.arg("run").args(options).args(&files));
        let program = Self { running, files };
        let deadline = Instant::now() + PATIENCE;
        while !program.files[1].exists() {
            assert!(Instant::now() < deadline, "{name} is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(program)
    }

    /// Ends it with SIGTERM: it must exit with status 0 and detach its XDP programs.
    fn end(mut self, lab: &Lab) {
        assert!(self.running.terminate(PATIENCE), "it did not end");
        let status = self.running.child().wait().expect("it is ours");
        assert!(status.success(), "{status}");
        for port in ["r0", "r1"] {
            let shown = lab.rtr.run(&format!("ip link show {port}"));
            assert!(!shown.contains("prog/xdp"), "{shown}");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

#[test]
fn a_program_gets_every_frame_and_sends_it_changed() {
    if !sys::is_root() {
        return report::skip("lua-cable", "namespaces need root");
    }
    let lab = Lab::new("luacable", Ends::Silent);
    let Some(program) = Program::start(&lab, "cable", CABLE) else { return };
    // To an unknown MAC address and of an unknown type: Linux would drop both.
    let frames: Vec<Vec<u8>> = (0..2u8)
        .map(|n| [&[2, 9, 9, 9, 9, n, 2, 8, 8, 8, 8, 8, 0x88, 0xb5][..], &[n; 50]].concat())
        .collect();
    let sent: Vec<_> = frames.iter().map(|frame| (Side::Src, frame.clone())).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut heard = Vec::new();
    while heard.is_empty() && Instant::now() < deadline {
        heard = lab.exchange(&sent, 2, false).seen;
    }
    let expected = frames.into_iter().map(|mut frame| {
        frame[63] += 1;
        frame
    });
    let found: Vec<_> =
        heard.iter().filter(|seen| seen.side == Side::Snk).map(|seen| seen.frame.clone()).collect();
    assert_eq!(found, expected.collect::<Vec<_>>());
    program.end(&lab);
}

#[test]
fn an_unmodified_program_runs_on_two_workers_with_a_queue_each() {
    if !sys::is_root() {
        return report::skip("lua-workers", "namespaces need root");
    }
    let lab = Lab::with_queues("luaworkers", Ends::Silent, 2);
    let socket = std::env::temp_dir().join(format!("bm-lua-workers-{}.sock", std::process::id()));
    let socket = socket.to_str().expect("a plain path");
    let options = ["--workers", "2", "--socket", socket];
    let Some(program) = Program::start_with(&lab, "workers", PLAIN_CABLE, &options) else { return };
    // Enough flows for every queue to have some.
    let stream = Stream { destinations: (0..64).map(|n| format!("10.9.9.{n}")).collect(), rate: 5_000 };
    let counts = |name: &str| -> Vec<u64> {
        let binary = subject::binary().expect("it was there a moment ago");
        let reply = lab.rtr.command(binary).args(["show", "workers", "--json", "--socket", socket]).output();
        let reply = reply.expect("the binary runs");
        let shown: serde_json::Value = serde_json::from_slice(&reply.stdout).unwrap_or_default();
        let workers = shown["workers"].as_array().cloned().unwrap_or_default();
        workers.iter().map(|worker| worker[name].as_u64().unwrap_or(0)).collect()
    };
    let until_both = |name: &str| {
        let deadline = Instant::now() + PATIENCE;
        let both = || matches!(counts(name)[..], [first, second] if first > 0 && second > 0);
        while !both() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        counts(name)
    };
    // Until both run, Linux forwards packets if others wait for too long, and they overtake those in a ring.
    let running = until_both("breaths");
    assert!(running.len() == 2 && running.iter().all(|breaths| *breaths > 0), "{running:?}");
    let (shown, outcome) = stream.during(&lab, || until_both("moves"));
    assert!(shown.len() == 2 && shown.iter().all(|moves| *moves > 0), "{shown:?}");
    assert_eq!((outcome.lost(), outcome.twice, outcome.out_of_order), (0, 0, 0), "{outcome}");
    program.end(&lab);
}

#[test]
fn the_router_is_an_app_of_a_program() {
    if !sys::is_root() {
        return report::skip("lua-router", "namespaces need root");
    }
    let lab = Lab::new("luarouter", Ends::Hosts);
    let Some(program) = Program::start(&lab, "router", ROUTER) else { return };
    let message = lab.src.run(&format!("ping -c 4 -i 0.2 -W 5 {}", Side::Snk.v4(2)));
    assert!(message.contains("4 received") && message.contains("ttl=63"), "{message}");
    program.end(&lab);
}

#[test]
fn show_works_for_a_lua_program() {
    let Some(binary) = subject::binary() else {
        return report::skip("lua-show", "no binary: build it, or name it with BRICKMOON");
    };
    const PROGRAM: &str = r#"
        local basic = require("apps.basic.basic_apps")
        local c = config.new()
        config.app(c, "source", basic.Source)
        config.app(c, "tee", basic.Tee)
        config.app(c, "sink", basic.Sink)
        config.link(c, "source.output -> tee.input")
        config.link(c, "tee.one -> sink.one")
        config.link(c, "tee.two -> sink.two")
        engine.configure(c, { workers = 2 })
        engine.main()
    "#;
    let file = |end: &str| std::env::temp_dir().join(format!("bm-lua-show-{}.{end}", std::process::id()));
    let (program, socket) = (file("lua"), file("sock"));
    std::fs::write(&program, PROGRAM).expect("the test can write");
    let mut running =
        Running::start(Command::new(&binary).arg("run").arg("--socket").arg(&socket).arg(&program));
    let ask = |what: &[&str]| {
        let output =
            Command::new(&binary).args(what).arg("--socket").arg(&socket).output().expect("it starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let json = |what: &str| -> Option<serde_json::Value> {
        serde_json::from_str(&ask(&["show", what, "--json"])?).ok()
    };
    // Waits until both workers have answered once: from then on their reports are available.
    let deadline = Instant::now() + PATIENCE * 3;
    let workers = loop {
        let workers = json("workers").unwrap_or_default()["workers"].clone();
        if workers.as_array().is_some_and(|workers| {
            workers.len() == 2 && workers.iter().all(|w| w["moves"].as_u64() > Some(0))
        }) {
            break workers;
        }
        assert!(Instant::now() < deadline, "{workers}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(
        workers[1]["lua"]["traces"].as_u64() > Some(0) && workers[1]["lua"]["code_bytes"].as_u64() > Some(0)
    );
    let apps = json("apps").expect("it answers");
    let names: Vec<_> =
        apps["apps"].as_array().into_iter().flatten().map(|app| app["name"].as_str().unwrap_or("")).collect();
    assert_eq!(names, ["sink", "source", "tee"], "one line for both workers");
    for app in apps["apps"].as_array().into_iter().flatten() {
        let of = |name: &str| app["account"][name].as_u64().unwrap_or(0);
        let (came, went) =
            (of("received") + of("originated"), of("sent") + of("held") + of("consumed") + of("dropped"));
        assert!(came == went && came > 0, "{app}");
    }
    let links = json("links").expect("it answers");
    let sent = |at: usize| links["links"][at]["tx"].as_u64().unwrap_or(0);
    assert!(links["links"].as_array().is_some_and(|links| links.len() == 3) && sent(0) > 0, "{links}");
    let routes =
        Command::new(&binary).args(["show", "routes", "--socket"]).arg(&socket).output().expect("it starts");
    let message = String::from_utf8_lossy(&routes.stderr);
    assert!(
        !routes.status.success() && message.contains("a Lua program cannot answer this request"),
        "{message}"
    );
    assert!(ask(&["stop"]).is_some(), "it must stop");
    let status = running.child().wait().expect("it is ours");
    assert!(status.success() && !socket.exists(), "{status}");
    std::fs::remove_file(program).expect("it is ours");
}
