-- How a program is found by name, gets its arguments, and ends.

local bridge = require("core.startup").bridge

local M = {
   -- The arguments after the program's name on the command line.
   parameters = {},
}

-- Ends the program. Apps are stopped and all resources are released first.
function M.exit (status)
   os.exit(status or 0)
end

-- For programs that manage other processes. All that a process leaves behind here are its counters in shared memory.
function M.shutdown (pid)
   require("core.shm").unlink("/"..pid)
end

-- Prints the version.
function M.version ()
   print("brickmoon "..bridge.version)
end

-- The name of the program for the name of an executable file: `/usr/bin/snabb-nfv-1.0` is `nfv`.
function M.programname (file)
   local name = file:match("[^/]*$"):gsub("%-[%d.]+[%w-]*$", ""):gsub("%-", "_")
   return (name:gsub("^snabb_", ""))
end

-- The module that holds the program's run().
function M.modulename (program)
   local name = M.programname(program)
   return ("program.%s.%s"):format(name, name)
end

-- The command line as a Snabb program expects it: its own name, and its arguments.
function M.parse_command_line ()
   local words = { M.program or "snabb" }
   for _, word in ipairs(M.parameters) do words[#words + 1] = word end
   return words
end

-- Takes the program's name from the words of a command line, which may begin with `snabb`. Returns it and the rest.
function M.select_program (words)
   local name = M.programname(table.remove(words, 1))
   if name == "snabb" then
      if #words == 0 then error("no program given; usage: snabb PROGRAM [ARGUMENTS]", 0) end
      name = M.programname(table.remove(words, 1))
   end
   return name, words
end

function M.selftest ()
   for file, name in pairs {
      ["/bin/snabb-1.0"] = "snabb", ["/bin/snabb-1.0-rc2"] = "snabb", ["snabb-packet-filter"] = "packet_filter",
      ["/opt/top-2024.08"] = "top", ["./example_spray"] = "example_spray",
   } do
      assert(M.programname(file) == name, file.." gives "..M.programname(file))
   end
   assert(M.modulename("a-b-2.1") == "program.a_b.a_b")
   for _, words in ipairs { { "snabb", "top", "-l" }, { "snabb-top", "-l" }, { "/x/snabb", "snabb-top", "-l" } } do
      local name, left = M.select_program(words)
      assert(name == "top" and #left == 1 and left[1] == "-l")
   end
   assert(not pcall(M.select_program, { "snabb" }))
end

return M
