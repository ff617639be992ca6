-- ICMP for IPv4: its checksum includes no pseudo-header (RFC 792).

local icmp = subClass(require("lib.protocol.icmp.base"))
icmp._ulp = { method = "type", class_map = { [3] = "lib.protocol.icmp.ipv4.destination_unreachable" } }

function icmp:checksum (payload, length) icmp:superClass().checksum(self, payload, length) end
function icmp:checksum_check (payload, length) return icmp:superClass().checksum_check(self, payload, length) end

function icmp.selftest ()
   local ffi, lib = require("ffi"), require("core.lib")
   local echo = icmp:new(8, 0)
   echo:checksum("\x12\x34\0\x01ping", 8)
   local all = "\x08\0\0\0\x12\x34\0\x01ping"
   assert(lib.ntohs(echo:header().checksum) == lib.csum(all, #all) and echo:checksum_check("\x12\x34\0\x01ping", 8))
   assert(not echo:checksum_check("\x12\x34\0\x01pong", 8) and echo:upper_layer() == nil)
   echo:type(3)
   local unreachable = echo:upper_layer():new()
   assert(unreachable:sizeof() == 4)
   unreachable:specialize(4):mtu(1280)
   assert(ffi.string(unreachable:header_ptr(), 4) == "\0\0\x05\0" and unreachable:mtu() == 1280)
end

return icmp
