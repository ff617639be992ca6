-- brickmoon snabb timeline PID [PATH]: prints what a running program logs to its timeline (core.timeline).
--
--    PID    the program's process id, or the name that it has claimed
--    PATH   the timeline, if it is not events.timeline
--
-- One line per event: the time since the first event in cycles, the core, the event, and its arguments.

local timeline = require("core.timeline")
local names = require("core.names")

local USAGE = "usage: brickmoon snabb timeline PID|NAME [PATH]"

local M = {}

-- "core.breath_end: a b" with { 1, 2, ... } as "core.breath_end a=1 b=2"
function M.line (entry, since)
   local name, arguments = entry.event:match("^([^:]*):%s*(.*)$")
   local words, i = { ("%14.0f  %2d  %s"):format(entry.tsc - since, entry.core, name) }, 0
   for argument in arguments:gmatch("%S+") do
      i = i + 1
      words[#words + 1] = ("%s=%.14g"):format(argument, entry.values[i])
   end
   return table.concat(words, " ")
end

function M.run (arguments)
   local program, path = arguments[1], arguments[2] or "events.timeline"
   if not program or program:match("^%-") or #arguments > 2 then
      io.stderr:write(USAGE, "\n")
      os.exit(2)
   end
   local pid = program:match("^%d+$") and program or names.enumerate()[program]
   if not pid then error("there is no program named "..program, 0) end
   local entries = timeline.read(("/%s/%s"):format(pid, path))
   for _, entry in ipairs(entries) do print(M.line(entry, entries[1].tsc)) end
end

function M.selftest ()
   local entry = { tsc = 1500, core = 3, event = "core.breath_end app=x: a b", values = { 1, 2.5, 0 } }
   assert(M.line(entry, 1000) == "           500   3  core.breath_end app=x a=1 b=2.5", M.line(entry, 1000))
   assert(M.line({ tsc = 1, core = 0, event = "x.y:", values = {} }, 1) == "             0   0  x.y")
end

return M
