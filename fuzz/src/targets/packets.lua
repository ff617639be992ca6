-- Compares packets with a model of strings. The argument is the address of an input: its length, then operations of
-- one byte each with their operands. For an input that begins with 0xff, returns the checksum of the rest instead.

local ffi = require("ffi")
local packet, checksum = require("core.packet"), require("lib.checksum")
local datagram = require("lib.protocol.datagram")
local ethernet = require("lib.protocol.ethernet")
local MAX, SLOTS = packet.max_payload, 4

local function append (p, bytes) return packet.append(p, ffi.cast("const uint8_t *", bytes), #bytes) or p end
local function prepend (p, bytes) return packet.prepend(p, ffi.cast("const uint8_t *", bytes), #bytes) or p end

-- Parses as many headers as there are and reads each one: this must not change the packet.
local function parse (p)
   local d = datagram:new(p, ethernet)
   for _ = 1, 8 do
      local header = d:parse()
      if not header then break end
      if header.src then header:src() end
      if header.dst then header:dst() end
   end
   local _, length = d:payload()
   assert(length >= 0 and length <= p.length, "a payload that is longer than its packet")
   for _, header in ipairs(d._parse.stack) do header:free() end
   d._parse.stack, d._parse.index = {}, 0
end

local operations = {
   -- Bytes behind or in front, where they fit.
   [0] = function (p, text, bytes)
      if #text + #bytes > MAX then return p, text end
      return append(p, bytes), text..bytes
   end,
   function (p, text, bytes)
      if #text + #bytes > MAX then return p, text end
      return prepend(p, bytes), bytes..text
   end,
   -- Too many are refused, and the packet stays as it was.
   function (p, text, bytes)
      local many = string.rep("x", MAX - #text + 1 + #bytes)
      assert(not pcall(append, p, many), "more bytes than fit were taken")
      return p, text
   end,
   function (p, text, bytes)
      local count = math.min(#bytes, #text)
      return packet.shiftleft(p, count) or p, text:sub(count + 1)
   end,
   function (p, text, bytes)
      if #text + #bytes > MAX then return p, text end
      p = packet.shiftright(p, #bytes) or p
      ffi.copy(p.data, bytes, #bytes)
      return p, bytes..text
   end,
   function (p, text, bytes)
      local length = math.min(#bytes * 37, MAX)
      packet.resize(p, length)
      if length > #text then
         ffi.fill(p.data + #text, length - #text, 7)
         text = text..string.rep("\7", length - #text)
      end
      return p, text:sub(1, length)
   end,
   function (p, text)
      local copy = packet.clone(p)
      packet.free(p)
      return copy, text
   end,
   function (p, text) parse(p); return p, text end,
   function (p, _, bytes)
      packet.free(p)
      return packet.from_string(bytes), bytes
   end,
}

return function (address)
   local length = ffi.cast("uint32_t *", address)[0]
   local input = ffi.string(ffi.cast("uint8_t *", address) + 4, length)
   if input:byte(1) == 0xff then
      local rest = input:sub(2)
      return checksum.ipsum(ffi.cast("uint8_t *", rest), #rest, 0)
   end
   local packets, texts = {}, {}
   for slot = 1, SLOTS do packets[slot], texts[slot] = packet.allocate(), "" end
   local at, steps = 1, 0
   while at + 1 <= length and steps < 200 do
      local first, count = input:byte(at, at + 1)
      local bytes = input:sub(at + 2, at + 1 + count)
      at, steps = at + 2 + #bytes, steps + 1
      local slot = bit.rshift(first, 6) + 1
      local operation = operations[bit.band(first, 63) % 9]
      packets[slot], texts[slot] = operation(packets[slot], texts[slot], bytes)
      for other = 1, SLOTS do
         local p, text = packets[other], texts[other]
         assert(p.length == #text and ffi.string(p.data, p.length) == text, "a packet differs from the model")
      end
   end
   for slot = 1, SLOTS do packet.free(packets[slot]) end
   return steps
end
