-- Apps written in Rust, in a Lua program: the router, ports, and all others in the binary.
--
--    config.app(c, "eth0", "xdp:eth0")
--    config.app(c, "rt", "router", { ports = { "eth0", "eth1" } })
--
-- The engine treats such an app like any other; its pull and push are one call each, through a function pointer.

local ffi = require("ffi")
local runtime = require("core.runtime")

local bridge = runtime.bridge
local M = {}

local Native = {}
Native.__index = Native

-- Links in the form that Rust expects: names with indexes in the pool.
local function list (links)
   local names = {}
   for name in pairs(links) do
      if type(name) == "string" then names[#names + 1] = name end
   end
   table.sort(names)
   for i, name in ipairs(names) do
      names[i] = { name, tonumber(ffi.cast("struct link *", links[name]) - runtime.shared.links) }
   end
   return names
end

-- Called by the engine after the app's links have changed, before the next breath.
function Native:relinked ()
   bridge.connect(self.handle, list(self.input), list(self.output))
end

function Native:push () runtime.shared.push(self.native) end

function Native:stop ()
   bridge.close(self.handle)
end

local classes = {}

-- The class of an app in Rust. The same name gives the same class, so that configurations can be compared.
function M.class (name)
   if classes[name] then return classes[name] end
   local class = { name = name, in_rust = name }
   function class:new (arg, appname)
      local handle, pulls = bridge.open(name, appname or name, arg, require("core.workers").total)
      local app = { ring = name:match("^ring[<>]") ~= nil, handle = handle, native = ffi.cast("struct brickmoon_native *", handle) }
      if pulls then app.pull = function (self) runtime.shared.pull(self.native) end end
      return setmetatable(app, Native)
   end
   classes[name] = class
   return class
end

return M
