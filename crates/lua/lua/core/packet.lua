-- Packets: bytes in a slot of frame memory, and the list of free ones.
--
-- A packet is the header that Rust's apps know as a frame (crates/frame): `length`, and `at`, which points into the
-- slot with at least 256 bytes before it. Programs access the bytes as the array `data`. The length of a free packet
-- is FREED, so freeing a packet twice is detected immediately, and the error names the line.
--
-- A program may also have a zeroed `struct packet` in a structure of its own, and copy it with that structure. Then
-- `at` and `slot` are nil and data is the structure's own `room`. Such a packet can be filled, cloned and sent; freeing
-- it does nothing to its memory.

local ffi = require("ffi")
local runtime = require("core.runtime")

local shared, freelist, frees = runtime.shared, runtime.freelist, runtime.frees
-- The list is longer than its declared type, so it is accessed through a pointer.
local list = ffi.cast("struct packet **", freelist.list)
local cast, copy, fill = ffi.cast, ffi.copy, ffi.fill

ffi.cdef[[
void *memmove (void *to, const void *from, size_t bytes);
struct packet_line { double a, b, c, d, e, f, g, h; };
]]
local C = ffi.C
local line_t = ffi.typeof("struct packet_line *")

-- Offsets in the slot: where the data of a new packet begins, and the least offset that it may have.
local DATA, HEADROOM = 512, 256
local FREED = 0xffff
local ROOM = shared.room

local M = {
   max_payload = ROOM,
   -- Code that wants room in front of the packet structure computes its address modulo this. There are always 48 bytes
   -- before it (FRONT of crates/frame), at any address, so the result must not be less than that.
   packet_alignment = 2 ^ 47,
   default_headroom = DATA - HEADROOM,
}

-- Returns which apps hold the packets when none are left; set by core.app.
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
   error(("packet %s was freed before: do not use a packet after it was freed or transmitted"):format(tostring(p)), 3)
end

-- Counts a packet as freed, without freeing it: for I/O apps that pass packets on elsewhere.
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

-- A copy of a packet that was freed because the link it was sent to was full: apps that flood send a packet first and
-- clone it afterwards. Its bytes are still intact, and most likely the copy is the packet itself.
local function revive (p)
   local from, length = p.at, math.min(p.dropped, room_behind(p))
   local q = allocate()
   C.memmove(q.at, from, length)
   q.length = length
   return q
end

-- A copy. For short packets a fixed number of bytes, one cache line, is copied: a slot has at least that. The copy uses
-- floating-point numbers: the compiler knows that they do not alias counters, and keeps those in registers.
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

-- Frees a packet that does not fit into a full link, so that it can still be cloned.
function M.drop (p)
   p.dropped = p.length
   free(p)
end

-- Checks that `bytes` more bytes fit into the packet.
local function check (p, bytes)
   if bytes < 0 or p.length + bytes > ROOM then
      error(("packet payload overflow: %d bytes and %d more do not fit into %d"):format(p.length, bytes, ROOM), 3)
   end
end

-- Moves the data to its usual place, if there is too little room behind it.
local function settle (p, bytes)
   if p.length + bytes > room_behind(p) and p.at ~= nil then
      C.memmove(p.slot + DATA, p.at, p.length)
      p.at = p.slot + DATA
   end
end

-- Appends bytes.
function M.append (p, pointer, length)
   check(p, length)
   settle(p, length)
   copy(p.data + p.length, pointer, length)
   p.length = p.length + length
   return p
end

-- Extends the packet by `bytes` uninitialized bytes at its front; use the returned packet.
function M.shiftright (p, bytes)
   if p.at == nil then
      -- The program that owns this memory must know how much room there is.
      C.memmove(p.room + bytes, p.room, p.length)
      p.length = p.length + bytes
      return p
   end
   check(p, bytes)
   if tonumber(p.at - p.slot) - HEADROOM >= bytes then
      p.at = p.at - bytes
   else
      -- No headroom left: the data is moved so that headroom is full again, or as far as the slot's end permits.
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

-- Prepends bytes; use the returned packet.
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

-- Copies the bytes into the memory of another packet.
function M.clone_to_memory (to, from)
   copy(to.data, from.data, from.length)
   to.length = from.length
   return to
end

-- Packets come from one region for all workers, allocated at start, so these functions have nothing to do.
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

-- A packet within a structure is copied with it.
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

-- A packet dropped by a full link can still be cloned, as flooding apps do; a packet freed otherwise is empty.
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
