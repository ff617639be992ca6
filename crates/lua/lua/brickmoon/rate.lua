-- Rate limits for control code: a token bucket that reads the clock, and a logger with a limited message rate.
--
-- The packet path has its own bucket, brickmoon.bucket, which takes the time as an argument and lives in C memory.
-- core.lib offers the two here as token_bucket_new and logger_new.

local C = require("ffi").C
require("core.lib_h")

local M = {}

-- A bucket that fills with `rate` tokens a second (default 10) and holds one second's worth, but at least one token.
local Bucket = {}
Bucket.__index = Bucket

function M.token_bucket_new (config)
   local bucket = setmetatable({ _tstamp = C.get_monotonic_time() }, Bucket)
   bucket:rate(config and config.rate or 10)
   return bucket
end

-- Returns the rate. With an argument, sets a new rate, fills the bucket, and returns the old rate.
function Bucket:rate (rate)
   local before = self._rate
   if rate == nil then return before end
   self._rate = rate
   self._max_tokens = math.max(rate, 1)
   self._tokens = self._max_tokens
   return before
end

local function refill (bucket)
   local now = C.get_monotonic_time()
   bucket._tokens = math.min(bucket._max_tokens, bucket._tokens + bucket._rate * (now - bucket._tstamp))
   bucket._tstamp = now
end

-- Whether there are n tokens (default 1). Reads the clock only if there seem to be too few.
function Bucket:can_take (n)
   n = n or 1
   if n > self._tokens then refill(self) end
   return n <= self._tokens
end

-- Takes n tokens (default 1) and returns true, or takes none and returns false.
function Bucket:take (n)
   n = n or 1
   if not self:can_take(n) then return false end
   self._tokens = self._tokens - n
   return true
end

M.logger_default = {
   rate = 10, discard_rate = 0.5, fh = io.stdout, flush = true, module = "", date = true,
   date_fmt = "%b %d %Y %H:%M:%S ",
}
M.logger_throttle = { interval = 10, excess = 5, increment = 4, min_rate = 0.1 }

-- A logger of at most `rate` messages a second. Further messages are discarded and counted, and the count is logged at
-- most `discard_rate` times a second. While more than `excess` times the rate is discarded over an `interval`, the
-- rate is halved, down to min_rate; afterwards it grows by 1/increment of itself in each interval.
local Logger = {}
Logger.__index = Logger

function M.logger_new (config)
   local settings = setmetatable({}, { __index = M.logger_default })
   for key, value in pairs(config or {}) do
      if M.logger_default[key] == nil then error("Logger: unknown configuration option "..tostring(key), 2) end
      settings[key] = value
   end
   return setmetatable({
      _config = settings, _discards = 0, _since = 0, _start = C.get_monotonic_time(),
      _tb = M.token_bucket_new({ rate = settings.rate }),
      _discard_tb = M.token_bucket_new({ rate = settings.discard_rate }),
   }, Logger)
end

local function write (logger, text)
   local config = logger._config
   local date = config.date and os.date(config.date_fmt) or ""
   local name = config.module ~= "" and config.module..": " or ""
   config.fh:write(date, name, text, "\n")
end

local function adapt (logger)
   local limits, configured = M.logger_throttle, logger._config.rate
   local elapsed = C.get_monotonic_time() - logger._start
   if elapsed < limits.interval then return end
   local rate, steps = logger._tb:rate(), elapsed / limits.interval
   local new = rate
   if logger._since / elapsed > configured * limits.excess then
      new = math.max(limits.min_rate, rate / 2 ^ steps)
   else
      new = math.min(configured, rate + configured / limits.increment * steps)
   end
   if new ~= rate then
      write(logger, ("%.2f messages/s discarded: logging rate now %.2f Hz"):format(logger._since / elapsed, new))
      logger._tb:rate(new)
   end
   logger._since, logger._start = 0, C.get_monotonic_time()
end

-- Logs the message, or discards and counts it.
function Logger:log (message)
   if not self:can_log() then return end
   self._tb:take(1)
   if self._discards > 0 and self._discard_tb:take(1) then
      write(self, self._discards.." messages discarded")
      self._discards = 0
   end
   adapt(self)
   write(self, message)
   if self._config.flush then self._config.fh:flush() end
end

-- Whether log() would write now. If not, a message is counted as discarded, and the caller need not format it.
function Logger:can_log ()
   if self._tb:can_take(1) then return true end
   self._discards, self._since = self._discards + 1, self._since + 1
   return false
end

function M.selftest ()
   local bucket = M.token_bucket_new({ rate = 2 })
   assert(bucket:take(2) and not bucket:take(1) and bucket:rate() == 2)
   assert(bucket:rate(0.5) == 2 and bucket:can_take(1) and not bucket:can_take(2))
   local text = {}
   local fh = { write = function (_, ...) text[#text + 1] = table.concat({ ... }) end, flush = function () end }
   local logger = M.logger_new({ rate = 2, fh = fh, module = "m", date = false, discard_rate = 1 })
   for i = 1, 5 do logger:log("message "..i) end
   assert(table.concat(text) == "m: message 1\nm: message 2\n", table.concat(text))
   logger._tb:rate(1)
   logger:log("last")
   assert(text[3] == "m: 3 messages discarded\n" and text[4] == "m: last\n")
   assert(not pcall(M.logger_new, { nonsense = 1 }))
end

return M
