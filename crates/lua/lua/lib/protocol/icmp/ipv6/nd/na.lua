-- Neighbor advertisement (RFC 4861, section 4.4).

local ffi = require("ffi")
local fields = require("lib.protocol.fields")
local na = subClass(require("lib.protocol.icmp.ipv6.nd.header"))
na._name = "neighbor advertisement"
na:init { ffi.typeof [[ struct { uint32_t flags; uint8_t target[16]; } __attribute__((packed)) ]] }

function na:new (target, router, solicited, override)
   local o = na:superClass().new(self)
   o:target(target)
   o:router(router)
   o:solicited(solicited)
   o:override(override)
   return o
end

fields.address(na, "target", "target", 16)
fields.bits(na, "router", "flags", 32, 0, 1)
fields.bits(na, "solicited", "flags", 32, 1, 1)
fields.bits(na, "override", "flags", 32, 2, 1)

return na
