-- The meaning of primitives, as trees of tests on bytes of an Ethernet frame. The tests are those of libpcap
-- (gencode.c, 1.10); see brickmoon.filter for the nodes.
--
-- `at` holds the offsets of headers: at.type (the Ethernet type field) and at.payload (what follows it).

local M = {}

function M.both (...) return { op = "and", ... } end
function M.either (...) return { op = "or", ... } end
function M.invert (node) return { op = "not", node } end
local both, either = M.both, M.either

function M.eq8 (offset, value) return { op = "eq8", offset = offset, value = value } end
function M.eq16 (offset, value) return { op = "eq16", offset = offset, value = value } end
local eq8, eq16 = M.eq8, M.eq16

local function eq32 (offset, value, mask)
   return { op = "eq32", offset = offset, value = value, mask = mask or 0xffffffff }
end

local ETHERTYPE = { ip = 0x0800, arp = 0x0806, rarp = 0x8035, ip6 = 0x86dd }
M.ethertypes = { ip = 0x0800, arp = 0x0806, rarp = 0x8035, ip6 = 0x86dd, aarp = 0x80f3, loopback = 0x9000,
                 decnet = 0x6003, lat = 0x6004, moprc = 0x6002, mopdl = 0x6001 }
M.protocols = { icmp = 1, igmp = 2, tcp = 6, igrp = 9, udp = 17, gre = 47, esp = 50, ah = 51, icmp6 = 58, pim = 103,
                vrrp = 112, carp = 112, sctp = 132 }

-- Which families the bare name of a protocol matches.
local families = {
   tcp = { "ip6", "ip" }, udp = { "ip6", "ip" }, sctp = { "ip6", "ip" }, pim = { "ip6", "ip" }, ah = { "ip6", "ip" },
   esp = { "ip6", "ip" }, icmp = { "ip" }, igmp = { "ip" }, igrp = { "ip" }, vrrp = { "ip" }, carp = { "ip" },
   icmp6 = { "ip6" },
}

-- A length instead of a type means IEEE 802.2: the number is then compared with the service access point.
function M.ether_proto (at, number)
   if number > 1500 then return eq16(at.type, number) end
   return both({ op = "le16", offset = at.type, value = 1500 }, eq8(at.payload, number))
end

-- Tests the protocol field; for IPv6 also that of a fragment header that comes first.
function M.ip_proto (at, family, number)
   local type_is = eq16(at.type, ETHERTYPE[family])
   if family == "ip" then return both(type_is, eq8(at.payload + 9, number)) end
   local fragment = both(eq8(at.payload + 6, 44), eq8(at.payload + 40, number))
   return both(type_is, either(fragment, eq8(at.payload + 6, number)))
end

-- A bare `tcp`, `ip`, ...; nil if there is no such protocol.
function M.protocol (at, name)
   if ETHERTYPE[name] then return eq16(at.type, ETHERTYPE[name]) end
   if not families[name] then return nil end
   local list = { op = "or" }
   for i, family in ipairs(families[name]) do list[i] = M.ip_proto(at, family, M.protocols[name]) end
   return #list == 1 and list[1] or list
end

-- Combines the tests of source and destination.
local function by_direction (direction, source, destination)
   if direction == "src" then return source() end
   if direction == "dst" then return destination() end
   if direction == "src and dst" then return both(source(), destination()) end
   return either(source(), destination())
end

local function ip4_host (at, name, source, destination, direction, address, mask)
   local function part (offset)
      return function () return eq32(at.payload + offset, address, mask) end
   end
   return both(eq16(at.type, ETHERTYPE[name]), by_direction(direction, part(source), part(destination)))
end

local places = { ip = { 12, 16 }, arp = { 14, 24 }, rarp = { 14, 24 } }

-- An IPv4 address or net; protocol is ip, arp, rarp, or nil for any of them.
function M.host4 (at, protocol, direction, address, mask)
   if protocol then
      return ip4_host(at, protocol, places[protocol][1], places[protocol][2], direction, address, mask)
   end
   local list = { op = "or" }
   for i, name in ipairs { "ip", "arp", "rarp" } do
      list[i] = ip4_host(at, name, places[name][1], places[name][2], direction, address, mask)
   end
   return list
end

-- An IPv6 address or net: words and masks are four numbers each.
function M.host6 (at, direction, words, masks)
   local function part (offset)
      return function ()
         local list = { op = "and" }
         for i = 1, 4 do
            list[i] = eq32(at.payload + offset + 4 * (i - 1), words[i], masks[i])
         end
         return list
      end
   end
   return both(eq16(at.type, ETHERTYPE.ip6), by_direction(direction, part(8), part(24)))
end

-- A MAC address, as an array of 6 bytes.
function M.ether_host (direction, mac)
   local high, low = mac[1] * 256 + mac[2], ((mac[3] * 256 + mac[4]) * 256 + mac[5]) * 256 + mac[6]
   local function part (offset)
      return function () return both(eq32(offset + 2, low), eq16(offset, high)) end
   end
   return by_direction(direction, part(6), part(0))
end

-- Ports low..high of tcp, udp or sctp, or of any of them. Only the first IPv4 fragment has ports.
function M.ports (at, protocol, direction, low, high)
   local numbers = protocol and { M.protocols[protocol] } or { 6, 17, 132 }
   local four, six = { op = "or" }, { op = "or" }
   for i, number in ipairs(numbers) do
      four[i], six[i] = eq8(at.payload + 9, number), eq8(at.payload + 6, number)
   end
   local function port4 (offset)
      return function () return { op = "port", header = at.payload, offset = offset, low = low, high = high } end
   end
   local function port6 (offset)
      return function () return { op = "in16", offset = at.payload + 40 + offset, low = low, high = high } end
   end
   return either(
      both(eq16(at.type, ETHERTYPE.ip6), six, by_direction(direction, port6(0), port6(2))),
      both(eq16(at.type, ETHERTYPE.ip), four, { op = "first_fragment", offset = at.payload + 6 },
           by_direction(direction, port4(0), port4(2))))
end

-- A VLAN tag, with this VLAN id if one is given.
function M.vlan (at, id)
   local tag = either(eq16(at.type, 0x8100), eq16(at.type, 0x88a8), eq16(at.type, 0x9100))
   if not id then return tag end
   return both(tag, { op = "id12", offset = at.payload, value = id })
end

function M.multicast (at, protocol)
   if protocol == "ip" then
      return both(eq16(at.type, ETHERTYPE.ip), { op = "ge8", offset = at.payload + 16, value = 224 })
   elseif protocol == "ip6" then
      return both(eq16(at.type, ETHERTYPE.ip6), eq8(at.payload + 24, 255))
   end
   return { op = "bits8", offset = 0, value = 1 }
end

-- Where the bytes of `protocol[...]` are, and the condition under which they exist: { guard, base, variable }. With
-- `variable`, the IPv4 header's length is added, and `first` is tested before the guards of bytes in the index. nil if
-- the protocol has no bytes.
function M.bytes_of (at, protocol)
   if protocol == "ether" or protocol == "link" then return { base = 0 } end
   if ETHERTYPE[protocol] then return { guard = M.protocol(at, protocol), base = at.payload } end
   if protocol == "icmp6" then
      return { guard = both(eq16(at.type, ETHERTYPE.ip6), eq8(at.payload + 6, 58)), base = at.payload + 40 }
   end
   if not families[protocol] or protocol == "ah" or protocol == "esp" then return nil end
   local guard = both(M.ip_proto(at, "ip", M.protocols[protocol]), { op = "first_fragment", offset = at.payload + 6 })
   return { first = eq16(at.type, ETHERTYPE.ip), guard = guard, base = at.payload, variable = true }
end

return M
