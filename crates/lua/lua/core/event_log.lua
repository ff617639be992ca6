-- What the engine logs to its timeline (core.timeline) if SNABB_TIMELINE_ENABLE is set.
--
-- It logs breaths, with packet counts at their start and end, the start and end of main(), and new configurations.
-- Individual apps are not logged, since a breath is one compiled function. Without a log, breaths are not changed.

local ffi = require("ffi")
local counter = require("core.counter")
local timeline = require("core.timeline")

require("core.lib_h")
local C = ffi.C

local M = {}
local log, events

-- The engine's timeline, created when first used; false if logging is off.
function M.timeline ()
   if log == nil then
      log = timeline.new("events.timeline")
      timeline.rate(log, 9)
   end
   return log
end

-- The functions that log the engine's events.
function M.events ()
   events = events or timeline.load_events(M.timeline(), "core.engine")
   return events
end

-- Draws the log rate of the next breath; events with a lower rate are left out. Each rate is drawn five times as often
-- as the one below it.
function M.randomize_log_rate ()
   if log then timeline.rate(log, math.max(1, math.ceil(math.log(math.random(5 ^ 9)) / math.log(5)))) end
end

local function counted (engine)
   return tonumber(counter.read(engine.breaths)), tonumber(counter.read(engine.frees)),
      tonumber(counter.read(engine.freebytes)), tonumber(counter.read(engine.freebits))
end

-- For engine.main(): returns the breath function to run, and a function to call at the end.
function M.start (engine, breathe)
   if not M.timeline() then return breathe, function () end end
   local log_event = M.events()
   timeline.rate(log, 6)
   log_event.engine_started()
   -- The first breath is always logged in full.
   timeline.rate(log, 1)
   local function logged ()
      log_event.breath_start(counted(engine))
      log_event.got_monotonic_time(tonumber(C.get_time_ns()))
      breathe()
      log_event.breath_end(counted(engine))
      M.randomize_log_rate()
   end
   return logged, function ()
      timeline.rate(log, 6)
      log_event.engine_stopped()
   end
end

return M
