-- The base class of neighbor discovery messages: options may follow (RFC 4861, section 4.6).

local tlv = require("lib.protocol.icmp.ipv6.nd.options.tlv")
local nd = subClass(require("lib.protocol.header"))

-- Returns the options in `size` bytes as an array. It is an error if they do not fill the bytes exactly.
function nd:options (mem, size)
   local found = {}
   while size > 0 do
      local option = tlv:new_from_mem(mem, size)
      local length = option and option:length() * 8 or 0
      if length == 0 or length > size then error("corrupt ND options", 2) end
      found[#found + 1] = option
      mem, size = mem + length, size - length
   end
   return found
end

return nd
