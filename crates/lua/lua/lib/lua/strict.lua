-- Makes it an error to read or set an undeclared global in a function, so that typing mistakes are found.
--
-- A global is declared by an assignment in a main chunk, or by C.

local declared = {}
local mt = getmetatable(_G) or {}
setmetatable(_G, mt)

local function setter ()
   local info = debug.getinfo(3, "S")
   return info and info.what or "C"
end

mt.__newindex = function (globals, name, value)
   if not declared[name] then
      local what = setter()
      if what ~= "main" and what ~= "C" then
         error(("assignment to undeclared global %q"):format(tostring(name)), 2)
      end
      declared[name] = true
   end
   rawset(globals, name, value)
end

mt.__index = function (_, name)
   if not declared[name] and setter() ~= "C" then
      error(("use of undeclared global %q"):format(tostring(name)), 2)
   end
end

return {}
