-- How a program knows its arguments, and ends.

local M = {
   -- What followed the program's name on the command line.
   parameters = {},
}

-- Ends the program: apps are stopped and everything is given back first.
function M.exit (status)
   os.exit(status or 0)
end

-- For programs that take care of other processes; here nothing outlives its process but counters in shared memory.
function M.shutdown (pid)
   require("core.shm").unlink("/"..pid)
end

function M.version ()
   return "brickmoon"
end

return M
