-- Replies to what went out come in; other packets from outside come in only if a rule allows it.
local ffi, pcap, views = require("ffi"), require("lib.pcap.pcap"), require("brickmoon.views")
local folder = debug.getinfo(1, "S").source:match("^@(.*)/")

local function udp (source, source_port, destination, destination_port, protocol)
   local bytes = ffi.new("uint8_t[60]")
   local pkt = views.getUdp4Packet(bytes)
   pkt.eth:setType(0x0800)
   pkt.ip4:setVersion(4)
   pkt.ip4:setHeaderLength(5)
   pkt.ip4:setLength(46)
   pkt.ip4:setProtocol(protocol or 17)
   pkt.ip4:setSrcString(source)
   pkt.ip4:setDstString(destination)
   pkt.udp:setSrcPort(source_port)
   pkt.udp:setDstPort(destination_port)
   return ffi.string(bytes, 60)
end
local arp = ("\0"):rep(12).."\8\6"..("\0"):rep(46)

local function write (frames)
   local name = os.tmpname()
   local file = io.open(name, "wb")
   pcap.write_file_header(file)
   for _, bytes in ipairs(frames) do pcap.write_record(file, bytes, #bytes) end
   file:close()
   return name
end
local function read (name)
   local frames = {}
   for bytes in pcap.records(name) do frames[#frames + 1] = bytes end
   return frames
end

local function run (inside, outside, ...)
   local from_in, from_out, to_in, to_out = write(inside), write(outside), os.tmpname(), os.tmpname()
   local fine, why = pcall(assert(loadfile(folder.."/firewall.lua")), "--inside", ("pcap:%s,%s"):format(from_in, to_in),
      "--outside", ("pcap:%s,%s"):format(from_out, to_out), "--duration", "0.3", ...)
   engine.configure(require("core.config").new())
   local went_out, came_in = {}, {}
   if fine then went_out, came_in = read(to_out), read(to_in) end
   for _, name in ipairs { from_in, from_out, to_in, to_out } do os.remove(name) end
   if not fine then error(why, 0) end
   return went_out, came_in
end
local function same (found, ...)
   local wanted = { ... }
   assert(#found == #wanted, #found.." frames instead of "..#wanted)
   for i, bytes in ipairs(wanted) do assert(found[i] == bytes, "frame "..i) end
end

local question = udp("10.0.0.1", 5000, "192.0.2.1", 53)
local answer, other = udp("192.0.2.1", 53, "10.0.0.1", 5000), udp("192.0.2.1", 53, "10.0.0.1", 5001)
local web, ping = udp("203.0.113.9", 4000, "10.0.0.2", 80, 6), udp("203.0.113.9", 0x0800, "10.0.0.2", 0, 1)
local out, back = run({ question, arp }, { answer, other, web, ping, arp })
same(out, question, arp)
same(back, answer, arp)
out, back = run({ question }, { answer, web, ping }, "--out", "tcp", "--in", "tcp dst port 80", "--in", "icmp")
same(out)
same(back, web, ping)
local fine, why = pcall(run, {}, {}, "--in", "tcp port what")
assert(not fine and tostring(why):match("there is no tcp service 'what'"), why)
