-- Named objects in shared memory, which other processes can open while we use them.
--
--    create("apps/foo/drops.counter", "struct counter")   ->  ROOT/PID/apps/foo/drops.counter
--    open("/1234/apps/foo/drops.counter", ...)            ->  ROOT/1234/apps/foo/drops.counter
--
-- Each object is a mapped file on a RAM disk. ROOT is SNABB_SHM_ROOT if set, else /run/brickmoon/shm if it is
-- writable, else a directory of the user. The creator of a name unlinks it; unlinked memory lives until it is unmapped.
-- There are no locks on purpose: an object has one writer.

local ffi = require("ffi")
local sys = require("brickmoon.sys")

local M = {}

local function pick_root ()
   local asked = os.getenv("SNABB_SHM_ROOT")
   if asked and asked ~= "" then return asked end
   if sys.mkdirs("/run/brickmoon/shm") and sys.writable("/run/brickmoon/shm") then return "/run/brickmoon/shm" end
   local own = os.getenv("XDG_RUNTIME_DIR")
   if own and own ~= "" and sys.writable(own) then return own.."/brickmoon" end
   local shared = (sys.writable("/dev/shm") and "/dev/shm" or "/tmp").."/brickmoon-"..sys.user()
   local made, why = sys.own_folder(shared)
   if not made then error("shm: "..why..": set SNABB_SHM_ROOT to another folder", 0) end
   return shared
end

-- The directory that holds all objects.
M.root = pick_root()

-- Sizes of mappings, by address.
M.mappings = {}

-- Other workers of a program have their objects in directories of their own; `group` is shared by all.
local worker = require("core.startup").bridge.worker
local home = worker == 0 and "" or "workers/"..worker.."/"

-- Removes objects of processes that ended without removing them, for example by SIGKILL.
function M.sweep ()
   for _, pid in ipairs(sys.names(M.root) or {}) do
      if pid:match("^%d+$") and not sys.exists("/proc/"..pid) then sys.remove(M.root.."/"..pid) end
   end
end
if worker == 0 then M.sweep() end

-- The path of a name below ROOT: with a leading slash, the name starts with a process id.
function M.resolve (name)
   local slash, rest = name:match("^(/*)(.*)")
   if slash == "/" then return rest end
   if worker ~= 0 and not rest:match("^group/") then rest = home..rest end
   return sys.getpid().."/"..rest
end

function M.path (name) return M.root.."/"..M.resolve(name) end

function M.pointer_to_number (pointer)
   return tonumber(ffi.cast("uint64_t", ffi.cast("void *", pointer)))
end

-- Creates the directory `name`, which is already resolved.
function M.mkdir (name)
   local made, why = sys.mkdirs(M.root.."/"..name)
   if not made then error("shm: cannot create a folder: "..why, 2) end
end

-- For a type of variable length, `...` is the number of its elements.
local function map (name, ctype, readonly, create, ...)
   ctype = ffi.typeof(ctype)
   local resolved, size = M.resolve(name), ffi.sizeof(ctype, ...)
   if create then M.mkdir(resolved:match("^(.*)/[^/]*$") or "") end
   local at, before = sys.map_file(M.root.."/"..resolved, size, readonly, create)
   if not at then error(("shm open error (%s): %s"):format(resolved, before), 3) end
   if create and before ~= 0 and before ~= size then
      print(("shm warning: resizing %s from %d to %d bytes"):format(resolved, before, size))
   end
   M.mappings[M.pointer_to_number(at)] = size
   return ffi.cast(ffi.typeof("$ &", ctype), at)
end

-- Maps an object of this C type, and creates it if it does not exist. An existing object keeps its content.
function M.create (name, ctype, ...) return map(name, ctype, false, true, ...) end

-- Maps an existing object. It is an error if it does not exist or is too small.
function M.open (name, ctype, readonly, ...) return map(name, ctype, readonly, false, ...) end

function M.exists (name) return sys.exists(M.path(name)) end

-- Gives `target` another name.
function M.alias (name, target)
   M.mkdir(M.resolve(name):match("^(.*)/[^/]*$") or "")
   local made, why = sys.symlink(M.path(target), M.path(name))
   if not made then error(("shm: cannot alias %s to %s: %s"):format(name, target, why), 2) end
end

function M.unmap (pointer)
   local at = M.pointer_to_number(pointer)
   local size = M.mappings[at] or error("shm mapping not found", 2)
   sys.unmap(ffi.cast("void *", pointer), size)
   M.mappings[at] = nil
end

-- Removes the name and, if it is a directory, everything below it. Returns true, or nil and the reason.
function M.unlink (name)
   local resolved = M.resolve(name)
   if resolved:match("^/*$") or ("/"..resolved.."/"):find("/../", 1, true) then
      error("shm: refusing to unlink '"..name.."'", 2)
   end
   return sys.remove(M.root.."/"..resolved)
end

-- The names in a directory; empty if there is no such directory.
function M.children (name) return sys.names(M.path(name)) or {} end

-- Frames: a directory of objects whose types are the suffixes of their names.

-- Modules by the suffix of their objects.
M.types = {}

-- Registers `module` for objects with the suffix `.type`. Returns the type.
function M.register (type, module)
   assert(module, "Must supply module")
   assert(not M.types[type], "Duplicate shm type: "..type)
   M.types[type] = module
   return type
end

-- Creates the objects { name = { module, arguments... } } below path. frame[name] is the object.
function M.create_frame (path, specs)
   local frame = { specs = specs, path = path.."/" }
   for name, spec in pairs(specs) do
      if frame[name] ~= nil then error("shm: duplicate name: "..name, 2) end
      local module = spec[1]
      frame[name] = module.create(frame.path..name.."."..module.type, unpack(spec, 2))
   end
   return frame
end

-- Opens the objects below path for reading. Objects of unregistered types are skipped.
function M.open_frame (path)
   local frame = { specs = {}, path = path.."/", readonly = true }
   for _, file in ipairs(M.children(path)) do
      local name, type = file:match("^(.*)%.([^.]*)$")
      local module = M.types[type]
      if module then
         if frame[name] ~= nil then error("shm: duplicate name: "..name, 2) end
         frame[name] = module.open(frame.path..file, "readonly")
         frame.specs[name] = { module }
      end
   end
   return frame
end

-- Unmaps a frame's objects, and removes the directory if create_frame made it.
function M.delete_frame (frame)
   for name, spec in pairs(frame.specs) do
      local module = spec[1]
      if rawget(module, "delete") then
         module.delete(frame.path..name.."."..module.type)
      else
         M.unmap(frame[name])
      end
   end
   if not frame.readonly then M.unlink((frame.path:gsub("/+$", ""))) end
end

local function test_objects ()
   local name, ctype = "shm/selftest/object", "struct { int x, y, z; }"
   assert(not M.exists(name))
   local one, two = M.create(name, ctype), M.create(name, ctype)
   one.x = 42
   assert(one ~= two and two.x == 42 and M.exists(name))
   assert(M.open(name, ctype, true).x == 42)
   M.alias("shm/selftest/alias", name)
   assert(M.open("shm/selftest/alias", ctype).x == 42)
   local fine, why = pcall(M.open, name, "char[13]")
   assert(not fine and why:match("it has 12 bytes, but the type needs 13"), why)
   assert(M.open(name, "char[5]")[0] == 42)
   assert(not pcall(M.open, "shm/selftest/none", ctype))
   local row = M.create("shm/selftest/row", "struct { int n; int x[?]; }", 5)
   row.x[4] = 7
   assert(M.open("shm/selftest/row", "struct { int n; int x[?]; }", true, 5).x[4] == 7)
   assert(not pcall(M.open, "shm/selftest/row", "struct { int n; int x[?]; }", true, 6))
   M.unmap(row)
   assert(M.unlink(name) and two.x == 42 and not M.exists(name))
   M.unmap(one)
   M.unmap(two)
   assert(not pcall(M.unmap, two) and not pcall(M.unlink, "/") and not pcall(M.unlink, "/1/../x"))
end

local function test_frames ()
   local number = { type = "selftest_number" }
   function number.create (name, value)
      local object = M.create(name, "int[1]")
      object[0] = value
      return object
   end
   function number.open (name) return M.open(name, "int[1]", true) end
   number.type = M.register("selftest_number", number)
   assert(not pcall(M.register, "selftest_number", number))
   local frame = M.create_frame("shm/selftest/frame", { a = { number, 1 }, b = { number, 2 } })
   local view = M.open_frame("shm/selftest/frame")
   assert(view.a[0] == 1 and view.b[0] == 2)
   frame.a[0] = 7
   assert(view.a[0] == 7)
   M.delete_frame(view)
   assert(M.exists("shm/selftest/frame/a.selftest_number"))
   M.delete_frame(frame)
   assert(#M.children("shm/selftest/frame") == 0)
   M.types.selftest_number = nil
end

local function test_sweep ()
   -- No process has this number: pids are at most 4194304.
   local gone = "/99999999/left/object"
   M.create(gone, "int")
   assert(M.exists(gone))
   M.sweep()
   assert(not M.exists(gone) and not M.exists("/99999999"))
end

function M.selftest ()
   local pid = tostring(sys.getpid())
   test_sweep()
   assert(M.resolve("/"..pid.."/foo") == M.resolve("foo") and M.resolve("/7/x") == "7/x")
   test_objects()
   test_frames()
   local folder, many = "shm/selftest/many", {}
   for i = 1, 2000 do many[i] = M.create(folder.."/"..i, "uint64_t[1]") end
   assert(#M.children(folder) == #many)
   for i = 1, #many do M.unmap(many[i]) end
   assert(M.unlink("shm") and #M.children("shm") == 0)
end

return M
