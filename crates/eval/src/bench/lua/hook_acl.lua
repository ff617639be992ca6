-- One field: packets to Telnet's port are dropped. There are none.
local hook = require("brickmoon.hook")
local telnet = hook.reason("telnet", "nobody may use Telnet")

return { ingress = function (burst)
   for i = 0, burst.count - 1 do
      local d = burst.packet[i].data
      if d[36] * 256 + d[37] == 23 then burst.drop(i, telnet) end
   end
end }
