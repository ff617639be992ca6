-- Apps of the daemon's configuration. On each worker they form a network that is connected to the worker's ports and
-- its router.
--
--    worker: eth0.output ─► [ eth0 ─► guard ─► router ] ─► router.eth0        in brackets: this Lua state
--
-- Apps outside are represented in this network by apps that do nothing: src/apps/part.rs moves packets between the
-- links of such an app and the links outside. It calls `breathe` once a breath, `idle` before the worker sleeps,
-- `configure` for a new configuration, and `stop`.

local engine = require("core.app")
local config = require("core.config")
local counter = require("core.counter")
local ffi = require("ffi")
local native = require("core.native")
local packages = package.loaded
local report = require("core.report")
local runtime = require("core.runtime")
local startup = require("core.startup")
local timer = require("core.timer")

local shared = runtime.shared

local M = {}

-- Represents an app outside.
local Outer = {}
function Outer:new () return setmetatable({ outer = true }, { __index = Outer }) end

-- Files by path, with their content when they were last run: a file that has not changed gives the same class again.
local files = {}

-- What files contain that must not be read.
local texts = {}

local function read (path)
   if texts[path] then return texts[path] end
   local file, why = io.open(path, "rb")
   if not file then error(why, 0) end
   local text = file:read("*a")
   file:close()
   return text
end

local function run_file (path)
   local text = read(path)
   local known = files[path]
   if known and known.text == text then return known.value end
   local folder = path:match("^(.*)/[^/]*$") or "."
   local place = folder.."/?.lua;"..folder.."/?/init.lua;"
   if package.path:sub(1, #place) ~= place then package.path = place..package.path end
   local chunk, why = load(text, "@"..path)
   if not chunk then error(why, 0) end
   local value = chunk()
   files[path] = { text = text, value = value }
   return value
end

local function is_class (value)
   return type(value) == "table" and type(rawget(value, "new")) == "function"
end

-- The class that a module returns, directly or as one of its fields.
local function class_of (app)
   local place = app.file or app.module
   local value
   if app.file then value = run_file(app.file) else value = require(app.module) end
   if type(value) ~= "table" then
      error(("%s must return a class, or a table of classes; it returns %s")
         :format(place, value == nil and "nothing" or "a "..type(value)), 0)
   end
   if app.class then
      if not is_class(value[app.class]) then
         error(("%s has no class %s (a table with a function new)"):format(place, app.class), 0)
      end
      return value[app.class]
   end
   if is_class(value) then return value end
   local names = {}
   for name, field in pairs(value) do
      if is_class(field) then names[#names + 1] = tostring(name) end
   end
   table.sort(names)
   if #names == 1 then return value[names[1]] end
   error(#names == 0 and place.." returns no class (a table with a function new)"
      or ("%s has several classes (%s): choose one with `class`"):format(place, table.concat(names, ", ")), 0)
end

-- The error in one line, without the position in brickmoon's own code, which does not help the app's author.
local function words (why)
   return (tostring(why.message or why):gsub("^brickmoon/[^:]+:%d+: ", ""))
end

local function add_app (c, app)
   config.app(c, app.name, app.rust or class_of(app), app.config)
end

-- Builds the network for `spec`. Also returns a list of errors: { { app, message }, ... }.
local function build (spec)
   texts = spec.texts or {}
   local c, problems = config.new(), {}
   for _, name in ipairs(spec.outer) do c.apps[name] = { class = Outer } end
   for _, app in ipairs(spec.apps) do
      local fine, why = xpcall(add_app, startup.explain, c, app)
      if not fine then problems[#problems + 1] = { app.name, words(why) } end
   end
   for _, link in ipairs(spec.links) do
      config.link(c, ("%s.%s -> %s.%s"):format(link.from, link.output, link.to, link.input))
   end
   return c, problems
end

local function place_of (l)
   return tonumber(ffi.cast("struct link *", l) - shared.links)
end

-- Where packets enter and leave: for each link with an app outside, its name there, its index among the links of this
-- state, and its direction.
local function crossings ()
   local list = {}
   for name, app in pairs(engine.app_table) do
      if app.outer then
         for key, l in pairs(app.output) do
            if type(key) == "string" then list[#list + 1] = { name..":"..key, place_of(l), true } end
         end
         for key, l in pairs(app.input) do
            if type(key) == "string" then list[#list + 1] = { name..":"..key, place_of(l), false } end
         end
      end
   end
   return list
end

-- Microseconds that the worker may sleep: apps in Lua that pull, ticks and timers do not wake it.
local PULL_US, TICK_US = 500, 1000
local rest_us = 0

local function settle ()
   rest_us = 0
   for _, app in pairs(engine.app_table) do
      if app.tick and rest_us == 0 then rest_us = TICK_US end
      if app.pull and not app.native then rest_us = PULL_US end
   end
   engine.enable_tick()
end

-- Configures the network as in `spec`; if that fails, restores the previous one. Returns nothing, or the error.
function M.become (spec, workers)
   require("core.workers").total = workers
   local before = engine.configuration
   local old = { apps = {}, links = {} }
   for name, app in pairs(before.apps) do old.apps[name] = app end
   for name in pairs(before.links) do old.links[name] = true end
   local c, problems = build(spec)
   M.before = nil
   if problems[1] then return ("app %s: %s"):format(problems[1][1], problems[1][2]) end
   local fine, why = xpcall(engine.configure_here, startup.explain, c)
   if not fine then engine.configure_here(old) end
   settle()
   if not fine then return words(why) end
   M.before = old
end

-- Restores the previous configuration of the network, with the classes that it had then.
local function revert ()
   if not M.before then return "there is no earlier configuration to return to" end
   engine.configure_here(M.before)
   M.before = nil
   settle()
end

-- For Rust, which leaves the request in its table and finds the answer there.
local bridge = packages["core.part.bridge"]

local live = false
function M.configure ()
   -- In a running worker, an app that does not return must be ended by an error, so that all others continue. This
   -- works only in interpreted code.
   if live then jit.off() end
   if bridge.spec then bridge.refused = M.become(bridge.spec, bridge.workers) else bridge.refused = revert() end
   bridge.crossings = crossings()
   jit.on()
   live = true
end

-- Reports the errors in the request, as build() does, without starting anything.
function M.check ()
   local _, problems = build(bridge.spec)
   bridge.problems = problems
end

-- How often timers and requests are checked, in seconds.
local LOOK_EVERY = 2e-4
local next_look = 0

function M.breathe ()
   engine.breathe()
   local now = engine.monotonic_now
   if now >= next_look then
      next_look = now + LOOK_EVERY
      timer.run()
      if shared.asked[0] ~= 0 then report.answer(engine) end
   end
end

-- No packets are waiting now, so this is the time to collect garbage.
function M.idle ()
   collectgarbage("step", 1)
   shared.rest_us = timer.any() and (rest_us == 0 and TICK_US or rest_us) or rest_us
end

function M.stop ()
   engine.configure_here(config.new())
   counter.commit()
   startup.finish()
end

-- The text of a failure, with its traceback; os.exit() counts as a failure.
local function explain (what)
   local why = startup.explain(what)
   if type(why) == "table" and why.message then return why.message.."\n"..why.traceback end
   return "it called os.exit(), which would end the daemon: raise an error, or call stop() on what should end"
end

-- For Rust: the functions that must be on its stack.
function M.functions ()
   return explain, M.breathe, M.configure, M.idle, M.stop, M.check, true
end

return M
