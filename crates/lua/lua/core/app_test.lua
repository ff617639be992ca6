-- Tests of what the engine guarantees to apps: life cycle, order, links by name and index, ticks, accounts. Run by
-- core.app's selftest.

local ffi = require("ffi")
local config = require("core.config")
local link = require("core.link")
local packet = require("core.packet")
local shm = require("core.shm")
local timer = require("core.timer")
local counter = require("core.counter")
local lib = require("core.lib")
local account = require("core.account")
local basic = require("apps.basic.basic_apps")

local M = {}

-- A class whose instances record in `log` what the engine calls.
local function class (log, fields)
   local C = fields or {}
   function C:new (arg)
      log[#log + 1] = "new "..tostring(arg)
      return setmetatable({ arg = arg }, { __index = C })
   end
   function C:stop () log[#log + 1] = "stop "..tostring(self.arg) end
   return C
end

local function network (apps, links)
   local c = config.new()
   for name, app in pairs(apps) do config.app(c, name, app[1], app[2]) end
   for _, spec in ipairs(links or {}) do config.link(c, spec) end
   return c
end

local function once () return true end

local function test_changes (engine)
   local log = {}
   local A, B = class(log), class(log)
   function B:reconfig (arg) log[#log + 1] = "reconfig "..tostring(arg) end
   engine.configure(network({ a = { A, 1 }, b = { B, 1 } }, { "a.x -> b.y" }))
   local a, b, l = engine.app_table.a, engine.app_table.b, engine.link_table["a.x -> b.y"]
   assert(a.output.x == l and a.output[1] == l and b.input.y == l and #b.input == 1 and #a.input == 0)
   engine.configure(network({ a = { A, 1 }, b = { B, 1 } }, { "a.x -> b.y" }))
   assert(engine.app_table.a == a and engine.app_table.b == b and engine.link_table["a.x -> b.y"] == l)
   engine.configure(network({ a = { A, 2 }, b = { B, 2 } }, { "a.x -> b.y" }))
   assert(engine.app_table.a ~= a and engine.app_table.b == b and engine.app_table.a.output.x == l)
   engine.configure(network({ b = { B, 2 } }))
   assert(#b.input == 0 and b.input.y == nil and next(engine.link_table) == nil)
   engine.configure(network({ b = { A, 2 } }))
   engine.stop()
   assert(next(engine.app_table) == nil)
   assert(table.concat(log, ",") == "new 1,new 1,stop 1,new 2,reconfig 2,stop 2,stop 1,new 2,stop 2",
          table.concat(log, ","))
end

local function test_refusals (engine)
   local function refused (pattern, c)
      local fine, why = pcall(engine.configure, c)
      assert(not fine and tostring(why):match(pattern), tostring(why))
      engine.stop()
   end
   local A = class({})
   refused("no such app: b %(in link a%.x %-> b%.y%)", network({ a = { A } }, { "a.x -> b.y" }))
   refused("app bad: new%(%) must return a table, but returned 7", network { bad = { { new = function () return 7 end } } })
   refused("push_link must be a table", network { bad = { class({}, { push_link = 1 }) } })
end

local function test_links (engine)
   local log = {}
   local function note (what) return function (_, side, name) log[#log + 1] = what..side..name end end
   local Both = class({}, { link = note "+", unlink = note "-" })
   local Old = class({}, { link = note "?" })
   engine.configure(network({ a = { Both }, b = { Old } }, { "a.x -> b.y" }))
   engine.configure(network { a = { Both }, b = { Old } })
   assert(table.concat(log, " ") == "+outputx ?inputy -outputx ?inputy", table.concat(log, " "))
   engine.stop()
end

-- Apps record when they are pushed. In a diamond, apps are pushed from the source on, and the last one once for each
-- path to it. A loop is pushed only once around.
local function test_order (engine)
   local log = {}
   local Source = class({}, { pull = function () log[#log + 1] = "source" end })
   local function pipe (name) return class({}, { push = function () log[#log + 1] = name end }) end
   engine.configure(network({ a = { pipe "last" }, b = { pipe "left" }, c = { pipe "right" }, z = { Source } },
                            { "z.l -> b.i", "z.r -> c.i", "b.o -> a.l", "c.o -> a.r" }))
   engine.breathe()
   local order = table.concat(log, " ")
   assert(order == "source right last left last", order)
   engine.configure(network({ a = { pipe "a" }, b = { pipe "b" } }, { "a.o -> b.i", "b.o -> a.i" }))
   for i = #log, 1, -1 do log[i] = nil end
   engine.breathe()
   assert(#log == 2)
   engine.stop()
end

local function test_push_link (engine)
   local log = {}
   local A = class({}, { push_link = {}, push = function () log[#log + 1] = "push" end })
   function A.push_link:one (input)
      assert(input == self.input.one)
      log[#log + 1] = "one"
   end
   local Source = class({}, { pull = function () end })
   engine.configure(network({ s = { Source }, a = { A } }, { "s.x -> a.one" }))
   engine.breathe()
   assert(table.concat(log, " ") == "one")
   engine.configure(network({ s = { Source }, a = { A } }, { "s.x -> a.one", "s.y -> a.two" }))
   engine.breathe()
   table.sort(log)
   assert(table.concat(log, " ") == "one one push", table.concat(log, " "))
   assert(engine.app_table.a.push_link ~= A.push_link)
   engine.stop()
end

local function test_ticks (engine)
   local T = class({}, { tick = function (self) self.ticks = (self.ticks or 0) + 1 end })
   engine.configure(network { t = { T } })
   engine.main { duration = 0.1, no_report = true }
   local ticks = engine.app_table.t.ticks
   assert(ticks >= 5 and ticks <= 101, ticks)
   engine.stop()
end

local function test_traffic (engine)
   local c = network({ Source = { basic.Source, 100 }, Tee = { basic.Tee }, Sink = { basic.Sink } },
                     { "Source.tx -> Tee.rx", "Tee.tx1 -> Sink.rx1", "Tee.tx2 -> Sink.rx2" })
   engine.configure(c)
   local frees = tonumber(counter.read(engine.frees))
   local bytes = tonumber(counter.read(engine.freebytes))
   engine.main { duration = 0.05, no_report = true }
   local stats = link.stats(engine.app_table.Source.output.tx)
   assert(stats.txpackets > 0 and stats.txpackets == stats.rxpackets and stats.txbytes == stats.txpackets * 100)
   frees = tonumber(counter.read(engine.frees)) - frees
   assert(frees == 2 * stats.txpackets, frees)
   assert(tonumber(counter.read(engine.freebytes)) - bytes == frees * 100)
   assert(engine.held("Source") == 1 and engine.held("Tee") == 0 and engine.held("Sink") == 0)
   engine.report { showlinks = true, showapps = true, showload = true }
   engine.stop()
end

-- An app that forgets packets is reported when it stops; an app that frees a packet twice is reported at once.
local function test_accounts (engine)
   local Thief = class({})
   function Thief:push ()
      for _ = 1, link.nreadable(self.input.i) do self.last = link.receive(self.input.i) end
   end
   local Twice = class({})
   function Twice:push ()
      local p = link.receive(self.input.i)
      packet.free(p)
      packet.free(p)
   end
   local said = {}
   local complain = account.complain
   account.complain = function (text) said[#said + 1] = text end
   engine.configure(network({ s = { basic.Source }, t = { Thief } }, { "s.o -> t.i" }))
   engine.breathe()
   local lost = engine.held("t")
   engine.stop()
   account.complain = complain
   assert(lost == engine.pull_npackets and said[1]:match("app t has lost 102 packets"), said[1])
   engine.configure(network({ s = { basic.Source }, t = { Twice } }, { "s.o -> t.i" }))
   local fine, why = pcall(engine.breathe)
   assert(not fine and why:match("app_test.lua:%d+: packet .* was freed before") and engine.at_work() == "t", why)
   account.complain = function () end
   engine.stop()
   account.complain = complain
end

-- An app that puts packets back into its own input, and keeps two, holds two; the app that sent them holds none.
local function test_own_input (engine)
   local Writer, Twice = class({}), class({})
   function Writer:pull ()
      for _ = 1, 10 do link.transmit(self.output.o, packet.from_string("0123456789")) end
   end
   function Twice:push ()
      local i = self.input.i
      for _ = 1, link.nreadable(i) do link.transmit(i, link.receive(i)) end
      for n = 1, link.nreadable(i) do
         local p = link.receive(i)
         if n == 1 then self.last = p elseif n % 2 == 1 then packet.free(p) else link.transmit(self.output.o, p) end
      end
   end
   local said = {}
   local complain = account.complain
   account.complain = function (text) said[#said + 1] = text end
   engine.configure(network({ w = { Writer }, t = { Twice }, s = { basic.Sink } }, { "w.o -> t.i", "t.o -> s.i" }))
   engine.breathe()
   engine.breathe()
   assert(engine.held("t") == 2 and engine.held("w") == 0 and engine.held("s") == 0)
   engine.breathe()
   engine.stop()
   account.complain = complain
   assert(#said == 1 and said[1]:match("app t has lost 3 packets"), said[1])
end

-- The same behind an app that keeps a packet of its own until it is stopped: no packet counts as lost.
local function test_own_input_behind_a_source (engine)
   local Twice = class({})
   function Twice:push ()
      local i = self.input.i
      for _ = 1, link.nreadable(i) do link.transmit(i, link.receive(i)) end
      for _ = 1, link.nreadable(i) do link.transmit(self.output.o, link.receive(i)) end
   end
   local said = {}
   local complain = account.complain
   account.complain = function (text) said[#said + 1] = text end
   for _ = 1, 20 do
      engine.configure(network({ s = { basic.Source }, t = { Twice }, k = { basic.Sink } }, { "s.o -> t.i", "t.o -> k.i" }))
      engine.breathe()
      engine.stop()
   end
   account.complain = complain
   assert(#said == 0, said[1])
end

-- What an app's timer allocates, sends and frees counts for that app, whether it was activated in new() or in a breath.
local function test_timers (engine)
   local timer = require("core.timer")
   local Timed = class({})
   function Timed:new ()
      local o = setmetatable({ fired = 0 }, { __index = Timed })
      o.again = timer.new("again", function ()
         o.fired = o.fired + 1
         packet.free(packet.allocate())
         for _ = 1, 3 do link.transmit(o.output.o, packet.from_string("of a timer")) end
         if o.fired == 2 then timer.cancel(o.again) timer.activate(o.last) end
      end, 1e6, "repeating")
      o.last = timer.new("last", function () o.fired, o.kept = 3, packet.allocate() end, 1e6)
      timer.activate(o.again)
      return o
   end
   local said = {}
   local complain = account.complain
   account.complain = function (text) said[#said + 1] = text end
   engine.configure(network({ t = { Timed }, s = { basic.Sink } }, { "t.o -> s.i" }))
   local app = engine.app_table.t
   engine.main { done = function () return app.fired == 3 end, no_report = true }
   assert(engine.held("t") == 1 and engine.held("s") == 0, engine.held("t"))
   engine.stop()
   account.complain = complain
   packet.free(app.kept)
   assert(#said == 1 and said[1]:match("app t has lost 1 packets"), said[1])
end

local function test_names (engine)
   assert(not pcall(engine.unclaim_name))
   engine.claim_name("bm-test-one")
   assert(engine.enumerate_named_programs()["bm-test-one"])
   engine.claim_name("bm-test-two")
   local programs = engine.enumerate_named_programs()
   assert(programs["bm-test-two"] and not programs["bm-test-one"])
   engine.unclaim_name()
   assert(not engine.enumerate_named_programs()["bm-test-two"] and not engine.program_name)
end

-- What programs expect in their environment: core modules by their full names, and a profiler that does nothing.
local function test_surroundings (engine)
   assert(core.app == engine and core.link == link and core.no_such_module == nil)
   local profiler = require("jit.vmprofile")
   assert(profiler == jit.vmprofile and not profiler.start() and not profiler.stop())
end

-- A program's own loop runs as fast as Hz says, slows down while idle, and runs no timers.
local function test_own_loop (engine)
   local Hz, ran = engine.Hz, 0
   timer.activate(timer.new("own loop", function () ran = ran + 1 end, 0))
   engine.Hz = 200
   engine.breathe()
   engine.pace_breathing()
   -- A breath that began late, on a busy machine, shortens those after it.
   lib.waitfor2("five breaths of 5 ms", function ()
      local start = engine.now()
      for _ = 1, 5 do
         engine.breathe()
         engine.pace_breathing()
      end
      return engine.now() - start >= 0.02
   end, 20, 1000)
   engine.Hz = Hz
   for _ = 1, 50 do
      engine.breathe()
      engine.pace_breathing()
   end
   assert(engine.sleep > 0 and ran == 0)
   -- Running breaths is enough to publish counters to other processes, including those of links.
   engine.configure(network({ source = { basic.Source }, sink = { basic.Sink } }, { "source.x -> sink.y" }))
   local counter_t = ffi.typeof("struct counter")
   local breaths = shm.open("engine/breaths.counter", counter_t, true)
   local packets = shm.open("links/source.x -> sink.y/rxpackets.counter", counter_t, true)
   local before = breaths.c
   lib.waitfor(function ()
      engine.breathe()
      return breaths.c > before and packets.c > 0
   end)
   shm.unmap(breaths)
   shm.unmap(packets)
   engine.stop()
   timer.run()
   assert(ran == 1)
end

function M.run (engine)
   print("selftest: app")
   test_changes(engine)
   test_refusals(engine)
   test_links(engine)
   test_order(engine)
   test_push_link(engine)
   test_ticks(engine)
   test_traffic(engine)
   test_accounts(engine)
   test_timers(engine)
   test_own_input(engine)
   test_own_input_behind_a_source(engine)
   test_names(engine)
   test_surroundings(engine)
   test_own_loop(engine)
   local done = 0
   engine.main { done = function () done = done + 1 return done == 3 end, no_report = true }
   assert(done == 3 and not pcall(engine.main, { done = once, duration = 1 }))
   assert(lib.equal(engine.app_table, {}))
   print("selftest: ok")
end

return M
