-- Workers: processes of our own binary that run a piece of Lua code, each with its own engine.
--
--    worker.start("w1", [[ engine.configure(...) engine.main() ]])
--
-- A worker has our `--path` folders and environment, shares the shm directory `group` with us, and ends when we end.
-- To use many cores in one process, see core.workers.

local shm = require("core.shm")
local sys = require("brickmoon.sys")

local M = {}

-- The program that runs workers; change it where the process is not brickmoon itself.
M.executable = "/proc/self/exe"

local children = {}

-- Runs before the worker's code: sets PR_SET_PDEATHSIG, then checks whether the parent has died before that.
local prelude = [[
require("ffi").cdef("int bm_prctl(int, unsigned long) __asm__(\"prctl\"); int bm_getppid(void) __asm__(\"getppid\");")
require("ffi").C.bm_prctl(1, 9)
if require("ffi").C.bm_getppid() ~= %d then os.exit(1) end
require("core.shm").alias("group", "/%d/group")
]]

local function command_line ()
   local file = assert(io.open("/proc/self/cmdline"))
   local text = file:read("*a")
   file:close()
   local words = {}
   for word in text:gmatch("([^%z]*)%z") do words[#words + 1] = word end
   return words
end

-- The options about modules and packets that this process was started with.
local function own_options ()
   local words, found = command_line(), {}
   for i, word in ipairs(words) do
      if (word == "--path" or word == "--packet-bytes") and words[i + 1] then
         found[#found + 1] = word.."="..words[i + 1]
      elseif word:match("^%-%-path=") or word:match("^%-%-packet%-bytes=") then
         found[#found + 1] = word
      end
   end
   return found
end

-- The file with a worker's code. A worker's name may be a number, or have any characters in it, such as a slash.
local function code_path (name)
   local plain = tostring(name):gsub("[^%w_.-]", function (c) return ("%%%02x"):format(c:byte()) end)
   return shm.path("group/worker-"..plain..".lua")
end

-- Starts a worker that runs the code. Returns its process id; raises an error if it cannot be started.
function M.start (name, luacode)
   if children[name] and not children[name].how then error("worker '"..name.."' is running already", 2) end
   local pid = sys.getpid()
   shm.mkdir(shm.resolve("group"))
   local path = code_path(name)
   local file = assert(io.open(path, "w"))
   -- On one line, so that line numbers in messages are those of the worker's code.
   file:write((prelude:format(pid, pid):gsub("\n", " ")), luacode)
   file:close()
   local arguments = { "brickmoon", "run" }
   for _, option in ipairs(own_options()) do arguments[#arguments + 1] = option end
   arguments[#arguments + 1] = path
   local child, why = sys.spawn(M.executable, arguments)
   if not child then error("cannot start worker '"..name.."': "..why, 2) end
   children[name] = { pid = child, path = path }
   return child
end

local function update (child)
   if not child.how then
      child.how, child.number = sys.wait(child.pid, false)
      if child.how then os.remove(child.path) end
   end
end

-- Kills a worker.
function M.stop (name)
   local child = children[name] or error("no such worker: "..tostring(name), 2)
   update(child)
   if child.how then return end
   sys.kill(child.pid, 9)
   child.how, child.number = sys.wait(child.pid, true)
   os.remove(child.path)
end

-- { name = { pid =, alive =, status = } }: status is the exit status of a worker that has ended by itself.
function M.status ()
   local status = {}
   for name, child in pairs(children) do
      update(child)
      status[name] = { pid = child.pid, alive = not child.how,
                       status = child.how == "exit" and child.number or nil }
   end
   return status
end

local function wait_for (condition)
   for _ = 1, 1000 do
      if condition() then return true end
      sys.usleep(10000)
   end
   return false
end

function M.selftest ()
   local executable = sys.readlink("/proc/self/exe") or ""
   if not executable:match("/brickmoon$") then os.exit(43) end
   M.start("loops", "while true do end")
   M.start("test/0: ends", "os.exit(7)")
   M.start(1, "os.exit(0)")
   M.start("shares", [[ require("core.shm").create("group/from-worker", "int[1]")[0] = 42 ]])
   assert(M.status().loops.alive and not pcall(M.start, "loops", ""))
   assert(wait_for(function () return not M.status()["test/0: ends"].alive and not M.status().shares.alive
      and not M.status()[1].alive end))
   assert(M.status()["test/0: ends"].status == 7 and M.status().shares.status == 0)
   assert(shm.open("group/from-worker", "int[1]")[0] == 42 and M.status().loops.alive)
   M.stop("loops")
   assert(not M.status().loops.alive and not pcall(M.stop, "none"))
   shm.unlink("group")
end

return M
