-- Apps that read frames from capture files and write frames to them.

local ffi = require("ffi")
local link = require("core.link")
local packet = require("core.packet")
local pcap = require("lib.pcap.pcap")

-- Sends the frames of a file to `output`, as fast as the output accepts them. The argument is the file's name; `done`
-- is true once all frames have been sent.
local PcapReader = { one_worker = "each worker would send all frames of the file" }
PcapReader.__index = PcapReader

function PcapReader:new (filename)
   return setmetatable({ iterator = pcap.records(filename), done = false }, PcapReader)
end

function PcapReader:pull ()
   local output = assert(self.output.output, "PcapReader: connect 'output'")
   for _ = 1, engine.pull_npackets do
      if self.done or link.full(output) then return end
      local data = self.iterator()
      if data then
         link.transmit(output, packet.from_string(data))
      else
         self.done = true
      end
   end
end

-- Writes the frames from `input` to a file. The argument is the file's name, or { name, mode } with the mode of
-- io.open ("w" if not given; with "a" frames are appended to the file).
local PcapWriter = { one_worker = "each worker would overwrite the file" }
PcapWriter.__index = PcapWriter

function PcapWriter:new (conf)
   local name, mode = conf, "w"
   if type(conf) == "table" then name, mode = conf[1] or conf.filename, conf[2] or conf.mode or "w" end
   local file, why = io.open(name, mode)
   if not file then error("PcapWriter: cannot open "..tostring(why), 2) end
   if file:seek("end") == 0 then pcap.write_file_header(file) end
   return setmetatable({ file = file }, PcapWriter)
end

function PcapWriter:push ()
   local input = self.input.input
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      pcap.write_record_header(self.file, p.length)
      self.file:write(ffi.string(p.data, p.length))
      packet.free(p)
   end
   self.file:flush()
end

function PcapWriter:stop () self.file:close() end

local function selftest ()
   local config = require("core.config")
   local from, to = os.tmpname(), os.tmpname()
   local file = io.open(from, "wb")
   pcap.write_file_header(file)
   for i = 1, 300 do
      local frame = ("frame %d"):format(i):rep(i % 9 + 2)
      pcap.write_record(file, frame, #frame)
   end
   file:close()
   local function copy (mode)
      local c = config.new()
      config.app(c, "reader", PcapReader, from)
      config.app(c, "writer", PcapWriter, { to, mode })
      config.link(c, "reader.output -> writer.input")
      engine.configure(c)
      engine.main({ done = function () return engine.app_table.reader.done end, no_report = true })
      engine.main({ duration = 0.01, no_report = true })
      engine.configure(config.new())
   end
   copy("w")
   local function bytes (name) return io.open(name, "rb"):read("*a") end
   assert(bytes(from) == bytes(to), "the copy differs")
   copy("a")
   assert(#bytes(to) == 2 * #bytes(from) - 24, "mode 'a' must append frames without a second file header")
   os.remove(from)
   os.remove(to)
end

return { PcapReader = PcapReader, PcapWriter = PcapWriter, selftest = selftest }
