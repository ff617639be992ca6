-- A filter in tcpdump's language, asked about each packet.
local hook = require("brickmoon.hook")
local is_web = require("brickmoon.filter").compile("tcp dst port 80")
local web = hook.reason("web", "tcp dst port 80")

return { ingress = function (burst)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      if is_web(p.data, p.length) then burst.drop(i, web) end
   end
end }
