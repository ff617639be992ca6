-- The content of a link-layer address option (RFC 4861, section 4.6.1).

local ffi = require("ffi")
local lladdr = subClass(nil)
local pointer_t = ffi.typeof("struct { uint8_t lladdr[6]; } *")
lladdr._name = "ll_addr"

function lladdr:new_from_mem (mem, size)
   assert(size >= 6, "lladdr: expected 6 bytes")
   local o = lladdr:superClass().new(self)
   o._lladdr = ffi.cast(pointer_t, mem)
   return o
end

function lladdr:name () return self._name end
function lladdr:addr (mac)
   if mac ~= nil then ffi.copy(self._lladdr, mac, 6) end
   return self._lladdr.lladdr
end

return lladdr
