-- A lock-free queue of chunks of packet addresses in shared memory, with many producer and consumer processes.
--
--    local chunk, seq = start_add(fl)       a free chunk, ours until finish(); nil when the queue is full
--    chunk.list[0], chunk.nfree = p, 1
--    finish(chunk, seq)                     now others can take it with start_remove(fl), and finish() again
--
-- Each chunk has a sequence number that tells whose turn it is (D. Vyukov's bounded MPMC queue): position n of the
-- queue may be filled when the number is n, and emptied when it is n + 1. In brickmoon packets are not in shared
-- memory: this module is for programs that use the queue for their own purposes.

local ffi = require("ffi")
local shm = require("core.shm")
local sync = require("core.sync")
local sys = require("brickmoon.sys")

local M = { chunksize = 2048 }

ffi.cdef(([[
struct group_freelist_chunk {
   uint64_t sequence[1];
   uint32_t nfree, unused;
   struct packet *list[%d];
};
struct group_freelist {
   /* Each position on a cache line of its own: producers and consumers do not wait for each other's. */
   uint64_t enqueue_pos[1], enqueue_mask, enqueue_unused[6];
   uint64_t dequeue_pos[1], dequeue_mask, dequeue_unused[6];
   uint32_t size, state[1], state_unused[14];
   struct group_freelist_chunk chunk[?];
} __attribute__((aligned(64)));
]]):format(M.chunksize))

local NEW, IN_THE_MAKING, READY = 0, 1, 2
local band, cast, int64_t = require("bit").band, ffi.cast, ffi.typeof("int64_t")

-- Opens an existing queue, once it is ready.
function M.freelist_open (name, readonly)
   local head = shm.open(name, "struct group_freelist", true, 0)
   for _ = 1, 10000 do
      if sync.load(head.state) == READY then break end
      sys.usleep(100)
   end
   local size = sync.load(head.state) == READY and head.size
   shm.unmap(head)
   if not size then error("group_freelist: "..name.." did not become ready within a second", 2) end
   return shm.open(name, "struct group_freelist", readonly, size)
end

-- Creates a queue of `size` chunks, a power of two; or opens the existing one.
function M.freelist_create (name, size)
   size = size or 1024
   if size < 1 or band(size, size - 1) ~= 0 then error("group_freelist: size must be a power of two, not "..size, 2) end
   local fl = shm.create(name, "struct group_freelist", size)
   if not sync.cas(fl.state, NEW, IN_THE_MAKING) then
      shm.unmap(fl)
      return M.freelist_open(name)
   end
   fl.size, fl.enqueue_mask, fl.dequeue_mask = size, size - 1, size - 1
   for place = 0, size - 1 do fl.chunk[place].sequence[0] = place end
   assert(sync.cas(fl.state, IN_THE_MAKING, READY))
   return fl
end

-- Takes the next position of one side, if it is that side's turn: if the number is the position plus `turn`. Else nil.
local function claim (fl, position, mask, turn)
   while true do
      local at = sync.load64(position)
      local chunk = fl.chunk[band(at, mask)]
      local ahead = cast(int64_t, sync.load64(chunk.sequence) - at - turn)
      if ahead == 0 then
         if sync.cas64(position, at, at + 1) then return chunk, at end
      elseif ahead < 0 then
         return nil
      end
   end
end

function M.start_add (fl)
   local chunk, at = claim(fl, fl.enqueue_pos, fl.enqueue_mask, 0ULL)
   if chunk then return chunk, at + 1 end
end

function M.start_remove (fl)
   local chunk, at = claim(fl, fl.dequeue_pos, fl.dequeue_mask, 1ULL)
   if chunk then return chunk, at + fl.dequeue_mask + 1 end
end

-- Hands the chunk over. No other process changes the number of a chunk that this one owns.
function M.finish (chunk, sequence)
   assert(sync.cas64(chunk.sequence, chunk.sequence[0], sequence))
end

M.type = shm.register("group_freelist", M)
M.open, M.create = M.freelist_open, M.freelist_create

ffi.metatype("struct group_freelist", { __tostring = function (fl)
   local used = tonumber(fl.enqueue_pos[0] - fl.dequeue_pos[0])
   return ("%d/%d"):format(used * M.chunksize, fl.size * M.chunksize)
end })

local function test_order (fl)
   assert(not M.start_remove(fl))
   local first, first_seq = M.start_add(fl)
   local second, second_seq = M.start_add(fl)
   M.finish(second, second_seq)
   -- The first is not finished yet, so the second has to wait.
   assert(not M.start_remove(fl) and tostring(fl) == "4096/16384")
   M.finish(first, first_seq)
   for _, expected in ipairs { first, second } do
      local chunk, seq = M.start_remove(fl)
      assert(chunk == expected)
      M.finish(chunk, seq)
   end
   assert(not M.start_remove(fl))
end

-- Many times around the queue: chunks come out in order, and never more fit than there is room for.
local function test_rounds (fl)
   local put, taken = 0, 0
   for round = 1, 1000 do
      for _ = 1, round % 11 do
         local chunk, seq = M.start_add(fl)
         if not chunk then break end
         chunk.nfree, put = put % 2048, put + 1
         M.finish(chunk, seq)
      end
      assert(put - taken <= 8 and (round % 11 < 8 or put - taken == 8))
      for _ = 1, round % 7 do
         local chunk, seq = M.start_remove(fl)
         if not chunk then break end
         assert(chunk.nfree == taken % 2048)
         taken = taken + 1
         M.finish(chunk, seq)
      end
   end
   assert(taken > 2000)
end

function M.selftest ()
   local name = "selftest/list.group_freelist"
   assert(not pcall(M.freelist_create, name, 6) and not pcall(M.freelist_open, name))
   local fl = M.freelist_create(name, 8)
   local again = M.freelist_create(name, 8)
   assert(again ~= fl and again.size == 8)
   test_order(fl)
   test_rounds(again)
   assert(M.freelist_open(name, true).enqueue_pos[0] == fl.enqueue_pos[0])
   shm.unlink("selftest")
end

return M
