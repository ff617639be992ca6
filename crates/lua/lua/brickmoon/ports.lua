-- Ports by the names that the command line uses, for programs that work on any of them.
--
--    ports.open(c, "in", "xdp:eth0")           received frames come from in.output, in.input sends frames
--    ports.open(c, "out", "pcap:,sent.pcap")   files: one to read from, one to write to; either may be left out
--
-- A bare name is an interface, opened with AF_XDP. Device ports are apps in Rust. Capture files are read and written
-- here, so that programs can be tested on any machine.

local ffi = require("ffi")
local config = require("core.config")
local link = require("core.link")
local packet = require("core.packet")
local pcap = require("lib.pcap.pcap")

local M = {}

local PcapPort = { config = { input = {}, output = {} } }
PcapPort.__index = PcapPort

function PcapPort:new (conf)
   local o = { done = conf.input == nil, next_frame = conf.input and pcap.records(conf.input) }
   if conf.output then
      o.file = assert(io.open(conf.output, "wb"))
      pcap.write_file_header(o.file)
   end
   return setmetatable(o, PcapPort)
end

function PcapPort:pull ()
   local output = self.output.output
   if self.done or not output then return end
   for _ = 1, math.min(engine.pull_npackets, link.nwritable(output)) do
      local frame = self.next_frame()
      if not frame then
         self.done = true
         return
      end
      link.transmit(output, packet.from_string(frame))
   end
end

function PcapPort:push ()
   local input = self.input.input
   if not input then return end
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      if self.file then
         pcap.write_record_header(self.file, p.length, engine.now())
         self.file:write(ffi.string(p.data, p.length))
      end
      packet.free(p)
   end
end

function PcapPort:stop ()
   if self.file then self.file:close() end
end

-- Adds the port to the configuration, as the app `name`. The form of the device's name must be known.
function M.open (c, name, device)
   local kind, rest = device:match("^(%l+):(.*)$")
   if not kind then kind, device = "xdp", "xdp:"..device end
   if kind == "pcap" then
      local input, output = rest:match("^([^,]*),?(.*)$")
      config.app(c, name, PcapPort, { input = input ~= "" and input or nil, output = output ~= "" and output or nil })
   elseif kind == "xdp" or kind == "tap" or kind == "dpdk" then
      config.app(c, name, device)
   else
      error(("'%s' is not a port: use xdp:INTERFACE, tap:NAME, dpdk:DEVICE or pcap:IN,OUT"):format(device), 2)
   end
end

-- Whether all capture files have been read to their end. False if there are other ports.
function M.all_read ()
   for _, app in pairs(engine.app_table) do
      if app.native or app.done == false then return false end
   end
   return true
end

function M.selftest ()
   local from, to = os.tmpname(), os.tmpname()
   local file = io.open(from, "wb")
   pcap.write_file_header(file)
   for i = 1, 250 do pcap.write_record(file, ("%60d"):format(i), 60) end
   file:close()
   local c = config.new()
   M.open(c, "a", "pcap:"..from)
   M.open(c, "b", "pcap:,"..to)
   config.link(c, "a.output -> b.input")
   engine.configure(c)
   engine.main({ done = M.all_read, no_report = true })
   for _ = 1, 3 do engine.breathe() end
   engine.configure(config.new())
   local n = 0
   for frame in pcap.records(to) do
      n = n + 1
      assert(tonumber(frame) == n)
   end
   assert(n == 250, n)
   os.remove(from)
   os.remove(to)
   assert(not pcall(M.open, c, "x", "floppy:0"))
end

return M
