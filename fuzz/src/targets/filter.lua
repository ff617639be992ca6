-- Compiles a filter from any text and runs it on a frame. The argument is the address of an input: its length, the
-- length of the text, the text, the frame.

local ffi = require("ffi")
local filter = require("lib.pcap.filter")
local ROOM = 4096
local frames = { ffi.new("uint8_t[?]", ROOM), ffi.new("uint8_t[?]", ROOM) }

return function (address)
   local length = ffi.cast("uint32_t *", address)[0]
   local input = ffi.string(ffi.cast("uint8_t *", address) + 4, length)
   local count = input:byte(1) or 0
   local text, frame = input:sub(2, 1 + count), input:sub(2 + count, 1 + count + ROOM)
   local fine, compiled = pcall(filter.new, filter, text)
   if not fine then
      assert(type(compiled) == "string" and #compiled > 0, "refused without a message")
      return 0
   end
   -- What is behind the frame differs, and must not matter.
   for number, memory in ipairs(frames) do
      ffi.fill(memory, ROOM, number == 1 and 0 or 0xff)
      ffi.copy(memory, frame, #frame)
   end
   local one, two = compiled:match(frames[1], #frame), compiled:match(frames[2], #frame)
   assert(one == two, "the answer depends on what is behind the frame: "..text)
   assert(one == compiled:match(frames[1], #frame), "another result the second time: "..text)
   return 1
end
