-- ESP headers (RFC 4303, section 2): what comes before the encrypted part.

local ffi = require("ffi")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")

local esp = subClass(header)
esp._name = "esp"
esp:init { ffi.typeof [[ struct { uint32_t spi, seq_no; } __attribute__((packed)) ]] }

-- config: spi, seq_no.
function esp:new (config)
   local o = esp:superClass().new(self)
   o:spi(config.spi)
   o:seq_no(config.seq_no)
   return o
end

fields.u32(esp, "spi", "spi")
fields.u32(esp, "seq_no", "seq_no")

function esp.selftest ()
   local h = esp:new({ spi = 0x01020304, seq_no = 0xfffffffe })
   assert(ffi.string(h:header_ptr(), 8) == "\x01\x02\x03\x04\xff\xff\xff\xfe" and h:seq_no() == 0xfffffffe)
end

return esp
