-- Snabb's benchmark "basic1": a source, copied to two links, freed. Counted are the source's packets.
local basic = require("apps.basic.basic_apps")

local c = config.new()
config.app(c, "Source", basic.Source)
config.app(c, "Tee", basic.Tee)
config.app(c, "Sink", basic.Sink)
config.link(c, "Source.tx -> Tee.rx")
config.link(c, "Tee.tx1 -> Sink.rx1")
config.link(c, "Tee.tx2 -> Sink.rx2")
engine.configure(c)
engine.busywait = true

return require("brickmoon.bench").turn(engine.link_table["Source.tx -> Tee.rx"])
