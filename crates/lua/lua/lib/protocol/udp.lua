-- UDP headers (RFC 768).

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local l4_checksum = require("lib.protocol.l4_checksum")

local udp = subClass(header)
udp._name = "udp"
udp:init { ffi.typeof [[ struct { uint16_t src_port, dst_port, len, checksum; } __attribute__((packed)) ]] }

-- config: src_port, dst_port. The length is that of the header alone.
function udp:new (config)
   local o = udp:superClass().new(self)
   o:src_port(config.src_port)
   o:dst_port(config.dst_port)
   o:length(8)
   return o
end

fields.u16(udp, "src_port", "src_port")
fields.u16(udp, "dst_port", "dst_port")
fields.u16(udp, "length", "len")

-- With a payload, computes the checksum over the pseudo-header of `ip` (if given), the header and the payload, and
-- writes it. Returns the checksum that is in the header.
function udp:checksum (payload, length, ip)
   local h = self:header()
   if payload then
      h.checksum = 0
      local sum = l4_checksum(h, self:sizeof(), payload, length, ip, 17)
      -- A checksum of zero would mean that there is none.
      h.checksum = lib.htons(sum == 0 and 0xffff or sum)
   end
   return lib.ntohs(h.checksum)
end

function udp:eq (other)
   return self:src_port() == other:src_port() and self:dst_port() == other:dst_port()
      and self:length() == other:length()
end

function udp.selftest ()
   local ipv4, ipv6 = require("lib.protocol.ipv4"), require("lib.protocol.ipv6")
   local u = udp:new({ src_port = 1024, dst_port = 53 })
   u:length(12)
   assert(ffi.string(u:header_ptr(), 8) == "\x04\0\0\x35\0\x0c\0\0" and u:eq(u:clone()))
   local ip = ipv4:new({ src = ipv4:pton("192.0.2.1"), dst = ipv4:pton("198.51.100.7"), protocol = 17 })
   local payload = "abcd"
   local sum = u:checksum(payload, 4, ip)
   -- The same computed by hand: pseudo-header, header, payload.
   local all = "\xc0\0\x02\x01\xc6\x33\x64\x07\0\x11\0\x0c\x04\0\0\x35\0\x0c\0\0abcd"
   assert(sum == lib.csum(all, #all) and sum == u:checksum())
   local six = ipv6:new({ src = ipv6:pton("2001:db8::1"), dst = ipv6:pton("2001:db8::2"), next_header = 17 })
   local pseudo = ffi.string(six:pseudo_header(12, 17), 40)
   all = pseudo.."\x04\0\0\x35\0\x0c\0\0abcd"
   assert(u:checksum(payload, 4, six) == lib.csum(all, #all))
end

return udp
