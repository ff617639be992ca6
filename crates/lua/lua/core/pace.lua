-- When the engine sleeps: at a fixed rate (`engine.Hz`), or longer and longer while it is idle.
--
-- The garbage collector runs here before sleeping: no packets are waiting then.

local ffi = require("ffi")
local runtime = require("core.runtime")
local jitwatch = require("core.jitwatch")

local C, shared, freelist, frees = ffi.C, runtime.shared, runtime.freelist, runtime.frees

require("core.lib_h")

-- `sleeps`: how many times it slept because it was idle.
local M = { sleeps = 0 }

function M.seconds () return C.get_monotonic_time() end

-- How long it keeps polling after the last packet, in seconds.
local PATIENCE = 2e-5
-- Longest sleep while all apps that pull are written in Rust, whose ports can wake us, in microseconds.
local LONGEST = shared.worker == 0 and 20000 or 2000
-- Shortest sleep before which garbage is collected, in microseconds.
local COLLECT_FROM = 10

local last_moved, last_time, next_breath = -1, 0, false

-- A number that changes when a packet moves: packets freed, in use, and moved by apps in Rust.
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

-- Called after a breath that began at `now`.
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
