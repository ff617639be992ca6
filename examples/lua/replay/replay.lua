-- A load generator that replays a capture file, with its own timing or at a fixed rate, once or several times.
--
--    brickmoon run replay.lua [--rate PPS | --speed FACTOR] [--loops N] FILE.pcap PORT
local ffi = require("ffi")
require("core.lib_h")
local lib, link, packet = require("core.lib"), require("core.link"), require("core.packet")
local config, ports, pcap = require("core.config"), require("brickmoon.ports"), require("lib.pcap.pcap")

-- Keeps all frames in packets, so that sending one means copying a few cache lines.
local Replay = { config = { file = { required = true }, rate = {}, speed = { default = 1 }, loops = { default = 1 } } }
Replay.__index = Replay

function Replay:new (conf)
   local frames, times, first = {}, {}, nil
   for data, record in pcap.records(conf.file) do
      local seconds = record.ts_sec + record.ts_usec / 1e6
      first = first or seconds
      frames[#frames + 1] = packet.from_string(data)
      -- When it is due, in seconds from the start; times in a file must not go backwards.
      local due = conf.rate and (#frames - 1) / conf.rate or (seconds - first) / conf.speed
      times[#times + 1] = math.max(due, times[#times] or 0)
   end
   if #frames == 0 then error(conf.file..": it contains no frame", 0) end
   local gap = conf.rate and 1 / conf.rate or #frames > 1 and times[#times] / (#frames - 1) or 0
   return setmetatable({ frames = frames, times = times, period = times[#times] + gap, loops = conf.loops,
                         at = 1, loop = 0, sent = 0, done = false }, Replay)
end

function Replay:pull ()
   local output, now = self.output.output, ffi.C.get_monotonic_time()
   self.start = self.start or now
   local room = math.min(link.nwritable(output), 2 * engine.pull_npackets)
   while room > 0 and not self.done do
      if self.start + self.loop * self.period + self.times[self.at] > now then return end
      link.transmit(output, packet.clone(self.frames[self.at]))
      self.sent, room, self.at = self.sent + 1, room - 1, self.at + 1
      if self.at > #self.frames then
         self.at, self.loop = 1, self.loop + 1
         self.done = self.loop >= self.loops
      end
   end
end

function Replay:stop ()
   for _, p in ipairs(self.frames) do packet.free(p) end
end

local arg = {}
local function number (name)
   return function (value) arg[name] = tonumber(value) or error("--"..name.." is a number", 0) end
end
local rest = lib.dogetopt({ ... }, { rate = number("rate"), speed = number("speed"), loops = number("loops") }, "",
                          { rate = 1, speed = 1, loops = 1 })
if #rest ~= 2 then error("usage: replay.lua [--rate PPS | --speed FACTOR] [--loops N] FILE.pcap PORT", 0) end

local c = config.new()
config.app(c, "replay", Replay, { file = rest[1], rate = arg.rate, speed = arg.speed, loops = arg.loops })
ports.open(c, "port", rest[2])
config.link(c, "replay.output -> port.input")
engine.configure(c)
local replay, start = engine.app_table.replay, ffi.C.get_monotonic_time()
engine.main({ done = function () return replay.done end, no_report = true })
local seconds = ffi.C.get_monotonic_time() - start
for _ = 1, 2 do engine.breathe() end
print(("sent %s frames in %.3f s, %s a second"):format(lib.comma_value(replay.sent), seconds,
                                                      lib.comma_value(math.floor(replay.sent / seconds))))
engine.configure(config.new())
