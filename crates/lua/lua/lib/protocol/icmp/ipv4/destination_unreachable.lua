-- Destination unreachable (RFC 792), and its code 4 with the next hop's MTU (RFC 1191). The payload is the packet that
-- it is about.

local ffi = require("ffi")
local lib = require("core.lib")

local unreachable = subClass(require("lib.protocol.icmp.base_type"))
unreachable._name = "destination unreachable"
unreachable._code_map = { [4] = 2 }
unreachable:init {
   ffi.typeof [[ struct { uint32_t unused; } __attribute__((packed)) ]],
   ffi.typeof [[ struct { uint16_t reserved, mtu; } __attribute__((packed)) ]],
}

-- The MTU, after specialize(4).
function unreachable:mtu (mtu)
   assert(self._header == self._headers[2], "only code 4 has an MTU: call specialize(4) first")
   local h = self:header()
   if mtu ~= nil then h.mtu = lib.htons(mtu) end
   return lib.ntohs(h.mtu)
end

return unreachable
