-- VLAN tags (IEEE 802.1Q): what follows the EtherType 0x8100.

local ffi = require("ffi")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")

local dot1q = subClass(header)
dot1q._name = "dot1q"
dot1q._ulp = {
   method = "type",
   class_map = { [0x0800] = "lib.protocol.ipv4", [0x86dd] = "lib.protocol.ipv6", [0x8100] = "lib.protocol.dot1q" },
}
dot1q:init { ffi.typeof [[ struct { uint16_t pcp_dei_vid, ether_type; } __attribute__((packed)) ]] }
dot1q.TPID = 0x8100

-- config: id, pcp, dei, type.
function dot1q:new (config)
   local o = dot1q:superClass().new(self)
   o:id(config.id)
   o:pcp(config.pcp)
   o:dei(config.dei)
   o:type(config.type)
   return o
end

fields.bits(dot1q, "pcp", "pcp_dei_vid", 16, 0, 3)
fields.bits(dot1q, "dei", "pcp_dei_vid", 16, 3, 1)
fields.bits(dot1q, "id", "pcp_dei_vid", 16, 4, 12)
fields.u16(dot1q, "type", "ether_type")

function dot1q.selftest ()
   local tag = dot1q:new({ id = 0xabc, pcp = 5, type = 0x0800 })
   assert(ffi.string(tag:header_ptr(), 4) == "\xaa\xbc\x08\x00")
   tag:dei(1)
   assert(tag:id() == 0xabc and tag:pcp() == 5 and tag:header().pcp_dei_vid == 0xbcba)
   assert(tag:upper_layer() == require("lib.protocol.ipv4"))
end

return dot1q
