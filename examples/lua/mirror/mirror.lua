-- Port mirror at `egress`: a copy of every frame that leaves through one port also leaves through another.
-- args: from = name of a port, to = name of the port where the probe is
local hook = require("brickmoon.hook")
local packet = require("core.packet")
local args = ...

local from, to = hook.port(args.from), hook.port(args.to)
local copied, missed = hook.counter("copied"), hook.counter("missed")

return { egress = function (burst)
   for i in burst.each() do
      if burst.out[i] == from then
         local copy = packet.clone(burst.packet[i])
         -- 64 copies fit in a burst: what is beyond is counted, and the packet itself is never held up.
         if burst.emit(copy, to) then
            copied:add()
         else
            packet.free(copy)
            missed:add()
         end
      end
   end
end }
