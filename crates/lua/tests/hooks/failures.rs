//! Hooks that fail: when they are loaded, in a burst, by exceeding their budget, or by never returning.

use std::time::{Duration, Instant};

use bm_graph::Stage;
use bm_lua::hook::{Budget, Health, HookNews, HookSpec, OnFailure, OnHang};
use bm_stats::Reason;

use crate::{IN, OUT, Rig, WORLD, folder, spec};

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// A hook that drops everything with this reason.
fn dropping(name: &str) -> String {
    format!(
        "local hook = require('brickmoon.hook')
         hook.reason('{name}')
         return function (burst) for i in burst.each() do burst.drop(i, '{name}') end end"
    )
}

fn passes(rig: &mut Rig) {
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
}

#[test]
fn finds_modules_in_the_trees_of_its_specification() {
    let text = "local name = require('nf.names').drop\nlocal hook = require('brickmoon.hook')\nhook.reason(name)\n\
                return function (burst) for i in burst.each() do burst.drop(i, name) end end";
    let site = folder();
    std::fs::create_dir_all(site.join("nf")).unwrap();
    std::fs::write(site.join("nf/names.lua"), "return { drop = 'named' }").unwrap();
    let trees = bm_lua::Tree::at(&site);
    let mut rig = Rig::with(|spec| HookSpec { stage: Some(Stage::Ingress), trees, ..spec }, text);
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!(rig.count("drop/named"), 1);
    // A module that has changed is loaded with the next version.
    std::fs::write(site.join("nf/names.lua"), "return { drop = 'anew' }").unwrap();
    rig.reload(text).unwrap();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/named"), rig.count("drop/anew")), (1, 1));
    rig.specs[0].trees.clear();
    assert!(rig.reload(text).unwrap_err().contains("no module 'nf.names' in the folders"));
    std::fs::remove_dir_all(&site).unwrap();
}

#[test]
fn a_reload_loads_the_new_text_or_keeps_the_old() {
    let mut rig = Rig::new(Stage::Ingress, &dropping("one"));
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    let refused = rig.reload("return function (burst)\n  local = 3\nend").unwrap_err();
    assert!(refused.contains("hook.lua:2: "), "{refused}");
    let refused = rig.reload("local t = nil\nlocal function f () return t.x end\nf()").unwrap_err();
    assert!(refused.contains("hook.lua:2: attempt to index upvalue 't'"), "{refused}");
    assert!(refused.contains("stack traceback:") && refused.contains("hook.lua:3:"), "{refused}");
    let refused = rig.reload("return 7").unwrap_err();
    assert!(refused.contains("must return a function that takes a burst"), "{refused}");
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/one"), rig.report().version), (2, 1));
    rig.reload(&dropping("two")).unwrap();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/one"), rig.count("drop/two"), rig.report().version), (2, 1, 2));
    rig.reload("return function () end").unwrap();
    passes(&mut rig);
    assert!(rig.news().is_empty());
}

#[test]
fn an_error_in_a_burst_has_no_effect_on_it() {
    let text = "local hook = require('brickmoon.hook')
        hook.reason('some')
        local packet = require('core.packet')
        return function (burst)
           burst.drop(0, 'some')
           burst.emit(packet.clone(burst.packet[0]), 2)
           local function deep () return burst.packet[0].nothing end
           deep()
        end";
    let passing = |spec| HookSpec { stage: Some(Stage::Ingress), on_failure: Some(OnFailure::Pass), ..spec };
    let mut rig = Rig::with(passing, text);
    passes(&mut rig);
    passes(&mut rig);
    assert_eq!((rig.count("errors"), rig.count("drop/some"), rig.count("calls")), (1, 0, 1));
    let report = rig.report();
    assert_eq!((report.health, report.running), (Health::Failed, None));
    let error = report.error.unwrap();
    assert!(error.contains("hook.lua:7: ") && error.contains("has no member named 'nothing'"), "{error}");
    assert!(error.contains("stack traceback:") && error.contains("hook.lua:8:"), "{error}");
    let news = rig.news();
    let [HookNews::Retired { name, version: 1, health: Health::Failed, instead, .. }] = &news[..] else {
        panic!("{news:?}")
    };
    assert_eq!((name.as_str(), instead), ("hook", &Err(OnFailure::Pass)));
    assert!(rig.news().is_empty(), "it must be reported only once");
}

#[test]
fn the_last_good_version_takes_over() {
    let mut rig = Rig::new(Stage::Ingress, &dropping("good"));
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    rig.reload("return function (burst) error('bad luck') end").unwrap();
    // The burst in which it fails is the previous version's, too.
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/good"), rig.count("errors")), (3, 1));
    let report = rig.report();
    assert_eq!((report.version, report.running, report.health), (2, Some(1), Health::Failed));
    assert!(report.error.unwrap().contains("bad luck"));
    // A new version without errors replaces both.
    rig.reload(&dropping("better")).unwrap();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/better"), rig.report().running), (1, Some(3)));
}

#[test]
fn of_several_hooks_each_has_its_last_good_version() {
    let folder = folder();
    let files = ["first.lua", "hook.lua"].map(|name| folder.join(name));
    files.iter().for_each(|file| std::fs::write(file, "return function () end").unwrap());
    let specs = files.map(|file| spec(file, Some(Stage::Ingress))).to_vec();
    let mut rig = Rig::of(specs, folder, WORLD).unwrap();
    rig.reload(&dropping("second")).unwrap();
    rig.reload("return function () error('bad luck') end").unwrap();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    let running: Vec<_> = rig.set.report().into_iter().map(|hook| (hook.name, hook.running)).collect();
    assert_eq!(running, [("first".into(), Some(3)), ("hook".into(), Some(2))]);
}

#[test]
fn wrong_names_and_indexes_are_errors() {
    for (what, words) in [
        ("burst.drop(0, 'unknown')", "there is no reason unknown"),
        ("burst.drop(1, 'known')", "the burst has packets 0 to 0, not 1"),
        ("burst.send(0, 'eth9')", "there is no port eth9"),
        ("require('brickmoon.hook').reason('late')", "declare it when the file is loaded"),
        ("require('brickmoon.hook').counter('late')", "create it when the file is loaded"),
    ] {
        let text = format!("require('brickmoon.hook').reason('known') return function (burst) {what} end");
        let mut rig = Rig::new(Stage::Ingress, &text);
        assert!(rig.lab.exchange(LEFT, &IN).is_silence());
        let error = rig.report().error.unwrap();
        assert!(error.contains(words) && error.contains("hook.lua:1:"), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_loaded_is_an_error_with_a_reason() {
    let folder = folder();
    let missing = spec(folder.join("missing.lua"), Some(Stage::Ingress));
    let why = Rig::of(vec![missing], folder.clone(), crate::WORLD).err().unwrap();
    assert!(why.contains("cannot open") && why.contains("missing.lua"), "{why}");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("table.lua"), "return { ingress = function () end }").unwrap();
    let wrong = spec(folder.join("table.lua"), Some(Stage::Egress));
    let why = Rig::of(vec![wrong], folder, crate::WORLD).err().unwrap();
    assert!(why.contains("the table has no function egress"), "{why}");
}

#[test]
fn a_file_is_checked_without_running_it() {
    let folder = folder();
    let file = folder.join("bad.lua");
    std::fs::write(&file, "error('never run')\nreturn function (burst\n").unwrap();
    let why = bm_lua::hook::check(&file).unwrap_err().to_string();
    assert!(why.contains("bad.lua:3: ')' expected"), "{why}");
    std::fs::write(&file, "error('never run')").unwrap();
    assert!(bm_lua::hook::check(&file).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Takes far more than 10 cycles per frame, and drops it.
const DEAR: &str = "local hook = require('brickmoon.hook')
    hook.reason('dear')
    local n = hook.counter('n')
    return function (burst)
       for i in burst.each() do
          for k = 1, 200 do n:add(burst.packet[i].data[k % 40]) end
          burst.drop(i, 'dear')
       end
    end";

#[test]
fn a_hook_over_its_budget_for_long_is_ejected() {
    let change = |spec| HookSpec {
        stage: Some(Stage::Ingress),
        budget: Budget { cycles: 10, percent: 1, patience: Duration::from_millis(100) },
        ..spec
    };
    let mut rig = Rig::with(change, DEAR);
    let start = Instant::now();
    while rig.report().health == Health::Good {
        (0..256).for_each(|_| rig.lab.send(LEFT, &IN));
        rig.lab.run();
        rig.lab.take(RIGHT);
        assert!(start.elapsed() < Duration::from_secs(20), "the hook must be ejected");
    }
    assert!(start.elapsed() >= Duration::from_millis(100), "the hook must not be ejected immediately");
    assert_eq!(rig.lab.dropped(Reason::HookFailed), 0, "what it was called with it has decided");
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!(rig.lab.dropped(Reason::HookFailed), 1);
    let report = rig.report();
    assert_eq!((report.health, report.running, rig.count("ejections")), (Health::Ejected, None, 1));
    let why = report.error.unwrap();
    assert!(why.contains("over its budget of 10 cycles above 1 % of a core"), "{why}");
}

#[test]
fn a_hook_within_its_budget_stays() {
    let change = |spec| HookSpec {
        stage: Some(Stage::Ingress),
        budget: Budget { cycles: 100_000_000, percent: 1, patience: Duration::ZERO },
        ..spec
    };
    let mut rig = Rig::with(change, DEAR);
    for _ in 0..20 {
        (0..256).for_each(|_| rig.lab.send(LEFT, &IN));
        rig.lab.run();
    }
    assert_eq!((rig.report().health, rig.count("drop/dear")), (Health::Good, 20 * 256));
}

/// Endless in the interpreter, in a compiled loop, in a C function that sleeps, and in a chain of protected calls.
const ENDLESS: [&str; 5] = [
    "jit.off() return function (burst) while true do end end",
    "return function (burst) local n = 0 while true do n = n + 1 end end",
    "local ffi = require('ffi') ffi.cdef('int usleep(unsigned)')
     return function (burst) while true do ffi.C.usleep(1000000) end end",
    "return function (burst) while true do pcall(error, 'again') end end",
    "return function (burst) local t = {} while true do t = { t = { 'x'..#t } } end end",
];

#[test]
fn an_endless_hook_is_interrupted() {
    for text in ENDLESS {
        let mut rig = Rig::new(Stage::Ingress, &dropping("before"));
        rig.reload(text).unwrap();
        let set = rig.set.clone();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let supervisor = std::thread::spawn(move || {
            let mut news = Vec::new();
            while stopped.recv_timeout(Duration::from_millis(50)).is_err() {
                news.extend(set.supervise(OnHang::Interrupt));
            }
            news.extend(set.supervise(OnHang::Interrupt));
            news
        });
        let start = Instant::now();
        // The burst in which it hangs is the previous version's, and so are later frames.
        assert!(rig.lab.exchange(LEFT, &IN).is_silence());
        let lasted = start.elapsed();
        assert!((Duration::from_millis(90)..Duration::from_secs(20)).contains(&lasted), "{lasted:?}");
        // The previous version takes over; its Lua state is intact.
        assert!(rig.lab.exchange(LEFT, &IN).is_silence());
        assert_eq!((rig.count("hangs"), rig.count("drop/before")), (1, 2), "{text}");
        let report = rig.report();
        assert_eq!((report.health, report.running), (Health::Hung, Some(1)));
        stop.send(()).unwrap();
        let news = supervisor.join().unwrap();
        assert!(
            matches!(&news[..], [HookNews::Retired { health: Health::Hung, version: 2, .. }]),
            "{text}: {news:?}"
        );
        // A new version can be loaded afterwards.
        rig.reload("return function () end").unwrap();
        passes(&mut rig);
    }
}

#[test]
fn a_file_that_does_not_return_is_not_loaded() {
    bm_lua::limit_loading(Duration::from_millis(100));
    let mut rig = Rig::new(Stage::Ingress, &dropping("before"));
    for body in ["jit.off() while true do end", "local n = 0 while true do n = n + 1 end"] {
        let why = rig.reload(&format!("\n{body}")).unwrap_err();
        assert!(why.contains("hook.lua:2: it did not return, and was interrupted"), "{why}");
    }
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/before"), rig.report().version), (1, 1));
    rig.reload("return function () end").unwrap();
    passes(&mut rig);
}

#[test]
fn workers_share_published_values() {
    let text = "local hook = require('brickmoon.hook')
        hook.reason('listed')
        local hits = hook.memory('hits', 'uint64_t', 4)
        return {
           slow = function (burst)
              for i in burst.each() do
                 hook.publish('denied', { sources = { [burst.packet[i].data[29]] = true }, count = 1 })
              end
           end,
           ingress = function (burst)
              local denied = hook.shared('denied')
              for i in burst.each() do
                 local source = burst.packet[i].data[29]
                 if not denied then burst.punt(i)
                 elseif denied.sources[source] then hits[0] = hits[0] + 1 burst.drop(i, 'listed') end
              end
           end,
        }";
    let mut rig = Rig::with(|spec| spec, text);
    // The first frame goes to the slow path, whose state publishes its source; the worker's state then drops it.
    passes(&mut rig);
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!((rig.count("drop/listed"), rig.lab.passed_to_slow_path()), (1, 1));
    let mut another = IN;
    (another[29], another[24], another[25]) = (8, 0x96, 0x81);
    assert_eq!(rig.lab.exchange(LEFT, &another).sent.len(), 1);
    // It survives a reload.
    rig.reload(text).unwrap();
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
}
