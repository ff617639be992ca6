-- The engine: makes a network of apps what a configuration says, and breathes.
--
--    engine.configure(c)             start, stop, reconfigure apps; make and take links: only what differs
--    engine.main({ duration = 1 })   breathe: pull all, push along the links, tick; sleep when nothing comes
--
-- core.actions does the first, core.order and core.breath make the second one function. Programs know this module
-- as `engine`.

local ffi = require("ffi")
local lib = require("core.lib")
local config = require("core.config")
local counter = require("core.counter")
local histogram = require("core.histogram")
local packet = require("core.packet")
local timer = require("core.timer")
local link = require("core.link")
local runtime = require("core.runtime")
local actions = require("core.actions")
local order = require("core.order")
local breath = require("core.breath")
local account = require("core.account")
local pace = require("core.pace")
local jitwatch = require("core.jitwatch")
local workers = require("core.workers")
local report = require("core.report")
local event_log = require("core.event_log")
local startup = require("core.startup")

local shared, frees = runtime.shared, runtime.frees

local M = {
   pull_npackets = math.floor(link.max / 10),
   app_table = {}, link_table = {},
   configuration = config.new(),
   log = false,
   test_skipped_code = 43,
   -- Pacing: see core.pace.
   Hz = false, sleep = 0, maxsleep = 100, busywait = false,
   -- How often a second tick() is called.
   tick_Hz = 1000,
   -- Seconds of monotonic time as the breath began.
   monotonic_now = false,
   breaths = counter.create("engine/breaths.counter"),
   frees = counter.create("engine/frees.counter"),
   freebits = counter.create("engine/freebits.counter"),
   freebytes = counter.create("engine/freebytes.counter"),
   configs = counter.create("engine/configs.counter"),
   breathe_pull_order = {}, breathe_push_order = {},
}

packet.explain = function () return account.explain(M.app_table) end

local running = false
local all_steps = function () end
local ticks, pulls_in_lua = {}, false
-- When tick() is due, in seconds; false if never.
local next_tick = false
local latency

-- Seconds of monotonic time, as the breath began if one is running.
function M.now ()
   return running and M.monotonic_now or pace.seconds()
end

-- Puts the freed packets that core.packet counted into the engine's counters.
local function show_frees ()
   counter.set(M.frees, frees.packets)
   counter.set(M.freebytes, frees.bytes)
   -- What a packet takes on the wire: at least 46 bytes, and 9 beside them.
   counter.set(M.freebits, (frees.bytes + frees.short_bytes + frees.packets * 9) * 8)
end

-- Whether the breath is still of a network that was.
local stale = false

local function compute_breathe_order ()
   stale = false
   M.breathe_pull_order, M.breathe_push_order, ticks = order.compute(M.app_table)
   all_steps = breath.compile(M.breathe_pull_order, M.breathe_push_order, account.of)
   pulls_in_lua = false
   for _, app in ipairs(M.breathe_pull_order) do
      if not app.native then pulls_in_lua = true end
   end
end

M.compute_config_actions = actions.compute

function M.apply_config_actions (list)
   -- Whatever fails, the next breath is of the apps that are there.
   stale = true
   actions.apply(M, list)
   compute_breathe_order()
end

-- Makes the network of this worker what `new` says, with as few changes as it takes.
function M.configure_here (new)
   local events = event_log.events()
   events.configure(tonumber(counter.read(M.configs)) + 1)
   M.apply_config_actions(actions.compute(M.configuration, new))
   counter.add(M.configs)
   events.config_applied()
end

-- Makes the network what `new` says, on all workers that it takes: see core.workers.
function M.configure (new, options)
   M.configure_here(workers.spread(new, options))
end

-- What went through the links, of all workers together: { link = { txpackets = ..., ... } }.
M.link_stats = workers.link_stats

-- Stops all apps.
function M.stop ()
   M.configure(config.new())
end

function M.enable_tick ()
   next_tick = M.tick_Hz > 0 and M.now() + 1 / M.tick_Hz
end

local function tick (now)
   next_tick = math.max(next_tick + 1 / M.tick_Hz, now)
   for _, app in ipairs(ticks) do breath.charge(account.of(app), app.tick, app) end
end

-- Looks at what does not come with packets: signals, and workers that have failed. The first worker does.
local function look_around ()
   if workers.trouble() then return true end
   if shared.asked[0] ~= 0 then report.answer(M) end
   if shared.worker == 0 and shared.interrupted[0] ~= 0 then
      M.stop()
      os.exit(0)
   end
end

-- How often timers and signals are looked at, and shared counters brought up to date, in seconds.
local LOOK_EVERY, SHOW_EVERY = 2e-4, 0.1
local next_look, next_show = 0, 0

-- Part of the breath, since programs with a loop of their own may never rest, and counters are for other processes.
local function show (now)
   next_show = now + SHOW_EVERY
   link.show_all()
   counter.commit()
end

-- One breath.
function M.breathe ()
   if stale then compute_breathe_order() end
   running = true
   local now = pace.seconds()
   M.monotonic_now = now
   shared.now_ns = now * 1e9
   all_steps()
   if next_tick and now >= next_tick then tick(now) end
   if shared.failed ~= 0 then error("an app in Rust panicked: see the message above", 0) end
   show_frees()
   counter.add(M.breaths)
   running = false
   if now >= next_show then show(now) end
end

-- Only some breaths are measured: reading the clock costs as much as ten packets.
local MEASURE = 8

local function measured (breathe)
   local count = 0
   return function ()
      count = count + 1
      if count < MEASURE then return breathe() end
      count = 0
      breathe()
      latency:add(pace.seconds() - M.monotonic_now)
   end
end

-- Whether a loop of breaths is over: by the clock, or by what the program says.
local function finish (options)
   if not options.duration then return options.done end
   assert(not options.done, "engine.main: duration and done exclude each other")
   local finish = pace.seconds() + options.duration
   return function () return M.monotonic_now >= finish end
end

-- What falls due between breaths; true if the loop must end, since a worker has failed.
local function attend (now, no_timers)
   if now < next_look then return false end
   next_look = now + LOOK_EVERY
   if not no_timers then timer.run() end
   return look_around()
end

local function rest (now) pace.rest(M, now, next_tick and #ticks > 0, pulls_in_lua) end

local function breaths_until (done, breathe, no_timers)
   next_look, next_show = 0, 0
   repeat
      breathe()
      local now = M.monotonic_now
      if attend(now, no_timers) then return end
      if not M.busywait then rest(now) end
   until done and done()
end

-- For programs that call breathe() in a loop of their own: rests as `main` would (by Hz or maxsleep; busywait is
-- the caller's to heed), and takes up signals and questions of `brickmoon show`. Timers are left to the program.
function M.pace_breathing ()
   local now = M.monotonic_now or pace.seconds()
   attend(now, true)
   rest(now)
end

-- Breathes until `duration` seconds are over or `done` gives true; for ever without both.
function M.main (options)
   options = options or {}
   local done = finish(options)
   local breathe = M.breathe
   actions.at_setup(false)
   if options.measure_latency ~= false then
      latency = latency or histogram.create("engine/latency.histogram", 1e-6, 1e0)
      breathe = measured(breathe)
   end
   M.enable_tick()
   pace.begin(M)
   local stopped
   breathe, stopped = event_log.start(M, breathe)
   workers.run_while(function () breaths_until(done, breathe, options.no_timers) end)
   stopped()
   show(M.now())
   jitwatch.publish()
   if not options.no_report then M.report(options.report) end
end

function M.report (options)
   if not options or options.showload then M.report_load() end
   if options and options.showlinks then M.report_links() end
   if options and options.showapps then M.report_apps() end
end

local last
local function totals ()
   return { time = M.now(), frees = tonumber(frees.packets), bytes = tonumber(frees.bytes),
            bits = tonumber(counter.read(M.freebits)), breaths = tonumber(counter.read(M.breaths)) }
end

-- Prints what was done since the last time: packets freed a second, a breath, and their size.
function M.report_load ()
   local now = totals()
   if last then
      local seconds, freed = now.time - last.time, now.frees - last.frees
      local size = freed > 0 and ("%d"):format((now.bytes - last.bytes) / freed) or "-"
      local each = freed / math.max(1, now.breaths - last.breaths)
      print(("load: time: %-2.2fs  fps: %-9s fpGbps: %-3.3f fpb: %-3s bpp: %-4s sleep: %-4dus"):format(
         seconds, lib.comma_value(math.floor(freed / seconds)), (now.bits - last.bits) / seconds / 1e9,
         lib.comma_value(math.floor(each)), size, M.sleep))
   end
   last = now
end

function M.report_links ()
   print("link report:")
   local names = {}
   local all = M.link_stats()
   for name in pairs(all) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local stats = all[name]
      local tried = stats.txdrop + stats.txpackets
      print(("%20s sent on %s (loss rate: %d%%)"):format(
         lib.comma_value(stats.txpackets), name, tried > 0 and stats.txdrop * 100 / tried or 0))
   end
end

-- Has each app of this worker report, in the order of names.
function M.report_apps_here ()
   local names = {}
   for name in pairs(M.app_table) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local app = M.app_table[name]
      if app.report then
         -- Where all workers run the network, each has an app of this name.
         print(workers.total > 1 and ("%s (worker %d)"):format(name, shared.worker) or name)
         -- A failing report must not end the program.
         local fine, why = pcall(app.report, app)
         if not fine then
            startup.pass_on(why)
            print("Warning: "..name.." threw an error during report: "..tostring(why))
         end
      end
   end
   io.stdout:flush()
end

function M.report_apps ()
   print("apps report:")
   M.report_apps_here()
   workers.ask("report_apps")
end

-- The app that is at work, for error messages; nil between steps.
function M.at_work ()
   return running and breath.current()
end

-- Packets that an app holds, by its account.
function M.held (name)
   account.settle(M.app_table)
   return account.held(M.app_table[name])
end

-- The log of what the engine does: see core.timeline.
M.timeline, M.randomize_log_rate = event_log.timeline, event_log.randomize_log_rate

-- Profiles are not kept; programs may ask for them.
function M.setvmprofile () end
function M.clearvmprofiles () end
function M.enable_auditlog () end

local names = require("core.names")
M.program_name = false
function M.claim_name (name) M.program_name = names.claim(name, M.program_name) end
function M.unclaim_name (name) M.program_name = names.unclaim(name or M.program_name) end
M.enumerate_named_programs = names.enumerate

function M.selftest ()
   require("core.app_test").run(M)
end

return M
