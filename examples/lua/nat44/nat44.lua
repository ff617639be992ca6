-- NAT44 for UDP and TCP: the slow path creates bindings, and workers rewrite packets by them at `ingress`.
--
--    first packet of a flow:      worker punts ─► slow path: creates the binding in shared memory, rewrites, forwards
--    all others, both directions: worker rewrites address, port and checksums, and the router continues
--
-- args: inside = "192.0.2." (prefix, as text), outside = "203.0.113.77": routed to us, and no address of this machine
-- Bindings never expire: an external port belongs to one internal address and port until the daemon ends.
local ffi = require("ffi")
local bit = require("bit")
local hook = require("brickmoon.hook")
local args = ...

local band, rshift = bit.band, bit.rshift
local FIRST, PORTS, SLOTS = 1024, 64512, 262144
ffi.cdef "struct nat_binding { uint32_t address; uint16_t port; uint8_t protocol, used; };"
-- Bindings by external port and protocol; and external ports by internal address, port and protocol (0: free).
local by_outside = hook.memory("nat44.outside", "struct nat_binding", 2 * 65536)
local by_inside = hook.memory("nat44.inside", "uint32_t", SLOTS)
local next_port = hook.memory("nat44.next", "uint32_t", 2)

local function bytes (text)
   local list = {}
   for byte in text:gmatch("%d+") do table.insert(list, tonumber(byte)) end
   return list
end
local inside, outside = bytes(args.inside), bytes(args.outside)
local full = hook.reason("nat_full", "all external ports are in use")
local out, back, made = hook.counter("out"), hook.counter("back"), hook.counter("bindings")

local function word (d, at) return d[at] * 256 + d[at + 1] end
local function address (d, at) return word(d, at) * 65536 + word(d, at + 2) end

-- Updates the checksum at `at` (RFC 1624) for the 16-bit words that change from old to new.
local function update_checksum (d, at, old, new)
   local sum = band(0xffff - word(d, at), 0xffff) + (0xffff - old) + new
   sum = band(sum, 0xffff) + rshift(sum, 16)
   sum = 0xffff - (band(sum, 0xffff) + rshift(sum, 16))
   d[at], d[at + 1] = rshift(sum, 8), band(sum, 0xff)
end

-- Writes an address at `at` and a port at `port_at`, and updates the checksums of IPv4 and UDP or TCP.
local function rewrite (d, at, port_at, new_address, new_port)
   local sum_at = d[23] == 6 and 50 or 40
   local has_sum = d[23] == 6 or word(d, 40) ~= 0
   local words = { rshift(new_address, 16), band(new_address, 0xffff) }
   for k = 0, 1 do
      local old = word(d, at + 2 * k)
      update_checksum(d, 24, old, words[k + 1])
      if has_sum then update_checksum(d, sum_at, old, words[k + 1]) end
      d[at + 2 * k], d[at + 2 * k + 1] = rshift(words[k + 1], 8), band(words[k + 1], 0xff)
   end
   if has_sum then update_checksum(d, sum_at, word(d, port_at), new_port) end
   d[port_at], d[port_at + 1] = rshift(new_port, 8), band(new_port, 0xff)
   -- A UDP checksum of 0 means that there is none (RFC 768).
   if d[23] == 17 and has_sum and word(d, 40) == 0 then d[40], d[41] = 0xff, 0xff end
end

local OUTSIDE = ((outside[1] * 256 + outside[2]) * 256 + outside[3]) * 256 + outside[4]

-- Whether this is an unfragmented IPv4 packet without options, with a whole UDP or TCP header.
local function is_ours (p)
   local d = p.data
   return p.length >= 42 and d[12] == 8 and d[13] == 0 and d[14] == 0x45 and band(d[20], 0x3f) == 0 and d[21] == 0
      and (d[23] == 17 or (d[23] == 6 and p.length >= 54))
end

local function from_inside (d)
   for k, byte in ipairs(inside) do if d[25 + k] ~= byte then return false end end
   return true
end

local function at_outside (protocol, port) return (protocol == 6 and 65536 or 0) + port end

-- The slot of a flow's internal end in by_inside, and its external port, 0 if there is none.
local function find (source, port, protocol)
   local place = band(bit.bxor(source, port * 40503, protocol * 7919), SLOTS - 1)
   for _ = 1, 64 do
      local external = by_inside[place]
      if external == 0 then return place, 0 end
      local b = by_outside[at_outside(protocol, external)]
      if b.address == source and b.port == port and b.protocol == protocol then return place, external end
      place = band(place + 1, SLOTS - 1)
   end
   return nil, 0
end

-- Slow path only, so there is one writer. The binding is complete before its number can be found.
local function bind (source, port, protocol)
   local place, external = find(source, port, protocol)
   if external ~= 0 or not place then return external end
   local counter = protocol == 6 and 1 or 0
   if next_port[counter] >= PORTS then return 0 end
   external = FIRST + next_port[counter]
   next_port[counter] = next_port[counter] + 1
   local b = by_outside[at_outside(protocol, external)]
   b.address, b.port, b.protocol, b.used = source, port, protocol, 1
   by_inside[place] = external
   made:add()
   return external
end

local function ingress (burst)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      local d = p.data
      if is_ours(p) then
         if address(d, 30) == OUTSIDE then
            local b = by_outside[at_outside(d[23], word(d, 36))]
            if b.used == 1 then
               rewrite(d, 30, 36, b.address, b.port)
               back:add()
            end
         elseif from_inside(d) then
            local _, external = find(address(d, 26), word(d, 34), d[23])
            if external == 0 then burst.punt(i) else
               rewrite(d, 26, 34, OUTSIDE, external)
               out:add()
            end
         end
      end
   end
end

local function slow (burst)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      local d = p.data
      if is_ours(p) and from_inside(d) then
         local external = bind(address(d, 26), word(d, 34), d[23])
         if external == 0 then burst.drop(i, full) else rewrite(d, 26, 34, OUTSIDE, external) end
      end
   end
end

return { ingress = ingress, slow = slow }
