-- Links: rings of packets between two apps of one worker.
--
-- The ring is the one that Rust's apps use (crates/link). Only packets put in are counted. Packets taken out are that
-- number minus those in the link, so receive() counts nothing. `l.stats` updates the counters under links/NAME and
-- returns them; the engine does so for all links now and then.

local ffi = require("ffi")
local bit = require("bit")
local runtime = require("core.runtime")
local packet = require("core.packet")
local counter = require("core.counter")

local band = bit.band
local free, drop = packet.free, packet.drop
local links = runtime.shared.links
local bridge = runtime.bridge

local MASK = 1023
local NAMES = { "dtime", "txbytes", "rxbytes", "txpackets", "rxpackets", "txdrop" }

local M = { max = MASK }

ffi.cdef[[
struct link_stats {
   struct counter *dtime, *txbytes, *rxbytes, *txpackets, *rxpackets, *txdrop;
};
]]

-- Counters by a link's index in the pool.
local shown = {}

local function index_of (l)
   return tonumber(ffi.cast("struct link *", l) - links)
end

function M.nreadable (l)
   return band(l.write - l.read, MASK)
end

function M.nwritable (l)
   return MASK - band(l.write - l.read, MASK)
end

-- The name in Snabb's documentation.
M.nwriteable = M.nwritable

function M.empty (l)
   return l.read == l.write
end

function M.full (l)
   return band(l.write + 1, MASK) == l.read
end

-- Takes the oldest packet; the link must not be empty.
function M.receive (l)
   local read = l.read
   local p = l.packets[read]
   l.read = band(read + 1, MASK)
   return p
end

-- The oldest packet, which stays in the link, or nil.
function M.front (l)
   if l.read ~= l.write then return l.packets[l.read] end
end

-- Puts a packet into the link. If the link is full, the packet is counted in txdrop and freed.
function M.transmit (l, p)
   local write = l.write
   local after = band(write + 1, MASK)
   if after == l.read then
      l.txdrop = l.txdrop + 1
      drop(p)
   else
      l.packets[write] = p
      l.write = after
      l.txpackets = l.txpackets + 1
      l.txbytes = l.txbytes + p.length
   end
end

local function waiting_bytes (l)
   local bytes, at = 0, l.read
   while at ~= l.write do
      bytes = bytes + l.packets[at].length
      at = band(at + 1, MASK)
   end
   return bytes
end

-- The link's counters, as plain numbers.
function M.stats (l)
   local txpackets, txbytes = tonumber(l.txpackets), tonumber(l.txbytes)
   local stats = {
      txbytes = txbytes, rxbytes = txbytes - waiting_bytes(l),
      txpackets = txpackets, rxpackets = txpackets - M.nreadable(l),
      txdrop = tonumber(l.txdrop),
   }
   local counters = shown[index_of(l)]
   stats.dtime = counters and tonumber(counter.read(counters.dtime)) or 0
   return stats
end

-- Updates the counters of a link and returns them.
local function show (l)
   local counters = shown[index_of(l)]
   if not counters then return nil end
   counter.set(counters.txbytes, l.txbytes)
   counter.set(counters.rxbytes, l.txbytes - waiting_bytes(l))
   counter.set(counters.txpackets, l.txpackets)
   counter.set(counters.rxpackets, l.txpackets - M.nreadable(l))
   counter.set(counters.txdrop, l.txdrop)
   return counters
end
M.show = show

-- Updates the counters of all links for other processes; call it before commit().
function M.show_all ()
   for index in pairs(shown) do show(links + index) end
end

-- A new link. If it has a name, its counters are under links/NAME.
function M.new (name)
   local index = bridge.take_link()
   if name then
      local counters = ffi.new("struct link_stats")
      for _, field in ipairs(NAMES) do
         counters[field] = counter.create(("links/%s/%s.counter"):format(name, field))
      end
      counter.set(counters.dtime, os.time())
      shown[index] = counters
   end
   return links + index
end

-- Frees the packets in the link, and the link itself.
function M.free (l, name)
   while not M.empty(l) do free(M.receive(l)) end
   local index = index_of(l)
   if shown[index] and name then
      for _, field in ipairs(NAMES) do counter.delete(("links/%s/%s.counter"):format(name, field)) end
   end
   shown[index] = nil
   bridge.give_link(index)
end

ffi.metatype("struct link", {
   __index = function (l, key)
      if key == "stats" then return show(l) end
      error(("struct link has no field %q"):format(tostring(key)), 2)
   end,
})

function M.selftest ()
   print("selftest: link")
   assert(ffi.C.LINK_MAX_PACKETS == M.max and ffi.C.LINK_RING_SIZE == M.max + 1)
   local l = M.new("test")
   assert(M.empty(l) and not M.full(l) and M.front(l) == nil)
   for i = 1, M.max do
      local p = packet.from_string(("x"):rep(i % 60))
      M.transmit(l, p)
   end
   assert(M.full(l) and M.nreadable(l) == M.max and M.nwritable(l) == 0)
   M.transmit(l, packet.from_string("lost"))
   local stats = M.stats(l)
   assert(stats.txpackets == M.max and stats.rxpackets == 0 and stats.rxbytes == 0 and stats.txdrop == 1)
   assert(tonumber(counter.read(l.stats.txpackets)) == M.max)
   for i = 1, 10 do
      assert(M.front(l).length == i % 60)
      packet.free(M.receive(l))
   end
   stats = M.stats(l)
   assert(stats.rxpackets == 10 and stats.rxbytes == 55 and M.nwritable(l) == 10)
   -- Across the end of the ring, packets stay in order.
   for i = 1, 10 do M.transmit(l, packet.from_string(("y"):rep(i))) end
   for _ = 1, M.max - 10 do packet.free(M.receive(l)) end
   for i = 1, 10 do
      local p = M.receive(l)
      assert(p.length == i and p.data[0] == 121)
      packet.free(p)
   end
   assert(M.empty(l) and not pcall(function () return l.nonsense end))
   M.free(l, "test")
   print("selftest: ok")
end

return M
