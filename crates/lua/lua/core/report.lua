-- The state of this worker, for other processes (`brickmoon show`): apps, links, compiler.
--
-- The engine checks `shared.asked` now and then; nothing is gathered unless it is set.

local link = require("core.link")
local account = require("core.account")
local counter = require("core.counter")
local jitwatch = require("core.jitwatch")
local pace = require("core.pace")
local runtime = require("core.runtime")

local bridge, shared = runtime.bridge, runtime.shared

local M = {}

local function sum (app, side, count)
   local total = 0
   for name, l in pairs(app[side]) do
      if type(name) == "string" then total = total + count(l) end
   end
   return total
end

local function taken (l) return tonumber(l.txpackets) - link.nreadable(l) end
local function put (l) return tonumber(l.txpackets) end
local function full (l) return tonumber(l.txdrop) end

-- Converts to a number that is neither negative nor negative zero: Rust reads it as a count.
local function count (n) return n > 0 and n or 0 end

-- An app's account. Only the difference between allocated and freed packets is known, so one of the two is zero.
local function of_app (app)
   local received, sent = sum(app, "input", taken), sum(app, "output", put)
   local held, dropped = count(account.held(app)), sum(app, "output", full)
   local made = sent + held + dropped - received
   return {
      name = app.appname, received = received, sent = sent, held = held, dropped = dropped,
      originated = count(made), consumed = count(-made),
   }
end

-- The whole report, as plain numbers and texts (src/report.rs reads it).
function M.read (engine)
   local apps, links, moves = {}, {}, 0
   account.settle(engine.app_table)
   for _, app in pairs(engine.app_table) do
      -- Apps in Rust, and those outside, have accounts of their own.
      if not (app.native or app.outer) then apps[#apps + 1] = of_app(app) end
   end
   for name, l in pairs(engine.link_table) do
      local stats = link.stats(l)
      stats.name, stats.dtime = name, nil
      moves = moves + stats.txpackets
      links[#links + 1] = stats
   end
   local function by_name (a, b) return a.name < b.name end
   table.sort(apps, by_name)
   table.sort(links, by_name)
   return {
      worker = shared.worker, breaths = tonumber(counter.read(engine.breaths)), moves = moves,
      sleeps = pace.sleeps, apps = apps, links = links, jit = jitwatch.read(),
   }
end

-- Answers the request.
function M.answer (engine)
   bridge.answer(M.read(engine))
end

return M
