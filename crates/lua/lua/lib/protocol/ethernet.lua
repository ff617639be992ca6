-- Untagged Ethernet headers (IEEE 802.3).

local ffi = require("ffi")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local C, band = ffi.C, require("bit").band

local mac_t = ffi.typeof("uint8_t[6]")

local ethernet = subClass(header)
ethernet._name = "ethernet"
ethernet._ulp = {
   method = "type",
   class_map = { [0x0800] = "lib.protocol.ipv4", [0x86dd] = "lib.protocol.ipv6", [0x8100] = "lib.protocol.dot1q" },
}
ethernet:init { ffi.typeof [[
   struct { uint8_t ether_dhost[6], ether_shost[6]; uint16_t ether_type; } __attribute__((packed))
]] }

-- config: dst, src (uint8_t[6], as pton returns), type (host byte order). Absent fields are zero.
function ethernet:new (config)
   local o = ethernet:superClass().new(self)
   o:dst(config.dst)
   o:src(config.src)
   o:type(config.type)
   return o
end

-- Converts "02:00:00:00:00:01" to uint8_t[6]; raises an error for anything else.
function ethernet:pton (text)
   local mac, count = mac_t(), 0
   for pair in text:gmatch("[^:]+") do
      if not pair:match("^%x%x$") or count == 6 then break end
      mac[count] = tonumber(pair, 16)
      count = count + 1
   end
   if count ~= 6 or #text ~= 17 then error("invalid mac address "..text, 2) end
   return mac
end

function ethernet:ntop (mac)
   local b = ffi.cast("const uint8_t *", mac)
   return ("%02x:%02x:%02x:%02x:%02x:%02x"):format(b[0], b[1], b[2], b[3], b[4], b[5])
end

-- The MAC address for an IPv6 multicast address (RFC 2464, section 7).
function ethernet:ipv6_mcast (ip)
   local bytes = ffi.cast("uint8_t *", ip)
   assert(bytes[0] == 0xff, "not an IPv6 multicast address")
   local mac = mac_t(0x33, 0x33)
   ffi.copy(mac + 2, bytes + 12, 4)
   return mac
end

local broadcast = mac_t(0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
function ethernet:is_mcast (mac) return band(mac[0], 1) ~= 0 end
function ethernet:is_bcast (mac) return C.memcmp(mac, broadcast, 6) == 0 end

fields.address(ethernet, "src", "ether_shost", 6)
fields.address(ethernet, "dst", "ether_dhost", 6)
fields.u16(ethernet, "type", "ether_type")

-- Swaps source and destination.
function ethernet:swap ()
   local h = self:header()
   for i = 0, 5 do h.ether_dhost[i], h.ether_shost[i] = h.ether_shost[i], h.ether_dhost[i] end
end

function ethernet.selftest ()
   local mac = ethernet:pton("02:00:5e:10:00:ff")
   assert(ethernet:ntop(mac) == "02:00:5e:10:00:ff" and ethernet:ntop("\2\0\0\0\0\1") == "02:00:00:00:00:01")
   for _, bad in ipairs { "02:00:5e:10:00", "02:00:5e:10:00:fg", "2:0:5e:10:0:ff", "", "02:00:5e:10:00:ff:01" } do
      assert(not pcall(ethernet.pton, ethernet, bad), bad)
   end
   local e = ethernet:new({ dst = ethernet:pton("ff:ff:ff:ff:ff:ff"), src = mac, type = 0x86dd })
   assert(ffi.string(e:header_ptr(), 14) == "\xff\xff\xff\xff\xff\xff\x02\0\x5e\x10\0\xff\x86\xdd")
   assert(ethernet:is_bcast(e:dst()) and ethernet:is_mcast(e:dst()) and not ethernet:is_mcast(e:src()))
   e:swap()
   assert(e:dst_eq(mac) and not e:src_eq(mac) and e:type() == 0x86dd and e:sizeof() == 14)
   assert(e:upper_layer() == require("lib.protocol.ipv6"))
   local copy = e:clone()
   assert(copy:eq(e))
   copy:type(0x0800)
   assert(not copy:eq(e) and e:type() == 0x86dd)
   local multicast = require("lib.protocol.ipv6"):pton("ff02::1:ff00:2a")
   assert(ethernet:ntop(ethernet:ipv6_mcast(multicast)) == "33:33:ff:00:00:2a")
   assert(ethernet:new_from_mem(mac, 6) == nil, "too short")
end

return ethernet
