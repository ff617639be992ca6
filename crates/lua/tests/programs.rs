//! Whole programs: several cores, errors, release of resources at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bm_lua::{LuaError, NoNatives, Outcome, PAYLOAD, Program, ProgramSource, World};

/// Runs a program that is written to a file of this name.
fn run(name: &str, text: &str) -> (Result<Outcome, LuaError>, World) {
    run_within(name, text, None)
}

/// The same with a time limit for creating its apps.
fn run_within(name: &str, text: &str, setup: Option<Duration>) -> (Result<Outcome, LuaError>, World) {
    start(name, text, setup, 1)
}

/// The same on this many workers, unless the program sets a number.
fn run_on(workers: usize, name: &str, text: &str) -> (Result<Outcome, LuaError>, World) {
    start(name, text, None, workers)
}

fn start(
    name: &str,
    text: &str,
    setup: Option<Duration>,
    workers: usize,
) -> (Result<Outcome, LuaError>, World) {
    let path: PathBuf = std::env::temp_dir().join(format!("bm-lua-{}-{name}.lua", std::process::id()));
    std::fs::write(&path, text).expect("the test can write and allocate");
    let world =
        World::new(Arc::new(NoNatives), Vec::new(), PAYLOAD).expect("the test can write and allocate");
    let program = Program {
        source: ProgramSource::File(path.clone()),
        arguments: vec!["one".into()],
        world: world.clone(),
        setup,
        workers,
    };
    let outcome = program.run();
    std::fs::remove_file(path).expect("the test can write and allocate");
    (outcome, world)
}

const APPS: &str = r#"
local basic = require("apps.basic.basic_apps")
local Mark, Check = {}, { new = function (self) return setmetatable({ seen = {} }, { __index = self }) end }
function Mark:new (mark) return setmetatable({ mark = mark }, { __index = Mark }) end
function Mark:push ()
   local input, output = self.input.i, self.output.o
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      p.data[0] = self.mark
      link.transmit(output, p)
   end
end
function Check:push ()
   for _ = 1, link.nreadable(self.input.i) do
      local p = link.receive(self.input.i)
      self.seen[p.data[0]] = (self.seen[p.data[0]] or 0) + 1
      packet.free(p)
   end
end
local c = config.new()
config.app(c, "source", basic.Source)
config.app(c, "check", Check)
config.link(c, "source.o -> mark.i")
config.link(c, "mark.o -> check.i")
local function until_seen (mark)
   engine.main { done = function () return engine.app_table.check.seen[mark] end, no_report = true }
end
"#;

#[test]
fn an_app_on_another_core_exchanges_packets_and_is_reconfigured() {
    let (outcome, world) = run(
        "cores",
        &format!(
            r#"{APPS}
            config.app(c, "mark", Mark, 7, {{ core = 0 }})
            engine.configure(c)
            assert(not engine.app_table.mark)
            until_seen(7)
            config.app(c, "mark", Mark, 9, {{ core = 0 }})
            engine.configure(c)
            until_seen(9)
            assert(not engine.app_table.check.seen[0])
            local stats = engine.link_stats()
            assert(stats["mark.o -> to_mark_o____check_i.input"].txpackets > 0)
            config.app(c, "mark", Mark, 5)
            engine.configure(c)
            assert(engine.app_table.mark)
            until_seen(5)
            engine.stop()"#
        ),
    );
    assert_eq!(outcome, Ok(Outcome::Done));
    assert_eq!(world.frame_pool.available(), world.frame_pool.memory().slots(), "no packets may be lost");
}

#[test]
fn packets_that_a_remote_app_puts_back_into_its_input_count_as_its_own() {
    let (outcome, world) = run(
        "own-input",
        &format!(
            r#"{APPS}
            local Twice = {{}}
            function Twice:new () return setmetatable({{ handled = 0 }}, {{ __index = Twice }}) end
            function Twice:push ()
               local input = self.input.i
               for _ = 1, link.nreadable(input) do link.transmit(input, link.receive(input)) end
               for _ = 1, link.nreadable(input) do
                  local p = link.receive(input)
                  p.data[0] = 7
                  self.handled = self.handled + 1
                  if self.right then link.transmit(self.output.o, p) else packet.free(p) end
               end
            end
            -- It sends nothing before the account was looked at.
            function Twice:tick ()
               local held = engine.held(self.appname)
               if held ~= 0 then error("it holds "..held) end
               self.right = self.handled > 0
            end
            config.app(c, "mark", Twice, nil, {{ core = 0 }})
            engine.configure(c)
            until_seen(7)
            engine.stop()"#
        ),
    );
    assert_eq!(outcome, Ok(Outcome::Done));
    assert_eq!(world.frame_pool.available(), world.frame_pool.memory().slots(), "no packets may be lost");
}

#[test]
fn a_replicated_network_runs_on_every_worker_and_its_counters_are_summed() {
    let (outcome, world) = run(
        "replicas",
        &format!(
            r#"{APPS}
            config.app(c, "mark", Mark, 7)
            engine.configure(c, {{ workers = 3 }})
            local function sum () return engine.link_stats()["mark.o -> check.i"].txpackets end
            engine.main {{ duration = 0.1, no_report = true }}
            local own = link.stats(engine.link_table["mark.o -> check.i"]).txpackets
            assert(own > 0 and sum() > own, "only the first worker has worked")
            engine.configure(c)
            local before = sum()
            assert(before >= own)
            engine.stop()"#
        ),
    );
    assert_eq!(outcome, Ok(Outcome::Done));
    assert_eq!(world.frame_pool.available(), world.frame_pool.memory().slots(), "no packets may be lost");
}

#[test]
fn a_program_without_a_number_of_workers_runs_on_the_requested_ones() {
    let text = format!(
        r#"{APPS}
        config.app(c, "mark", Mark, 7)
        engine.configure(c)
        local function sum () return engine.link_stats()["mark.o -> check.i"].txpackets end
        engine.main {{ duration = 0.1, no_report = true }}
        local own = link.stats(engine.link_table["mark.o -> check.i"]).txpackets
        assert(own > 0 and sum() > own, "only the first worker has worked")
        -- What the program says goes before what the command line says.
        engine.configure(c, {{ workers = 1 }})
        engine.stop()"#
    );
    let (outcome, world) = run_on(2, "unmodified", &text);
    assert_eq!(outcome, Ok(Outcome::Done));
    assert_eq!(world.frame_pool.available(), world.frame_pool.memory().slots(), "no packets may be lost");
}

#[test]
fn an_app_that_cannot_be_replicated_is_named() {
    let (outcome, _) = run_on(
        2,
        "single",
        r#"local pcap = require("apps.pcap.pcap")
local c = config.new()
config.app(c, "capture", pcap.PcapReader, "/dev/null")
engine.configure(c)"#,
    );
    let message = outcome.unwrap_err().message;
    let why =
        "app capture cannot run on 2 workers: each worker would send all frames of the file; run it on one";
    assert!(message.contains(why), "{message}");
    let (outcome, _) = run_on(
        2,
        "placed",
        r#"local basic = require("apps.basic.basic_apps")
local c = config.new()
config.app(c, "sink", basic.Sink, nil, { core = 0 })
engine.configure(c)"#,
    );
    let message = outcome.unwrap_err().message;
    assert!(message.contains("app sink cannot run on 2 workers: the program puts it on core 0"), "{message}");
}

#[test]
fn an_error_on_another_core_ends_the_program_and_names_its_line() {
    let (outcome, world) = run(
        "trouble",
        r#"local Bad = { new = function (self) return setmetatable({}, { __index = self }) end }
local basic = require("apps.basic.basic_apps")
function Bad:push () error("out of order") end
local c = config.new()
config.app(c, "source", basic.Source)
config.app(c, "bad", Bad, nil, { core = 0 })
config.link(c, "source.o -> bad.i")
engine.configure(c)
engine.main()"#,
    );
    let message = outcome.unwrap_err().message;
    assert!(message.starts_with("worker 1: "), "{message}");
    assert!(message.ends_with("trouble.lua:3: out of order (in app bad)"), "{message}");
    assert_eq!(world.frame_pool.available(), world.frame_pool.memory().slots(), "no packets may be lost");
}

#[test]
fn values_that_cannot_move_to_another_core_are_named() {
    let (outcome, _) = run(
        "pointer",
        r#"local p = packet.allocate()
local App = { new = function (self) return setmetatable({ p = p }, { __index = self }) end }
local c = config.new()
config.app(c, "mine", App, nil, { core = 0 })
engine.configure(c)"#,
    );
    let message = outcome.unwrap_err().message;
    assert!(
        message.contains("app mine.new.p is C data of type struct packet *, which cannot be sent"),
        "{message}"
    );
}

#[test]
fn programs_end_with_their_exit_status() {
    let (outcome, _) = run("exit", "assert((...) == 'one' and main.parameters[1] == 'one') main.exit(3)");
    assert_eq!(outcome, Ok(Outcome::Exit(3)));
    let (outcome, _) = run("syntax", "local x = = 1");
    assert!(outcome.unwrap_err().message.contains("syntax.lua:1: unexpected symbol"));
    let (outcome, _) = run("global", "local function f () misspelt = 1 end\nf()");
    assert!(outcome.unwrap_err().message.contains("global.lua:1: assignment to undeclared global"));
    let schema = "local A = { config = { mtu = { required = true } } }\nconfig.app(config.new(), 'x', A, {})";
    let (outcome, _) = run("schema", schema);
    let message = outcome.unwrap_err().message;
    assert!(
        message.contains("schema.lua:2: failed to configure 'x'") && message.contains("mtu"),
        "{message}"
    );
}

#[test]
fn a_program_without_free_packets_learns_which_app_holds_them() {
    let (outcome, _) = run(
        "hoard",
        r#"local Hoard = { new = function (self) return setmetatable({ kept = {} }, { __index = self }) end }
function Hoard:push ()
   for _ = 1, link.nreadable(self.input.i) do self.kept[#self.kept + 1] = link.receive(self.input.i) end
end
local c = config.new()
config.app(c, "source", require("apps.basic.basic_apps").Source)
config.app(c, "hoard", Hoard)
config.link(c, "source.o -> hoard.i")
engine.configure(c)
engine.main()"#,
    );
    let message = outcome.unwrap_err().message;
    assert!(message.contains("no free packets: all are in use: app hoard holds 32"), "{message}");
}

#[test]
fn a_program_keeps_its_name_as_long_as_it_runs() {
    let text = r#"local shm = require("core.shm")
ffi = require("ffi")
ffi.cdef("int symlink (const char *target, const char *path); int getpid (void);")
local name, killed = "bm-test-"..ffi.C.getpid(), "bm-killed-"..ffi.C.getpid()
engine.claim_name(name)
assert(engine.enumerate_named_programs()[name] == ffi.C.getpid())
local fine, why = pcall(engine.claim_name, name.."/")
assert(not fine)
-- One that was killed could not give its name up.
assert(ffi.C.symlink(shm.root.."/1073741824", shm.root.."/by-name/"..killed) == 0)
assert(not engine.enumerate_named_programs()[killed])
engine.claim_name(killed)
assert(engine.enumerate_named_programs()[killed] == ffi.C.getpid())
assert(not engine.enumerate_named_programs()[name])
-- Whoever runs keeps it.
local parent = "bm-parent-"..ffi.C.getpid()
assert(ffi.C.symlink(shm.root.."/1", shm.root.."/by-name/"..parent) == 0)
local fine, why = pcall(engine.claim_name, parent)
require("brickmoon.sys").remove(shm.root.."/by-name/"..parent)
assert(not fine and why:find("Name already taken: "..parent.." is used by process 1", 1, true), why)"#;
    for round in ["names", "names again"] {
        let (outcome, _) = run(round, &format!("local ffi\n{text}"));
        outcome.unwrap_or_else(|error| panic!("{round}: {}", error.message));
    }
}

/// An app with this body of new().
fn making(body: &str) -> String {
    format!(
        "local Slow = {{}}
function Slow:new ()
   {body}
   return setmetatable({{}}, {{ __index = Slow }})
end
local c = config.new()
config.app(c, 'source', require('apps.basic.basic_apps').Source)
config.app(c, 'slow', Slow)
engine.configure(c)
engine.main {{ duration = 0.05, no_report = true }}
local before = os.clock()
while os.clock() - before < 0.5 do end"
    )
}

#[test]
fn an_app_whose_new_does_not_return_is_interrupted() {
    let limit = Some(Duration::from_millis(200));
    for body in ["jit.off() while true do end", "local n = 0 while true do n = n + 1 end"] {
        let (outcome, world) = run_within("endless", &making(body), limit);
        let message = outcome.unwrap_err().message;
        assert!(message.contains("endless.lua:3: it did not return, and was interrupted"), "{message}");
        if body.starts_with("jit.off") {
            assert_eq!(
                world.frame_pool.available(),
                world.frame_pool.memory().slots(),
                "no packets may be lost"
            );
        }
    }
}

#[test]
fn only_apps_have_a_time_limit() {
    let (outcome, _) = run_within("slow", &making("local n = 0"), Some(Duration::from_millis(200)));
    assert_eq!(outcome, Ok(Outcome::Done));
}
