-- Port mirror at `egress`: a copy of every frame sent on one port is also sent on another.
-- args: from = name of the mirrored port, to = name of the port with the probe
local hook = require("brickmoon.hook")
local packet = require("core.packet")
local args = ...

local from, to = hook.port(args.from), hook.port(args.to)
local copied, missed = hook.counter("copied"), hook.counter("missed")

return { egress = function (burst)
   for i in burst.each() do
      if burst.out[i] == from then
         local copy = packet.clone(burst.packet[i])
         -- A burst has room for 64 copies. Copies beyond that are counted; the packet itself is never delayed.
         if burst.emit(copy, to) then
            copied:add()
         else
            packet.free(copy)
            missed:add()
         end
      end
   end
end }
