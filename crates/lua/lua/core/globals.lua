-- Globals that programs expect, beside the modules that core.startup makes global.

-- A system call that fails reports its error as cdata. Code that catches errors expects text, so it is converted.
local builtin = assert
local function assert (condition, ...)
   if condition then return condition, ... end
   local why = ...
   if type(why) == "cdata" then error(tostring(why), 2) end
   return builtin(condition, ...)
end

-- Modules that call module() are available as a global of their name: `core.app.now()`. Ours do not call it.
local core = setmetatable({}, { __index = function (_, name)
   local module = package.loaded["core."..name]
   return type(module) == "table" and module or nil
end })

-- RaptorJIT's profiler. This LuaJIT has none, so its functions do nothing.
local function nothing () end

-- Compiled code of this LuaJIT shifts incorrectly if the count is a 64-bit integer, as in rshift(x, 1ULL), but
-- correctly if it is a number. For numbers this conversion compiles to nothing.
local bit = require("bit")
local band = bit.band
local function by_number (shift)
   return function (value, count)
      if type(count) == "cdata" then count = tonumber(band(count, 63)) end
      return shift(value, count)
   end
end

local function mend_shifts ()
   for _, name in ipairs { "lshift", "rshift", "arshift", "rol", "ror" } do bit[name] = by_number(bit[name]) end
end

local M = {}
local installed = false

function M.install ()
   if not installed then mend_shifts() end
   installed = true
   rawset(_G, "assert", assert)
   rawset(_G, "core", core)
   local jit = require("jit")
   jit.vmprofile = jit.vmprofile or { open = nothing, close = nothing, select = nothing, start = nothing, stop = nothing }
   package.loaded["jit.vmprofile"] = jit.vmprofile
   -- RaptorJIT's too; apps call it to compile loops separately. This compiler has no such thing.
   jit.tracebarrier = jit.tracebarrier or nothing
end

function M.selftest ()
   local ffi = require("ffi")
   local fine, why = pcall(assert, false, ffi.new("struct { int code; }"))
   builtin(not fine and type(why) == "string" and why:match("cdata<struct"), why)
   local kept = {}
   fine, why = pcall(assert, nil, kept)
   builtin(not fine and why == kept)
   fine, why = pcall(assert, false)
   builtin(not fine and why == "assertion failed!")
   builtin(select("#", assert(1, nil, 3)) == 3)
   require("core.app")
   builtin(core.app == package.loaded["core.app"] and core.no_such_module == nil)
end

return M
