-- IPv6 headers (RFC 8200).

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local C = ffi.C

local AF_INET6, TEXT = 10, 48
local address_t = ffi.typeof("uint8_t[16]")
local pseudo_t = ffi.typeof [[
   struct {
      uint8_t src_ip[16], dst_ip[16];
      uint16_t ulp_zero, ulp_length;
      uint8_t zero[3], next_header;
   } __attribute__((packed))
]]

local ipv6 = subClass(header)
ipv6._name = "ipv6"
ipv6._ulp = {
   method = "next_header",
   class_map = {
      [6] = "lib.protocol.tcp", [17] = "lib.protocol.udp", [47] = "lib.protocol.gre",
      [58] = "lib.protocol.icmp.ipv6.header", [115] = "lib.protocol.keyed_ipv6_tunnel",
   },
}
ipv6:init { ffi.typeof [[
   struct {
      uint32_t v_tc_fl;
      uint16_t payload_length;
      uint8_t next_header, hop_limit, src_ip[16], dst_ip[16];
   } __attribute__((packed))
]] }

-- config: src, dst (uint8_t[16]), next_header (default 59, none), hop_limit (default 64), traffic_class, flow_label.
function ipv6:new (config)
   local o = ipv6:superClass().new(self)
   o._ph = o._ph or pseudo_t()
   o:version(6)
   o:traffic_class(config.traffic_class or 0)
   o:flow_label(config.flow_label or 0)
   o:payload_length(config.payload_length or 0)
   o:next_header(config.next_header or 59)
   o:hop_limit(config.hop_limit or 64)
   o:src(config.src)
   o:dst(config.dst)
   return o
end

function ipv6:new_from_mem (mem, size)
   local o = ipv6:superClass().new_from_mem(self, mem, size)
   if o then o._ph = o._ph or pseudo_t() end
   return o
end

-- Converts "2001:db8::1" to uint8_t[16]; returns false and a message for anything else.
function ipv6:pton (text)
   local address = address_t()
   if C.inet_pton(AF_INET6, text, address) ~= 1 then return false, "malformed IPv6 address: "..text end
   return address
end

function ipv6:ntop (address)
   local text = ffi.new("char[?]", TEXT)
   C.inet_ntop(AF_INET6, address, text, TEXT)
   return ffi.string(text)
end

-- Splits "2001:db8::/32" into address and prefix length.
function ipv6:pton_cidr (text)
   local prefix, length = text:match("^([^/]*)/(%d+)$")
   if not prefix then error("malformed IPv6 prefix: "..text, 2) end
   return ipv6:pton(prefix), tonumber(length)
end

-- The solicited-node multicast address for an address (RFC 4291, section 2.7.1).
function ipv6:solicited_node_mcast (address)
   local group = self:pton("ff02::1:ff00:0")
   ffi.copy(group + 13, ffi.cast("uint8_t *", address) + 13, 3)
   return group
end

fields.bits(ipv6, "version", "v_tc_fl", 32, 0, 4)
fields.bits(ipv6, "traffic_class", "v_tc_fl", 32, 4, 8)
fields.bits(ipv6, "dscp", "v_tc_fl", 32, 4, 6)
fields.bits(ipv6, "ecn", "v_tc_fl", 32, 10, 2)
fields.bits(ipv6, "flow_label", "v_tc_fl", 32, 12, 20)
fields.u16(ipv6, "payload_length", "payload_length")
fields.u8(ipv6, "next_header", "next_header")
fields.u8(ipv6, "hop_limit", "hop_limit")
fields.address(ipv6, "src", "src_ip", 16)
fields.address(ipv6, "dst", "dst_ip", 16)

-- The pseudo-header for upper-layer checksums (RFC 8200, section 8.1). Valid until the next call.
function ipv6:pseudo_header (length, next_header)
   local pseudo, h = self._ph, self:header()
   ffi.fill(pseudo, ffi.sizeof(pseudo_t))
   ffi.copy(pseudo.src_ip, h.src_ip, 16)
   ffi.copy(pseudo.dst_ip, h.dst_ip, 16)
   pseudo.ulp_length, pseudo.next_header = lib.htons(length), next_header
   return pseudo
end

function ipv6.selftest ()
   assert(ipv6:ntop(ipv6:pton("2001:620:0:c101::2")) == "2001:620:0:c101::2" and ipv6:pton("2001::1::") == false)
   local prefix, length = ipv6:pton_cidr("2001:db8::/32")
   assert(prefix[1] == 1 and length == 32)
   assert(ipv6:ntop(ipv6:solicited_node_mcast(ipv6:pton("fe80::1234:5678"))) == "ff02::1:ff34:5678")
   local ip = ipv6:new({ src = ipv6:pton("::1"), dst = ipv6:pton("::2"), next_header = 17, hop_limit = 9,
                         traffic_class = 0xb9, flow_label = 0xabcde })
   ip:payload_length(8)
   assert(ffi.string(ip:header_ptr(), 8) == "\x6b\x9a\xbc\xde\0\x08\x11\x09")
   assert(ip:version() == 6 and ip:dscp() == 0x2e and ip:ecn() == 1 and ip:flow_label() == 0xabcde)
   assert(ip:upper_layer() == require("lib.protocol.udp") and ip:sizeof() == 40)
   assert(ffi.string(ip:pseudo_header(8, 17), 40):sub(33) == "\0\0\0\x08\0\0\0\x11")
end

return ipv6
