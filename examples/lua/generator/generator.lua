-- A packet generator with a fixed rate, and a histogram of its packets' latency.
--
--    brickmoon run generator.lua [--to PORT] [--from PORT] [--rate PPS] [--size BYTES] [--flows N] [--duration SECONDS]
--
-- Sends UDP packets from --to and receives them on --from. Without ports, it sends to itself.
local ffi = require("ffi")
require("core.lib_h")
local lib, link, packet = require("core.lib"), require("core.link"), require("core.packet")
local config, histogram = require("core.config"), require("core.histogram")
local ports, views, ipsum = require("brickmoon.ports"), require("brickmoon.views"), require("lib.checksum").ipsum
local C = ffi.C

-- The payload: a magic number, the packet's number, and when it was sent.
local stamp_ptr = ffi.typeof("struct { uint32_t magic; uint32_t number; uint64_t sent_ns; } __attribute__((packed)) *")
local STAMP, MAGIC = 42, 0x6e6f6f4d

local function template (size)
   local p = packet.resize(packet.allocate(), size)
   ffi.fill(p.data, size)
   local pkt = views.getUdp4Packet(p.data)
   pkt.eth:setSrcString("02:00:00:00:00:01")
   pkt.eth:setDstString("02:00:00:00:00:02")
   pkt.eth:setType(0x0800)
   pkt.ip4:setVersion(4)
   pkt.ip4:setHeaderLength(5)
   pkt.ip4:setLength(size - 14)
   pkt.ip4:setTTL(64)
   pkt.ip4:setProtocol(17)
   pkt.ip4:setSrcString("192.0.2.1")
   pkt.ip4:setDstString("198.51.100.1")
   pkt.ip4:calculateChecksum()
   pkt.udp:setDstPort(9)
   pkt.udp:setLength(size - 34)
   return p
end

local Generator = { config = { rate = { default = 1e6 }, size = { default = 64 }, flows = { default = 256 } } }
Generator.__index = Generator

function Generator:new (conf)
   if conf.size < 58 or conf.size > 1514 then error("--size must be 58 (room for the time stamp) to 1514", 0) end
   return setmetatable({ conf = conf, template = template(conf.size), sent = 0, late = 0, start = false }, Generator)
end

-- Sends as many packets as the rate requires by now. Those that do not fit are late, and sent in a later breath.
function Generator:pull ()
   local output, now = self.output.output, C.get_time_ns()
   self.start = self.start or now
   local due = math.floor(tonumber(now - self.start) * self.conf.rate / 1e9) - self.sent
   local count = math.min(due, link.nwritable(output), 4 * engine.pull_npackets)
   self.late = due - count
   for _ = 1, count do
      local p = packet.clone(self.template)
      views.udp(p.data):setSrcPort(1024 + self.sent % self.conf.flows)
      local stamp = ffi.cast(stamp_ptr, p.data + STAMP)
      stamp.magic, stamp.number, stamp.sent_ns = MAGIC, self.sent, now
      self.sent = self.sent + 1
      link.transmit(output, p)
   end
end

function Generator:stop () packet.free(self.template) end

local Receiver = {}
Receiver.__index = Receiver

function Receiver:new ()
   return setmetatable({ received = 0, foreign = 0, damaged = 0, disordered = 0, expected = 0,
                         latency_ns = histogram.new(100, 1e9) }, Receiver)
end

function Receiver:take (p)
   local stamp = ffi.cast(stamp_ptr, p.data + STAMP)
   if p.length < STAMP + 16 or stamp.magic ~= MAGIC then
      self.foreign = self.foreign + 1
      return
   end
   if ipsum(p.data + 14, 20, 0) ~= 0 then self.damaged = self.damaged + 1 end
   if stamp.number < self.expected then self.disordered = self.disordered + 1 end
   self.expected = math.max(self.expected, stamp.number + 1)
   self.received = self.received + 1
   self.latency_ns:add(tonumber(C.get_time_ns() - stamp.sent_ns))
end

function Receiver:push ()
   local input = self.input.input
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      self:take(p)
      packet.free(p)
   end
end

local arg, actions, options = {}, {}, { "to", "from", "rate", "size", "flows", "duration" }
local long = {}
for _, name in ipairs(options) do
   long[name] = 1
   actions[name] = function (value) arg[name] = value end
end
lib.dogetopt({ ... }, actions, "", long)

local c = config.new()
local settings = { rate = tonumber(arg.rate), size = tonumber(arg.size), flows = tonumber(arg.flows) }
config.app(c, "generator", Generator, settings)
config.app(c, "receiver", Receiver)
if arg.to then ports.open(c, "to", arg.to) end
if arg.from and arg.from ~= arg.to then ports.open(c, "from", arg.from) end
local from = not arg.from and "generator" or arg.from == arg.to and "to" or "from"
if arg.to then config.link(c, "generator.output -> to.input") end
if arg.from or not arg.to then config.link(c, from..".output -> receiver.input") end
engine.configure(c)

local start = C.get_monotonic_time()
engine.main({ duration = tonumber(arg.duration) or 10, no_report = true })
local seconds = C.get_monotonic_time() - start
local sender, receiver = engine.app_table.generator, engine.app_table.receiver
local least, mean, most = receiver.latency_ns:summarize()
print(("sent        %s packets, %.0f a second; %s were late"):format(
   lib.comma_value(sender.sent), sender.sent / seconds, lib.comma_value(sender.late)))
print(("received    %s; damaged %d, out of order %d, of others %d"):format(
   lib.comma_value(receiver.received), receiver.damaged, receiver.disordered, receiver.foreign))
if receiver.received > 0 then
   print(("latency ns  least %.0f, mean %.0f, 99%% below %.0f, most %.0f"):format(least, mean,
      receiver.latency_ns:quantile(0.99), most))
end
engine.configure(config.new())
return { sent = sender.sent, received = receiver.received, damaged = receiver.damaged,
         disordered = receiver.disordered, seconds = seconds }
