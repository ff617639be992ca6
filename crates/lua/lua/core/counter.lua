-- Counters: 64-bit numbers that other processes can read.
--
-- Each has a private copy that the packet path adds to, and a public one in shared memory that commit() brings up
-- to date; the engine does so now and then. Public ones lie at the start of a page each, so adding to them would
-- have all counters fight for the same lines of the cache.

local ffi = require("ffi")
local shm = require("core.shm")
require("core.counter_h")

local M = {}
M.type = shm.register("counter", M)

local counter_t = ffi.metatype("struct counter", {
   __tostring = function (counter) return require("core.lib").comma_value(counter.c) end,
})

-- Those we write, in an array for commit(), and all by name.
local ours, by_name = {}, {}

-- A counter that we write. One that is there under this name is given again, as it stands.
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

-- A counter that another process writes (or we).
function M.open (name)
   local known = by_name[name]
   if known then return known.private end
   local public = shm.open(name, counter_t, true)
   by_name[name] = { public = public, private = public }
   return public
end

-- Unmaps it; unlinks it too if we made it. An error if there is none of this name.
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

-- Brings the public copies up to date.
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
