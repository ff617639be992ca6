-- Properties of Snabb's LuaJIT that modules of Snabb rely on, and that our LuaJIT lacks.
--
-- In Snabb's, pairs() iterates over a table in an order that depends only on the keys; ours uses another order in every
-- process. For modules that need that order, it is provided here, after the module is loaded.
--
--    apps.bridge.learning    packet lists are passed to C as an array, in the order of a table of three keys
--    lib.yang.schema         of several leaves with one name, the first in a walk over the schema appears under its
--                            plain name in the output for InfluxDB
--
-- Also, math.min(n, nan) is n in code compiled by Snabb's, but nan here.
--
--    program.packetblaster.lwaftr.lib    has tokens at an infinite rate, and takes math.min(most, tokens) of them
--
-- Modules that know cards are changed to know ports instead (core.cards). lib.interlink, by which processes exchange
-- packets, is changed to copy the bytes (core.interlink).

local M = {}

-- Makes pairs(t) iterate over these keys, in this order, and over no others.
local function in_order (t, keys)
   local function following (_, key)
      for i = key == nil and 1 or keys[key], #keys do
         local name = keys[i]
         if t[name] ~= nil then return name, t[name] end
      end
   end
   for i = #keys, 1, -1 do keys[keys[i]] = i + 1 end
   setmetatable(t, { __pairs = function () return following, t, nil end })
end

-- pairs() for tables with string keys: shorter keys first, keys of equal length in alphabetical order.
local function by_length (t)
   local keys, i = {}, 0
   for key in pairs(t) do keys[#keys + 1] = key end
   table.sort(keys, function (a, b)
      a, b = tostring(a), tostring(b)
      if #a ~= #b then return #a < #b end
      return a < b
   end)
   return function ()
      i = i + 1
      if keys[i] ~= nil then return keys[i], t[keys[i]] end
   end
end

-- The upvalue `name` of function `f`, or nil.
local function upvalue (f, name)
   if type(f) ~= "function" then return nil end
   for i = 1, 60 do
      local found, value = debug.getupvalue(f, i)
      if found == nil then return nil end
      if found == name then return value end
   end
end

local patches = {}

patches["apps.bridge.learning"] = function (module)
   local class = type(module) == "table" and rawget(module, "bridge")
   local lists = class and upvalue(upvalue(rawget(class, "new"), "alloc_pft"), "pft_spec")
   if type(lists) == "table" then in_order(lists, { "ucast", "flood", "discard" }) end
end

patches["lib.yang.schema"] = function (module)
   local walk = type(module) == "table" and upvalue(rawget(module, "load_schema"), "collect_uniqueness")
   if type(walk) == "function" then setfenv(walk, setmetatable({ pairs = by_length }, { __index = getfenv(walk) })) end
end

-- math with a min() that returns the other argument if one is nan.
local lenient = setmetatable({ min = function (a, b) return b ~= b and a or math.min(a, b) end }, { __index = math })

patches["program.packetblaster.lwaftr.lib"] = function (module)
   for _, name in ipairs { "B4Gen", "InetGen" } do
      local pull = type(module) == "table" and type(rawget(module, name)) == "table" and rawget(module, name).pull
      if type(pull) == "function" then setfenv(pull, setmetatable({ math = lenient }, { __index = getfenv(pull) })) end
   end
end

-- The classes with which programs open cards.
local drivers = {
   ["apps.intel.intel_app"] = { "Intel82599", "driver" },
   ["apps.intel.loadgen"] = { "LoadGen" },
   ["apps.intel_avf.intel_avf"] = { "Intel_avf", "driver" },
   ["apps.intel_mp.loadgen"] = { "LoadGen" },
   ["apps.intel_mp.intel_mp"] = { "Intel", "Intel82599", "Intel1g", "driver" },
   ["apps.mellanox.connectx"] = { "IO", "driver" },
   ["apps.solarflare.solarflare"] = { "SolarFlareNic", "driver" },
}
for name, classes in pairs(drivers) do
   patches[name] = function (module) require("core.cards").patch_driver(module, classes) end
end
patches["lib.interlink"] = function (module) require("core.interlink").patch(module) end
patches["lib.hardware.pci"] = function (module) require("core.cards").patch_pci(module) end
patches["lib.numa"] = function (module) require("core.cards").patch_numa(module) end

-- A loader for the module `name`: calls the given loader, then applies what the module needs.
function M.loader (name, loader)
   local patch = patches[name]
   if not patch then return loader end
   return function (...)
      local given = loader(...)
      patch(given == nil and package.loaded[name] or given)
      return given
   end
end

-- Exported for the test.
M.in_order, M.upvalue = in_order, upvalue

function M.selftest ()
   local t = { c = 3, a = 1, b = 2 }
   for _ = 1, 300 do
      -- New strings get new hash values, which determine the order of tables.
      local fresh = { ["k".._] = 1, b = 2, a = 1, c = false }
      in_order(fresh, { "c", "missing", "b", "a" })
      local seen = {}
      for key, value in pairs(fresh) do seen[#seen + 1] = key..tostring(value) end
      assert(table.concat(seen, " ") == "cfalse b2 a1")
   end
   local function user () return t end
   assert(upvalue(user, "t") == t and upvalue(user, "other") == nil and upvalue(nil, "t") == nil)
   -- A module of that name and shape is changed; one of another shape is left alone.
   local class = {}
   do
      local pft_spec = { discard = 1, flood = 2, ucast = 3 }
      local function alloc_pft (o) for key in pairs(pft_spec) do o[#o + 1] = key end return o end
      function class.new () return alloc_pft {} end
   end
   local loader = M.loader("apps.bridge.learning", function () return { bridge = class } end)
   assert(table.concat(loader().bridge.new(), " ") == "ucast flood discard")
   assert(M.loader("apps.bridge.learning", function () return { bridge = {} } end)().bridge)
   local order = {}
   for key, value in by_length { europe = 1, asia = 2, y = 3, bar = 4, x = 5, [7] = 6 } do order[#order + 1] = key..value end
   assert(table.concat(order, " ") == "76 x5 y3 bar4 asia2 europe1", table.concat(order, " "))
   local function module_of_yang ()
      local function collect_uniqueness (t) local seen = {} for key in pairs(t) do seen[#seen + 1] = key end return seen end
      return { load_schema = function (t) return collect_uniqueness(t) end }
   end
   local loaded = M.loader("lib.yang.schema", module_of_yang)()
   assert(table.concat(loaded.load_schema { ccc = 1, bb = 2, a = 3, dddd = 4 }, " ") == "a bb ccc dddd")
   local function blaster ()
      local class = {}
      function class.pull (most, tokens) return math.min(most, tokens), math.max(most, 3) end
      return { B4Gen = class }
   end
   local pull = M.loader("program.packetblaster.lwaftr.lib", blaster)().B4Gen.pull
   assert(pull(102, 0 / 0) == 102 and pull(102, 7) == 7 and select(2, pull(2, 0)) == 3)
   assert(jit.tracebarrier() == nil)
   local function plain () end
   assert(M.loader("apps.other", plain) == plain)
end

return M
