-- The configuration of a network: apps by name, and the links between them. engine.configure() applies it.

local lib = require("core.lib")

local M = {}

function M.new ()
   return { apps = {}, links = {} }
end

-- Checks an app's argument against the schema of its class, and fills in defaults. A string is evaluated as Lua.
-- Without a schema, as older apps call this, the argument is only evaluated.
function M.parse_app_arg (arg, schema)
   if type(arg) == "string" then arg = lib.load_string(arg) end
   if not schema then return arg end
   return lib.parse(arg or {}, schema)
end

-- Adds an app. `class` is a table with new(), or the name of an app in Rust, such as "router" or "xdp:eth0".
-- `place` may hold `core`, the core whose worker is to run the app.
function M.app (config, name, class, arg, place)
   if type(name) ~= "string" then error("config.app: the name must be a string", 2) end
   if type(class) == "string" then
      class = require("core.native").class(class)
   elseif type(class) ~= "table" then
      error(("config.app: app %s: the class must be a table or the name of an app in Rust, not %s")
            :format(name, type(class)), 2)
   end
   if class.config then
      local fine, parsed = pcall(M.parse_app_arg, arg, class.config)
      if not fine then error(("failed to configure '%s': %s"):format(name, parsed), 2) end
      arg = parsed
   end
   local core = place and place.core
   if core ~= nil and (type(core) ~= "number" or core < 0 or core % 1 ~= 0) then
      error(("config.app: app %s: `core` must be the number of a core, not %s"):format(name, tostring(core)), 2)
   end
   config.apps[name] = { class = class, arg = arg, core = core }
end

M.link_syntax = [[^ *([%w_%.%-]+)%.([%w_%-]+) *-> *([%w_%.%-]+)%.([%w_%-]+) *$]]

-- "a.out -> b.in": "a", "out", "b", "in".
function M.parse_link (spec)
   local from, output, to, input = spec:match(M.link_syntax)
   if not from then error("link parse error: "..spec..": it must be \"app.output -> app.input\"", 2) end
   return from, output, to, input
end

function M.format_link (from, output, to, input)
   return ("%s.%s -> %s.%s"):format(from, output, to, input)
end

function M.canonical_link (spec)
   return M.format_link(M.parse_link(spec))
end

function M.link (config, spec)
   config.links[M.canonical_link(spec)] = true
end

-- The network as a graph for Graphviz.
function M.graphviz (config)
   local lines = {}
   for spec in pairs(config.links) do
      local from, output, to, input = M.parse_link(spec)
      lines[#lines + 1] = ("  %q -> %q [taillabel=%q headlabel=%q]\n"):format(from, to, output, input)
   end
   table.sort(lines)
   return "digraph config {\n"..table.concat(lines).."}\n"
end

local function refused (pattern, f, ...)
   local fine, why = pcall(f, ...)
   assert(not fine and tostring(why):match(pattern), tostring(why))
end

function M.selftest ()
   print("selftest: config")
   local c = M.new()
   local App = { config = { a = { required = true }, b = { default = "x" } } }
   M.app(c, "one", App, { a = 1 })
   M.app(c, "two", App, "{ a = 2, b = 'y' }")
   M.app(c, "any", {}, "not Lua at all")
   assert(c.apps.one.arg.b == "x" and c.apps.two.arg.b == "y" and c.apps.any.arg == "not Lua at all")
   refused("failed to configure 'no'", M.app, c, "no", App, {})
   refused("failed to configure 'no'", M.app, c, "no", App, { a = 1, c = 2 })
   refused("must be a string", M.app, c, 1, App)
   refused("must be a table", M.app, c, "no", 1)
   refused("`core` must be the number of a core, not %-1", M.app, c, "no", {}, nil, { core = -1 })
   assert(M.parse_app_arg("{ a = 1 }").a == 1 and M.parse_app_arg({ z = 2 }).z == 2)
   M.link(c, "  one.out->two.in_1 ")
   M.link(c, "eth0.100.output -> one.in")
   assert(M.canonical_link("br-0.out->tx-1.in-2") == "br-0.out -> tx-1.in-2")
   assert(c.links["one.out -> two.in_1"] and c.links["eth0.100.output -> one.in"])
   assert(select("#", M.parse_link("a.b -> c.d")) == 4)
   for _, wrong in ipairs { "a.b", "a -> b.c", "a.b -> c", "a b.c -> d.e" } do
      refused("link parse error", M.link, c, wrong)
   end
   assert(M.graphviz(c):match('"one" %-> "two" %[taillabel="out" headlabel="in_1"%]'))
   print("selftest: ok")
end

return M
