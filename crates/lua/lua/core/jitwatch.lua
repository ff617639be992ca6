-- What the compiler does: traces made, given up and thrown away, and the machine code that there is. A program that
-- stays fast shows none of the middle two after it has warmed up.

local jit = require("jit")
local trace_code = require("jit.util").tracemc

-- Where Rust sees them.
local counts = require("core.runtime").shared.jit
local M = {}

-- Called by the compiler, outside of traces.
jit.attach(function (what, trace)
   if what == "stop" then
      counts.traces = counts.traces + 1
      counts.code_bytes = counts.code_bytes + #(trace_code(trace) or "")
   elseif what == "abort" then counts.aborts = counts.aborts + 1
   elseif what == "flush" then
      counts.flushes = counts.flushes + 1
      counts.code_bytes = 0
   end
end, "trace")

-- All of it as plain numbers, with the bytes that the collector looks after.
function M.read ()
   return {
      traces = tonumber(counts.traces), aborts = tonumber(counts.aborts), flushes = tonumber(counts.flushes),
      code_bytes = tonumber(counts.code_bytes), heap_bytes = collectgarbage("count") * 1024,
   }
end

local shown

-- Brings the counters in shared memory up to date; the first call makes them.
function M.publish ()
   local counter = require("core.counter")
   if not shown then
      shown = {}
      for _, name in ipairs { "traces", "aborts", "flushes", "code_bytes" } do
         shown[name] = counter.create(("engine/jit/%s.counter"):format(name))
      end
   end
   for name, c in pairs(shown) do counter.set(c, counts[name]) end
end

return M
