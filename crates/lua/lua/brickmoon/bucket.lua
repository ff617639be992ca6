-- Token buckets for the packet path: a C structure that takes the time as an argument, so that thousands fit into
-- an array or a brickmoon.table, and a test can be repeated.
--
--    local bucket = require("brickmoon.bucket")
--    local limit = bucket.new(1000, 50)                  -- 1000 a second, bursts of up to 50
--    if not limit:take(1, now_ns) then burst.drop(i, ...) end

local ffi = require("ffi")

ffi.cdef [[
typedef struct { double tokens, per_ns, size, time_ns; } bm_bucket;
]]

local M = {}
local Bucket = {}

-- Adds the tokens due until now, then takes n tokens (packets, bytes) if there are enough. If time goes backwards,
-- nothing is added.
function Bucket:take (n, now_ns)
   local elapsed = now_ns - self.time_ns
   local tokens = self.tokens
   if elapsed > 0 then
      tokens = tokens + elapsed * self.per_ns
      if tokens > self.size then tokens = self.size end
      self.time_ns = now_ns
   end
   if tokens < n then
      self.tokens = tokens
      return false
   end
   self.tokens = tokens - n
   return true
end

-- Sets rate (tokens a second) and size (most tokens at once), and fills the bucket. For buckets in arrays and tables:
-- `is_set` is false for a bucket that is all zeros.
function Bucket:set (rate, size, now_ns)
   if not (rate >= 0 and size > 0) then error("bucket: rate must be 0 or more, and size above 0", 2) end
   self.per_ns, self.size, self.tokens, self.time_ns = rate / 1e9, size, size, now_ns or 0
end

function Bucket:is_set () return self.size > 0 end

-- The number of tokens that the bucket would have at this time.
function Bucket:level (now_ns)
   return math.min(self.size, self.tokens + math.max(0, now_ns - self.time_ns) * self.per_ns)
end

local bucket_t = ffi.metatype("bm_bucket", { __index = Bucket })

-- The C type's name, for arrays and for values of tables.
M.ctype = "bm_bucket"

-- A full bucket of `size` tokens (one second's worth if not given).
function M.new (rate, size, now_ns)
   local bucket = bucket_t()
   bucket:set(rate, size or math.max(rate, 1), now_ns)
   return bucket
end

function M.selftest ()
   local b = M.new(1000, 2, 0)
   assert(b:take(1, 0) and b:take(1, 0) and not b:take(1, 0))
   assert(not b:take(1, 999999) and b:take(1, 1000001) and not b:take(1, 1000002))
   assert(not b:take(1, 500), "time that goes backwards must add no tokens")
   assert(b:take(2, 5e9) and not b:take(1, 5e9), "a bucket must not hold more than its size")
   assert(math.abs(b:level(5e9 + 5e5) - 0.5) < 1e-6 and not b:take(3, 1e15))
   local none = M.new(0, 1)
   assert(none:take(1, 1e9) and not none:take(1, 1e18) and not pcall(M.new, -1) and not ffi.new("bm_bucket"):is_set())
   -- A million packets at 10 times the rate: a tenth gets through.
   local limit, passed = M.new(1e5, 10), 0
   for i = 1, 1000000 do
      if limit:take(1, i * 1000) then passed = passed + 1 end
   end
   assert(math.abs(passed - 100000) < 20, passed)
end

return M
