-- A source and a sink on every worker: packets of all of them in so many milliseconds.
local workers = ...
local basic = require("apps.basic.basic_apps")

local c = config.new()
config.app(c, "source", basic.Source)
config.app(c, "sink", basic.Sink)
config.link(c, "source.output -> sink.input")
engine.configure(c, { workers = workers })
engine.busywait = true

local function sum () return engine.link_stats()["source.output -> sink.input"].txpackets end

return function (milliseconds)
   local before = sum()
   engine.main { duration = milliseconds / 1000, no_report = true }
   return sum() - before
end
