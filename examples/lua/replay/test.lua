-- Frames are sent in order, as many times as requested, and when they are due.
local ffi, pcap = require("ffi"), require("lib.pcap.pcap")
require("core.lib_h")
local folder = debug.getinfo(1, "S").source:match("^@(.*)/")
local program = assert(loadfile(folder.."/replay.lua"))

local from, to = os.tmpname(), os.tmpname()
local file = io.open(from, "wb")
pcap.write_file_header(file)
for i = 1, 5 do pcap.write_record(file, ("%060d"):format(i), 60, 1000 + i * 0.02) end
file:close()

local function run (...)
   local arguments = { ... }
   arguments[#arguments + 1], arguments[#arguments + 2] = from, "pcap:,"..to
   local start = ffi.C.get_monotonic_time()
   program(unpack(arguments))
   local found = {}
   for bytes in pcap.records(to) do found[#found + 1] = tonumber(bytes) end
   return table.concat(found, " "), ffi.C.get_monotonic_time() - start
end

local order, seconds = run()
assert(order == "1 2 3 4 5" and seconds >= 0.08, order.." in "..seconds)
order, seconds = run("--loops", "3", "--speed", "10")
assert(order == "1 2 3 4 5 1 2 3 4 5 1 2 3 4 5" and seconds >= 0.028, order.." in "..seconds)
order = run("--rate", "100000", "--loops", "400")
assert(#order == 400 * 10 - 1)
os.remove(from)
os.remove(to)
assert(not pcall(program, from))
