-- Workloads for `brickmoon bench lua`: functions that run a number of breaths and return the number of packets.

local config = require("core.config")
local engine = require("core.app")
local link = require("core.link")
local packet = require("core.packet")

local M = {}

local function breathe (count)
   local done = 0
   engine.main {
      no_report = true,
      done = function ()
         done = done + 1
         return done >= count
      end,
   }
end

-- A workload that counts the packets put into the link `counted`.
function M.turn (counted)
   return function (count)
      local before = counted.txpackets
      breathe(count)
      return tonumber(counted.txpackets - before)
   end
end

-- Number of breaths after which the packets in a ring are restored.
local RENEW = 100

-- A workload of two apps of `class` in a ring, in which `frames` packets circulate. Every RENEW breaths, `renew`
-- restores each packet. A packet is counted once at each app.
function M.round (class, frames, bytes, renew)
   local c = config.new()
   config.app(c, "a", class)
   config.app(c, "b", class)
   config.link(c, "a.output -> b.input")
   config.link(c, "b.output -> a.input")
   engine.configure(c)
   engine.busywait = true
   local first = engine.link_table["b.output -> a.input"]
   for _ = 1, frames do link.transmit(first, packet.from_string(bytes)) end
   local function renew_all ()
      for _ = 1, link.nreadable(first) do
         local p = link.receive(first)
         renew(p)
         link.transmit(first, p)
      end
   end
   return function (count)
      for _ = RENEW, count, RENEW do
         breathe(RENEW)
         if renew then renew_all() end
      end
      if count % RENEW > 0 then breathe(count % RENEW) end
      return count * frames * 2
   end
end

return M
