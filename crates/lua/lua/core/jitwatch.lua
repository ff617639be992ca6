-- What the compiler does: traces made, given up and thrown away. A program that stays fast shows none of the last
-- two after it has warmed up.

local ffi = require("ffi")
local jit = require("jit")
local counter = require("core.counter")

ffi.cdef[[ struct brickmoon_jit { uint64_t traces, aborts, flushes; }; ]]

local counts = ffi.new("struct brickmoon_jit")
local M = { counts = counts }

local shown = {
   traces = counter.create("engine/jit/traces.counter"),
   aborts = counter.create("engine/jit/aborts.counter"),
   flushes = counter.create("engine/jit/flushes.counter"),
}

-- Called by the compiler, outside of traces.
jit.attach(function (what)
   if what == "stop" then counts.traces = counts.traces + 1
   elseif what == "abort" then counts.aborts = counts.aborts + 1
   elseif what == "flush" then counts.flushes = counts.flushes + 1 end
end, "trace")

function M.publish ()
   counter.set(shown.traces, counts.traces)
   counter.set(shown.aborts, counts.aborts)
   counter.set(shown.flushes, counts.flushes)
end

return M
