-- Stateless ACL at `ingress`: drops IPv4 packets to TCP and UDP ports that must not be reached from outside.
-- args: ports = { 23, 445, ... }
local ffi = require("ffi")
local hook = require("brickmoon.hook")
local args = ...

local denied = ffi.new("bool[65536]")
for _, port in ipairs(args.ports or { 23, 135, 139, 445 }) do denied[port] = true end
local blocked = hook.reason("acl_blocked", "its destination port is on the ACL's list")

return { ingress = function (burst)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      local d = p.data
      -- IPv4 over Ethernet, a header of 20 bytes, the first fragment, TCP or UDP.
      if p.length >= 38 and d[12] == 8 and d[13] == 0 and d[14] == 0x45 and d[21] == 0 and d[20] % 32 == 0
         and (d[23] == 6 or d[23] == 17) and denied[d[36] * 256 + d[37]] then
         burst.drop(i, blocked)
      end
   end
end }
