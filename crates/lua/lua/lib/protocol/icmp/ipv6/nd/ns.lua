-- Neighbor solicitation (RFC 4861, section 4.3).

local ffi = require("ffi")
local ns = subClass(require("lib.protocol.icmp.ipv6.nd.header"))
ns._name = "neighbor solicitation"
ns:init { ffi.typeof [[ struct { uint32_t reserved; uint8_t target[16]; } __attribute__((packed)) ]] }

function ns:new (target)
   local o = ns:superClass().new(self)
   o:target(target)
   return o
end

require("lib.protocol.fields").address(ns, "target", "target", 16)

return ns
