-- When the engine rests: at a fixed rhythm (`engine.Hz`), or longer and longer while nothing comes.
--
-- The garbage collector works here first: no packets are waiting then.

local ffi = require("ffi")
local runtime = require("core.runtime")
local jitwatch = require("core.jitwatch")

local C, shared, freelist, frees = ffi.C, runtime.shared, runtime.freelist, runtime.frees

require("core.lib_h")

-- `sleeps`: how often it rested since nothing came.
local M = { sleeps = 0 }

-- Seconds of monotonic time.
function M.seconds () return C.get_monotonic_time() end

-- Asks on for so long after the last packet, in seconds.
local PATIENCE = 2e-5
-- Longest rest while apps in Rust, whose ports can wake us, are the only ones to pull, in microseconds.
local LONGEST = shared.worker == 0 and 20000 or 2000
-- Shortest that is worth collecting garbage.
local COLLECT_FROM = 10

local last_moved, last_time, next_breath = -1, 0, false

-- What changes when a packet moves: those freed, those in use, those that apps in Rust moved.
local function moved ()
   return tonumber(frees.packets) + tonumber(shared.moved) + freelist.held
end

function M.begin (engine)
   next_breath = false
   engine.sleep = 0
   last_time = M.seconds()
end

local function rhythm (engine, now)
   next_breath = next_breath or now
   local pause = next_breath - now
   if pause > 1e-6 then shared.wait(shared, pause * 1e9) end
   next_breath = math.max(next_breath + 1 / engine.Hz, now)
end

local function idle (engine, ticking, pulls_in_lua)
   local most = (ticking or pulls_in_lua) and engine.maxsleep or LONGEST
   engine.sleep = math.min(engine.sleep + 1 + math.floor(engine.sleep / 8), most)
   if engine.sleep >= COLLECT_FROM then
      collectgarbage("step", 1)
      jitwatch.publish()
   end
   M.sleeps = M.sleeps + 1
   shared.wait(shared, engine.sleep * 1e3)
end

-- After a breath that began at `now`.
function M.rest (engine, now, ticking, pulls_in_lua)
   if engine.Hz then return rhythm(engine, now) end
   local before = last_moved
   last_moved = moved()
   if before ~= last_moved then
      last_time = now
      engine.sleep = math.floor(engine.sleep / 2)
   elseif now - last_time > PATIENCE then
      idle(engine, ticking, pulls_in_lua)
   end
end

return M
