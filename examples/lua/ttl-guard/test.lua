-- Packets from neighbors pass, those from further away do not.
local folder = debug.getinfo(1, "S").source:match("^@(.*)/") or "."
local TtlGuard = dofile(folder.."/ttl-guard.lua")

-- A frame with this EtherType, and TTL or hop limit `hops` at byte `at`.
local function frame (kind, at, hops)
   local bytes = {}
   for i = 1, 60 do bytes[i] = 0 end
   bytes[13], bytes[14], bytes[at + 1] = math.floor(kind / 256), kind % 256, hops
   return packet.from_string(string.char(unpack(bytes)))
end

local Source, Sink = {}, { lengths = 0 }
function Source:new () return setmetatable({}, { __index = Source }) end
function Source:pull ()
   if self.done then return end
   self.done = true
   for _, p in ipairs { frame(0x0800, 22, 255), frame(0x0800, 22, 254), frame(0x86dd, 21, 255), frame(0x86dd, 21, 1),
                        packet.from_string("short") } do
      link.transmit(self.output.output, p)
   end
end
function Sink:new () return setmetatable({ seen = {} }, { __index = Sink }) end
function Sink:push ()
   for _ = 1, link.nreadable(self.input.input) do
      local p = link.receive(self.input.input)
      table.insert(self.seen, p.data[13] == 0xdd and "ipv6" or "ipv4")
      packet.free(p)
   end
end

local c = config.new()
config.app(c, "source", Source)
config.app(c, "guard", TtlGuard)
config.app(c, "sink", Sink)
config.link(c, "source.output -> guard.input")
config.link(c, "guard.output -> sink.input")
engine.configure(c)
for _ = 1, 3 do engine.breathe() end
assert(table.concat(engine.app_table.sink.seen, " ") == "ipv4 ipv6", table.concat(engine.app_table.sink.seen, " "))
assert(tonumber(require("core.counter").read(engine.app_table.guard.shm.low_ttl)) == 3)
assert(not pcall(config.app, c, "wrong", TtlGuard, { minimun = 1 }))
