-- Histograms with exponentially growing buckets, mainly for latencies: 507 buckets between a minimum and a maximum,
-- one below, and one above, in one page that other processes can read. Adding allocates nothing.

local ffi = require("ffi")
local shm = require("core.shm")
local log, floor, exp, huge = math.log, math.floor, math.exp, math.huge

local M = {}
M.type = shm.register("histogram", M)

local INNER, LAST = 507, 508

local histogram_t = ffi.typeof [[
   struct { double minimum, growth_factor_log; uint64_t total, buckets[509]; }
]]

local function growth_log (minimum, maximum)
   if not (minimum > 0 and maximum > minimum) then
      error(("histogram: needs 0 < minimum < maximum, has %s and %s"):format(minimum, maximum), 3)
   end
   return log(maximum / minimum) / INNER
end

-- A private histogram.
function M.new (minimum, maximum)
   return histogram_t(minimum, growth_log(minimum, maximum))
end

-- A histogram that others can open by its name. It starts empty.
function M.create (name, minimum, maximum)
   local growth = growth_log(minimum, maximum)
   local histogram = shm.create(name, histogram_t)
   histogram.minimum, histogram.growth_factor_log = minimum, growth
   histogram:clear()
   return histogram
end

function M.open (name) return shm.open(name, histogram_t, true) end

function M.add (histogram, measurement)
   local bucket = 0
   if measurement > 0 then
      bucket = floor(log(measurement / histogram.minimum) / histogram.growth_factor_log) + 1
      if bucket < 0 then bucket = 0 elseif bucket > LAST then bucket = LAST end
   end
   histogram.total = histogram.total + 1
   histogram.buckets[bucket] = histogram.buckets[bucket] + 1
end

local function bounds (histogram, bucket)
   local function edge (i) return histogram.minimum * exp(histogram.growth_factor_log * i) end
   if bucket == 0 then return 0, histogram.minimum end
   return edge(bucket - 1), bucket == LAST and huge or edge(bucket)
end

-- for count, low, high in histogram:iterate([previous]): every bucket, lowest first. With an earlier snapshot, the
-- counts since then. Counts are uint64_t.
function M.iterate (histogram, previous)
   local bucket = -1
   return function ()
      bucket = bucket + 1
      if bucket > LAST then return nil end
      local count = histogram.buckets[bucket]
      if previous then count = count - previous.buckets[bucket] end
      return count, bounds(histogram, bucket)
   end
end

-- Copies the histogram into `copy`, or into a new one.
function M.snapshot (histogram, copy)
   copy = copy or histogram_t()
   ffi.copy(copy, histogram, ffi.sizeof(histogram_t))
   return copy
end

function M.clear (histogram)
   histogram.total = 0
   ffi.fill(histogram.buckets, ffi.sizeof(histogram.buckets))
end

-- A function that calls `thunk` and adds the time it took according to now().
function M.wrap_thunk (histogram, thunk, now)
   return function ()
      local start = now()
      thunk()
      histogram:add(now() - start)
   end
end

-- Minimum, mean and maximum, to the precision of the buckets; 0, 0, 0 if nothing was added since `previous`.
function M.summarize (histogram, previous)
   local least, greatest, sum, total = nil, 0, 0, 0
   for count, low, high in M.iterate(histogram, previous) do
      count = tonumber(count)
      if count > 0 then
         if high == huge then high = low end
         least, greatest = least or low, high
         sum, total = sum + count * (low + high) / 2, total + count
      end
   end
   if total == 0 then return 0, 0, 0 end
   return least, sum / total, greatest
end

-- The upper bound of the bucket that holds the quantile `q` (0 to 1).
function M.quantile (histogram, q, previous)
   local total = tonumber(histogram.total) - (previous and tonumber(previous.total) or 0)
   local sum = 0
   for count, low, high in M.iterate(histogram, previous) do
      sum = sum + tonumber(count)
      if count > 0 and sum >= q * total then return high == huge and low or high end
   end
   return 0
end

ffi.metatype(histogram_t, { __index = {
   add = M.add, iterate = M.iterate, snapshot = M.snapshot, clear = M.clear, wrap_thunk = M.wrap_thunk,
   summarize = M.summarize, quantile = M.quantile,
}, __tostring = function (histogram)
   return ("min: %f / avg: %f / max: %f"):format(M.summarize(histogram))
end })

local function test_buckets (h)
   for _, value in ipairs { 1e-7, 1e-6 + 1e-9, 1 - 1e-9, 1.5 } do h:add(value) end
   assert(h.total == 4 and tostring(h):match("^min: 0.000000 / avg: 0.%d+ / max: 1.%d+$"), tostring(h))
   for bucket, count, low, high in (function ()
      local next_bucket, i = h:iterate(), -1
      return function ()
         local count, low, high = next_bucket()
         i = i + 1
         if count then return i, count, low, high end
      end
   end)() do
      local wanted = ({ [0] = 1e-7, [1] = 1e-6 + 1e-9, [507] = 1 - 1e-9, [508] = 1.5 })[bucket]
      assert(count == (wanted and 1 or 0), "bucket "..bucket)
      assert(not wanted or (low <= wanted and wanted <= high))
   end
end

function M.selftest ()
   assert(ffi.sizeof(histogram_t) == 4096)
   local h = M.new(1e-6, 1)
   test_buckets(h)
   local before = h:snapshot()
   assert(before.total == 4 and before.buckets[508] == 1)
   for i = 1, 1000 do h:add(i / 1000) end
   local least, mean, greatest = h:summarize(before)
   assert(math.abs(mean - 0.5) < 0.02 and least < 0.0011 and math.abs(greatest - 1) < 0.03)
   assert(math.abs(h:quantile(0.5, before) - 0.5) < 0.02)
   h:clear()
   assert(h.total == 0 and h.buckets[508] == 0 and h:summarize() == 0)
   local clock = 0
   h:wrap_thunk(function () clock = clock + 0.25 end, function () return clock end)()
   assert(h.total == 1 and math.abs(h:quantile(1) - 0.25) < 0.01)
   local shared = M.create("core.histogram/test.histogram", 1, 10)
   shared:add(5)
   assert(M.open("core.histogram/test.histogram").total == 1)
   assert(not pcall(M.new, 0, 1) and not pcall(M.new, 2, 1))
   shm.unlink("core.histogram")
end

return M
