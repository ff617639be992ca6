//! Apps of a configuration on a worker: packets through them byte by byte, errors in them, changes while they run, and
//! apps that fail.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bm_frame::{FramePool, Freelist};
use bm_graph::{Engine, Network, PortApp};
use bm_lua::NoNatives;
use bm_lua::apps::{AppLink, AppNews, AppSet, AppSpec, AppWorld, AppsSpec, CoreApps, Module, check};
use bm_lua::hook::OnHang;
use bm_port::{MemoryPort, Wire};
use bm_stats::{Account, Registry, Scope};
use serde_json::{Value, json};

/// Adds `by` to the first byte of packets; drops packets that begin with `last`.
const ADD: &str = r#"
local Add = { config = { by = { required = true }, last = { default = 255 } } }
function Add:new (conf) return setmetatable({ by = conf.by, last = conf.last, seen = 0 }, { __index = Add }) end
function Add:push ()
   for _ = 1, link.nreadable(self.input.input) do
      local p = link.receive(self.input.input)
      self.seen = self.seen + 1
      if p.data[0] == self.last then
         packet.free(p)
      else
         p.data[0] = p.data[0] + self.by
         p.data[1] = self.seen
         link.transmit(self.output.output, p)
      end
   end
end
return Add
"#;

/// A worker with two ports, `left` and `right`, and apps between them.
struct Rig {
    engine: Engine,
    left: Wire,
    right: Wire,
    set: AppSet,
    spec: AppsSpec,
    frame_pool: Arc<FramePool>,
    folder: PathBuf,
}

fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("bm-apps-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn link(from: &str, to: &str) -> AppLink {
    let end = |text: &str| text.rsplit_once('.').map(|(app, link)| (app.into(), link.into())).unwrap();
    AppLink { from: end(from), to: end(to) }
}

fn spec(file: PathBuf, argument: Value) -> AppsSpec {
    AppsSpec {
        apps: vec![AppSpec {
            name: "app".into(),
            module: Module::File(file),
            class: None,
            argument,
            core: None,
        }],
        links: vec![link("left.output", "app.input"), link("app.output", "right.input")],
        outer: vec!["left".into(), "right".into()],
        trees: Vec::new(),
        texts: Default::default(),
    }
}

impl Rig {
    fn new(text: &str, argument: Value) -> Result<Self, String> {
        bm_lua::limit_loading(Duration::from_millis(100));
        let folder = folder();
        let spec = spec(folder.join("app.lua"), argument);
        Self::joined(text, folder, spec, (1, &["left.output -> lua.left:output"]))
    }

    /// The first of this many workers, with its ports connected by `inwards` to the apps of `spec`.
    fn joined(
        text: &str,
        folder: PathBuf,
        spec: AppsSpec,
        (workers, inwards): (usize, &[&str]),
    ) -> Result<Self, String> {
        std::fs::write(folder.join("app.lua"), text).unwrap();
        let frame_pool = FramePool::new(4096, 2048).unwrap();
        let world = AppWorld { frame_pool: frame_pool.clone(), natives: Arc::new(NoNatives) };
        let set = AppSet::new(world).unwrap();
        set.start(&spec, workers).map_err(|error| error.to_string())?;
        let registry = Registry::anonymous(4096).unwrap();
        let (left, right, mut network) = (Wire::new(), Wire::new(), Network::new());
        for (name, wire) in [("left", &left), ("right", &right)] {
            let account =
                |side: &str| Account::open(&registry, Scope::Other(&format!("{name}/{side}"))).unwrap();
            let port = Box::new(MemoryPort::new(wire.clone()));
            network.app(name, Box::new(PortApp::new(port, account("receive"), account("transmit")))).unwrap();
        }
        network.app("lua", Box::new(set.part(0).unwrap())).unwrap();
        inwards.iter().for_each(|link| network.link(link).unwrap());
        network.link("lua.right:input -> right.input").unwrap();
        let engine = Engine::new(network, Freelist::new(frame_pool.clone(), 128)).unwrap();
        Ok(Self { engine, left, right, set, spec, frame_pool, folder })
    }

    /// The packets that come out on the right when these go in on the left.
    fn pass(&mut self, packets: &[[u8; 60]]) -> Vec<Vec<u8>> {
        packets.iter().for_each(|packet| self.left.send(packet));
        (0..3).for_each(|_| _ = self.engine.breathe());
        self.right.take()
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.join("app.lua"), text).unwrap();
    }

    fn reload(&mut self, argument: Value) -> Result<(), String> {
        let mut spec = self.spec.clone();
        spec.apps[0].argument = argument;
        let (set, engine) = (&self.set, &mut self.engine);
        std::thread::scope(|scope| {
            let reloading = scope.spawn(|| set.reload(&spec).map_err(|error| error.to_string()));
            while !reloading.is_finished() {
                engine.breathe();
            }
            reloading.join().unwrap()
        })
    }

    /// Runs breaths until there is news for the supervisor, and returns it.
    fn news(&mut self) -> Vec<AppNews> {
        loop {
            let news = self.set.supervise(Instant::now(), OnHang::Interrupt);
            if !news.is_empty() {
                return news;
            }
            self.engine.breathe();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// A packet with this first byte.
fn packet(first: u8) -> [u8; 60] {
    let mut packet = [7; 60];
    packet[..2].copy_from_slice(&[first, 0]);
    packet
}

/// The same as it must come out.
fn out(first: u8, seen: u8) -> Vec<u8> {
    let mut packet = packet(first);
    packet[1] = seen;
    packet.to_vec()
}

#[test]
fn apps_find_modules_in_the_trees_of_their_specification() {
    let folder = folder();
    std::fs::create_dir_all(folder.join("site/nf")).unwrap();
    std::fs::write(folder.join("site/nf/words.lua"), "return { by = 3 }").unwrap();
    let text = "local by = require('nf.words').by\nlocal A = {}\n\
                function A:new () assert(by == 3) return setmetatable({}, { __index = A }) end\nreturn A";
    std::fs::write(folder.join("app.lua"), text).unwrap();
    let without = spec(folder.join("app.lua"), Value::Null);
    let with = AppsSpec { trees: bm_lua::Tree::at(&folder.join("site")), ..without.clone() };
    let message = check(&without).unwrap();
    assert!(
        message[0].1.contains(
            "no module 'nf.words' in the folders of --path, in those of [lua] path, or in brickmoon"
        )
    );
    assert_eq!(check(&with).unwrap(), []);
    let frame_pool = FramePool::new(4096, 2048).unwrap();
    let set = AppSet::new(AppWorld { frame_pool, natives: Arc::new(NoNatives) }).unwrap();
    assert!(set.start(&without, 1).is_err());
    set.start(&with, 1).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn packets_pass_through_an_app_without_loss() {
    let mut rig = Rig::new(ADD, json!({ "by": 2, "last": 9 })).unwrap();
    assert_eq!(rig.pass(&[packet(1), packet(9), packet(3)]), [out(3, 1), out(5, 3)]);
    // More than a link can hold.
    for round in 0..4 {
        let many: Vec<_> = (0..200).map(|_| packet(20)).collect();
        assert_eq!(rig.pass(&many).len(), 200, "round {round}");
    }
    assert_eq!(rig.engine.stop(), 0);
    let Rig { engine, frame_pool, .. } = &mut rig;
    let nothing = Engine::new(Network::new(), Freelist::new(frame_pool.clone(), 128)).unwrap();
    drop(std::mem::replace(engine, nothing));
    assert_eq!(rig.frame_pool.available(), 4096);
}

#[test]
fn an_app_with_a_core_has_its_own_worker_behind_rings() {
    let folder = folder();
    let mut spec = spec(folder.join("app.lua"), json!({ "by": 1 }));
    spec.apps[0].core = Some(1);
    let mut rig = Rig::joined(ADD, folder, spec.clone(), (1, &["left.output -> lua.left:output"])).unwrap();
    let mut on_cores = rig.set.on_cores();
    let CoreApps { worker, core, apps } = on_cores.pop().unwrap();
    assert_eq!((worker, core, on_cores.len(), rig.set.on_cores().len()), (1, 1, 0, 0));
    let mut network = Network::new();
    network.app("lua", Box::new(apps)).unwrap();
    let mut engine = Engine::new(network, Freelist::new(rig.frame_pool.clone(), 128)).unwrap();
    // Breaths of both workers alternate here.
    let mut pass = |rig: &mut Rig, packets: &[[u8; 60]]| {
        packets.iter().for_each(|packet| rig.left.send(packet));
        for _ in 0..5 {
            rig.engine.breathe();
            engine.breathe();
        }
        rig.right.take()
    };
    assert_eq!(pass(&mut rig, &[packet(1), packet(3)]), [out(2, 1), out(4, 2)]);
    for round in 0..4 {
        assert_eq!(pass(&mut rig, &vec![packet(20); 200]).len(), 200, "round {round}");
    }
    // A changed argument reaches the app's worker.
    spec.apps[0].argument = json!({ "by": 10 });
    std::thread::scope(|scope| {
        let reloading = scope.spawn(|| rig.set.reload(&spec));
        while !reloading.is_finished() {
            rig.engine.breathe();
            engine.breathe();
        }
        reloading.join().unwrap().unwrap();
    });
    rig.left.send(&packet(1));
    for _ in 0..5 {
        rig.engine.breathe();
        engine.breathe();
    }
    assert_eq!(rig.right.take(), [out(11, 1)]);
    assert_eq!((rig.engine.stop(), engine.stop()), (0, 0));
    // Apps that exist once per worker cannot be linked to it.
    let frame_pool = FramePool::new(4096, 2048).unwrap();
    let set = AppSet::new(AppWorld { frame_pool, natives: Arc::new(NoNatives) }).unwrap();
    let why = set.start(&rig.spec, 2).unwrap_err().to_string();
    let link = "link left.output -> app.input: with 2 workers";
    assert!(why.starts_with(link) && why.contains("set workers = 1"), "{why}");
}

/// Takes only two packets per breath.
const SLOW: &str = r#"
local Slow = {}
function Slow:new () return setmetatable({}, { __index = Slow }) end
function Slow:push ()
   for _ = 1, math.min(2, link.nreadable(self.input.input)) do
      link.transmit(self.output.output, link.receive(self.input.input))
   end
end
return Slow
"#;

#[test]
fn two_inputs_of_a_full_link_lose_nothing() {
    let folder = folder();
    let mut spec = spec(folder.join("app.lua"), Value::Null);
    spec.links[0] = link("router.right", "app.input");
    spec.outer.push("router".into());
    let inwards = ["left.output -> lua.router:right", "right.output -> lua.slow:right"];
    let mut rig = Rig::joined(SLOW, folder, spec, (1, &inwards)).unwrap();
    // On each side more than half of what a link holds.
    const EACH: u16 = 1200;
    for number in 0..EACH {
        let [high, low] = number.to_be_bytes();
        for (side, wire) in [(1, &rig.left), (2, &rig.right)] {
            let mut packet = packet(side);
            packet[2..4].copy_from_slice(&[high, low]);
            wire.send(&packet);
        }
    }
    (0..2 * EACH).for_each(|_| _ = rig.engine.breathe());
    let all = rig.right.take();
    for side in [1, 2] {
        let ours = all.iter().filter(|packet| packet[0] == side);
        let numbers: Vec<_> = ours.map(|packet| u16::from_be_bytes([packet[2], packet[3]])).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "side {side}");
    }
}

#[test]
fn reports_the_counters_of_its_apps() {
    let mut rig = Rig::new(ADD, json!({ "by": 1, "last": 9 })).unwrap();
    rig.pass(&[packet(1), packet(9), packet(3)]);
    let (set, engine) = (&rig.set, &mut rig.engine);
    let reports = std::thread::scope(|scope| {
        let asking = scope.spawn(|| set.reports(Duration::from_secs(600)));
        while !asking.is_finished() {
            engine.breathe();
        }
        asking.join().unwrap()
    });
    let [report] = &reports[..] else { panic!("{reports:?}") };
    let [app] = &report.apps[..] else { panic!("{report:?}") };
    assert_eq!((app.name.as_str(), app.received, app.sent, app.consumed), ("app", 3, 2, 1));
    assert_eq!((app.originated, app.held, app.dropped), (0, 0, 0));
    let links: Vec<_> =
        report.links.iter().map(|link| (link.name.as_str(), link.txpackets, link.rxbytes)).collect();
    assert_eq!(links, [("app.output -> right.input", 2, 120), ("left.output -> app.input", 3, 180)]);
    assert!(report.breaths > 0 && report.jit.heap_bytes > 0);
}

#[test]
fn a_changed_argument_or_file_takes_effect_unless_it_is_wrong() {
    let mut rig = Rig::new(ADD, json!({ "by": 1 })).unwrap();
    assert_eq!(rig.pass(&[packet(1)]), [out(2, 1)]);
    // Without a change the app keeps running, with its counters.
    rig.reload(json!({ "by": 1 })).unwrap();
    assert_eq!(rig.pass(&[packet(1)]), [out(2, 2)]);
    rig.reload(json!({ "by": 10 })).unwrap();
    assert_eq!(rig.pass(&[packet(1)]), [out(11, 1)]);
    let why = rig.reload(json!({ "bye": 10 })).unwrap_err();
    assert!(why.contains("app app: ") && why.contains("missing required parameter 'by'"), "{why}");
    rig.write("return {");
    let why = rig.reload(json!({ "by": 10 })).unwrap_err();
    assert!(why.contains("app.lua:1:"), "{why}");
    // If new() fails after the earlier app was stopped, the earlier one is started again.
    rig.write(&ADD.replace("return setmeta", "assert(conf.by < 20, 'too much') return setmeta"));
    let why = rig.reload(json!({ "by": 30 })).unwrap_err();
    assert!(why.contains("too much"), "{why}");
    assert_eq!(rig.pass(&[packet(1)]), [out(11, 1)]);
    rig.write(&ADD.replace("+ self.by", "- self.by"));
    rig.reload(json!({ "by": 1 })).unwrap();
    assert_eq!(rig.pass(&[packet(5)]), [out(4, 1)]);
    assert!(rig.set.supervise(Instant::now(), OnHang::Interrupt).is_empty());
}

#[test]
fn a_worker_reverts_when_another_refuses() {
    let folder = folder();
    let spec = spec(folder.join("app.lua"), json!({ "by": 1 }));
    let mut rig = Rig::joined(ADD, folder, spec, (2, &["left.output -> lua.left:output"])).unwrap();
    let mut network = Network::new();
    network.app("lua", Box::new(rig.set.part(1).unwrap())).unwrap();
    let mut second = Engine::new(network, Freelist::new(rig.frame_pool.clone(), 128)).unwrap();
    assert_eq!(rig.pass(&[packet(1)]), [out(2, 1)]);
    // new() succeeds on the first worker and fails on the second.
    let flag = rig.folder.join("made");
    let new = format!(
        "local made = io.open('{0}') if made then made:close() error('made before') end
         io.open('{0}', 'w'):close() return setmeta",
        flag.display()
    );
    rig.write(&ADD.replace("return setmeta", &new).replace("+ self.by", "- self.by"));
    let why = std::thread::scope(|scope| {
        let reloading = scope.spawn(|| rig.set.reload(&rig.spec).map_err(|error| error.to_string()));
        while !reloading.is_finished() {
            rig.engine.breathe();
            second.breathe();
        }
        reloading.join().unwrap().unwrap_err()
    });
    assert!(flag.exists() && why.contains("made before"), "{why}");
    assert!(rig.set.supervise(Instant::now(), OnHang::Interrupt).is_empty());
    // It adds again, although the file has changed since.
    assert_eq!(rig.pass(&[packet(1)]), [out(2, 1)]);
}

#[test]
fn an_error_ends_the_apps_and_names_its_line() {
    let text = ADD.replace("self.seen = self.seen + 1", "self.sen = self.sen + 1");
    let mut rig = Rig::new(&text, json!({ "by": 1 })).unwrap();
    assert!(rig.pass(&[packet(1)]).is_empty());
    let news = rig.news();
    let [AppNews::Failed { worker: 0, why, goes_back: false }] = &news[..] else { panic!("{news:?}") };
    assert!(why.contains("app.lua:7: ") && why.contains("'sen'") && why.contains("(in app app)"), "{why}");
    assert!(why.contains("stack traceback:"), "{why}");
    rig.engine.breathe();
    assert!(rig.set.supervise(Instant::now(), OnHang::Interrupt).is_empty(), "it must be reported only once");
}

#[test]
fn an_app_that_hangs_is_interrupted() {
    for body in ["while true do end", "local x = 0 while true do x = x + 1 end"] {
        let text = ADD.replace("self.seen = self.seen + 1", body);
        let mut rig = Rig::new(&text, json!({ "by": 1 })).unwrap();
        rig.left.send(&packet(1));
        let (set, engine) = (&rig.set, &mut rig.engine);
        let news = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                loop {
                    let news = set.supervise(Instant::now(), OnHang::Interrupt);
                    if !news.is_empty() {
                        return news;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            // On the worker's thread, which is not the thread that created the apps.
            scope.spawn(|| engine.breathe()).join().unwrap();
            watching.join().unwrap()
        });
        let why = "app.lua:7: it did not return, and was interrupted";
        let [AppNews::Failed { worker: 0, why: message, .. }] = &news[..] else { panic!("{body}: {news:?}") };
        assert!(message.ends_with(why), "{body}: {message}");
    }
}

/// Endless in the interpreter, in a compiled loop, in a C function that sleeps, and in protected calls.
const ENDLESS: [&str; 4] = [
    "jit.off() while true do end",
    "local n = 0 while true do n = n + 1 end",
    "require('ffi').cdef('int usleep(unsigned)') while true do require('ffi').C.usleep(1000000) end",
    "while true do pcall(error, 'again') end",
];

#[test]
fn an_app_whose_new_does_not_return_is_interrupted() {
    // A sleep would take much longer. Protected calls catch the error, so they are left by force.
    for (body, named) in [(ENDLESS[0], true), (ENDLESS[1], true), (ENDLESS[3], false)] {
        let message =
            |line: &str| format!("{}did not return, and was interrupted", if named { line } else { "" });
        let text = ADD.replace("return setmetatable", &format!("\n{body}\n return setmetatable"));
        let why = Rig::new(&text, json!({ "by": 1 })).err().unwrap();
        assert!(why.contains(&message("app.lua:4: it ")), "{body}: {why}");
        // The same at the top level of the file is found by a check.
        let file = folder().join("app.lua");
        std::fs::write(&file, format!("\n\n{body}")).unwrap();
        let why = match check(&spec(file, Value::Null)) {
            Ok(problems) => problems[0].1.clone(),
            Err(error) => error.to_string(),
        };
        assert!(why.contains(&message("app.lua:3: it ")), "{body}: {why}");
    }
}

#[test]
fn a_reload_that_does_not_return_keeps_the_running_apps() {
    for body in ENDLESS.into_iter().take(3) {
        let mut rig = Rig::new(ADD, json!({ "by": 1 })).unwrap();
        assert_eq!(rig.pass(&[packet(1)]), [out(2, 1)]);
        rig.write(&ADD.replace("return setmetatable", &format!("\n{body}\n return setmetatable")));
        let why = rig.reload(json!({ "by": 1 })).unwrap_err();
        assert!(why.contains("app.lua:4: it did not return, and was interrupted"), "{body}: {why}");
        assert_eq!(rig.pass(&[packet(1)]), [out(2, 1)], "{body}: an app of the old class");
        assert!(rig.set.supervise(Instant::now(), OnHang::Interrupt).is_empty(), "{body}");
        rig.write(&ADD.replace("+ self.by", "- self.by"));
        rig.reload(json!({ "by": 1 })).unwrap();
        assert_eq!(rig.pass(&[packet(5)]), [out(4, 1)]);
    }
}

#[test]
fn errors_in_apps_are_found_before_they_start() {
    let file = |text: &str| {
        let file = folder().join("app.lua");
        std::fs::write(&file, text).unwrap();
        file
    };
    for (text, argument, why) in [
        (ADD, json!({}), "missing required parameter 'by'"),
        (ADD, json!({ "by": 1, "too": 2 }), "too"),
        ("return {", Value::Null, "app.lua:1:"),
        ("return 1", Value::Null, "must return a class, or a table of classes; it returns a number"),
        ("return {}", Value::Null, "returns no class (a table with a function new)"),
        (
            "local C = { new = print } return { A = C, B = C }",
            Value::Null,
            "has several classes (A, B): choose one with `class`",
        ),
        ("error('no luck')", Value::Null, "app.lua:1: no luck"),
    ] {
        let problems = check(&spec(file(text), argument)).unwrap();
        let [(name, message)] = &problems[..] else { panic!("{problems:?}") };
        assert!(name == "app" && message.contains(why), "{message}");
    }
    assert_eq!(check(&spec(file(ADD), json!({ "by": 1 }))).unwrap(), []);
    let missing = check(&spec("/nonexistent/app.lua".into(), Value::Null)).unwrap();
    assert!(missing[0].1.contains("/nonexistent/app.lua: No such file"), "{missing:?}");
    let module = |name: &str, class: Option<&str>| {
        let mut spec = spec("x.lua".into(), Value::Null);
        spec.apps[0].module = Module::Lua(name.into());
        spec.apps[0].class = class.map(String::from);
        check(&spec).unwrap()
    };
    assert_eq!(module("apps.basic.basic_apps", Some("Tee")), []);
    assert!(module("apps.basic.basic_apps", Some("Te"))[0].1.contains("has no class Te"));
    assert!(module("apps.none", None)[0].1.contains("no module 'apps.none'"));
}
