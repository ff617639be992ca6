-- Packets: bytes in a slot of frame memory, and the list of those that are free.
--
-- A packet is the header that Rust's apps know as a frame (crates/frame): `length`, and `at`, which points into the
-- slot with at least 256 bytes before it. Programs know what is there as `data`, an array. A free packet's length is
-- FREED: so a packet that is freed twice is found at once, and the error names the line that does it.
--
-- Programs may also have a `struct packet` as part of a structure of their own, zeroed, and copy it about with that:
-- then `at` and `slot` are nil and data is the structure's own `room`. Such a packet can be filled, cloned and sent;
-- who frees it leaves it where it is.

local ffi = require("ffi")
local runtime = require("core.runtime")

local shared, freelist, frees = runtime.shared, runtime.freelist, runtime.frees
-- The list is longer than its declared type: the places are reached by a pointer.
local list = ffi.cast("struct packet **", freelist.list)
local cast, copy, fill = ffi.cast, ffi.copy, ffi.fill

ffi.cdef[[
void *memmove (void *to, const void *from, size_t bytes);
struct packet_line { double a, b, c, d, e, f, g, h; };
]]
local C = ffi.C
local line_t = ffi.typeof("struct packet_line *")

-- Of the slot: where data begins in a fresh packet, and where it may begin at all.
local DATA, HEADROOM = 512, 256
local FREED = 0xffff
local ROOM = shared.room

local M = {
   max_payload = ROOM,
   -- Who asks for room in front of the packet itself takes its address modulo this. There are 48 bytes
   -- before each (FRONT of crates/frame), whatever its address: so that is to be no less.
   packet_alignment = 2 ^ 47,
   default_headroom = DATA - HEADROOM,
}

-- Who to ask where packets are when there are none left; core.app says which apps hold them.
M.explain = function () return "" end

local function exhausted ()
   error("no free packets: all are in use"..M.explain(), 3)
end

local function refill ()
   shared.refill(shared)
   if freelist.held == 0 then exhausted() end
end

-- An empty packet.
function M.allocate ()
   if freelist.held == 0 then refill() end
   local held = freelist.held - 1
   freelist.held = held
   local p = list[held]
   p.length = 0
   p.at = p.slot + DATA
   return p
end
local allocate = M.allocate

local function twice (p)
   error(("packet %s was freed before: whoever frees or transmits a packet must not use it again"):format(tostring(p)), 3)
end

-- Counts a packet as freed, without freeing it: for I/O apps that hand packets on elsewhere.
function M.account_free (p)
   local length = p.length
   if length < 46 then frees.short_bytes = frees.short_bytes + (46 - length) end
   frees.packets = frees.packets + 1
   frees.bytes = frees.bytes + length
end

-- Frees a packet without counting it.
function M.free_internal (p)
   if p.length == FREED then twice(p) end
   if p.slot == nil then return end
   p.length = FREED
   if freelist.held == freelist.limit then shared.spill(shared) end
   local held = freelist.held
   list[held] = p
   freelist.held = held + 1
end

-- Frees a packet.
local function free (p)
   local length = p.length
   if length == FREED then twice(p) end
   if length < 46 then frees.short_bytes = frees.short_bytes + (46 - length) end
   frees.packets = frees.packets + 1
   frees.bytes = frees.bytes + length
   if p.slot == nil then return end
   p.length = FREED
   if freelist.held == freelist.limit then shared.spill(shared) end
   local held = freelist.held
   list[held] = p
   freelist.held = held + 1
end
M.free = free

local function room_behind (p)
   return p.slot_size - tonumber(p.at - p.slot)
end

-- A copy of a packet that was freed, since the link that it was sent to was full: apps that flood send first and
-- clone then. Its bytes are whole still, and most likely the copy is the packet itself.
local function revive (p)
   local from, length = p.at, math.min(p.dropped, room_behind(p))
   local q = allocate()
   C.memmove(q.at, from, length)
   q.length = length
   return q
end

-- A copy. Short packets are copied as a line of the cache, whatever their length: a slot has that much. It is a line
-- of floating-point numbers, since the compiler knows that counters are no such thing, and keeps those in registers.
function M.clone (p)
   local length = p.length
   if length == FREED then return revive(p) end
   if freelist.held == 0 then refill() end
   local held = freelist.held - 1
   freelist.held = held
   local q = list[held]
   local at = q.slot + DATA
   q.at = at
   if length <= 64 then
      cast(line_t, at)[0] = cast(line_t, p.data)[0]
   else
      copy(at, p.data, length)
   end
   q.length = length
   return q
end

-- Frees a packet that a full link has no place for, so that it can still be cloned.
function M.drop (p)
   p.dropped = p.length
   free(p)
end

-- Makes room for `bytes` more bytes, where they fit at all.
local function check (p, bytes)
   if bytes < 0 or p.length + bytes > ROOM then
      error(("packet payload overflow: %d bytes and %d more do not fit into %d"):format(p.length, bytes, ROOM), 3)
   end
end

-- Moves data to the usual place, if what is behind it ends too early.
local function settle (p, bytes)
   if p.length + bytes > room_behind(p) and p.at ~= nil then
      C.memmove(p.slot + DATA, p.at, p.length)
      p.at = p.slot + DATA
   end
end

-- Adds bytes behind.
function M.append (p, pointer, length)
   check(p, length)
   settle(p, length)
   copy(p.data + p.length, pointer, length)
   p.length = p.length + length
   return p
end

-- Extends the packet by `bytes` at its front, without initializing them; use the returned packet.
function M.shiftright (p, bytes)
   if p.at == nil then
      -- How much room there is, only the program knows whose memory it is.
      C.memmove(p.room + bytes, p.room, p.length)
      p.length = p.length + bytes
      return p
   end
   check(p, bytes)
   if tonumber(p.at - p.slot) - HEADROOM >= bytes then
      p.at = p.at - bytes
   else
      -- No headroom left: the packet moves so that it has as much again, or as near to its slot's end as it must.
      local start = math.min(DATA, p.slot_size - p.length - bytes)
      C.memmove(p.slot + start + bytes, p.at, p.length)
      p.at = p.slot + start
   end
   p.length = p.length + bytes
   return p
end

-- Removes `bytes` from the front; use the returned packet.
function M.shiftleft (p, bytes)
   if bytes < 0 or bytes > p.length then
      error(("cannot remove %d bytes from a packet of %d"):format(bytes, p.length), 2)
   end
   local length, at = p.length - bytes, p.at
   if at ~= nil then
      p.at = at + bytes
   else
      C.memmove(p.room, p.room + bytes, length)
   end
   p.length = length
   return p
end

-- Adds bytes in front; use the returned packet.
function M.prepend (p, pointer, length)
   p = M.shiftright(p, length)
   copy(p.data, pointer, length)
   return p
end

-- Sets the length; new bytes are zero.
function M.resize (p, length)
   if length > p.length then
      check(p, length - p.length)
      settle(p, length - p.length)
      fill(p.data + p.length, length - p.length)
   elseif length < 0 then
      error(("a packet cannot be %d bytes long"):format(length), 2)
   end
   p.length = length
   return p
end

function M.from_pointer (pointer, length)
   return M.append(allocate(), pointer, length)
end

function M.from_string (bytes)
   return M.append(allocate(), bytes, #bytes)
end

-- A copy of the bytes in the memory of another packet.
function M.clone_to_memory (to, from)
   copy(to.data, from.data, from.length)
   to.length = from.length
   return to
end

-- Packets come from one region for all workers, made at start; these have nothing left to do.
function M.initialize () end
function M.enable_group_freelist () end
function M.rebalance_freelists () end
function M.preallocate_step () end
function M.shutdown () end

local function refuses (f, ...)
   local fine, why = pcall(f, ...)
   assert(not fine, "it should have been refused")
   return why
end

local function test_moves ()
   local p = M.from_string("0123456789")
   p = M.prepend(p, "abc", 3)
   assert(ffi.string(p.data, p.length) == "abc0123456789")
   p = M.shiftleft(p, 4)
   assert(ffi.string(p.data, p.length) == "123456789")
   p = M.shiftright(p, 300)
   assert(p.length == 309 and ffi.string(p.data + 300, 9) == "123456789")
   p = M.shiftright(p, 300)
   assert(p.length == 609 and ffi.string(p.data + 600, 9) == "123456789")
   p = M.resize(M.resize(p, 2), 5)
   assert(p.length == 5 and p.data[4] == 0)
   assert(refuses(M.shiftleft, p, 6):match("from a packet of 5"))
   M.free(p)
end

local function test_full ()
   local p = M.resize(M.allocate(), M.max_payload - 300)
   p.data[0], p.data[p.length - 1] = 7, 9
   p = M.shiftright(p, 300)
   assert(p.length == M.max_payload and p.data[300] == 7 and p.data[p.length - 1] == 9)
   assert(refuses(M.append, p, "x", 1):match("overflow"))
   assert(refuses(M.shiftright, p, 1):match("overflow"))
   p = M.append(M.shiftleft(p, 100), ("z"):rep(100), 100)
   assert(p.data[200] == 7 and p.data[p.length - 1] == 122)
   M.free(p)
end

-- A packet within a structure goes where that is copied to.
local function test_embedded ()
   local pair_t = ffi.typeof("struct { uint16_t before; struct packet packet; } __attribute__((packed))")
   local one, other = pair_t(), pair_t()
   assert(ffi.sizeof(one.packet.data) == ffi.C.PACKET_PAYLOAD_SIZE and one.packet.length == 0)
   M.append(M.append(one.packet, "0123456789", 10), "ab", 2)
   ffi.copy(other, one, ffi.sizeof(pair_t))
   ffi.fill(one, ffi.sizeof(pair_t))
   local inside = other.packet
   assert(ffi.string(M.prepend(inside, "xyz", 3).data, inside.length) == "xyz0123456789ab")
   assert(ffi.string(M.shiftleft(inside, 6).data, inside.length) == "3456789ab")
   local long, short = M.clone(M.resize(inside, 100)), M.clone(M.resize(inside, 9))
   assert(long.length == 100 and long.data[99] == 0 and ffi.string(short.data, short.length) == "3456789ab")
   M.free(long) M.free(short)
end

-- What a full link has dropped can still be cloned, as flooding apps do; what was freed otherwise is empty.
local function test_dropped ()
   local p = M.shiftleft(M.from_string(("0123456789"):rep(20)), 3)
   M.drop(p)
   local q = M.clone(p)
   assert(ffi.string(q.data, q.length) == ("0123456789"):rep(20):sub(4))
   M.free(q)
   assert(refuses(M.free, q):match("freed before"))
end

function M.selftest ()
   print("selftest: packet")
   local before = frees.packets
   test_moves()
   test_full()
   test_embedded()
   test_dropped()
   local p = M.from_string(("q"):rep(60))
   local q, r = M.clone(p), M.clone(M.resize(p, 1000))
   assert(q.length == 60 and r.length == 1000 and q.data ~= p.data and q.data[59] == 113 and r.data[999] == 0)
   M.free(p) M.free(q) M.free(r)
   assert(frees.packets - before == 9)
   assert(refuses(M.free, r):match("freed before"))
   assert(C.PACKET_PAYLOAD_SIZE == M.max_payload)
   local again = M.allocate()
   assert(again.length == 0 and again.data == again.slot + DATA and ffi.sizeof(again.data) == M.max_payload)
   M.free(again)
   print("selftest: ok")
end

return M
