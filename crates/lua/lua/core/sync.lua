-- Atomic words in memory that processes share, and locks built on them.

local ffi = require("ffi")

ffi.cdef [[
bool bm_sync_cas(int *at, int old, int new);
bool bm_sync_cas64(uint64_t *at, uint64_t old, uint64_t new);
uint32_t bm_sync_load(const uint32_t *at);
uint64_t bm_sync_load64(const uint64_t *at);
void bm_sync_lock(int *at);
bool bm_sync_trylock(int *at);
void bm_sync_unlock(int *at);
]]
local C, int_ptr = ffi.C, ffi.typeof("int *")

local M = {}

-- Stores `new` if the value is `old`. Returns whether it did.
function M.cas (at, old, new)
   return C.bm_sync_cas(ffi.cast(int_ptr, at), ffi.cast("int", old), ffi.cast("int", new))
end

-- The same for 64 bits.
function M.cas64 (at, old, new) return C.bm_sync_cas64(at, old, new) end

-- Loads with acquire semantics: 32 bits as a number, 64 bits as a uint64_t.
function M.load (at) return C.bm_sync_load(at) end
function M.load64 (at) return C.bm_sync_load64(at) end

-- Spins until the word is 0, and sets it to 1.
function M.lock (at) C.bm_sync_lock(ffi.cast(int_ptr, at)) end

-- The same without waiting: returns whether the word was 0.
function M.trylock (at) return C.bm_sync_trylock(ffi.cast(int_ptr, at)) end

function M.unlock (at) C.bm_sync_unlock(ffi.cast(int_ptr, at)) end

function M.selftest ()
   local words = ffi.new("uint32_t[3]")
   assert(M.cas(words + 1, 0, 1) and words[1] == 1 and not M.cas(words + 1, 0, 2))
   assert(M.cas(words + 1, 1, 7) and words[0] == 0 and words[1] == 7 and words[2] == 0)
   assert(M.load(words + 1) == 7)
   local wide = ffi.new("uint64_t[3]")
   assert(M.cas64(wide + 1, 0, 0x123456789abcdefULL) and not M.cas64(wide + 1, 0, 2))
   assert(M.load64(wide + 1) == 0x123456789abcdefULL and wide[0] == 0 and wide[2] == 0)
   -- Equal only in the lower half, so not equal.
   assert(not M.cas64(wide + 1, 0x89abcdefULL, 1) and M.cas64(wide + 1, wide[1], 3) and wide[1] == 3)
   M.lock(words)
   assert(words[0] == 1 and not M.trylock(words))
   M.unlock(words)
   assert(M.trylock(words) and words[0] == 1)
end

return M
