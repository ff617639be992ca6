-- Runs the BPF instructions of random filters over random frames, in an interpreter, and compares the results with those
-- of the Lua functions that the same filters compile to. filter_libpcap compares these with libpcap.

local ffi = require("ffi")
local bit = require("bit")
local filter = require("brickmoon.filter")
local parser = require("brickmoon.filter.parser")
local bpf = require("brickmoon.filter.bpf")
local random_filters = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./").."random_filters.lua")

local LIMIT = 256

local u32 = ffi.typeof("uint32_t")
local function word (n) return tonumber(ffi.cast(u32, ffi.cast("uint64_t", n))) end
local function alu32 (op)
   return ({ [0x00] = function (a, b) return (a + b) % 4294967296 end, [0x10] = function (a, b) return (a - b) % 4294967296 end,
             [0x20] = function (a, b) return word(ffi.cast("uint64_t", a) * ffi.cast("uint64_t", b)) end,
             [0x30] = function (a, b) return math.floor(a / b) end, [0x40] = function (a, b) return bit.bor(a, b) % 4294967296 end,
             [0x50] = function (a, b) return bit.band(a, b) % 4294967296 end,
             [0x60] = function (a, b) assert(b < 32); return bit.lshift(a, b) % 4294967296 end,
             [0x70] = function (a, b) assert(b < 32); return bit.rshift(a, b) % 4294967296 end,
             [0x90] = function (a, b) return a % b end, [0xa0] = function (a, b) return bit.bxor(a, b) % 4294967296 end,
             [0xb0] = function (_, b) return b end })[op]
end
local jumps = {
   [0x10] = function (a, b) return a == b end, [0x20] = function (a, b) return a > b end, [0x30] = function (a, b) return a >= b end,
   [0x40] = function (a, b) return bit.band(a, b) ~= 0 end, [0x50] = function (a, b) return a ~= b end,
   [0xa0] = function (a, b) return a < b end, [0xb0] = function (a, b) return a <= b end,
}

-- A pointer into the frame is its offset plus this.
local FRAME, STACK = 2 ^ 40, 2 ^ 41

local function load (memory, stack, address, size)
   if address > 1.5 * FRAME then return stack[address] or error("reads stack that was not written") end
   local at, number = address - FRAME, 0
   assert(at >= 0 and at + size <= LIMIT, "reads outside the frame")
   for i = size - 1, 0, -1 do number = number * 256 + (memory:byte(at + i + 1) or 0) end
   return number
end

local function swap (number, size)
   return size == 2 and bit.rshift(bit.bswap(number), 16) or bit.bswap(number) % 4294967296
end

local function execute (code, frame, used)
   local copied = math.min(#frame, used)
   local memory, stack = frame:sub(1, copied)..("\255"):rep(LIMIT - copied), {}
   local r = { [1] = FRAME, [2] = #frame, [3] = copied, [10] = STACK }
   local at = ffi.cast("const uint8_t *", code)
   local pc, limit = 0, #code / 8
   while true do
      assert(pc < limit, "runs off its end")
      local i = at + pc * 8
      local op, to, from = i[0], bit.band(i[1], 15), bit.rshift(i[1], 4)
      local offset, value = ffi.cast("const int16_t *", i + 2)[0], ffi.cast("const uint32_t *", i + 4)[0]
      local class, kind = bit.band(op, 7), bit.band(op, 0xf0)
      local operand = bit.band(op, 8) ~= 0 and r[from] or value
      pc = pc + 1
      if op == 0x95 then return r[0] == 1
      elseif op == 0x05 then pc = pc + offset
      elseif op == 0xdc then r[to] = swap(r[to], value / 8)
      elseif class == 1 then r[to] = load(memory, stack, r[from] + offset, ({ [0x71] = 1, [0x69] = 2, [0x61] = 4 })[op])
      elseif op == 0x63 then stack[r[to] + offset] = r[from]
      elseif class == 4 then r[to] = alu32(kind)(r[to], operand)
      elseif class == 7 then r[to] = kind == 0xb0 and operand or r[to] + operand
      elseif class == 5 or class == 6 then if jumps[kind](r[to], operand) then pc = pc + offset end
      else error(("an unknown instruction: %02x"):format(op)) end
   end
end

local compared, matched = 0, 0

local function compare (text, match, code, used)
   for _ = 1, 30 do
      local frame = random_filters.frames[math.random(#random_filters.frames)]
      local expected, found = match(frame, #frame), execute(code, frame, used)
      assert(found == expected, ("%s\nseed %d: %s instead of %s"):format(text, random_filters.seed, tostring(found), tostring(expected)))
      compared, matched = compared + 1, matched + (expected and 1 or 0)
   end
end

for _ = 1, 1000 do
   local text = random_filters.expression(0)
   local fine, match = pcall(filter.compile, text)
   if fine then
      local accepted, code, used = pcall(bpf.instructions, parser.parse(text))
      if accepted then
         compare(text, match, code, used)
      else
         assert(code:match("^filter: it reads byte %d+ of a packet, and a capture can only test the first 256$"), code)
      end
   end
end
assert(compared > 10000 and matched > compared / 20, ("too little was compared: %d, %d"):format(compared, matched))
