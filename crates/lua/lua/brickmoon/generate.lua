-- Modules that are not Lua files: generated when required, from other files in the user's folders.
--
--    lib.checksum_h       lib/checksum.h             C declarations, given to FFI
--    lib.checksum.h       lib/checksum.h             the same: Snabb uses both names
--    program.x.README_inc program/x/README.inc       a text, as a string
--    lib.yang.ietf_a_yang lib/yang/ietf-a.yang       the same
--    core.app_events      core/app.events            the same
--    lib.hash.siphash     lib/hash/siphash.dasl      Lua with assembler lines, translated by the DynASM in that folder
--
-- If there is a Lua file of the same name, it is used instead.

local ffi = require("ffi")
local startup = require("core.startup")

local M = {}

-- Removes preprocessor lines, which FFI does not understand; line numbers in its messages stay right.
local function without_preprocessor (text)
   return (("\n"..text):gsub("\n[ \t]*#[^\n]*", "\n"):sub(2))
end

local function header (name, file, text)
   return function ()
      local fine, why = pcall(ffi.cdef, without_preprocessor(text))
      if not fine then error(("%s, made from %s: %s"):format(name, file, why), 0) end
      return { text = text }
   end
end

local function text_of (_, _, text)
   return function () return text end
end

local function assembler (name, file)
   return function (...)
      local fine, dynasm = pcall(require, "dynasm")
      if not fine then
         error(("%s needs DynASM for Lua to read %s: give --path the folder with dynasm.lua (%s)")
            :format(name, file, dynasm), 0)
      end
      local chunk, why = dynasm.loadfile(file, { comment = false })
      if not chunk then error(file..": "..tostring(why), 0) end
      return chunk(...)
   end
end

local kinds = {
   { suffix = "_h", extension = ".h", make = header },
   { suffix = "_inc", extension = ".inc", make = text_of },
   { suffix = "_yang", extension = ".yang", make = text_of },
   { suffix = "_events", extension = ".events", make = text_of },
   { suffix = "", extension = ".dasl", make = assembler },
}

-- The path without the part that names its kind: X_h and X/h are both X of kind _h. nil for a module of another kind.
local function stem (path, suffix)
   if suffix == "" then return path end
   local base, mark = path:match("^(.+)([_/])"..suffix:sub(2).."$")
   return mark and base
end

-- A loader for the module, or nil. find(path) returns the name and the text of a file.
function M.maker (name, find)
   local path = name:gsub("%.", "/")
   for _, kind in ipairs(kinds) do
      local base = stem(path, kind.suffix)
      for _, candidate in ipairs(base and startup.candidates(base) or {}) do
         local file, text = find(candidate..kind.extension)
         if file then return kind.make(name, file, text) end
      end
   end
   return nil
end

-- Adds this module to the module search.
function M.install ()
   local makers = startup.makers
   for _, maker in ipairs(makers) do
      if maker == M.maker then return end
   end
   makers[#makers + 1] = M.maker
end

function M.selftest ()
   local files = {
      ["a/b.h"] = "#include <x.h>\n#define Y 1\nstruct generate_selftest { int x, y; };",
      ["a/README.inc"] = "usage", ["y/ietf-inet-types.yang"] = "module z", ["core/app.events"] = "1,2|x",
      ["a/bad.h"] = "struct {",
   }
   local function find (path)
      if files[path] then return "tree/"..path, files[path] end
   end
   assert(M.maker("a.b_h", find)().text == files["a/b.h"])
   assert(ffi.sizeof("struct generate_selftest") == 8)
   assert(M.maker("a.b.h", find) and M.maker("a.bh", find) == nil and M.maker("h", find) == nil)
   assert(M.maker("a.README_inc", find)() == "usage" and M.maker("y.ietf_inet_types_yang", find)() == "module z")
   assert(M.maker("core.app_events", find)() == "1,2|x" and M.maker("a.none_h", find) == nil)
   local fine, why = pcall(M.maker("a.bad_h", find))
   assert(not fine and why:match("^a.bad_h, made from tree/a/bad.h: "), why)
end

return M
