-- The same packets go round through two apps that check and decrement the TTL and update the checksum (RFC 1624).
local frames = ...
local bit = require("bit")
local TYPE, TTL, SUM = 12, 14 + 8, 14 + 10

local Ttl = {}
function Ttl:new () return setmetatable({}, { __index = Ttl }) end
function Ttl:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      local data = p.data
      local ttl = data[TTL]
      if p.length >= 34 and data[TYPE] == 8 and data[TYPE + 1] == 0 and ttl > 1 then
         local sum = data[SUM] * 256 + data[SUM + 1] + 256
         if sum >= 0xffff then sum = sum + 1 end
         data[SUM] = bit.band(bit.rshift(sum, 8), 255)
         data[SUM + 1] = bit.band(sum, 255)
         data[TTL] = ttl - 1
         link.transmit(output, p)
      else
         packet.free(p)
      end
   end
end

-- 192.0.2.1 > 198.51.100.7, UDP, 255 hops left.
local header = "\x45\0\0\x2e\0\1\0\0\xff\17\xcf\x8d\192\0\2\1\198\51\100\7"
local frame = ("\2"):rep(12).."\8\0"..header..("\0"):rep(26)
local function renew (p)
   p.data[TTL], p.data[SUM], p.data[SUM + 1] = 255, 0xcf, 0x8d
end

return require("brickmoon.bench").round(Ttl, frames, frame, renew)
