-- Headers of ICMP and ICMPv6: type, code, checksum (RFC 792, RFC 4443).

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local l4_checksum = require("lib.protocol.l4_checksum")

local icmp = subClass(header)
icmp._name = "icmp"
icmp:init { ffi.typeof [[ struct { uint8_t type, code; uint16_t checksum; } __attribute__((packed)) ]] }

function icmp:new (type, code)
   local o = icmp:superClass().new(self)
   o:type(type)
   o:code(code)
   return o
end

fields.u8(icmp, "type", "type")
fields.u8(icmp, "code", "code")

local function compute (self, payload, length, ip)
   local h = self:header()
   local before = h.checksum
   h.checksum = 0
   local sum = l4_checksum(h, self:sizeof(), payload, length, ip, 58)
   h.checksum = before
   return sum
end

-- Writes the checksum. `ip` is the IPv6 header for the pseudo-header; nil with IPv4.
function icmp:checksum (payload, length, ip)
   self:header().checksum = lib.htons(compute(self, payload, length, ip))
end

function icmp:checksum_check (payload, length, ip)
   return compute(self, payload, length, ip) == lib.ntohs(self:header().checksum)
end

return icmp
