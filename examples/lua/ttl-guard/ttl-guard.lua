-- Forwards only packets that cannot have crossed a router (RFC 5082): TTL or hop limit at least `minimum`.
local link, packet, counter = require("core.link"), require("core.packet"), require("core.counter")

-- Offsets of the type and the two fields in an untagged frame.
local TYPE, TTL, HOP_LIMIT = 12, 14 + 8, 14 + 7

local TtlGuard = { config = { minimum = { default = 255 } } }

function TtlGuard:new (conf)
   return setmetatable({ minimum = conf.minimum, shm = { low_ttl = { counter } } }, { __index = TtlGuard })
end

function TtlGuard:push ()
   local input, output, minimum = self.input.input, self.output.output, self.minimum
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      local d = p.data
      local field = d[TYPE] == 0x86 and HOP_LIMIT or TTL
      if p.length > TTL and d[field] >= minimum then
         link.transmit(output, p)
      else
         counter.add(self.shm.low_ttl)
         packet.free(p)
      end
   end
end

return TtlGuard
