-- Computes the actions that lead from the current network to the configured one, and carries them out.

local ffi = require("ffi")
local lib = require("core.lib")
local link = require("core.link")
local config = require("core.config")
local counter = require("core.counter")
local shm = require("core.shm")
local breath = require("core.breath")
local account = require("core.account")
local shared = require("core.runtime").shared

local M = {}

local function sorted (t)
   local keys = {}
   for key in pairs(t) do keys[#keys + 1] = key end
   table.sort(keys)
   return keys
end

local function add (actions, name, ...)
   actions[#actions + 1] = { name, { ... } }
end

-- Adds the actions for apps. Returns the apps that are restarted, whose links must be connected again.
local function app_actions (actions, old, new)
   local fresh = {}
   local function start (name, info)
      add(actions, "start_app", name, info.class, info.arg)
      fresh[name] = true
   end
   for _, name in ipairs(sorted(old.apps)) do
      if not new.apps[name] then add(actions, "stop_app", name) end
   end
   -- A router opens the ports whose queues are other apps, so it is started first.
   local names = sorted(new.apps)
   local function is_router (name) return new.apps[name].class.in_rust == "router" end
   table.sort(names, function (a, b)
      if is_router(a) ~= is_router(b) then return is_router(a) end
      return a < b
   end)
   for _, name in ipairs(names) do
      local was, info = old.apps[name], new.apps[name]
      if not was then
         start(name, info)
      elseif was.class ~= info.class or not (info.class.reconfig or lib.equal(was.arg, info.arg)) then
         add(actions, "stop_app", name)
         start(name, info)
      elseif not lib.equal(was.arg, info.arg) then
         add(actions, "reconfig_app", name, info.class, info.arg)
      end
   end
   return fresh
end

-- The actions that lead from configuration `old` to `new`: a list of { name, { arguments } }.
function M.compute (old, new)
   local actions = {}
   for _, spec in ipairs(sorted(new.links)) do
      local from, _, to = config.parse_link(spec)
      for _, name in ipairs { from, to } do
         if not new.apps[name] then error(("no such app: %s (in link %s)"):format(name, spec), 0) end
      end
   end
   for _, spec in ipairs(sorted(old.links)) do
      if not new.links[spec] then
         local from, output, to, input = config.parse_link(spec)
         add(actions, "unlink_output", from, output)
         add(actions, "unlink_input", to, input)
         add(actions, "free_link", spec)
      end
   end
   local fresh = app_actions(actions, old, new)
   for _, spec in ipairs(sorted(new.links)) do
      local from, output, to, input = config.parse_link(spec)
      local new_link = not old.links[spec]
      if new_link then add(actions, "new_link", spec) end
      if new_link or fresh[from] then add(actions, "link_output", from, output, spec) end
      if new_link or fresh[to] then add(actions, "link_input", to, input, spec) end
   end
   return actions
end

-- Calls a method of an app, if it has one of this name, and counts packets on the app's account.
local function tell (app, method, ...)
   if app[method] then breath.charge(account.of(app), app[method], app, ...) end
end

-- The functions that carry out actions on `engine`: on its app_table, link_table and configuration.
local function operations (engine)
   local apps, links, ops = engine.app_table, engine.link_table, {}

   local function unlink (side, appname, name)
      local app = apps[appname]
      local l = app[side][name]
      account.unlinked(app, side, l)
      app[side][name] = nil
      for i, other in ipairs(app[side]) do
         if other == l then table.remove(app[side], i) break end
      end
      -- An app without unlink() gets a call of link() for removed links, too.
      tell(app, app.unlink and "unlink" or "link", side, name)
   end

   local function join (side, appname, name, spec)
      local app, l = apps[appname], assert(links[spec])
      if app[side][name] then
         error(("%s.%s has two links: an input or output takes only one"):format(appname, name), 0)
      end
      app[side][name] = l
      table.insert(app[side], l)
      account.linked(app, side, l)
      tell(app, "link", side, name)
   end

   function ops.unlink_output (appname, name) unlink("output", appname, name) end
   function ops.unlink_input (appname, name) unlink("input", appname, name) end
   function ops.link_output (appname, name, spec) join("output", appname, name, spec) end
   function ops.link_input (appname, name, spec) join("input", appname, name, spec) end

   function ops.new_link (spec)
      links[spec] = link.new(spec)
      engine.configuration.links[spec] = true
   end

   function ops.free_link (spec)
      link.free(links[spec], spec)
      links[spec] = nil
      engine.configuration.links[spec] = nil
   end

   function ops.stop_app (name)
      local app = apps[name]
      -- The links that remain belong to the app's successor from now on.
      for _, side in ipairs { "input", "output" } do
         for key, l in pairs(app[side]) do
            if type(key) == "string" then account.unlinked(app, side, l) end
         end
      end
      tell(app, "stop")
      if app.shm then shm.delete_frame(app.shm) end
      account.close(app)
      apps[name] = nil
      engine.configuration.apps[name] = nil
   end

   function ops.start_app (name, class, arg)
      if class.push_link and type(class.push_link) ~= "table" then
         error(("app %s: push_link must be a table of functions"):format(name), 0)
      end
      local sum = account.new()
      local app = breath.charge(sum, class.new, class, arg, class.in_rust and name or nil)
      if type(app) ~= "table" then
         error(("app %s: new() must return a table, but returned %s"):format(name, tostring(app)), 0)
      end
      app.appname, app.input, app.output = name, {}, {}
      app.zone = app.zone or type(class.name) == "string" and class.name
         or rawget(getfenv(class.new), "_NAME") or name
      account.open(app, sum)
      apps[name] = app
      -- From here on the app is stopped like any other, even if the rest of its start fails.
      engine.configuration.apps[name] = { class = class, arg = arg }
      if app.shm then
         app.shm.dtime = { counter, os.time() }
         app.shm = shm.create_frame("apps/"..name, app.shm)
      end
      if class.push_link then
         app.push_link = {}
         for key, method in pairs(class.push_link) do app.push_link[key] = method end
      end
   end

   function ops.reconfig_app (name, _, arg)
      tell(apps[name], "reconfig", arg)
      engine.configuration.apps[name].arg = arg
   end

   return ops
end

-- Tells the supervisor when the creation or change of apps begins and ends.
local function at_setup (on)
   local odd = shared.setup % 2 == 1
   if on then shared.setup = shared.setup + (odd and 2 or 1) elseif odd then shared.setup = shared.setup + 1 end
end
M.at_setup = at_setup

function M.apply (engine, actions)
   local ops = operations(engine)
   -- Settle accounts while the links still show which app wrote to which.
   account.settle(engine.app_table)
   for _, action in ipairs(actions) do
      local name, arguments = action[1], action[2]
      if engine.log then io.write("engine: ", name, " ", arguments[1], "\n") end
      at_setup(true)
      assert(ops[name], name)(unpack(arguments, 1, 3))
   end
   at_setup(false)
   account.finish()
   for _, app in pairs(engine.app_table) do
      if app.relinked then app:relinked() end
   end
end

return M
