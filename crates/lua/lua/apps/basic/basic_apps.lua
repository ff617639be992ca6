-- Basic apps that most networks use: sources, sinks, and apps that join, split or copy streams.

local ffi = require("ffi")
local app = require("core.app")
local packet = require("core.packet")
local link = require("core.link")

local receive, transmit, nreadable, nwritable = link.receive, link.transmit, link.nreadable, link.nwritable
local clone, free = packet.clone, packet.free

local M = {}

-- Sends copies of one packet on every output: 60 bytes long, or `size` bytes if given.
local Source = {}
Source.__index = Source

function Source:new (size)
   size = tonumber(size) or 60
   local bytes = ffi.new("char[?]", math.max(size, 1))
   return setmetatable({ size = size, packet = packet.from_pointer(bytes, size) }, self)
end

function Source:pull ()
   local original, count = self.packet, app.pull_npackets
   for i = 1, #self.output do
      local output = self.output[i]
      for _ = 1, count do transmit(output, clone(original)) end
   end
end

-- Sends copies of `p` from now on, and frees the packet used before.
function Source:set_packet (p)
   free(self.packet)
   self.packet = p
end

function Source:stop ()
   free(self.packet)
end
M.Source = Source

-- Joins all inputs into one output, called `output` or `out`.
local Join = {}
Join.__index = Join

function Join:new ()
   return setmetatable({}, self)
end

function Join:push ()
   local output = self.output.output or self.output.out
   for i = 1, #self.input do
      local input = self.input[i]
      for _ = 1, nreadable(input) do transmit(output, receive(input)) end
   end
end
M.Join = Join

-- Sends each input to the first output that has room, and the rest to the next output.
local Split = {}
Split.__index = Split

function Split:new ()
   return setmetatable({}, self)
end

function Split:push ()
   for i = 1, #self.input do
      local input = self.input[i]
      for o = 1, #self.output do
         local output = self.output[o]
         for _ = 1, math.min(nreadable(input), nwritable(output)) do transmit(output, receive(input)) end
      end
   end
end
M.Split = Split

-- Frees all packets it receives.
local Sink = {}
Sink.__index = Sink

function Sink:new ()
   return setmetatable({}, self)
end

function Sink:push ()
   for i = 1, #self.input do
      local input = self.input[i]
      for _ = 1, nreadable(input) do free(receive(input)) end
   end
end
M.Sink = Sink

-- Sends each packet to every output: copies to all but the last, which gets the packet itself.
local Tee = {}
Tee.__index = Tee

function Tee:new ()
   return setmetatable({}, self)
end

function Tee:push ()
   local count = #self.output
   for i = 1, #self.input do
      local input = self.input[i]
      if count == 2 then
         local first, last = self.output[1], self.output[2]
         for _ = 1, nreadable(input) do
            local p = receive(input)
            transmit(first, clone(p))
            transmit(last, p)
         end
      else
         for _ = 1, nreadable(input) do
            local p = receive(input)
            for o = 1, count - 1 do transmit(self.output[o], clone(p)) end
            if count > 0 then transmit(self.output[count], p) else free(p) end
         end
      end
   end
end
M.Tee = Tee

-- Keeps the packets it receives, and sends copies of them over and over.
local Repeater = {}
Repeater.__index = Repeater

function Repeater:new ()
   return setmetatable({ index = 1, packets = {} }, self)
end

function Repeater:push ()
   local input, output, packets = self.input.input, self.output.output, self.packets
   for _ = 1, nreadable(input) do packets[#packets + 1] = receive(input) end
   if #packets == 0 then return end
   local index = self.index
   for _ = 1, app.pull_npackets do
      transmit(output, clone(packets[index]))
      index = index % #packets + 1
   end
   self.index = index
end

function Repeater:stop ()
   for _, p in ipairs(self.packets) do free(p) end
   self.packets = {}
end
M.Repeater = Repeater

-- Cuts each packet to `n` bytes, or pads it to that length.
local Truncate = {}
Truncate.__index = Truncate

function Truncate:new (n)
   return setmetatable({ n = n }, self)
end

function Truncate:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, nreadable(input) do transmit(output, packet.resize(receive(input), self.n)) end
end
M.Truncate = Truncate

-- Passes on every `n`th packet.
local Sample = {}
Sample.__index = Sample

function Sample:new (n)
   return setmetatable({ n = n, seen = 1 }, self)
end

function Sample:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, nreadable(input) do
      local p = receive(input)
      if self.n == self.seen then
         transmit(output, p)
         self.seen = 1
      else
         free(p)
         self.seen = self.seen + 1
      end
   end
end
M.Sample = Sample

return M
