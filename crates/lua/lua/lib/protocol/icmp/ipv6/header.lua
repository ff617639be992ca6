-- ICMPv6 (RFC 4443) and the messages of neighbor discovery (RFC 4861).

local icmp = subClass(require("lib.protocol.icmp.base"))
icmp._ulp = {
   method = "type",
   class_map = {
      [2] = "lib.protocol.icmp.ipv6.ptb", [135] = "lib.protocol.icmp.ipv6.nd.ns",
      [136] = "lib.protocol.icmp.ipv6.nd.na",
   },
}

function icmp.selftest ()
   local ffi, lib, ipv6 = require("ffi"), require("core.lib"), require("lib.protocol.ipv6")
   local ip = ipv6:new({ src = ipv6:pton("fe80::1"), dst = ipv6:pton("ff02::1:ff00:2"), next_header = 58 })
   local message, target = icmp:new(135, 0), ipv6:pton("fe80::2")
   local ns = message:upper_layer():new(target)
   message:checksum(ns:header_ptr(), ns:sizeof(), ip)
   local all = ffi.string(ip:pseudo_header(24, 58), 40).."\x87\0\0\0"..ffi.string(ns:header_ptr(), 20)
   assert(lib.ntohs(message:header().checksum) == lib.csum(all, #all))
   assert(message:checksum_check(ns:header_ptr(), ns:sizeof(), ip) and ns:target_eq(target))
   local na = require("lib.protocol.icmp.ipv6.nd.na"):new(target, 0, 1, 1)
   assert(ffi.string(na:header_ptr(), 4) == "\x60\0\0\0" and na:solicited() == 1 and na:router() == 0)
   local ptb = require("lib.protocol.icmp.ipv6.ptb"):new()
   ptb:mtu(1280)
   assert(ffi.string(ptb:header_ptr(), 4) == "\0\0\x05\0")
   local tlv = require("lib.protocol.icmp.ipv6.nd.options.tlv")
   local option = tlv:new(1, ffi.new("uint8_t[6]", 2, 0, 0, 0, 0, 9))
   assert(option:length() == 1 and option:type() == 1 and ffi.string(option:tlv(), 8) == "\x01\x01\x02\0\0\0\0\x09")
   assert(ffi.sizeof(option:tlv()) == 8 and ffi.sizeof(tlv:new(1, ffi.new("uint8_t[14]")):tlv()) == 16)
   local bytes = ffi.new("uint8_t[16]")
   ffi.copy(bytes, option:tlv(), 8)
   ffi.copy(bytes + 8, option:tlv(), 8)
   bytes[8] = 2
   local options = ns:options(bytes, 16)
   assert(#options == 2 and options[2]:name() == "tgt_ll_addr" and options[1]:option():addr()[5] == 9)
   bytes[1] = 0
   assert(not pcall(ns.options, ns, bytes, 16), "an option without length would never end")
end

return icmp
