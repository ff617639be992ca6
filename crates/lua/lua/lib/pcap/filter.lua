-- Packet filters in tcpdump's language, as objects. brickmoon.filter does the work.

local compile = require("brickmoon.filter").compile
require("lib.lua.class")

local filter = subClass(nil)
filter._name = "pcap packet filter"

-- Raises an error that names the column if the filter is invalid.
function filter:new (program)
   local o = filter:superClass().new(self)
   o._filter = compile(program)
   return o
end

-- Whether the frame of `length` bytes at `data` matches.
function filter:match (data, length) return self._filter(data, length) end

function filter.selftest ()
   local frame = require("ffi").new("uint8_t[60]")
   frame[12], frame[13] = 0x08, 0x06
   assert(filter:new("arp"):match(frame, 60) and not filter:new("ip"):match(frame, 60))
   assert(not pcall(filter.new, filter, "tcp dst"))
end

return filter
