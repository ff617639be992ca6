-- Packets go through eight apps that do nothing but pass them on.
local basic = require("apps.basic.basic_apps")

local Forward = {}
function Forward:new () return setmetatable({}, { __index = Forward }) end
function Forward:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, link.nreadable(input) do link.transmit(output, link.receive(input)) end
end

local c = config.new()
config.app(c, "source", basic.Source)
config.app(c, "sink", basic.Sink)
local before = "source.output"
for i = 1, 8 do
   config.app(c, "forward"..i, Forward)
   config.link(c, before.." -> forward"..i..".input")
   before = "forward"..i..".output"
end
config.link(c, before.." -> sink.input")
engine.configure(c)
engine.busywait = true

return require("brickmoon.bench").turn(engine.link_table["source.output -> forward1.input"])
