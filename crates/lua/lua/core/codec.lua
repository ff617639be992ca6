-- Encodes values as bytes, including classes and functions, so that a configuration can be sent to another worker.
--
-- Values that a module holds are sent by name: the other worker uses its own. Other functions are sent as bytecode with
-- their upvalues, and two functions that share a variable share it there, too. Values without a meaning in another Lua
-- state, such as pointers and coroutines, are errors.

local ffi = require("ffi")
local buffer = require("string.buffer")

local M = {}

-- Tables, functions and libraries, by the names under which modules hold them.
local function named ()
   local names = {}
   for name, module in pairs(package.loaded) do
      if type(module) == "table" then
         for key, value in pairs(module) do
            local kind = type(value)
            if type(key) == "string" and (kind == "table" or kind == "function" or kind == "userdata") then
               names[value] = { "named", name, key }
            end
         end
      end
   end
   -- A module's own name has precedence over a field of another module with the same value.
   for name, module in pairs(package.loaded) do names[module] = { "named", name } end
   names[_G] = { "named", "_G" }
   return names
end

local Encoder = {}
Encoder.__index = Encoder

function Encoder:refuse (value, what)
   error(("%s is %s, which cannot be sent to another core: put it into a module, or create it in new()")
         :format(table.concat(self.path, "."), what or type(value)), 0)
end

function Encoder:add (value, node)
   self.nodes[#self.nodes + 1] = node
   self.known[value] = #self.nodes
   return node
end

function Encoder:table (value)
   local node = self:add(value, { "table" })
   local list = {}
   for key, item in next, value do
      self.path[#self.path + 1] = tostring(key)
      list[#list + 1] = self:value(key)
      list[#list + 1] = self:value(item)
      self.path[#self.path] = nil
   end
   node[2], node[3] = list, self:value(getmetatable(value))
end

function Encoder:upvalue (f, i, name, value)
   local id = tostring(debug.upvalueid(f, i))
   self.path[#self.path + 1] = name
   local place = { id, self:value(value) }
   self.path[#self.path] = nil
   return place
end

Encoder["function"] = function (self, value)
   local fine, code = pcall(string.dump, value)
   if not fine then self:refuse(value, "a C function") end
   local node = self:add(value, { "function", code })
   local upvalues, i = {}, 1
   while true do
      local name, item = debug.getupvalue(value, i)
      if not name then break end
      upvalues[i] = self:upvalue(value, i, name, item)
      i = i + 1
   end
   node[3], node[4] = upvalues, self:value(getfenv(value))
end

function Encoder:cdata (value)
   local text = tostring(value)
   local ctype = text:match("^ctype<(.*)>$")
   if ctype then
      self:add(value, { "ctype", ctype })
      return
   end
   local name = tostring(ffi.typeof(value)):match("^ctype<(.*)>$")
   if name:match("%*$") or name:match("&$") or not pcall(ffi.typeof, name) then
      self:refuse(value, "C data of type "..name)
   end
   self:add(value, { "cdata", name, ffi.string(ffi.cast("const char *", value), ffi.sizeof(value)) })
end

local plain = { ["nil"] = true, boolean = true, number = true, string = true }

-- Encodes a plain value as { value }, any other as the number of its node.
function Encoder:value (value)
   local kind = type(value)
   if plain[kind] then return { value } end
   if kind == "cdata" and (ffi.istype("int64_t", value) or ffi.istype("uint64_t", value)) then return { value } end
   if not self.known[value] then
      local name = self.names[value]
      if name then self:add(value, name)
      elseif Encoder[kind] and kind ~= "value" then self[kind](self, value)
      else self:refuse(value) end
   end
   return self.known[value]
end

-- Encodes `value` as bytes; `name` is used in error messages.
function M.encode (value, name)
   local encoder = setmetatable({ nodes = {}, known = {}, names = named(), path = { name or "value" } }, Encoder)
   local root = encoder:value(value)
   return buffer.encode({ encoder.nodes, root })
end

-- Creates the value of each node, before it is filled.
local make = {}
function make.table () return {} end
make["function"] = function (node) return assert(load(node[2], nil, "b")) end
function make.ctype (node) return ffi.typeof(node[2]) end
function make.named (node)
   local module = node[2] == "_G" and _G or require(node[2])
   if node[3] == nil then return module end
   local value = rawget(module, node[3])
   if value == nil then error(("module %s has no %s here"):format(node[2], node[3]), 0) end
   return value
end
function make.cdata (node)
   local value = ffi.new(node[2])
   ffi.copy(ffi.cast("char *", value), node[3], #node[3])
   return value
end

local function join_upvalues (f, upvalues, owners, get)
   for i, place in ipairs(upvalues) do
      local id, item = place[1], place[2]
      local owner = owners[id]
      if owner then
         debug.upvaluejoin(f, i, owner[1], owner[2])
      else
         owners[id] = { f, i }
         debug.setupvalue(f, i, get(item))
      end
   end
end

function M.decode (bytes)
   local message = buffer.decode(bytes)
   local nodes, root = message[1], message[2]
   local values, owners = {}, {}
   local function get (item)
      if type(item) == "table" then return item[1] end
      return values[item]
   end
   for i, node in ipairs(nodes) do values[i] = make[node[1]](node) end
   for i, node in ipairs(nodes) do
      if node[1] == "table" then
         for k = 1, #node[2], 2 do rawset(values[i], get(node[2][k]), get(node[2][k + 1])) end
         setmetatable(values[i], get(node[3]))
      elseif node[1] == "function" then
         join_upvalues(values[i], node[3], owners, get)
         setfenv(values[i], get(node[4]))
      end
   end
   return get(root)
end

function M.selftest ()
   print("selftest: codec")
   local count = 0
   local object = { 1, "x", true, big = 2ULL ^ 1, mac = ffi.new("uint8_t[6]", 1, 2, 3, 4, 5, 6) }
   object.self = object
   function object.add (n) count = count + n return count end
   function object.get () return count end
   object.string_rep, object.u16 = string.rep, ffi.typeof("uint16_t")
   local copy = M.decode(M.encode(setmetatable(object, { __index = { inherited = 7 } })))
   assert(copy[1] == 1 and copy[2] == "x" and copy[3] == true and copy.self == copy and copy.inherited == 7)
   assert(copy.mac[5] == 6 and ffi.sizeof(copy.mac) == 6 and copy.mac ~= object.mac)
   assert(copy.string_rep == string.rep and copy.u16 == ffi.typeof("uint16_t"))
   assert(copy.add(3) == 3 and copy.get() == 3 and object.get() == 0)
   local fine, why = pcall(M.encode, { a = { b = coroutine.create(print) } }, "argument")
   assert(not fine and why:match("^argument.a.b is thread, which cannot be sent to another core"), why)
   fine, why = pcall(M.encode, ffi.cast("char *", 0), "it")
   assert(not fine and why:match("C data of type char %*"), why)
   print("selftest: ok")
end

return M
