-- Timers with a resolution of a millisecond (a tick), in a table by the tick they are due. The engine runs them once a
-- breath. What a timer allocates, frees and sends counts for the app that activated it.

local C = require("ffi").C
require("core.lib_h")
local breath = require("core.breath")
local shared = require("core.runtime").shared

local M = { ns_per_tick = 1e6 }

-- The tick up to which timers have run; false before the first timer is activated.
M.ticks = false

local due = {}

-- fn(timer) is called `ns` nanoseconds after activate(), and then every `ns` if mode is 'repeating'.
function M.new (name, fn, ns, mode)
   return { name = name, fn = fn, ticks = math.ceil(ns / M.ns_per_tick), repeating = mode == "repeating" }
end

function M.activate (timer)
   if not M.ticks then M.ticks = math.floor(tonumber(C.get_time_ns()) / M.ns_per_tick) end
   local tick = M.ticks + timer.ticks
   timer.due, timer.account = tick, breath.account_at_work() or timer.account
   local list = due[tick]
   if list then list[#list + 1] = timer else due[tick] = { timer } end
end

local function forget (timer)
   local list = timer.due and due[timer.due]
   if not list then return end
   for i = #list, 1, -1 do
      if list[i] == timer then table.remove(list, i) end
   end
   timer.due = nil
end

-- Cancels an activation: that of a timer, or those of all timers of a name. Called from a repeating timer's own
-- function, it stops that timer.
function M.cancel (which)
   if type(which) == "table" then
      which.cancelled = which.running
      return forget(which)
   end
   if type(which) ~= "string" then error("timer.cancel: expected a timer or its name", 2) end
   for _, list in pairs(due) do
      for i = #list, 1, -1 do
         if list[i].name == which then table.remove(list, i) end
      end
   end
end
M.deactivate = M.cancel

local function call (timer)
   timer.running, timer.cancelled, timer.due = true, nil, nil
   if timer.account then breath.charge(timer.account, timer.fn, timer) else timer.fn(timer) end
   timer.running = nil
   if timer.repeating and not timer.cancelled then M.activate(timer) end
end

local function run_due (ns)
   local last = math.floor(tonumber(ns) / M.ns_per_tick)
   if not M.ticks then M.ticks = last end
   for tick = M.ticks, last do
      M.ticks = tick
      local list = due[tick]
      if list then
         -- Not ipairs over a copy: a function may cancel another timer of the same tick.
         local timer = table.remove(list, 1)
         while timer do
            call(timer)
            timer = table.remove(list, 1)
         end
         due[tick] = nil
      end
   end
end

-- Runs the timers due up to this time in nanoseconds, including those activated while it runs. Programs with their own
-- loop call this instead of engine.main(), so this is where a signal ends them.
function M.run_to_time (ns)
   if shared.worker == 0 and shared.interrupted[0] ~= 0 then os.exit(0) end
   run_due(ns)
end

-- Whether any timer is active.
function M.any ()
   return next(due) ~= nil
end

-- Runs the timers that are due now.
function M.run ()
   if M.ticks then run_due(C.get_time_ns()) end
end

function M.init () error("timer.init() was removed: timers need no initialization") end

function M.selftest ()
   local saved_ticks, saved_due = M.ticks, due
   M.ticks, due = 0, {}
   local count, expected, steps = 0, 0, 20000
   for every = 1, 500 do
      M.activate(M.new("t"..every, function () count = count + 1 end, every * M.ns_per_tick, "repeating"))
      expected = expected + math.floor(steps / every)
   end
   local at = 0
   while at < steps do
      at = math.min(steps, at + math.random(5))
      M.run_to_time(at * M.ns_per_tick)
   end
   assert(count == expected, count.." calls instead of "..expected)
   M.ticks, due = 0, {}
   local calls = {}
   local function note (timer) calls[#calls + 1] = timer.name end
   M.activate(M.new("once", note, 2e6))
   M.activate(M.new("named", note, 2e6))
   local own = M.new("own", note, 1e6, "repeating")
   M.activate(own)
   M.cancel("named")
   M.run_to_time(2e6)
   M.cancel(own)
   M.activate(M.new("self", function (timer) note(timer) M.cancel(timer) end, 1e6, "repeating"))
   M.run_to_time(9e6)
   assert(table.concat(calls, " ") == "own once own self", table.concat(calls, " "))
   assert(not pcall(M.init) and not pcall(M.cancel, 7))
   M.ticks, due = saved_ticks, saved_due
end

return M
