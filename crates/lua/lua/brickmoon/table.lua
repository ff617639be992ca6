-- Hash tables in C memory: for flows, sources, MAC addresses. Open addressing with linear probing. All memory is
-- allocated when the table is created; lookups and insertions allocate nothing.
--
--    local hash = require("brickmoon.table")
--    local flows = hash.new { key = "uint32_t", value = "struct { uint64_t packets; }", capacity = 100000 }
--    local value = flows:put(ip4.src.uint32)     -- a pointer; zeroed if the key is new; nil if the table is full
--    value.packets = value.packets + 1
--
-- Keys are numbers or pointers to structures. Structures are compared byte by byte, so they must have no padding. A
-- pointer to a value is valid until the next put or remove. A table belongs to one thread.

local ffi = require("ffi")
local sys = require("brickmoon.sys")

ffi.cdef [[
struct bm_hash {
   uint8_t *slots;
   uint64_t mask;
   uint32_t shift, slot_size, value_size, key_offset, key_size, used_offset, count, capacity, found;
};
void *bm_hash_get(struct bm_hash *table, const void *key);
void *bm_hash_put(struct bm_hash *table, const void *key);
int bm_hash_remove(struct bm_hash *table, const void *key);
void *bm_hash_get_number(struct bm_hash *table, uint64_t key);
void *bm_hash_put_number(struct bm_hash *table, uint64_t key);
int bm_hash_remove_number(struct bm_hash *table, uint64_t key);
void bm_hash_take_out(struct bm_hash *table, uint64_t place);
]]
local C, cast = ffi.C, ffi.cast

local M = {}
-- Tables with numbers as keys, and tables with structures as keys.
local Numbers, Structs = {}, {}
Numbers.__index, Structs.__index = Numbers, Structs

local function power_of_two (n)
   local size, bits = 16, 4
   while size < n do size, bits = size * 2, bits + 1 end
   return size, bits
end

local function allocate (bytes, capacity)
   local memory, why = sys.map_memory(bytes, bytes >= 2 ^ 21)
   if not memory then error(("table: cannot allocate %d bytes for %d entries: %s"):format(bytes, capacity, why), 3) end
   return ffi.gc(cast("uint8_t *", memory), function (at) sys.unmap(at, bytes) end)
end

-- options: key and value (C types or their names), capacity (number of entries it must hold).
function M.new (options)
   local capacity = options.capacity
   if not (capacity and capacity > 0) then error("table: 'capacity' must be the number of entries to hold", 2) end
   local key_t, value_t = ffi.typeof(options.key), ffi.typeof(options.value)
   local is_number = tonumber(ffi.new(key_t)) ~= nil
   local slot_t = ffi.typeof("struct { $ value; $ key; uint8_t used; }", value_t, key_t)
   local size, bits = power_of_two(capacity * 4 / 3)
   local bytes = ffi.sizeof(slot_t) * size
   local memory = allocate(bytes, capacity)
   local hash = ffi.new("struct bm_hash", {
      slots = memory, mask = size - 1, shift = 64 - bits, slot_size = ffi.sizeof(slot_t),
      value_size = ffi.sizeof(value_t), key_offset = ffi.offsetof(slot_t, "key"), key_size = ffi.sizeof(key_t),
      used_offset = ffi.offsetof(slot_t, "used"), capacity = capacity,
   })
   return setmetatable({
      hash = hash, anchor = memory, bytes = bytes, capacity = capacity, size = size, next_sweep = 0,
      slots = cast(ffi.typeof("$ *", slot_t), memory), value_ptr = ffi.typeof("$ *", value_t),
   }, is_number and Numbers or Structs)
end

-- A pointer to the key's value, or nil.
function Numbers:get (key)
   local value = C.bm_hash_get_number(self.hash, key)
   if value == nil then return nil end
   return cast(self.value_ptr, value)
end

function Structs:get (key)
   local value = C.bm_hash_get(self.hash, key)
   if value == nil then return nil end
   return cast(self.value_ptr, value)
end

-- A pointer to the key's value, zeroed if the key is new; nil if the key is new and the table is full. The second
-- result tells whether the key existed.
function Numbers:put (key)
   local value = C.bm_hash_put_number(self.hash, key)
   if value == nil then return nil, false end
   return cast(self.value_ptr, value), self.hash.found == 1
end

function Structs:put (key)
   local value = C.bm_hash_put(self.hash, key)
   if value == nil then return nil, false end
   return cast(self.value_ptr, value), self.hash.found == 1
end

-- Removes the key. Returns whether it existed.
function Numbers:remove (key) return C.bm_hash_remove_number(self.hash, key) == 1 end
function Structs:remove (key) return C.bm_hash_remove(self.hash, key) == 1 end

local Table = {}

-- The number of entries.
function Table:entries () return self.hash.count end

-- for key, value in t:each() do. The key is a number, or the structure in the table. The loop must not put or remove
-- entries.
function Table:each ()
   local at = -1
   return function ()
      repeat
         at = at + 1
         if at == self.size then return nil end
      until self.slots[at].used == 1
      local slot = self.slots + at
      return slot.key, cast(self.value_ptr, slot)
   end
end

-- Removes entries for which is_old(value, key) is true, among the next `steps` slots. Called with few steps in each
-- tick, it cleans the table without delaying packets. Returns the number of removed entries.
function Table:sweep (is_old, steps)
   local removed = 0
   for _ = 1, math.min(steps or self.size, self.size) do
      local at = self.next_sweep
      local slot = self.slots + at
      if slot.used == 1 and is_old(cast(self.value_ptr, slot), slot.key) then
         -- An entry that moved into this slot is checked in the next sweep.
         C.bm_hash_take_out(self.hash, at)
         removed = removed + 1
      else
         self.next_sweep = (at + 1) % self.size
      end
   end
   return removed
end

function Table:clear ()
   ffi.fill(self.slots, self.bytes)
   self.hash.count, self.next_sweep = 0, 0
end

for name, method in pairs(Table) do Numbers[name], Structs[name] = method, method end

local function test_against_lua (t, make_key, rounds)
   local model, live = {}, 0
   for _ = 1, rounds do
      local n = math.random(3000)
      local action = math.random(3)
      if action < 3 then
         local value, found = t:put(make_key(n))
         assert(found == (model[n] ~= nil))
         if value == nil then
            assert(live == t.capacity)
         else
            if not found then live = live + 1 end
            assert(value[0] == (model[n] or 0))
            model[n] = math.random(1e6)
            value[0] = model[n]
         end
      else
         assert(t:remove(make_key(n)) == (model[n] ~= nil))
         if model[n] then live, model[n] = live - 1, nil end
      end
   end
   assert(t:entries() == live)
   for n = 1, 3000 do
      local value = t:get(make_key(n))
      assert((value == nil) == (model[n] == nil) and (value == nil or value[0] == model[n]))
   end
end

local function test_sweep ()
   local t = M.new { key = "uint32_t", value = "uint64_t", capacity = 5000 }
   for i = 1, 5000 do t:put(i)[0] = i end
   assert(t:put(5001) == nil and t:entries() == 5000)
   local sum = 0
   for key, value in t:each() do
      assert(key == value[0])
      sum = sum + key
   end
   assert(sum == 5000 * 5001 / 2)
   local function odd (value) return value[0] % 2 == 1 end
   local removed = 0
   for _ = 1, 40 do removed = removed + t:sweep(odd, 500) end
   assert(removed == 2500 and t:entries() == 2500 and t:get(2)[0] == 2 and t:get(3) == nil)
   t:clear()
   assert(t:entries() == 0 and t:get(2) == nil)
end

function M.selftest ()
   local numbers = M.new { key = "uint32_t", value = "uint64_t", capacity = 2000 }
   test_against_lua(numbers, function (n) return n * 65536 end, 50000)
   local wide = M.new { key = "uint64_t", value = "uint64_t", capacity = 4000 }
   test_against_lua(wide, function (n) return n * 0x100000001ULL end, 20000)
   for _, ctype in ipairs { "struct { uint32_t a, b, c; }", "struct { uint8_t a[6]; }", "struct { uint64_t a[5]; }" } do
      local key = ffi.new(ctype)
      local structs = M.new { key = ffi.typeof(key), value = "uint64_t", capacity = 3000 }
      local bytes = ffi.cast("uint8_t *", key)
      test_against_lua(structs, function (n)
         bytes[0], bytes[5] = n % 256, math.floor(n / 256)
         return key
      end, 20000)
   end
   test_sweep()
   assert(not pcall(M.new, { key = "uint32_t", value = "int" }))
end

return M
