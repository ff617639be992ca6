-- ECMP with our own hash at `lookup`: all packets between two hosts go to the same one of several gateways, whatever
-- their ports and direction. So a stateful box behind each gateway sees both directions of a flow.
-- args: gateways = { "198.51.100.7", ... }, only = "198.51.100.7": the gateway whose packets are distributed
local hook = require("brickmoon.hook")
local ffi = require("ffi")
local args = ...

local function address (text)
   local a, b, c, d = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
   if not a then error("not an IPv4 address: "..text) end
   return ((a * 256 + b) * 256 + c) * 256 + d
end

local gateways = {}
for _, text in ipairs(args.gateways or error("args.gateways must list the gateways")) do
   table.insert(gateways, address(text))
end
local only, n = address(args.only or args.gateways[1]), #gateways
local hops = ffi.new("uint32_t[?]", n)
local spread = hook.counter("spread")

return { lookup = function (burst)
   if burst.family ~= 4 then return end
   -- Neighbors change, so their next hops are looked up once per burst.
   for k = 1, n do hops[k - 1] = burst.route4(gateways[k]) end
   local from = burst.route4(only)
   for i in burst.each() do
      if burst.next_hop[i] == from then
         local d = burst.packet[i].data
         -- The sum of both addresses is the same in both directions.
         local sum = 0
         for at = 26, 30, 4 do sum = sum + ((d[at] * 256 + d[at + 1]) * 256 + d[at + 2]) * 256 + d[at + 3] end
         sum = bit.tobit(sum)
         sum = bit.bxor(sum, bit.rshift(sum, 16), bit.rshift(sum, 7))
         local hop = hops[bit.band(sum, 0x7fffffff) % n]
         if hop ~= 0 then
            burst.next_hop[i] = hop
            spread:add()
         end
      end
   end
end }
