-- The structures behind brickmoon.views, and their methods. The methods are generated from a table of fields: for each
-- field a getter and a setter that convert the byte order.

local ffi = require("ffi")
local bit = require("bit")
local band, bor, lshift, rshift, bswap = bit.band, bit.bor, bit.lshift, bit.rshift, bit.bswap
local checksum = require("lib.checksum").ipsum
local ethernet, ipv6 = require("lib.protocol.ethernet"), require("lib.protocol.ipv6")

ffi.cdef [[
typedef union { uint8_t uint8[6]; uint16_t uint16[3]; } __attribute__((packed)) bm_view_mac;
typedef union { uint8_t uint8[4]; uint32_t uint32; } __attribute__((packed)) bm_view_ip4_address;
typedef union {
   uint8_t uint8[16]; uint32_t uint32[4]; uint64_t uint64[2];
} __attribute__((packed)) bm_view_ip6_address;

typedef struct { bm_view_mac dst, src; uint16_t type; } __attribute__((packed)) bm_view_eth;
typedef struct { uint16_t tci, type; } __attribute__((packed)) bm_view_vlan;
typedef struct {
   uint16_t hrd, pro; uint8_t hln, pln; uint16_t op;
   bm_view_mac sha; bm_view_ip4_address spa; bm_view_mac tha; bm_view_ip4_address tpa;
} __attribute__((packed)) bm_view_arp;
typedef struct {
   uint8_t verihl, tos; uint16_t len, id, frag; uint8_t ttl, protocol; uint16_t cs;
   bm_view_ip4_address src, dst;
} __attribute__((packed)) bm_view_ip4;
typedef struct {
   uint32_t vtf; uint16_t len; uint8_t nextHeader, ttl; bm_view_ip6_address src, dst;
} __attribute__((packed)) bm_view_ip6;
typedef struct { uint8_t type, code; uint16_t cs; } __attribute__((packed)) bm_view_icmp;
typedef struct { uint16_t src, dst, len, cs; } __attribute__((packed)) bm_view_udp;
typedef struct {
   uint16_t src, dst; uint32_t seq, ack; uint8_t offset, flags; uint16_t window, cs, urg;
} __attribute__((packed)) bm_view_tcp;
]]

local M = {}

-- Addresses from text: for setup, not for the packet path.
function M.parse_ip4 (text)
   local a, b, c, d = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
   a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
   if not a or a > 255 or b > 255 or c > 255 or d > 255 then error("'"..text.."' is not an IPv4 address", 2) end
   return ((a * 256 + b) * 256 + c) * 256 + d
end

function M.parse_mac (text)
   local bytes, number = ethernet:pton(text), 0
   for i = 0, 5 do number = number * 256 + bytes[i] end
   return number
end

local function swap16 (n) return rshift(bswap(n), 16) end
local function swap32 (n) return bswap(n) % 4294967296 end

-- Addresses: get and set use numbers in host byte order, getString and setString use text.

local mac = {}
function mac:get ()
   return swap16(self.uint16[0]) * 4294967296 + swap16(self.uint16[1]) * 65536 + swap16(self.uint16[2])
end
function mac:set (n)
   self.uint16[0] = swap16(math.floor(n / 4294967296))
   self.uint16[1] = swap16(math.floor(n / 65536) % 65536)
   self.uint16[2] = swap16(n % 65536)
end
function mac:getString () return ethernet:ntop(self.uint8) end
function mac:setString (text) self:set(M.parse_mac(text)) end

local ip4_address = {}
function ip4_address:get () return swap32(self.uint32) end
function ip4_address:set (n) self.uint32 = bswap(bit.tobit(n)) end
function ip4_address:getString ()
   return ("%d.%d.%d.%d"):format(self.uint8[0], self.uint8[1], self.uint8[2], self.uint8[3])
end
function ip4_address:setString (text) self:set(M.parse_ip4(text)) end

-- An IPv6 address is not a number: get returns the union itself, set copies from another one.
local ip6_address = {}
function ip6_address:get () return self end
function ip6_address:set (other) ffi.copy(self.uint8, other, 16) end
function ip6_address:getString () return ipv6:ntop(self.uint8) end
function ip6_address:setString (text) ffi.copy(self.uint8, assert(ipv6:pton(text)), 16) end

ffi.metatype("bm_view_mac", { __index = mac })
ffi.metatype("bm_view_ip4_address", { __index = ip4_address })
ffi.metatype("bm_view_ip6_address", { __index = ip6_address })

-- Fields: u8(methods, "Name", "member") and its like add getName and setName.

local function u8 (methods, name, member)
   methods["get"..name] = function (self) return self[member] end
   methods["set"..name] = function (self, n) self[member] = n end
end

local function u16 (methods, name, member)
   methods["get"..name] = function (self) return swap16(self[member]) end
   methods["set"..name] = function (self, n) self[member] = swap16(n) end
end

local function u32 (methods, name, member)
   methods["get"..name] = function (self) return swap32(self[member]) end
   methods["set"..name] = function (self, n) self[member] = bswap(bit.tobit(n)) end
end

-- `count` bits, `shift` above the lowest, of a member of 8, 16 or 32 bits.
local function bits (methods, name, member, size, shift, count)
   local mask = 2 ^ count - 1
   local turn = size == 8 and function (n) return n end or size == 16 and swap16 or bswap
   methods["get"..name] = function (self) return band(rshift(turn(self[member]), shift), mask) end
   methods["set"..name] = function (self, n)
      local kept = band(turn(self[member]), bit.bnot(lshift(mask, shift)))
      self[member] = turn(bor(kept, lshift(band(n, mask), shift)))
   end
end

local function address (methods, name, member)
   methods["get"..name] = function (self) return self[member]:get() end
   methods["set"..name] = function (self, n) self[member]:set(n) end
   methods["get"..name.."String"] = function (self) return self[member]:getString() end
   methods["set"..name.."String"] = function (self, text) self[member]:setString(text) end
end

local eth, vlan, arp, ip4, ip6, icmp, udp, tcp = {}, {}, {}, {}, {}, {}, {}, {}

address(eth, "Dst", "dst")
address(eth, "Src", "src")
u16(eth, "Type", "type")

bits(vlan, "Pcp", "tci", 16, 13, 3)
bits(vlan, "Dei", "tci", 16, 12, 1)
bits(vlan, "Id", "tci", 16, 0, 12)
u16(vlan, "Type", "type")

u16(arp, "HardwareAddressType", "hrd")
u16(arp, "ProtoAddressType", "pro")
u8(arp, "HardwareAddressLength", "hln")
u8(arp, "ProtoAddressLength", "pln")
u16(arp, "Operation", "op")
address(arp, "HardwareSrc", "sha")
address(arp, "ProtoSrc", "spa")
address(arp, "HardwareDst", "tha")
address(arp, "ProtoDst", "tpa")

bits(ip4, "Version", "verihl", 8, 4, 4)
bits(ip4, "HeaderLength", "verihl", 8, 0, 4)
u8(ip4, "TOS", "tos")
u16(ip4, "Length", "len")
u16(ip4, "ID", "id")
bits(ip4, "Flags", "frag", 16, 13, 3)
bits(ip4, "Fragment", "frag", 16, 0, 13)
u8(ip4, "TTL", "ttl")
u8(ip4, "Protocol", "protocol")
u16(ip4, "Checksum", "cs")
address(ip4, "Src", "src")
address(ip4, "Dst", "dst")

-- Computes the header's checksum.
function ip4:calculateChecksum ()
   self.cs = 0
   self.cs = swap16(checksum(self, band(self.verihl, 15) * 4, 0))
end

bits(ip6, "Version", "vtf", 32, 28, 4)
bits(ip6, "TrafficClass", "vtf", 32, 20, 8)
bits(ip6, "FlowLabel", "vtf", 32, 0, 20)
u16(ip6, "Length", "len")
u8(ip6, "NextHeader", "nextHeader")
u8(ip6, "TTL", "ttl")
address(ip6, "Src", "src")
address(ip6, "Dst", "dst")

u8(icmp, "Type", "type")
u8(icmp, "Code", "code")
u16(icmp, "Checksum", "cs")

u16(udp, "SrcPort", "src")
u16(udp, "DstPort", "dst")
u16(udp, "Length", "len")
u16(udp, "Checksum", "cs")

u16(tcp, "SrcPort", "src")
u16(tcp, "DstPort", "dst")
u32(tcp, "SeqNumber", "seq")
u32(tcp, "AckNumber", "ack")
bits(tcp, "DataOffset", "offset", 8, 4, 4)
u8(tcp, "Flags", "flags")
u16(tcp, "Window", "window")
u16(tcp, "Checksum", "cs")
u16(tcp, "UrgentPointer", "urg")
for i, name in ipairs { "Fin", "Syn", "Rst", "Psh", "Ack", "Urg", "Ece", "Cwr" } do
   bits(tcp, name, "flags", 8, i - 1, 1)
end

local all = { eth = eth, vlan = vlan, arp = arp, ip4 = ip4, ip6 = ip6, icmp = icmp, udp = udp, tcp = tcp }
for name, methods in pairs(all) do
   ffi.metatype("bm_view_"..name, { __index = methods })
end

return M
