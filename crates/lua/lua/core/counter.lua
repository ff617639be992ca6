-- Counters: 64-bit numbers that other processes can read.
--
-- Each has a private copy that the packet path adds to, and a public copy in shared memory. The engine calls commit()
-- now and then to update the public copies. Each public copy is at the start of a memory page, so adding to them
-- directly would make all counters compete for the same cache lines.

local ffi = require("ffi")
local shm = require("core.shm")
require("core.counter_h")

local M = {}
M.type = shm.register("counter", M)

local counter_t = ffi.metatype("struct counter", {
   __tostring = function (counter) return require("core.lib").comma_value(counter.c) end,
})

-- The counters that we write, in an array for commit(), and all counters by name.
local ours, by_name = {}, {}

-- A counter that we write. If there is one of this name, it is returned unchanged.
function M.create (name, initial)
   local known = by_name[name]
   if known then return known.private end
   local record = { public = shm.create(name, counter_t), private = ffi.new(counter_t) }
   by_name[name] = record
   record.place = #ours + 1
   ours[record.place] = record
   record.private.c = initial or 0
   record.public.c = record.private.c
   return record.private
end

-- A counter that another process writes, or this one.
function M.open (name)
   local known = by_name[name]
   if known then return known.private end
   local public = shm.open(name, counter_t, true)
   by_name[name] = { public = public, private = public }
   return public
end

-- Unmaps a counter, and removes it if we created it. It is an error if there is none of this name.
function M.delete (name)
   local record = by_name[name] or error("counter not found for deletion: "..name, 2)
   by_name[name] = nil
   shm.unmap(record.public)
   if record.place then
      shm.unlink(name)
      local last = table.remove(ours)
      if last ~= record then
         ours[record.place] = last
         last.place = record.place
      end
   end
end

-- Updates the public copies.
function M.commit ()
   for i = 1, #ours do
      local record = ours[i]
      record.public.c = record.private.c
   end
end

function M.set (counter, value) counter.c = value end
function M.add (counter, value) counter.c = counter.c + (value or 1) end
function M.read (counter) return counter.c end

function M.selftest ()
   local a, b = M.create("core.counter/a"), M.create("core.counter/b", 5)
   local public = shm.open("core.counter/a", counter_t, true)
   M.set(a, 42)
   M.add(a)
   M.add(b, 7)
   assert(M.read(a) == 43 and M.read(b) == 12 and public.c == 0)
   M.commit()
   assert(public.c == 43 and shm.open("core.counter/b", counter_t).c == 12)
   assert(M.create("core.counter/a") == a and M.open("core.counter/b") == b)
   M.set(a, 2 ^ 40)
   M.add(a, 1000)
   assert(tostring(a) == "1,099,511,628,776", tostring(a))
   M.delete("core.counter/a")
   assert(not shm.exists("core.counter/a") and not pcall(M.delete, "core.counter/a"))
   M.add(b)
   M.commit()
   assert(shm.open("core.counter/b", counter_t).c == 13)
   M.delete("core.counter/b")
   shm.unlink("core.counter")
end

return M
