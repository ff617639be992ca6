-- What runs first in every Lua state: module search, globals, and the functions that start a program.
--
-- Called with a table from Rust (src/bridge.rs): theirs(path) and ours(path), which return the name and text of a file
-- from the user's folders or from the binary, and what core.runtime describes. Returns the functions that Rust calls.
-- Each is called through `protected`, which turns an error into a message with file, line and traceback, and
-- main.exit() into an exit status.

local bridge = ...

local startup = {}

-- What os.exit() throws: it unwinds the stack, so that everything is released before the process ends.
local Exit = { __tostring = function (self) return "exit with status "..self.status end }

-- The coroutine in which Rust runs the program.
local home

-- Whether a program's own pcall() or coroutine would catch an error. Our own code passes Exit on.
local function is_held_up ()
   if (coroutine.running()) ~= home then return true end
   for level = 2, 250 do
      local info = debug.getinfo(level, "f")
      if not info then return false end
      if info.func == pcall or info.func == xpcall then
         local caller = debug.getinfo(level + 1, "S")
         if caller and caller.source:sub(1, 11) ~= "@brickmoon/" then return true end
      end
   end
   return false
end

function os.exit (status)
   if status == true or status == nil then status = 0 elseif status == false then status = 1 end
   -- If many programs share a process, as in tests, the process stays.
   if bridge.worker == 0 and is_held_up() and startup.has_process() then
      pcall(startup.finish)
      require("brickmoon.sys").exit(status)
   end
   error(setmetatable({ status = status }, Exit), 0)
end

-- Raises an error again that an internal pcall() has caught, if it is the end of the program.
function startup.pass_on (why)
   if getmetatable(why) == Exit then error(why, 0) end
end

-- Whether the process is brickmoon itself.
function startup.has_process ()
   return (require("brickmoon.sys").readlink("/proc/self/exe") or ""):match("/brickmoon$") ~= nil
end

-- The C library's streams; programs may replace io.stdout and io.stderr.
local stdout, stderr = io.stdout, io.stderr

-- Makers of generated modules (X_h, .dasl): functions that take the module's name and return a loader, or nothing.
-- brickmoon.generate adds them.
startup.makers = {}

-- The files that a module may be in. An underscore in a module's name may be a hyphen in the file's name, or a dot
-- before the last part: x_h is also x.h, as in x.h.inc.
function startup.candidates (path)
   local folder, base = path:match("^(.*/)([^/]*)$")
   if not folder then folder, base = "", path end
   local list = { path }
   local function add (name) if name ~= base then list[#list + 1] = folder..name end end
   add((base:gsub("_", "-")))
   add((base:gsub("_([^_]*)$", ".%1")))
   return list
end

local function compiled (name, found, text)
   local loader, why = load(text, "@"..found)
   if not loader then error(why, 0) end
   return not name:match("^core%.") and require("core.quirks").loader(name, loader) or loader
end

-- A loader for the module from the files that find(path) knows, or nil.
local function from (find, name)
   for _, path in ipairs(startup.candidates((name:gsub("%.", "/")))) do
      for _, file in ipairs { path..".lua", path.."/init.lua" } do
         local found, text = find(file)
         if found then return compiled(name, found, text) end
      end
   end
   for _, maker in ipairs(startup.makers) do
      local loader = maker(name, find)
      if loader then return loader end
   end
end

-- The user's folders come before the binary, whatever kind of file a module is made from.
local function searcher (name)
   return from(bridge.theirs, name) or from(bridge.ours, name)
      or "\n\tno module '"..name.."' in the folders of --path, in those of [lua] path, or in brickmoon"
end

-- After package.preload and before LUA_PATH.
table.insert(package.loaders, 2, searcher)
package.loaded["core.startup"] = startup
startup.bridge = bridge
require("brickmoon.generate").install()

-- The position in the program: the innermost line that is not ours.
local function place ()
   for level = 3, 250 do
      local info = debug.getinfo(level, "Sl")
      if not info then return "" end
      if info.source:sub(1, 1) == "@" and info.source:sub(1, 11) ~= "@brickmoon/" and info.currentline > 0 then
         return ("%s:%d: "):format(info.short_src, info.currentline)
      end
   end
end

-- The app whose method the engine called, or nothing.
local function app_at_work ()
   local app = package.loaded["core.app"]
   local name = type(app) == "table" and app.at_work and app.at_work()
   return name and (" (in app %s)"):format(name) or ""
end

local function trace (what)
   if type(what) == "table" and what.traceback then return what end
   if getmetatable(what) == Exit then return what end
   -- Errors from Rust come with a traceback of their own.
   local message = tostring(what):gsub("\nstack traceback:.*", "")
   if not message:match("^[^\n]-:%d+: ") then message = place()..message end
   return { message = message..app_at_work(), traceback = debug.traceback("", 2):gsub("^\n", "") }
end

startup.explain = trace

-- Calls f(...): "done"; "exit" and a status; or "error", a message and a traceback.
function startup.protected (f, ...)
   local fine, what = xpcall(f, trace, ...)
   if fine then return "done" end
   if getmetatable(what) == Exit then return "exit", what.status end
   return "error", what.message, what.traceback
end

-- Globals that programs expect. Strictness is enabled last, so that our own modules are not affected.
local function globals ()
   require("lib.lua.class")
   for _, name in ipairs { "lib", "config", "link", "packet", "timer", "main" } do
      local fine, module = pcall(require, "core."..name)
      if fine then
         if name ~= "lib" then rawset(_G, name, module) end
      elseif bridge.ours("core/"..name..".lua") then
         error(module, 0)
      end
   end
   local fine, app = pcall(require, "core.app")
   if fine then rawset(_G, "engine", app) elseif bridge.ours("core/app.lua") then error(app, 0) end
   local fine, memory = pcall(require, "core.memory")
   if fine then rawset(_G, "memory", memory) elseif bridge.ours("core/memory.lua") then error(memory, 0) end
   rawset(_G, "timeline", require("core.timeline"))
   rawset(_G, "developer_debug", false)
   require("core.globals").install()
   require("lib.lua.strict")
end

local function parameters (...)
   local main = package.loaded["core.main"]
   if main then main.parameters = { ... } end
end

-- Writes what is still buffered, before collected objects may close descriptors 1 and 2.
local lost = false
local function flush ()
   stdout:flush()
   local streams = rawget(_G, "io")
   local current = type(streams) == "table" and streams.stdout
   if lost or not current or current == stdout then return end
   local fine, why = pcall(function () return current:flush() end)
   if fine then return end
   lost = true
   stderr:write("brickmoon: io.stdout cannot be written: ", tostring(why), "\n")
end

-- Called at every end of a program: stops the apps, so that they release what they hold. Flushes before and after,
-- since both the program and the stopping apps may have left something to write.
function startup.finish ()
   flush()
   local app = package.loaded["core.app"]
   if type(app) == "table" and app.stop then app.stop() end
   if type(app) == "table" and app.program_name then app.unclaim_name() end
   -- Objects in shared memory end with the process, unless many programs share one, as in tests.
   local shm = package.loaded["core.shm"]
   if shm and startup.has_process() then shm.unlink("/"..require("brickmoon.sys").getpid()) end
   flush()
end

-- brickmoon run FILE ARGUMENTS
function startup.file (path, ...)
   globals()
   parameters(...)
   local program, why = loadfile(path)
   if not program then error(why, 0) end
   local folder = path:match("^(.*)/[^/]*$") or "."
   package.path = folder.."/?.lua;"..folder.."/?/init.lua;"..package.path
   program(...)
end

-- brickmoon snabb PROGRAM ARGUMENTS
function startup.named (name, ...)
   globals()
   parameters(...)
   local main = require("core.main")
   main.program = name
   local module = main.modulename(name)
   local program = require(module)
   if type(program) ~= "table" or type(program.run) ~= "function" then
      error(module.." has no function run()", 0)
   end
   program.run({ ... })
end

-- The request that Rust has left here: { function, arguments ... }. Rust finds the answer here, too.
function startup.carry_out ()
   local order = startup.order
   home = coroutine.running()
   startup.outcome = { startup.protected(startup[order[1]], unpack(order, 2)) }
end

-- A request of the program's first worker to another one: a function of core.workers, with its argument as bytes.
local begun = false
function startup.worker (name, bytes)
   if not begun then globals() begun = true end
   startup.result = require("core.workers").remote[name](bytes)
end

-- The apps of a daemon's worker: returns core.part.
function startup.part ()
   globals()
   startup.prepared = require("core.part")
end

-- Runs a chunk, and keeps the function that it returns.
function startup.prepare (name, text, argument)
   globals()
   startup.prepared = assert(load(text, "@"..name))(argument)
end

-- brickmoon snabb -t MODULE
function startup.test (name, ...)
   globals()
   parameters(...)
   name = name:gsub("%.lua$", ""):gsub("/", ".")
   local module = require(name)
   if type(module) ~= "table" or not rawget(module, "selftest") then
      error(("module %s has no function selftest()"):format(name), 0)
   end
   module.selftest()
end

return startup
