-- ESP trailers (RFC 4303, section 2): what follows the padding and precedes the integrity check value.

local ffi = require("ffi")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")

local tail = subClass(header)
tail._name = "esp_tail"
tail:init { ffi.typeof [[ struct { uint8_t pad_length, next_header; } __attribute__((packed)) ]] }

-- config: pad_length, next_header.
function tail:new (config)
   local o = tail:superClass().new(self)
   o:pad_length(config.pad_length)
   o:next_header(config.next_header)
   return o
end

fields.u8(tail, "pad_length", "pad_length")
fields.u8(tail, "next_header", "next_header")

function tail.selftest ()
   local h = tail:new({ pad_length = 3, next_header = 41 })
   assert(ffi.string(h:header_ptr(), 2) == "\x03\x29" and h:pad_length() == 3 and h:next_header() == 41)
end

return tail
