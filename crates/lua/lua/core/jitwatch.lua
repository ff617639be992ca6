-- Statistics of the JIT compiler: traces compiled, aborted and flushed, and the size of machine code. A program that
-- runs at full speed aborts and flushes no traces once it has warmed up.

local jit = require("jit")
local ffi = require("ffi")
local util = require("jit.util")

-- Where Rust reads the statistics.
local shared = require("core.runtime").shared
local counts, places, places_max = shared.jit, shared.places, shared.places_max
local M = {}

-- The line at which the trace being recorded begins.
local line = ""

-- Records where a trace's machine code is and which line it belongs to: errors about endless loops name the line.
local function note (trace, code, address)
   if trace >= places_max then return end
   local place = places[trace]
   place.from, place.to = 0, 0
   ffi.fill(place.line, ffi.sizeof(place.line))
   ffi.copy(place.line, line, math.min(#line, ffi.sizeof(place.line) - 1))
   place.from, place.to = address, address + #code
end

-- Called by the compiler, never from a trace.
jit.attach(function (what, trace, func, pc)
   if what == "start" then
      line = util.funcinfo(func, pc).loc or ""
   elseif what == "stop" then
      local code, address = util.tracemc(trace)
      counts.traces = counts.traces + 1
      counts.code_bytes = counts.code_bytes + #(code or "")
      if code then note(trace, code, address) end
   elseif what == "abort" then counts.aborts = counts.aborts + 1
   elseif what == "flush" then
      counts.flushes = counts.flushes + 1
      counts.code_bytes = 0
      ffi.fill(places, ffi.sizeof("struct brickmoon_place") * places_max)
   end
end, "trace")

-- All statistics as plain numbers, with the bytes that the garbage collector manages.
function M.read ()
   return {
      traces = tonumber(counts.traces), aborts = tonumber(counts.aborts), flushes = tonumber(counts.flushes),
      code_bytes = tonumber(counts.code_bytes), heap_bytes = collectgarbage("count") * 1024,
   }
end

local shown

-- Updates the counters in shared memory; the first call creates them.
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
