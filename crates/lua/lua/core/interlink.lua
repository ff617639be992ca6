-- Packets between processes, for Snabb's lib.interlink: copied through shared memory.
--
-- In Snabb a queue holds addresses of packets, which all processes map at the same address. Here each process has its
-- own packets. So beside the queue there is an object with room for the bytes of each queue entry: insert() copies a
-- packet there and frees it, extract() creates a packet from it. The queue's own protocol is unchanged.

local ffi = require("ffi")
local packet = require("core.packet")
local shm = require("core.shm")

ffi.cdef(([[
struct brickmoon_interlink_place { uint32_t length, unused; uint8_t data[%d]; };
]]):format(packet.max_payload))

local M = {}

-- The buffers of queues that this process is attached to, by the queue's address.
local places = {}

local function key (queue) return tonumber(ffi.cast("uintptr_t", ffi.cast("void *", queue))) end
local function beside (name) return name:gsub("%.interlink$", "")..".places" end

local function attaching (attach)
   return function (name, size)
      local queue = attach(name, size)
      places[key(queue)] = shm.create(beside(name), "struct brickmoon_interlink_place[?]", queue.size)
      return queue
   end
end

local function detaching (detach)
   return function (queue, name)
      local at = key(queue)
      local mapped = places[at]
      detach(queue, name)
      places[at] = nil
      if mapped then shm.unmap(mapped) end
      if not shm.exists(name) then shm.unlink(beside(name)) end
   end
end

-- Makes the module copy packets.
function M.patch (interlink)
   if type(interlink) ~= "table" then return end
   local insert, extract = rawget(interlink, "insert"), rawget(interlink, "extract")
   if type(insert) ~= "function" or type(extract) ~= "function" then return end
   for _, side in ipairs { "receiver", "transmitter" } do
      interlink["attach_"..side] = attaching(interlink["attach_"..side])
      interlink["detach_"..side] = detaching(interlink["detach_"..side])
   end
   function interlink.insert (queue, p)
      local place = places[key(queue)][queue.nwrite]
      place.length = p.length
      ffi.copy(place.data, p.data, p.length)
      packet.free_internal(p)
      insert(queue, nil)
   end
   function interlink.extract (queue)
      local place = places[key(queue)][queue.nread]
      extract(queue)
      return packet.from_pointer(place.data, place.length)
   end
end

function M.selftest ()
   -- A queue of two entries, laid out like Snabb's.
   ffi.cdef "struct interlink_selftest { uint32_t size, nread, nwrite; };"
   local tree = {}
   local function attach (name) return shm.create(name, "struct interlink_selftest") end
   tree.attach_receiver = attach
   function tree.attach_transmitter (name, size)
      local queue = attach(name)
      queue.size = size
      return queue
   end
   function tree.detach_receiver (queue) shm.unmap(queue) end
   function tree.detach_transmitter (queue, name) shm.unlink(name) shm.unmap(queue) end
   function tree.insert (queue) queue.nwrite = (queue.nwrite + 1) % queue.size end
   function tree.extract (queue) queue.nread = (queue.nread + 1) % queue.size end
   M.patch(tree)
   local name = "selftest/q.interlink"
   local out = tree.attach_transmitter(name, 2)
   local into = tree.attach_receiver(name, 2)
   for i = 1, 5 do
      local sent = packet.from_string(("%d"):format(i):rep(i * 300))
      tree.insert(out, sent)
      assert(not pcall(packet.free, sent))
      local got = tree.extract(into)
      assert(ffi.string(got.data, got.length) == ("%d"):format(i):rep(i * 300))
      packet.free(got)
   end
   assert(#shm.children("selftest") == 2)
   tree.detach_receiver(into, name)
   assert(#shm.children("selftest") == 2)
   tree.detach_transmitter(out, name)
   assert(#shm.children("selftest") == 0)
   M.patch({ insert = 1 })
   shm.unlink("selftest")
end

return M
