-- Compiled functions return the same as interpreted ones: a uint32_t stays unsigned, however it was computed.
--
-- Not tested: ffi.cast("int64_t", x) of such a uint32_t, which compiled code treats as negative if the result is
-- compared immediately (LuaJIT issue 1492). Adding 0LL instead is correct.

local ffi, bit = require("ffi"), require("bit")
local high = 0xd8923b5a -- its top bit is set
local words = ffi.new("uint32_t[1]", high)
local function cast () return ffi.cast("uint32_t", bit.band(words[0], -1)) end

local cases = {
   ["a number equals a cast"] = function () return high == cast() end,
   ["a field equals a cast"] = function () return words[0] == cast() end,
   ["a cast is not negative"] = function () return cast() > 0 and not (cast() < 5) end,
   ["a cast plus a number"] = function () return tonumber(cast() + 1) == high + 1 end,
   ["a cast plus int64_t"] = function () return cast() + 0LL == 0xd8923b5aLL end,
   ["a cast plus uint64_t"] = function () return cast() + 0ULL == 0xd8923b5aULL end,
   ["a cast stored in 64 bits"] = function () return ffi.new("uint64_t[1]", cast())[0] == 0xd8923b5aULL end,
   ["a cast as a number"] = function () return tonumber(cast()) == high end,
   ["a negative number as uint32_t"] = function () return ffi.cast("uint32_t", bit.tobit(high)) == high end,
   ["bits of a cast"] = function () return bit.rshift(cast(), 31) == 1 and bit.band(cast(), 0xff) == 0x5a end,
   ["a shift by a 64-bit count"] = function () return bit.rshift(words[0] + 0ULL, 1ULL) == 0x6c491dadULL end,
   ["a shift by a count from memory"] = function () return bit.lshift(1ULL, bit.band(words[0] + 0ULL, 0x3fULL)) == 0x4000000ULL end,
}
for name, case in pairs(cases) do
   for turn = 1, 300 do
      assert(case(), ("%s: wrong at turn %d"):format(name, turn))
   end
end
