-- Limits the rate of each source at `ingress`: every IPv4 source has its own token bucket on each worker.
-- args: rate = packets per second, burst = packets at once, sources = number of sources tracked
local hook = require("brickmoon.hook")
local ffi = require("ffi")
local args = ...

local rate, size = (args.rate or 1000) / 1e9, args.burst or 100
local count = 2 ^ math.ceil(math.log(args.sources or 65536) / math.log(2))
ffi.cdef "struct rate_limit_bucket { uint32_t source; double tokens, time; };"
local buckets = ffi.new("struct rate_limit_bucket[?]", count)
local limited = hook.reason("rate_limited", "its source exceeds its rate limit")

-- When two sources have the same slot, the newer one takes it over with a full bucket.
local function place (source)
   return bit.band(bit.bxor(source * 0x9e3779b1 % 2 ^ 32, bit.rshift(source, 15)), count - 1)
end

return { ingress = function (burst)
   local now = tonumber(burst.now_ns)
   for i = 0, burst.count - 1 do
      local p = burst.packet[i]
      if p.length >= 34 and p.data[12] == 8 and p.data[13] == 0 then
         local source = ((p.data[26] * 256 + p.data[27]) * 256 + p.data[28]) * 256 + p.data[29]
         local b = buckets[place(source)]
         if b.source ~= source then b.source, b.tokens, b.time = source, size, now end
         b.tokens, b.time = math.min(size, b.tokens + (now - b.time) * rate), now
         if b.tokens >= 1 then b.tokens = b.tokens - 1 else burst.drop(i, limited) end
      end
   end
end }
