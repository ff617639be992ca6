-- Counts what the READMEs of a tree's core and lib describe ("- Function **module.name**"), and how much of it
-- exists. Run by `cargo xtask snabb TREE --coverage` with the tree's `src` as argument.

local src = main.parameters[1]

-- The module for a name before the dot, where it has another name.
local owners = {
   config = "core.config", engine = "core.app", link = "core.link", packet = "core.packet", memory = "core.memory",
   shm = "core.shm", counter = "core.counter", histogram = "core.histogram", lib = "core.lib", worker = "core.worker",
   main = "core.main", timer = "core.timer", pci = "lib.hardware.pci", Register = "lib.hardware.register",
   register = "lib.hardware.register", Poptrie = "lib.poptrie", watchdog = "lib.watchdog.watchdog",
   encrypt = "lib.ipsec.esp", decrypt = "lib.ipsec.esp", ptree = "lib.ptree.ptree",
   icmp = "lib.protocol.icmp.header", nd = "lib.protocol.icmp.nd.header", ns = "lib.protocol.icmp.nd.ns",
   na = "lib.protocol.icmp.nd.na", tlv = "lib.protocol.icmp.nd.options.tlv",
   lladdr = "lib.protocol.icmp.nd.options.lladdr",
}

local function module_of (readme, owner)
   local folder = (readme:match("^(.*)/") or "core"):gsub("/", ".")
   for _, name in ipairs { owners[owner] or folder.."."..owner, "lib."..owner } do
      local fine, found = pcall(require, name)
      if fine and type(found) == "table" then return found end
   end
   return {}
end

local function has (t, name)
   local fine, value = pcall(function () return t[name] end)
   return fine and value ~= nil
end

-- Whether a function of the module returns a table with this method: the class of objects that the module creates.
local function makes (module, method)
   for _, value in pairs(module) do
      for i = 1, type(value) == "function" and 60 or 0 do
         local name, inner = debug.getupvalue(value, i)
         if not name then break end
         local class = type(inner) == "table" and rawget(inner, "__index")
         if type(inner) == "table" and has(inner, method) or type(class) == "table" and has(class, method) then return true end
      end
      if type(value) == "table" and has(value, method) then return true end
   end
   return false
end

local function is_there (readme, owner, separator, name)
   if owner == "string" then return has(string, name) end
   local module = module_of(readme, owner)
   return has(module, name) or separator == ":" and makes(module, name)
end

local function count (readme)
   local all, missing = 0, {}
   for line in io.lines(src.."/"..readme) do
      local kind, owner, separator, name = line:match("^— (%a+) %*%*([%w_]+)([.:])([%w_]+)%*")
      if kind and kind ~= "Field" and owner ~= "myapp" then
         all = all + 1
         if not is_there(readme, owner, separator, name) then missing[#missing + 1] = owner..separator..name end
      end
   end
   return all, missing
end

local total, there = 0, 0
local files = io.popen("cd '"..src.."' && find README.md core lib -name 'README*.md' | sort")
for readme in files:lines() do
   local all, missing = count(readme)
   if all > 0 then
      total, there = total + all, there + all - #missing
      local rest = #missing > 0 and "   missing: "..table.concat(missing, " ") or ""
      print(("%-28s %4d of %4d%s"):format(readme, all - #missing, all, rest))
   end
end
files:close()
print(("%-28s %4d of %4d"):format("all", there, total))
