-- The engine: builds the network of apps that a configuration describes, and runs its breaths.
--
--    engine.configure(c)             start, stop and reconfigure apps, add and remove links, where something changed
--    engine.main({ duration = 1 })   run breaths: pull all, push along the links, tick; sleep when idle
--
-- core.actions does the former; core.order and core.breath compile the latter into one function. Programs know this
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
   -- How many times a second tick() is called.
   tick_Hz = 1000,
   -- Monotonic time in seconds at the start of the breath.
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
-- When tick() is due, in seconds; false for never.
local next_tick = false
local latency

-- Monotonic time in seconds; during a breath, the time at its start.
function M.now ()
   return running and M.monotonic_now or pace.seconds()
end

-- Puts the freed packets that core.packet counted into the engine's counters.
local function show_frees ()
   counter.set(M.frees, frees.packets)
   counter.set(M.freebytes, frees.bytes)
   -- What a packet occupies on the wire: at least 46 bytes, plus 9.
   counter.set(M.freebits, (frees.bytes + frees.short_bytes + frees.packets * 9) * 8)
end

-- Whether the compiled breath is that of an earlier network.
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
   -- Even if an action fails, the next breath must be compiled for the apps that exist.
   stale = true
   actions.apply(M, list)
   compute_breathe_order()
end

-- Changes the network of this worker to `new`, with as few actions as possible.
function M.configure_here (new)
   local events = event_log.events()
   events.configure(tonumber(counter.read(M.configs)) + 1)
   M.apply_config_actions(actions.compute(M.configuration, new))
   counter.add(M.configs)
   events.config_applied()
end

-- Changes the network to `new`, on all workers that it uses: see core.workers.
function M.configure (new, options)
   M.configure_here(workers.spread(new, options))
end

-- Link counters, summed over all workers: { link = { txpackets = ..., ... } }.
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

-- Checks for signals and for workers that have failed. Signals are handled by the first worker.
local function look_around ()
   if workers.trouble() then return true end
   if shared.asked[0] ~= 0 then report.answer(M) end
   if shared.worker == 0 and shared.interrupted[0] ~= 0 then
      M.stop()
      os.exit(0)
   end
end

-- How often timers and signals are checked, and how often shared counters are updated, in seconds.
local LOOK_EVERY, SHOW_EVERY = 2e-4, 0.1
local next_look, next_show = 0, 0

-- Runs within the breath, since programs with their own loop may never sleep, and other processes read the counters.
local function show (now)
   next_show = now + SHOW_EVERY
   link.show_all()
   counter.commit()
end

-- Runs one breath.
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

-- Only every eighth breath is measured: reading the clock costs as much as ten packets.
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

-- The function that tells whether a loop of breaths must end: by the clock, or by the program's own condition.
local function finish (options)
   if not options.duration then return options.done end
   assert(not options.done, "engine.main: duration and done exclude each other")
   local finish = pace.seconds() + options.duration
   return function () return M.monotonic_now >= finish end
end

-- What is done between breaths. Returns true if the loop must end because a worker has failed.
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

-- For programs that call breathe() in their own loop: sleeps as `main` would (by Hz or maxsleep; the caller handles
-- busywait), and handles signals and requests of `brickmoon show`. Timers are left to the program.
function M.pace_breathing ()
   local now = M.monotonic_now or pace.seconds()
   attend(now, true)
   rest(now)
end

-- Runs breaths until `duration` seconds have passed or `done` returns true; without either, forever.
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

-- Prints the load since the last call: packets freed per second and per breath, and their size.
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

-- Calls report() of each app of this worker, in the order of names.
function M.report_apps_here ()
   local names = {}
   for name in pairs(M.app_table) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local app = M.app_table[name]
      if app.report then
         -- Where all workers run the whole network, each of them has an app of this name.
         print(workers.total > 1 and ("%s (worker %d)"):format(name, shared.worker) or name)
         -- An error in report() must not end the program.
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

-- The app that is running, for error messages; nil between apps.
function M.at_work ()
   return running and breath.current()
end

-- The number of packets that an app holds, according to its account.
function M.held (name)
   account.settle(M.app_table)
   return account.held(M.app_table[name])
end

-- The engine's event log: see core.timeline.
M.timeline, M.randomize_log_rate = event_log.timeline, event_log.randomize_log_rate

-- There are no VM profiles, but programs call these functions.
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
