-- An app that forwards all frames and writes some of them to a capture file.

local lib = require("core.lib")
local link = require("core.link")
local pcap = require("lib.pcap.pcap")

local modes = { truncate = "w+b", append = "a+b" }

local Tap = {
   config = {
      filename = { required = true },
      mode = { default = "truncate" }, -- or "append"
      filter = {},                     -- only frames that match this filter, in tcpdump's language
      sample = { default = 1 },        -- only every n-th of these
   },
}
Tap.__index = Tap

function Tap:new (conf)
   local o = lib.parse(conf, Tap.config)
   local mode = modes[o.mode] or error("Tap: mode must be 'truncate' or 'append', not '"..tostring(o.mode).."'", 2)
   o.file = assert(io.open(o.filename, mode))
   if o.file:seek("end") == 0 then pcap.write_file_header(o.file) end
   o.match = o.filter and require("brickmoon.filter").compile(o.filter)
   o.n = o.sample - 1
   return setmetatable(o, Tap)
end

function Tap:push ()
   local input, output, match = self.input.input, self.output.output, self.match
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      if not match or match(p.data, p.length) then
         self.n = self.n + 1
         if self.n == self.sample then
            self.n = 0
            pcap.write_record(self.file, p.data, p.length)
         end
      end
      link.transmit(output, p)
   end
end

function Tap:stop () self.file:close() end

local function selftest ()
   local config, packet = require("core.config"), require("core.packet")
   local basic = require("apps.basic.basic_apps")
   local Source = {}
   function Source:new () return setmetatable({ n = 0 }, { __index = Source }) end
   function Source:pull ()
      for _ = 1, 100 do
         if self.n == 1000 then return end
         self.n = self.n + 1
         local ethertype = self.n % 5 == 0 and "\x08\x06" or "\x08\x00"
         link.transmit(self.output.output, packet.from_string(("\0"):rep(12)..ethertype..("\0"):rep(46)))
      end
   end
   local function count (filter, sample)
      local name = os.tmpname()
      local c = config.new()
      config.app(c, "source", Source)
      config.app(c, "tap", Tap, { filename = name, filter = filter, sample = sample })
      config.app(c, "sink", basic.Sink)
      config.link(c, "source.output -> tap.input")
      config.link(c, "tap.output -> sink.input")
      engine.configure(c)
      for _ = 1, 20 do engine.breathe() end
      engine.configure(config.new())
      local n = 0
      for _ in pcap.records(name) do n = n + 1 end
      os.remove(name)
      return n
   end
   assert(count() == 1000 and count("arp") == 200 and count(nil, 2) == 500 and count("arp", 2) == 100)
   assert(not pcall(Tap.new, Tap, { filename = "/tmp/x", mode = "overwrite" }))
end

return { Tap = Tap, selftest = selftest }
