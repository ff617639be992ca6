-- Names of running programs: a link under by-name/ to the directory of the process, so that others find it.

local ffi = require("ffi")
local shm = require("core.shm")

pcall(ffi.cdef, "int symlink (const char *target, const char *path);")
pcall(ffi.cdef, "ssize_t readlink (const char *path, char *to, size_t most);")
pcall(ffi.cdef, "int unlink (const char *path);")
pcall(ffi.cdef, "int getpid (void);")
pcall(ffi.cdef, "int kill (int pid, int signal);")
local C = ffi.C

local M = {}
local function folder () return shm.root.."/by-name" end

local function readlink (path)
   local to = ffi.new("char[?]", 4096)
   local length = tonumber(C.readlink(path, to, 4096))
   return length > 0 and ffi.string(to, length) or nil
end

-- The process that a link points to, and whether it is running.
local function process (link)
   local target = readlink(link)
   local pid = target and tonumber(target:match("([^/]+)$"))
   return pid, pid and C.kill(pid, 0) == 0
end

-- Claims `name`, and gives up the program's previous name.
function M.claim (name, had)
   if had == name then return name end
   local mine, link = shm.root.."/"..C.getpid(), folder().."/"..name
   shm.mkdir("by-name/")
   shm.mkdir(C.getpid().."/")
   if C.symlink(mine, link) ~= 0 then
      local pid, runs = process(link)
      if runs then
         error(("Name already taken: %s is used by process %d: stop it, or choose another name"):format(name, pid), 3)
      end
      -- The program with this name was killed before it could give it up.
      C.unlink(link)
      if C.symlink(mine, link) ~= 0 then error(("cannot make %s"):format(link), 3) end
   end
   if had then M.unclaim(had) end
   C.symlink(link, mine.."/name")
   return name
end

function M.unclaim (name)
   assert(name, "No claim to name.")
   local link = folder().."/"..name
   local mine = assert(readlink(link), "there is no program named "..name)
   C.unlink(mine.."/name")
   C.unlink(link)
   return false
end

-- Running programs: { name -> pid }, or with `by_pid` { pid -> name }.
function M.enumerate (by_pid)
   local programs = {}
   for _, name in ipairs(shm.children("/by-name") or {}) do
      local pid, runs = process(folder().."/"..name)
      if runs then
         if by_pid then programs[pid] = name else programs[name] = pid end
      end
   end
   return programs
end

return M
