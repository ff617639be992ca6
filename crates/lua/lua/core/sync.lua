-- Locks in memory that processes share: a word of 32 bits, changed at one stroke.

local ffi = require("ffi")

ffi.cdef [[
bool bm_sync_cas(int *at, int old, int new);
void bm_sync_lock(int *at);
bool bm_sync_trylock(int *at);
void bm_sync_unlock(int *at);
]]
local C, int_ptr = ffi.C, ffi.typeof("int *")

local M = {}

-- Puts `new` there if `old` is there. Says whether it did.
function M.cas (at, old, new)
   return C.bm_sync_cas(ffi.cast(int_ptr, at), ffi.cast("int", old), ffi.cast("int", new))
end

-- Waits, busily, until the word is 0, and makes it 1.
function M.lock (at) C.bm_sync_lock(ffi.cast(int_ptr, at)) end

-- The same without waiting: says whether it was 0.
function M.trylock (at) return C.bm_sync_trylock(ffi.cast(int_ptr, at)) end

function M.unlock (at) C.bm_sync_unlock(ffi.cast(int_ptr, at)) end

function M.selftest ()
   local words = ffi.new("uint32_t[3]")
   assert(M.cas(words + 1, 0, 1) and words[1] == 1 and not M.cas(words + 1, 0, 2))
   assert(M.cas(words + 1, 1, 7) and words[0] == 0 and words[1] == 7 and words[2] == 0)
   M.lock(words)
   assert(words[0] == 1 and not M.trylock(words))
   M.unlock(words)
   assert(M.trylock(words) and words[0] == 1)
end

return M
