-- Sending to itself: the rate is kept, and nothing is lost or damaged. Sending to a file: the packets are correct.
local pcap = require("lib.pcap.pcap")
local folder = debug.getinfo(1, "S").source:match("^@(.*)/")
local program = assert(loadfile(folder.."/generator.lua"))

local result = program("--rate", "20000", "--duration", "0.5", "--size", "100")
local due = 20000 * result.seconds
assert(math.abs(result.sent - due) < 0.1 * due, result.sent.." packets instead of "..due)
assert(result.sent - result.received <= 200 and result.damaged == 0 and result.disordered == 0)

local name = os.tmpname()
result = program("--rate", "5000", "--duration", "0.1", "--flows", "2", "--to", "pcap:,"..name)
local match = require("brickmoon.filter").compile("udp and src port (1024 or 1025) and dst port 9 and len = 64")
local count = 0
for bytes in pcap.records(name) do
   count = count + 1
   assert(match(bytes, #bytes) and bytes:sub(43, 46) == "Moon")
end
assert(count > 50 and count >= result.sent - 5, count.." of "..result.sent)
os.remove(name)
assert(not pcall(program, "--size", "40"))
