-- Protects against DNS amplification, at `ingress`: drops UDP answers from port 53 that are large or come from a server
-- that nobody here uses, and queries of type ANY.
-- args: largest = most bytes of UDP in an answer, resolvers = { "9.9.9.9", ... }: servers in use (empty: any)
local hook = require("brickmoon.hook")
local args = ...

local largest = args.largest or 1232
local resolvers, any_resolver = {}, #(args.resolvers or {}) == 0
for _, text in ipairs(args.resolvers or {}) do
   local a, b, c, d = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
   resolvers[((a * 256 + b) * 256 + c) * 256 + d] = true
end
local large = hook.reason("dns_large", "a DNS answer over UDP that is too large")
local stranger = hook.reason("dns_stranger", "a DNS answer from an unknown resolver")
local any = hook.reason("dns_any", "a DNS query of type ANY")

-- Whether the question that begins at byte `at` asks for type ANY (255).
local function asks_any (d, at, stop)
   while at < stop and d[at] ~= 0 do
      if d[at] > 63 then return false end
      at = at + d[at] + 1
   end
   return at + 2 < stop and d[at + 1] == 0 and d[at + 2] == 255
end

return { ingress = function (burst)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      local d = p.data
      if p.length >= 54 and d[12] == 8 and d[13] == 0 and d[14] == 0x45 and d[23] == 17 then
         if d[34] == 0 and d[35] == 53 then
            local source = ((d[26] * 256 + d[27]) * 256 + d[28]) * 256 + d[29]
            if d[38] * 256 + d[39] > largest then burst.drop(i, large)
            elseif not any_resolver and not resolvers[source] then burst.drop(i, stranger) end
         elseif d[36] == 0 and d[37] == 53 and asks_any(d, 54, p.length) then
            burst.drop(i, any)
         end
      end
   end
end }
