-- The checksum of TCP, UDP and ICMP: over the pseudo-header (if there is an IP header), the header, and the payload.

local ffi = require("ffi")
local ipsum = require("lib.checksum").ipsum
local band, bnot = bit.band, bit.bnot

-- `h` is the header's structure with a zeroed checksum field; `ip` is an ipv4 or ipv6 instance, or nil. Returns the
-- checksum in host byte order.
return function (h, size, payload, length, ip, protocol)
   local sum = 0
   if ip then
      local pseudo = ip:pseudo_header(length + size, protocol)
      sum = band(bnot(ipsum(ffi.cast("uint8_t *", pseudo), ffi.sizeof(pseudo), 0)), 0xffff)
   end
   sum = band(bnot(ipsum(ffi.cast("uint8_t *", h), size, sum)), 0xffff)
   return ipsum(ffi.cast("uint8_t *", payload), length, sum)
end
