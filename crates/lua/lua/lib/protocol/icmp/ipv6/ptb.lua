-- Packet too big (RFC 4443, section 3.2). The payload is the packet that it is about.

local ffi = require("ffi")
local ptb = subClass(require("lib.protocol.header"))
ptb._name = "packet too big"
ptb:init { ffi.typeof [[ struct { uint32_t mtu; } __attribute__((packed)) ]] }
require("lib.protocol.fields").u32(ptb, "mtu", "mtu")

return ptb
