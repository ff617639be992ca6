-- Packets are made, and freed.
local basic = require("apps.basic.basic_apps")

local c = config.new()
config.app(c, "source", basic.Source)
config.app(c, "sink", basic.Sink)
config.link(c, "source.output -> sink.input")
engine.configure(c)
engine.busywait = true

return require("brickmoon.bench").turn(engine.link_table["source.output -> sink.input"])
