-- Access to packet headers by field name, with the method names of libmoon.
--
--    local views = require("brickmoon.views")
--    local ip4 = views.ip4(burst.packet[i].data)      -- or p.data in an app
--    if ip4:getDst() == views.parseIP4("192.0.2.1") then ip4:setTTL(ip4:getTTL() - 1) end
--    local pkt = views.getUdp4Packet(data)             -- pkt.eth, pkt.ip4, pkt.udp, pkt.payload
--
-- A view is a pointer: making one checks nothing, and allocates nothing in compiled code. The caller makes sure that
-- the bytes exist (`length`) and have that type (eth:getType(), ip4:getProtocol()). Methods take and return numbers in
-- host byte order; fields accessed directly, as in `udp.dst`, are in network byte order, as in libmoon.

local ffi = require("ffi")
local checksum = require("lib.checksum").ipsum
local types = require("brickmoon.views.types")

local cast = ffi.cast
local M = { parseIP4 = types.parse_ip4, parseMac = types.parse_mac }

-- views.NAME(data[, offset]): the header at this offset; without one, where this header usually is.
local function view (name, usual)
   local pointer_t = ffi.typeof("bm_view_"..name.." *")
   M[name] = function (data, offset) return cast(pointer_t, cast("uint8_t *", data) + (offset or usual)) end
end
view("eth", 0)
view("vlan", 14)
view("arp", 14)
view("ip4", 14)
view("ip6", 14)
view("icmp", 34)
view("udp", 34)
view("tcp", 34)

-- Whole packets with headers without options: getUdp4Packet(data).udp and so on.
local packets = {
   Ethernet = "bm_view_eth eth;",
   Vlan = "bm_view_eth eth; bm_view_vlan vlan;",
   Arp = "bm_view_eth eth; bm_view_arp arp;",
   IP4 = "bm_view_eth eth; bm_view_ip4 ip4;",
   IP6 = "bm_view_eth eth; bm_view_ip6 ip6;",
}
for _, upper in ipairs { "Udp", "Tcp", "Icmp" } do
   local field = ("bm_view_%s %s;"):format(upper:lower(), upper:lower())
   packets[upper.."4"] = packets.IP4..field
   packets[upper.."6"] = packets.IP6..field
   packets[upper] = packets[upper.."4"]
end
for name, fields in pairs(packets) do
   local pointer_t = ffi.typeof(("struct { %s uint8_t payload[]; } __attribute__((packed)) *"):format(fields))
   M["get"..name.."Packet"] = function (data) return cast(pointer_t, data) end
end

-- Where the header after an IPv4 header begins. The IPv4 header is at `offset` (default 14).
function M.afterIP4 (data, offset)
   offset = offset or 14
   return offset + bit.band(cast("uint8_t *", data)[offset], 15) * 4
end

local function test_ip4 (bytes)
   local pkt = M.getUdp4Packet(bytes)
   pkt.eth:setDstString("02:00:00:00:00:02")
   pkt.eth:setSrc(0x020000000001)
   pkt.eth:setType(0x0800)
   local ip4 = pkt.ip4
   ip4:setVersion(4)
   ip4:setHeaderLength(5)
   ip4:setLength(33)
   ip4:setTTL(64)
   ip4:setProtocol(17)
   ip4:setSrcString("192.0.2.1")
   ip4:setDst(M.parseIP4("198.51.100.7"))
   ip4:calculateChecksum()
   pkt.udp:setSrcPort(1024)
   pkt.udp:setDstPort(53)
   pkt.udp:setLength(13)
   assert(ffi.string(bytes, 14) == "\2\0\0\0\0\2\2\0\0\0\0\1\8\0")
   assert(checksum(bytes + 14, 20, 0) == 0 and ip4:getChecksum() ~= 0)
   assert(ffi.string(bytes + 26, 16) == "\192\0\2\1\198\51\100\7\4\0\0\53\0\13\0\0")
   assert(ip4:getDstString() == "198.51.100.7" and ip4.src:getString() == "192.0.2.1" and ip4:getLength() == 33)
   assert(ip4:getSrc() == 0xc0000201 and pkt.eth:getSrcString() == "02:00:00:00:00:01")
   assert(pkt.eth:getDst() == 0x020000000002 and M.udp(bytes):getDstPort() == 53 and M.afterIP4(bytes) == 34)
   ip4:setFlags(2)
   ip4:setFragment(0x123)
   ip4:setTOS(0xb8)
   assert(ip4:getFlags() == 2 and ip4:getFragment() == 0x123 and ip4:getTOS() == 0xb8 and ip4:getVersion() == 4)
   ip4.dst:set(1)
   assert(ip4.dst:get() == 1 and ip4:getDstString() == "0.0.0.1" and pkt.payload == bytes + 42)
end

local function test_others (bytes)
   local pkt = M.getTcp6Packet(bytes)
   pkt.ip6:setVersion(6)
   pkt.ip6:setTrafficClass(0xb9)
   pkt.ip6:setFlowLabel(0xabcde)
   pkt.ip6:setSrcString("2001:db8::1")
   pkt.ip6:setNextHeader(6)
   pkt.ip6:setTTL(9)
   pkt.ip6:setLength(20)
   assert(ffi.string(bytes + 14, 8) == "\x6b\x9a\xbc\xde\0\20\6\9" and pkt.ip6:getSrcString() == "2001:db8::1")
   assert(pkt.ip6:getFlowLabel() == 0xabcde and pkt.ip6:getTrafficClass() == 0xb9 and pkt.ip6:getVersion() == 6)
   pkt.tcp:setSeqNumber(0xfffefdfc)
   pkt.tcp:setDataOffset(5)
   pkt.tcp:setFlags(0x12)
   assert(pkt.tcp:getSeqNumber() == 0xfffefdfc and pkt.tcp:getSyn() == 1 and pkt.tcp:getFin() == 0)
   pkt.tcp:setFin(1)
   pkt.tcp:setSyn(0)
   assert(pkt.tcp:getFlags() == 0x11 and pkt.tcp:getDataOffset() == 5)
   local vlan = M.vlan(bytes)
   vlan:setId(0xabc)
   vlan:setPcp(5)
   assert(vlan:getId() == 0xabc and vlan:getPcp() == 5 and ffi.string(bytes + 14, 2) == "\xaa\xbc")
   local arp = M.arp(bytes)
   arp:setOperation(2)
   arp:setProtoSrcString("10.0.0.1")
   arp:setHardwareDst(0x0200000000ff)
   assert(ffi.string(bytes + 20, 2) == "\0\2" and ffi.string(bytes + 28, 4) == "\10\0\0\1" and bytes[37] == 0xff)
   local icmp = M.icmp(bytes)
   icmp:setType(8)
   icmp:setCode(1)
   assert(bytes[34] == 8 and icmp:getCode() == 1)
end

local function test_without_garbage (bytes)
   local function work (n)
      local sum = 0
      for _ = 1, n do
         local ip4 = M.ip4(bytes)
         sum = sum + ip4:getSrc() + M.udp(bytes, M.afterIP4(bytes)):getDstPort()
         ip4:setTTL(bit.band(ip4:getTTL() + 1, 0xff))
      end
      return sum
   end
   work(2000)
   collectgarbage()
   local before = collectgarbage("count")
   work(200000)
   assert(collectgarbage("count") - before < 64, "compiled code must not allocate")
end

function M.selftest ()
   test_ip4(ffi.new("uint8_t[128]"))
   test_others(ffi.new("uint8_t[128]"))
   if jit.status() then test_without_garbage(ffi.new("uint8_t[128]", 0)) end
   assert(not pcall(M.parseIP4, "1.2.3") and not pcall(M.parseMac, "1:2"))
end

return M
