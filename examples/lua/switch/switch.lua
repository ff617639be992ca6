-- A learning Ethernet switch with any number of ports.
--
--    brickmoon run switch.lua [--age SECONDS] [--duration SECONDS] PORT PORT...
local ffi = require("ffi")
local lib, link, packet = require("core.lib"), require("core.link"), require("core.packet")
local counter = require("core.counter")
local config, ports, hash = require("core.config"), require("brickmoon.ports"), require("brickmoon.table")

local mac_ptr = ffi.typeof("const struct { uint32_t high; uint16_t low; } __attribute__((packed)) *")
local function mac_at (data) -- returns the six bytes as a number
   local mac = ffi.cast(mac_ptr, data)
   return mac.high + mac.low * 4294967296
end

local Switch = {
   config = { age = { default = 300 } },
   shm = { flooded = { counter }, unicast = { counter }, unlearnt = { counter } },
}
Switch.__index = Switch

function Switch:new (conf)
   local macs = hash.new { key = "uint64_t", value = "struct { double seen; uint32_t port; }", capacity = 16384 }
   return setmetatable({ macs = macs, age = conf.age }, Switch)
end

function Switch:learn (data, port)
   if bit.band(data[6], 1) == 1 then return end -- a group address cannot be a source
   local entry = self.macs:put(mac_at(data + 6))
   if entry == nil then return counter.add(self.shm.unlearnt) end
   entry.port, entry.seen = port, engine.now()
end

function Switch:flood (p, from)
   counter.add(self.shm.flooded)
   for i = 1, #self.output do
      if i ~= from then link.transmit(self.output[i], packet.clone(p)) end
   end
   packet.free(p)
end

function Switch:push ()
   for from = 1, #self.input do
      local input = self.input[from]
      for _ = 1, link.nreadable(input) do
         local p = link.receive(input)
         if p.length < 14 then
            packet.free(p)
         else
            self:learn(p.data, from)
            local entry = self.macs:get(mac_at(p.data))
            if entry == nil then
               self:flood(p, from)
            elseif entry.port == from then
               packet.free(p) -- the destination is on the port that it came from
            else
               counter.add(self.shm.unicast)
               link.transmit(self.output[entry.port], p)
            end
         end
      end
   end
end

-- Removes MAC addresses not seen for a long time, a few slots each millisecond.
function Switch:tick ()
   local oldest = engine.now() - self.age
   self.macs:sweep(function (entry) return entry.seen < oldest end, 32)
end

local age, duration = 300, nil
local devices = lib.dogetopt({ ... }, {
   age = function (s) age = tonumber(s) end, duration = function (s) duration = tonumber(s) end,
}, "", { age = 1, duration = 1 })
if #devices < 2 then error("usage: switch.lua [--age SECONDS] [--duration SECONDS] PORT PORT...", 0) end

local c = config.new()
config.app(c, "switch", Switch, { age = age })
for i, device in ipairs(devices) do
   ports.open(c, "port"..i, device)
   -- Port names sort in this order, so that input i and output i are the same port.
   config.link(c, ("port%d.output -> switch.p%04d"):format(i, i))
   config.link(c, ("switch.p%04d -> port%d.input"):format(i, i))
end
engine.configure(c)
engine.main({ duration = duration, report = { showlinks = true } })
