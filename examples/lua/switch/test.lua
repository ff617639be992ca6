-- Three ports: frames are sent to the port of their destination, or flooded while that is unknown.
local pcap = require("lib.pcap.pcap")
local folder = debug.getinfo(1, "S").source:match("^@(.*)/")

local function mac (n) return "\2\0\0\0\0"..string.char(n) end
local function frame (to, from, text) return to..from.."\8\0"..text..("\0"):rep(46 - #text) end
local all = ("\255"):rep(6)

local names = {}
local function port (frames)
   local input, output = os.tmpname(), os.tmpname()
   local file = io.open(input, "wb")
   pcap.write_file_header(file)
   for _, bytes in ipairs(frames) do pcap.write_record(file, bytes, #bytes) end
   file:close()
   names[#names + 1], names[#names + 2] = input, output
   return ("pcap:%s,%s"):format(input, output), output
end
local function texts (path)
   local found = {}
   for bytes in pcap.records(path) do found[#found + 1] = bytes:sub(15):match("^%Z*") end
   table.sort(found)
   return table.concat(found, " ")
end

-- In one breath, the ports are handled in order: 1 learns A, 2 learns B, 3 learns C.
local one, sent1 = port({ frame(all, mac(1), "broadcast"), frame(mac(1), mac(1), "to-itself"), "short" })
local two, sent2 = port({ frame(mac(1), mac(2), "to-1"), frame(mac(9), mac(2), "unknown") })
local three, sent3 = port({ frame(mac(2), mac(3), "to-2"), frame(mac(1), "\3\0\0\0\0\1", "from-group") })
assert(loadfile(folder.."/switch.lua"))("--duration", "0.3", one, two, three)
engine.configure(require("core.config").new())
assert(texts(sent1) == "from-group to-1 unknown", texts(sent1))
assert(texts(sent2) == "broadcast to-2", texts(sent2))
assert(texts(sent3) == "broadcast unknown", texts(sent3))
for _, name in ipairs(names) do os.remove(name) end
local fine, why = pcall(assert(loadfile(folder.."/switch.lua")), one)
assert(not fine and tostring(why):match("^usage: "), why)
