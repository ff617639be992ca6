-- IPv4 headers without options (RFC 791).

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local ipsum = require("lib.checksum").ipsum
local C = ffi.C

local AF_INET = 2
local address_t = ffi.typeof("uint8_t[4]")
local pseudo_t = ffi.typeof [[
   struct { uint8_t src_ip[4], dst_ip[4], ulp_zero, ulp_protocol; uint16_t ulp_length; } __attribute__((packed))
]]

local ipv4 = subClass(header)
ipv4._name = "ipv4"
ipv4._ulp = {
   method = "protocol",
   class_map = {
      [1] = "lib.protocol.icmp.ipv4.header", [6] = "lib.protocol.tcp", [17] = "lib.protocol.udp",
      [47] = "lib.protocol.gre", [58] = "lib.protocol.icmp.ipv6.header",
   },
}
ipv4:init { ffi.typeof [[
   struct {
      uint16_t ihl_v_tos, total_length, id, frag_off;
      uint8_t ttl, protocol;
      uint16_t checksum;
      uint8_t src_ip[4], dst_ip[4];
   } __attribute__((packed))
]] }

-- config: src, dst (uint8_t[4]), protocol, ttl, id, dscp, ecn, flags, frag_off. The total length is that of the header
-- alone; the checksum is correct for it.
function ipv4:new (config)
   local o = ipv4:superClass().new(self)
   o._ph = o._ph or pseudo_t()
   o:version(4)
   o:ihl(o:sizeof() / 4)
   o:dscp(config.dscp or 0)
   o:ecn(config.ecn or 0)
   o:total_length(config.total_length or o:sizeof())
   o:id(config.id or 0)
   o:flags(config.flags or 0)
   o:frag_off(config.frag_off or 0)
   o:ttl(config.ttl or 0)
   o:protocol(config.protocol or 0xff)
   o:src(config.src)
   o:dst(config.dst)
   o:checksum()
   return o
end

function ipv4:new_from_mem (mem, size)
   local o = ipv4:superClass().new_from_mem(self, mem, size)
   if o then o._ph = o._ph or pseudo_t() end
   return o
end

-- Converts "192.0.2.1" to uint8_t[4]; returns false and a message for anything else.
function ipv4:pton (text)
   local address = address_t()
   if C.inet_pton(AF_INET, text, address) ~= 1 then return false, "malformed IPv4 address: "..text end
   return address
end

-- Formats an address. The address may be any pointer, array or string of four bytes in network byte order: callers
-- also pass a uint32_t[1] or a member of a header.
function ipv4:ntop (address)
   local bytes = ffi.cast("const uint8_t *", address)
   return ("%d.%d.%d.%d"):format(bytes[0], bytes[1], bytes[2], bytes[3])
end

-- Splits "192.0.2.0/24" into address and prefix length.
function ipv4:pton_cidr (text)
   local prefix, length = text:match("^([^/]*)/(%d+)$")
   if not prefix then error("malformed IPv4 prefix: "..text, 2) end
   return ipv4:pton(prefix), tonumber(length)
end

fields.bits(ipv4, "version", "ihl_v_tos", 16, 0, 4)
fields.bits(ipv4, "ihl", "ihl_v_tos", 16, 4, 4)
fields.bits(ipv4, "dscp", "ihl_v_tos", 16, 8, 6)
fields.bits(ipv4, "ecn", "ihl_v_tos", 16, 14, 2)
fields.u16(ipv4, "total_length", "total_length")
fields.u16(ipv4, "id", "id")
fields.bits(ipv4, "flags", "frag_off", 16, 0, 3)
fields.bits(ipv4, "frag_off", "frag_off", 16, 3, 13)
fields.u8(ipv4, "ttl", "ttl")
fields.u8(ipv4, "protocol", "protocol")
fields.address(ipv4, "src", "src_ip", 4)
fields.address(ipv4, "dst", "dst_ip", 4)

-- Computes and writes the header's checksum, and returns it.
function ipv4:checksum ()
   local h = self:header()
   h.checksum = 0
   local sum = ipsum(ffi.cast("uint8_t *", h), self:ihl() * 4, 0)
   h.checksum = lib.htons(sum)
   return sum
end

function ipv4:checksum_ok ()
   return ipsum(ffi.cast("uint8_t *", self:header()), self:ihl() * 4, 0) == 0
end

-- Whether this is a fragment, including the first one.
function ipv4:is_fragment () return self:frag_off() ~= 0 or bit.band(self:flags(), 1) ~= 0 end

function ipv4:eq (other)
   return self:ihl() == other:ihl() and self:id() == other:id() and self:protocol() == other:protocol()
      and self:src_eq(other:src()) and self:dst_eq(other:dst())
end

-- The pseudo-header for TCP and UDP checksums. It belongs to the instance and is valid until the next call.
function ipv4:pseudo_header (length, protocol)
   local pseudo, h = self._ph, self:header()
   ffi.copy(pseudo.src_ip, h.src_ip, 4)
   ffi.copy(pseudo.dst_ip, h.dst_ip, 4)
   pseudo.ulp_zero, pseudo.ulp_protocol, pseudo.ulp_length = 0, protocol, lib.htons(length)
   return pseudo
end

function ipv4.selftest ()
   assert(ipv4:ntop(ipv4:pton("192.168.1.1")) == "192.168.1.1" and ipv4:pton("192.168.1") == false)
   local word = ffi.new("uint32_t[1]", lib.htonl(0xff000001))
   assert(ipv4:ntop(word) == "255.0.0.1" and ipv4:ntop("\1\2\3\4") == "1.2.3.4")
   local prefix, length = ipv4:pton_cidr("10.0.0.0/8")
   assert(prefix[0] == 10 and length == 8 and not pcall(ipv4.pton_cidr, ipv4, "10.0.0.0"))
   local wire = lib.hexundump("4500 0034 591a 4000 4006 b08e c0a8 14a9 6b15 f0b4", 20)
   local memory = ffi.new("uint8_t[20]")
   ffi.copy(memory, wire, 20)
   local ip = ipv4:new_from_mem(memory, 20)
   assert(ip:checksum_ok() and ip:total_length() == 52 and ip:id() == 0x591a and ip:flags() == 2)
   ip:ttl(1)
   assert(not ip:checksum_ok() and ip:checksum() == 0xef8e and ip:checksum_ok())
   ip:ttl(64)
   assert(ip:checksum() == 0xb08e and ffi.string(memory, 20) == wire and not ip:is_fragment())
   local made = ipv4:new({ src = ip:src(), dst = ip:dst(), ttl = 64, protocol = 6, id = 0x591a, flags = 2 })
   made:total_length(52)
   made:checksum()
   assert(ffi.string(made:header_ptr(), 20) == wire and made:eq(ip))
   assert(made:upper_layer() == require("lib.protocol.tcp"))
   assert(ffi.string(made:pseudo_header(8, 17), 12) == wire:sub(13).."\0\x11\0\x08")
   assert(ipv4:new_from_mem(memory, 19) == nil)
end

return ipv4
