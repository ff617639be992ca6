-- The base class of ICMP messages whose layout depends on the code, which is in the header before them. `_code_map`
-- maps a code to the variant of the structure.

local ffi = require("ffi")
local base_type = subClass(require("lib.protocol.header"))

-- Switches to the variant for this code.
function base_type:specialize (code)
   local variant = self._headers[assert(self._code_map and self._code_map[code], "no variant for this code")]
   variant.box[0] = ffi.cast(variant.ptr_t, self._header.box[0])
   self._header = variant
   return self
end

return base_type
